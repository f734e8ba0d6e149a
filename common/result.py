"""Read result.json, the record that a run leaves behind; versions, machine and git state that go into it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import UserError, shorten
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
        """0 done, 1 a bug, 2 the user can fix it, 3 done but a gated claim does not hold, 130/143 interrupted.

        Of an experiment that was changed by overrides the claims are for information only.
        """
        if self.was_done:
            return 0
        if self.status == "done":
            from common import claims

            return 3 if claims.failing(self.record) else 0
        return self.record.get("error", {}).get("exit_code", 1)


STATUSES = ("running", "done", "failed", "interrupted")
FIELDS: dict[str, tuple[type, ...]] = {
    "paper": (str,), "verb": (str,), "experiment": (str,), "status": (str,), "seed": (int,), "overrides": (list,), "config": (dict,),
    "git_commit": (str, type(None)), "git_dirty": (bool, type(None)), "versions": (dict,), "machine": (dict,), "device": (str,),
    "threads": (int, type(None)), "started": (str,), "wall_s": (int, float), "peak_rss_mb": (int, float), "metrics": (dict,),
    "timings": (dict,), "tables": (dict,), "figures": (list,), "data": (dict,), "notes": (list,), "claims": (list,),
}  # fmt: skip


def read_record(path: Path) -> dict[str, Any]:
    """A JSON file that a run has written, of this schema. Raises UserError where it is missing, damaged or of another."""
    if not path.is_file():
        if path.exists():
            raise UserError(f"{path} is not a regular file: name the folder of a run")
        raise UserError(
            f"{path.parent} is not a run folder (no {path.name}): name one such as runs/quip_sharp/ci/latest"
        )
    try:
        data = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({shorten(str(error))}): delete that run and start it again") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): look at its permissions") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UserError(f"{path} is not of result schema {SCHEMA}: it was not written by this version; start a new run")
    return data


def load_result(folder: str | os.PathLike) -> Result:
    """Read the result.json of a run folder (or the file itself). Raises UserError where it is missing or damaged."""
    path = Path(folder).expanduser().absolute()
    try:
        there, inside = path.exists(), path.is_dir()
    except OSError:  # a name that no file can have
        there, inside = False, False
    if not there:
        raise UserError(
            f"{shorten(str(path), 160)} does not exist: name the folder of a run, such as runs/quip_sharp/ci/latest"
        )
    path = path / "result.json" if inside else path
    data = read_record(path)
    _check(data, path)
    return Result(path.parent, data)


def _check(data: dict[str, Any], path: Path) -> None:
    """Raise UserError where a field of a record is missing or of another type."""

    def damaged(what: str) -> UserError:
        return UserError(f"{path} is damaged ({what}): delete that run and start it again")

    for name, kinds in FIELDS.items():
        if name not in data:
            raise damaged(f"it has no {name}")
        if not isinstance(data[name], kinds) or (isinstance(data[name], bool) and bool not in kinds):
            raise damaged(f"{name} is {shorten(repr(data[name]), 40)}")
    if data["status"] not in STATUSES:
        raise damaged(f"status is {shorten(data['status'], 40)!r}")
    texts = [*data["overrides"], *data["notes"], *data["figures"]]
    rows = [row for table in data["tables"].values() if isinstance(table, list) for row in table]
    numbers = [*data["metrics"].values(), *data["timings"].values()]
    for what, good in (
        ("a text in it is none", all(isinstance(text, str) for text in texts)),
        ("a table in it has no rows", all(isinstance(t, list) for t in data["tables"].values()) and all(isinstance(r, dict) for r in rows)),
        ("a metric in it is no number", all(isinstance(n, (int, float, type(None))) for n in numbers)),
        ("its claims are none", all(isinstance(c, dict) and {"id", "gate", "holds", "value"} <= set(c) for c in data["claims"])),
        ("its data is none", all(isinstance(d, dict) and {"source", "path", "sha256"} <= set(d) for d in data["data"].values())),
        ("its error is none", isinstance(data.get("error", {}), dict)),
    ):  # fmt: skip
        if not good:
            raise damaged(what)


@cache
def git_state() -> tuple[str | None, bool | None]:
    """(commit, dirty) of the clone, or (None, None) where git or its folder is missing."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", ROOT, *args], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    if not (ROOT / ".git").exists():  # a wheel: whatever repository it may lie in is not ours
        return None, None
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
