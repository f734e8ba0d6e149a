"""SIGINT, SIGTERM and SIGUSR2: a flag that is set at once, and an exception where one may be raised.

An exception that is raised in a signal handler may be swallowed or wrapped by a library (during its import, in a
callback), so it is the flag that decides how a command ends: `asked()`. Inside a resumable step (`holding`) nothing is
raised until the step ends, unless the signal comes twice; during an import, not before the import has ended.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from common.errors import Interrupted

STOPS = (signal.SIGINT, signal.SIGTERM)
AGAIN = 0.05  # seconds until a signal that came during an import is looked at again


@dataclass
class _State:
    code: int | None = None  # 128 + the number of the first signal
    count: int = 0
    holding: int = 0  # resumable steps that we are within
    depth: int = 0  # blocks that handle signals
    retry: bool = False  # the next signal is one of ours, sent when an import may have ended
    told: bool = False


_state = _State()


def asked() -> int | None:
    """The exit code that a signal asks for (130, 143), or None."""
    return _state.code


def stop_if_asked() -> None:
    """Raise Interrupted where a signal has come: called wherever work was just made safe."""
    if _state.code is not None:
        raise Interrupted(_state.code)


def stop_here() -> None:
    """Raise Interrupted where a signal has come, but not within a step that is held and has been asked once."""
    if _state.code is not None and not (_state.holding and _state.count == 1):
        raise Interrupted(_state.code)


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """Inside the block a first signal only sets the flag."""
    _state.holding += 1
    try:
        yield
    finally:
        _state.holding -= 1


def stop(number: int, frame: FrameType | None) -> None:
    """The handler of signals that ask a run to stop."""
    from common.exits import tell

    if _state.retry:
        _state.retry = False
    else:
        _state.count += 1
        if _state.code is None:
            _state.code = 128 + number
    if _state.holding and _state.count == 1:
        if not _state.told:
            _state.told = True
            tell("stopping after this step; once more to stop at once")
        return
    if _importing(frame):
        timer = threading.Timer(AGAIN, _send_again, [number])
        timer.daemon = True
        timer.start()
        return
    assert _state.code is not None
    raise Interrupted(_state.code)


def _send_again(number: int) -> None:
    if _state.depth and _state.code is not None:
        _state.retry = True
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def handled(*numbers: signal.Signals) -> Iterator[None]:
    """The signals (SIGINT and SIGTERM) ask to stop inside the block, in the main thread. Of nested blocks the outermost counts."""
    if threading.current_thread() is not threading.main_thread() or _state.depth:
        yield
        return
    before: dict[Any, Any] = {}
    forget()
    _state.depth += 1
    try:
        for number in numbers or STOPS:
            before[number] = signal.signal(number, stop)
        yield
    finally:
        _state.depth -= 1
        forget()  # a process may go on: a notebook that was interrupted
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def forget() -> None:
    """Take back what a signal asked for."""
    _state.code, _state.count, _state.told, _state.retry = None, 0, False, False
