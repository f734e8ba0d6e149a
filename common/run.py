"""The run: what a job is given, and where it hands what it found."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from common import codec, result
from common.errors import UserError
from common.files import cache_folder, digest, plain, sha256_of, write_json
from common.rng import Rng

if TYPE_CHECKING:
    from common.loggers import Logger
    from common.processes import Service

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]*")


REPLAYED = ("log", "add_time", "table", "note", "record_data")  # what a stage keeps of the run's calls


def rank() -> int:
    """This process's place among the ranks of a distributed job; only its being 0 matters: 0 alone writes."""

    def number(name: str) -> int | None:
        return int(os.environ[name]) if os.environ.get(name, "").strip().isdigit() else None

    if (whole := number("RANK")) is not None:
        return whole
    if (local := number("LOCAL_RANK")) is not None:  # of a launcher within one node; before SLURM's, which all share
        return local or (number("NODE_RANK") or 0)
    return number("SLURM_PROCID") or 0


def seed_globals(rng: Rng) -> None:
    """Set the global generators of the libraries that are imported: what code that takes no generator draws from."""
    import random

    random.seed(rng.seed)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(rng.seed % 2**32)  # noqa: NPY002 (for libraries that draw from it)
    if "torch" in sys.modules:
        import torch

        # torch.manual_seed would also queue a call, with a formatted stack, for each backend that is not here
        torch.default_generator.manual_seed(rng.seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(rng.seed)


class Run:
    """One run of one job: its folder, its randomness, and what it has found so far.

    Everything handed to `log`, `time`, `table`, `figure` and `note` ends in `<dir>/result.json`. Use it as

    >>> def train(cfg, run):                                        # doctest: +SKIP
    ...     weights = run.stage("fit", fit, run.rng("init"))    # kept when the run is killed
    ...     run.log({"test.accuracy": evaluate(weights)})
    """

    def __init__(self, folder: Path, *, paper: str, verb: str = "train", experiment: str = "default", seed: int = 0,
                 device: str = "cpu", threads: int | None = None, config: Mapping | None = None,
                 overrides: Sequence[str] = (), wall_before: float = 0.0, started: str | None = None,
                 data_before: Mapping[str, Mapping[str, Any]] | None = None):  # fmt: skip
        self.dir = folder
        self.paper, self.verb, self.experiment, self.seed = paper, verb, experiment, seed
        self.device, self.threads = device, result.available_cores() if threads is None else threads
        self.is_main = rank() == 0
        self.config, self.overrides = dict(config or {}), list(overrides)
        self.metrics: dict[str, float | int | None] = {}
        self.timings: dict[str, float] = {}
        self.tables: dict[str, list[dict]] = {}
        self.figures: list[str] = []
        self.notes: list[str] = []
        self.data: dict[str, dict] = {}
        self.claims: list[dict] = []
        self.error: dict | None = None
        self.loggers: list[Logger] = []
        self.deferred_stop: int | None = None  # set by a signal while `holding_signals`
        self.holding_signals = 0
        self._started = started or datetime.now(UTC).isoformat(timespec="seconds")
        self._clock, self._wall_before = time.monotonic(), wall_before
        self._data_before = dict(data_before or {})  # of the run that this one goes on with
        self._recorders: list[list[tuple]] = []
        self._taken: set[str] = set()
        self._services: list[Service] = []
        self._progress: Any = None

    # ---- what the job found ------------------------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers by name. Nested mappings get dotted names; result.json keeps the last value of each.

        With `step` the value is also a point of a curve (metrics.csv and the chosen logger).
        Raises TypeError for a value that is not a number. Seconds belong to `time`, not here.
        """
        flat = dict(_flatten(metrics))
        self._record("log", flat, step)
        self.metrics.update(flat)
        for logger in self.loggers:
            logger.log(flat, step)

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the seconds the block takes to `timings[name]`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add_time(name, time.monotonic() - start)

    def add_time(self, name: str, seconds: float) -> None:
        self._record("add_time", name, seconds)
        self.timings[name] = self.timings.get(name, 0.0) + seconds

    def table(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep rows (mappings of numbers and text) as `tables[name]`, and print them when the run ends."""
        kept = [dict(plain(dict(row))) for row in rows]
        self._record("table", name, kept)
        self.tables[name] = kept

    def figure(self, name: str, figure: Any) -> Path:
        """Save a matplotlib figure as `figures/<name>.png` and close it. Draw outside stages: only their data is kept."""
        path = self.dir / "figures" / f"{_checked(name)}.png"
        relative = path.relative_to(self.dir).as_posix()
        if self.is_main:
            import matplotlib.pyplot as plt

            from common.files import atomic_path

            with atomic_path(path) as scratch:
                figure.savefig(scratch, format="png", dpi=150, bbox_inches="tight")
            plt.close(figure)
            for logger in self.loggers:
                logger.figure(name, path)
        if relative not in self.figures:
            self.figures.append(relative)
        return path

    def note(self, text: str) -> None:
        """Say something the reader of the result must know (every fallback is a note); printed once, kept in `notes`."""
        self._record("note", text)
        if text not in self.notes:
            self.notes.append(text)
            self.say(f"note: {text}")

    def record_data(self, name: str, source: str, path: str | os.PathLike, sha256: str | None) -> None:
        """Say which data was used; `source` is real, package, synthetic or artefact.

        Raises UserError in a resumed run that had used other data under this name: its stages belong to those.
        """
        if source not in ("real", "package", "synthetic", "artefact"):
            raise ValueError(f"source of {name!r} is {source!r}: use real, package, synthetic or artefact")
        before = self._data_before.get(name)
        if before and source != "artefact" and (before["source"], before["sha256"]) != (source, sha256):
            raise UserError(
                f"{name} is not what it was when this run began ({before['source']} then, {source} now): "
                "set PAPERS_DATA as it was, or start a new run"
            )
        self._record("record_data", name, source, os.fspath(path), sha256)
        self.data[name] = {"source": source, "path": os.fspath(path), "sha256": sha256}

    # ---- how the job works -------------------------------------------------------------------------------------------

    def rng(self, *name: str | int) -> Rng:
        """The generator that depends on the run's seed and this name alone; `.torch` and `.numpy` are its two views."""
        return Rng(self.seed, *name)

    def seeds(self, listed: Sequence[int]) -> list[int]:
        """The seeds of a study: those listed, shifted by 1000 x the run's own, so that seed=1 repeats it on others.

        Raises UserError where none is listed.
        """
        if not listed:
            raise UserError("seeds is empty: name at least one, seeds=[0] say")
        return [int(seed) + 1000 * self.seed for seed in listed]

    def stage(self, name: str, fn: Callable[..., T], *args: Any, key: Any = None, shared: bool = False) -> T:
        """The result of `fn(*args)`, computed once: a run that is killed and resumed goes on after the last finished stage.

        key: anything with a JSON form that the result depends on besides the run's config (a data sha256, say).
        shared: keep it under `$PAPERS_CACHE` for every run; then `key` must say all that the result depends on.
        Results may be dicts, lists, tuples, numbers, text and numpy or torch arrays. What `fn` logs is kept with it and
        logged again when it is loaded, so that a run that finds the stage done ends with the same metrics and tables.
        """
        if shared and key is None:
            raise ValueError(f"stage {name!r} is shared: give a key that says all that it depends on")
        file = f"{_checked(name)}-{digest([name, key])}.stage"
        if not shared:
            self.take(f"stage {file}")
        path = (cache_folder() / "stages" / self.paper if shared else self.dir / "stages") / file
        with self._stage_lock(path, shared):
            if path.exists():
                try:
                    kept = codec.load(path)
                    self.replay(kept["events"])
                except ValueError as error:
                    self.note(f"stage {name} is damaged and computed again ({type(error).__name__})")
                else:
                    seed_globals(self.rng("after stage", file))
                    return self._used_stage(name, kept["value"], path, shared)
            seed_globals(self.rng("stage", file))
            with self.recording() as events:
                value = fn(*args)
            seed_globals(
                self.rng("after stage", file)
            )  # what follows must not depend on whether the stage was computed
            if self.is_main:
                codec.save(path, {"value": value, "events": events})
                self.checkpoint()
        return self._used_stage(name, value, path, shared)

    def take(self, name: str) -> None:
        """Reserve a name that stands for one unit of work. ValueError at its second use: that would get the first's result."""
        if name in self._taken:
            raise ValueError(f"{name} was used before in this run: give each its own name or key")
        self._taken.add(name)

    def _used_stage(self, name: str, value: T, path: Path, shared: bool) -> T:
        if shared and self.is_main:
            known = self.data.get(name, {})  # read before in this run: not read again only for its sum
            sha256 = known["sha256"] if known.get("path") == str(path) else sha256_of(path)
            self.record_data(name, "artefact", path, sha256)
        return value

    @contextlib.contextmanager
    def _stage_lock(self, path: Path, shared: bool) -> Iterator[None]:
        if not (shared and self.is_main):
            yield
            return
        from filelock import FileLock

        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            yield

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple]]:
        """Collect what is logged inside the block, as a list that `replay` takes."""
        events: list[tuple] = []
        self._recorders.append(events)
        try:
            yield events
        finally:
            self._recorders = [recorder for recorder in self._recorders if recorder is not events]

    def replay(self, events: Iterable[Sequence]) -> None:
        """Log again what `recording` collected. ValueError for anything else that a file might hold."""
        events = list(events)
        if not all(event and event[0] in REPLAYED for event in events):
            raise ValueError("damaged: it holds what no run has logged")
        for name, *args in events:
            getattr(self, name)(*args)

    def _record(self, name: str, *args: Any) -> None:
        for recorder in self._recorders:
            recorder.append((name, *args))

    def progress(self, iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        """Iterate with a bar and an ETA; where there is no terminal, a plain line every ten seconds."""
        from common.progress import Progress

        if self._progress is None:
            self._progress = Progress(enabled=self.is_main)
        return self._progress.track(iterable, description, total)

    def spawn(self, name: str, argv: Sequence[str], **popen: Any) -> Service:
        """Start a helper process that logs to `<dir>/<name>.log` and dies with this run (see `common.processes`)."""
        from common.processes import Service

        log = self.dir / f"{_checked(name)}.log" if self.is_main else Path(os.devnull)
        service = Service(name, argv, log, **popen)
        self._services.append(service)
        return service

    def say(self, text: str) -> None:
        """Print one line for the person who watches."""
        if self.is_main:
            print(text, file=sys.stderr, flush=True)

    # ---- the record --------------------------------------------------------------------------------------------------

    @property
    def wall_s(self) -> float:
        """Seconds of this run, earlier attempts included."""
        return self._wall_before + time.monotonic() - self._clock

    def record(self, status: str) -> dict[str, Any]:
        """result.json's content now."""
        from common.processes import peak_rss_mb

        commit, dirty = result.git_state()
        own = peak_rss_mb() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # (macOS counts bytes)
        record = {
            "schema": result.SCHEMA, "paper": self.paper, "verb": self.verb, "experiment": self.experiment, "status": status,
            "seed": self.seed, "overrides": self.overrides, "config": self.config, "git_commit": commit, "git_dirty": dirty,
            "versions": result.versions(), "machine": result.machine(), "device": self.device, "threads": self.threads,
            "started": self._started, "wall_s": round(self.wall_s, 3),
            "peak_rss_mb": round(own + sum(s.peak_rss_mb for s in self._services), 1),
            "metrics": dict(sorted(self.metrics.items())), "timings": self.timings, "tables": self.tables, "figures": self.figures,
            "data": self.data, "notes": self.notes, "claims": self.claims,
        }  # fmt: skip
        return record | ({"error": self.error} if self.error else {})

    def save(self, status: str) -> None:
        """Write result.json, whole or not at all."""
        if self.is_main:
            write_json(self.dir / "result.json", self.record(status))

    def checkpoint(self) -> None:
        """Called where work was just made safe: refresh result.json, then stop here if the user asked to stop."""
        self.save("running")
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        if self.deferred_stop is not None:
            from common.errors import Interrupted

            raise Interrupted(self.deferred_stop)

    def close(self) -> None:
        """Stop bars, services and loggers."""
        if self._progress is not None:
            self._progress.close()
        for service in self._services:
            service.stop()
        for logger in self.loggers:
            logger.close()
        self.loggers = []


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | int]]:
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.")
            continue
        if hasattr(value, "item"):
            value = value.item()  # numpy and torch scalars
        if not isinstance(value, (int, float)):
            raise TypeError(
                f"metric {name!r} is a {type(value).__name__}, not a number: use run.table for rows and run.note for text"
            )
        yield name, int(value) if isinstance(value, bool) else value


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a file: use letters, digits and _ . + = -")
    return name


def free_folder(parent: Path) -> Path:
    """Make and return `<parent>/<YYYYmmdd-HHMMSS-xxxx>`, and point `<parent>/latest` at it."""
    try:
        for _ in range(100):
            folder = parent / f"{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                if not folder.is_dir():
                    raise
                continue
            link = parent / f".latest-{os.getpid()}"
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)
            os.replace(link, parent / "latest")
            return folder
    except OSError as error:
        raise UserError(
            f"cannot make a run folder under {parent} ({error.strerror}): set paths.runs or $PAPERS_RUNS to a folder you can write to"
        ) from None
    raise UserError(f"cannot find a free run folder name under {parent}: empty it with `papers clean`")
