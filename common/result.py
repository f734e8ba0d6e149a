"""result.json: what a run leaves behind, and reading it back."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT

SCHEMA = 1
PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "hydra-core",
    "omegaconf",
    "pytorch-lightning",
    "transformers",
    "tokenizers",
    "safetensors",
    "numba",
)


@dataclass(frozen=True)
class Result:
    """A run folder and the content of its result.json; the names below are its fields (schema 1)."""

    folder: Path
    record: dict[str, Any]
    was_done: bool = False  # resumed although it was already done: nothing ran

    def __getattr__(self, name: str) -> Any:
        try:
            return self.record[name]
        except KeyError:
            raise AttributeError(f"result.json of {self.folder} has no field {name!r}") from None

    @property
    def exit_code(self) -> int:
        """0 done, 1 a bug, 2 the user can fix it, 3 done but a gated claim does not hold, 130/143 interrupted."""
        if self.was_done:
            return 0
        if self.status == "done":
            return 3 if any(claim["gate"] and claim["holds"] is False for claim in self.claims) else 0
        return self.record.get("error", {}).get("exit_code", 1)


def load_result(folder: str | os.PathLike) -> Result:
    """Read the result.json of a run folder (or the file itself). Raises UserError where it is missing or damaged."""
    path = Path(folder).expanduser().absolute()
    if not path.exists():
        raise UserError(f"{path} does not exist: name the folder of a run, such as runs/quip_sharp/ci/latest")
    path = path / "result.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{path.parent} is not a run folder (no result.json): name one such as runs/quip_sharp/ci/latest"
        ) from None
    except NotADirectoryError:
        raise UserError(f"{folder} is not a run folder: name one that holds a result.json") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete that run and start it again") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UserError(f"{path} is not of result schema {SCHEMA}: it was not written by this version; start a new run")
    return Result(path.parent, data)


@cache
def git_state() -> tuple[str | None, bool | None]:
    """(commit, dirty) of the clone, or (None, None) where git or its folder is missing."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", ROOT, *args], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return None, None


@cache
def versions(more: tuple[str, ...] = ()) -> dict[str, str]:
    """Of Python and those of the listed packages, and of `more`, that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    try:
        cpu = next(
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": available_cores(),
        "memory_gb": memory and round(memory, 1),
    }


def available_cores() -> int:
    """Cores this process may use (its affinity, not the machine's count)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
