"""Services and workers that a run starts: they log to its folder and never outlive it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def _die_with_parent() -> None:
    """In the child, before exec: ask Linux to kill it when the parent is gone, kill -9 included."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def descendants(pid: int) -> list[int]:
    """The processes that `pid` has started, and theirs (Linux; elsewhere none are found)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = list(children.get(pid, []))
    for child in found:  # grows while it is walked
        found += children.get(child, [])
    return found


def peak_rss_mb(pid: int | str = "self") -> float | None:
    """The most memory a process has held, in MiB; None where the system does not tell (it has ended, or this is not Linux)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None


def forget_peak_rss() -> None:
    """Let `peak_rss_mb` of this process count from now on (Linux), as one process may run many jobs."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class Service:
    """A child process in the run's process group, its output in `log`. Stopped when the run ends, however it ends.

    Start services from the main thread: Linux ends them with the thread that started them.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path, **popen: Any):
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
                **popen,
            )
        self._peak = 0.0

    @property
    def peak_rss_mb(self) -> float:
        """The most memory the service has held so far, in MiB (0 where the system does not tell)."""
        self._peak = max(self._peak, peak_rss_mb(self.process.pid) or 0.0)
        return self._peak

    def stop(self, grace: float = 5.0) -> int:
        """Ask the service to end, kill it after `grace` seconds, and return its exit code."""
        _ = self.peak_rss_mb
        family = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in family:  # what the service had started and did not end itself
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.process.wait()

    def __repr__(self) -> str:
        return f"Service({self.name!r}, pid={self.process.pid}, log={os.fspath(self.log)!r})"
