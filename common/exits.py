"""Exit codes, and what a person is told when a command ends early."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback

from common import signals
from common.errors import Interrupted, UserError, as_user_error

DONE, BUG, USER, GATE = 0, 1, 2, 3  # and 130, 143: interrupted
WORST_FIRST = (BUG, USER, GATE, DONE)


def worst(codes: list[int]) -> int:
    """The exit code of several: interrupted, else 1 before 2, 3 and 0."""
    return min(codes, key=lambda code: WORST_FIRST.index(code) if code in WORST_FIRST else -1, default=DONE)


def code_of(error: BaseException) -> int:
    """The exit code that an exception stands for."""
    if isinstance(error, Interrupted):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return 130
    return getattr(error, "exit_code", USER) if isinstance(error, UserError) else BUG


def as_ending(error: BaseException) -> BaseException:
    """The exception as a command ends with it: Interrupted where a signal came, whatever a library made of it."""
    if (code := signals.asked()) is not None:
        return error if isinstance(error, Interrupted) else Interrupted(code)
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(130)
    return as_user_error(error)


def explain(error: BaseException) -> int:
    """Say on stderr why a command ends early, and return its exit code. Bugs keep their traceback."""
    error = as_ending(error)
    folder = getattr(error, "run_folder", None)
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, BrokenPipeError):
        return flushed(DONE)  # the reader of our output had enough
    code = code_of(error)
    if isinstance(error, UserError):
        tell(f"error: {error}")
    elif isinstance(error, Interrupted):
        tell(f"interrupted: what was finished is kept{f', go on with resume={folder}' if folder else ''}")
    else:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
        kept = f"; the traceback is also in {folder / 'traceback.txt'}" if folder else ""
        tell(f"this is a bug: {type(error).__name__}{kept}")
    if folder and (folder / "result.json").exists():
        with contextlib.suppress(OSError):
            print(f"result: {folder / 'result.json'}")
    return flushed(code)


def tell(text: str) -> None:
    """Print a line on stderr for the person who watches; a full or closed stderr is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def flushed(code: int) -> int:
    """`code`, or 2 where stdout cannot be written (a full disk), without Python's own complaint at exit."""
    try:
        sys.stdout.flush()
    except ValueError:  # closed
        return code
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return code
        tell(f"error: cannot write to the output ({error.strerror}): send it to a place with room")
        code = USER
    try:
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


def open_streams() -> None:
    """Stand-ins for a stdin, stdout or stderr that the command was started without: no file may take their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
