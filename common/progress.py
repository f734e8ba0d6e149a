"""Bars with an ETA on a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from common.exits import tell

T = TypeVar("T")
EVERY = 10.0  # seconds between plain lines


class Progress:
    """One set of bars for one run; nested loops stack."""

    def __init__(self, enabled: bool = True):
        self.enabled = enabled
        self._bars: Any = None

    def track(self, iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        """Yield from `iterable`, showing how far it is; `total` where `len(iterable)` is not known."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        if not self.enabled:
            return iter(iterable)
        return (
            self._bar(iterable, description, total)
            if sys.stderr.isatty()
            else self._lines(iterable, description, total)
        )

    def _bar(self, iterable: Iterable[T], description: str, total: int | None) -> Iterator[T]:
        if self._bars is None:
            from rich import progress
            from rich.console import Console

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bars.start()
        task = self._bars.add_task(description, total=total)
        try:
            for item in iterable:
                yield item
                self._bars.advance(task)
        finally:
            self._bars.remove_task(task)

    def _lines(self, iterable: Iterable[T], description: str, total: int | None) -> Iterator[T]:
        start = last = time.monotonic()
        for done, item in enumerate(iterable, start=1):
            yield item
            now = time.monotonic()
            if now - last >= EVERY:
                last = now
                left = f", {_clock((now - start) / done * (total - done))} left" if total else ""
                tell(f"{description}: {done}{f'/{total}' if total else ''} after {_clock(now - start)}{left}")

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
