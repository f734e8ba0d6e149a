"""The run: what a job is given, and where it hands what it found."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from common import exits, result, signals, stages
from common.errors import UserError
from common.files import file_name, plain, write_json
from common.machine import device_of, rank
from common.rng import Rng

if TYPE_CHECKING:
    from common.loggers import Logger
    from common.processes import Service

T = TypeVar("T")


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
        self.threads = result.available_cores() if threads is None else threads
        self._device = device
        self.on_exit = contextlib.ExitStack()  # what is put back when the run ends, see `machine.process_state`
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
        self._started = started or datetime.now(UTC).isoformat(timespec="seconds")
        self._clock, self._wall_before = time.monotonic(), wall_before
        self._data_before = dict(data_before or {})  # of the run that this one goes on with
        self._recorders: list[list[tuple]] = []
        self._reserved: set[str] = set()
        self._services: list[Service] = []
        self._progress: Any = None

    # ---- what the job found ------------------------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers by name. Nested mappings get dotted names; result.json keeps the last value of each.

        With `step` the value is also a point of a curve (metrics.csv and the chosen logger).
        Raises TypeError for a value that is not a number. Seconds belong to `time`, not here.
        """
        signals.stop_here()
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

    def measure(self, name: str, value: float) -> None:
        """Record a figure that depends on the machine and is no number of seconds (a ratio of times, a rate): timings[name]."""
        self._record("measure", name, value)
        self.timings[name] = value

    def table(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep rows (mappings of numbers and text) as `tables[name]`, and print them when the run ends."""
        signals.stop_here()
        kept = [dict(plain(dict(row))) for row in rows]
        self._record("table", name, kept)
        self.tables[name] = kept

    def figure(self, name: str, figure: Any) -> Path:
        """Save a matplotlib figure as `figures/<name>.png` and close it. Draw outside stages: only their data is kept."""
        path = self.dir / "figures" / f"{file_name(name)}.png"
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

    def use_data(self, name: str, source: str, path: str | os.PathLike, sha256: str | None) -> None:
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
        self._record("use_data", name, source, os.fspath(path), sha256)
        self.data[name] = {"source": source, "path": os.fspath(path), "sha256": sha256}

    @cached_property
    def device(self) -> str:
        """ "cpu" or "cuda". Raises UserError where a GPU is asked for and none is there."""
        return device_of(self._device)

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

    @property
    def may_download(self) -> bool:
        """Whether missing data may be fetched: `data.download=true`."""
        data = self.config.get("data")
        return bool(isinstance(data, Mapping) and data.get("download"))

    def stage(self, name: str, fn: Callable[..., T], *args: Any, key: Any = None, shared: bool = False) -> T:
        """The result of `fn(*args)`, computed once: a killed run that is resumed goes on after the last finished stage.

        key: anything with a JSON form that the result depends on besides the run's config (a data sha256, say).
        shared: keep it under `$PAPERS_CACHE` for every run; then `key` must say all that the result depends on.
        Results may be dicts, lists, tuples, numbers, text and numpy or torch arrays. What `fn` logs is kept with it and
        logged again when it is loaded, so that a run that finds the stage done ends with the same metrics and tables.
        """
        signals.stop_here()
        return stages.stage(self, name, fn, args, key, shared)

    def reserve(self, name: str) -> None:
        """Reserve a name that stands for one unit of work. ValueError at its second use: that would get the first's result."""
        if name in self._reserved:
            raise ValueError(f"{name} was used before in this run: give each its own name or key")
        self._reserved.add(name)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple]]:
        """Collect what is logged inside the block, as a list that `stages.replay` takes."""
        events: list[tuple] = []
        self._recorders.append(events)
        try:
            yield events
        finally:
            self._recorders = [recorder for recorder in self._recorders if recorder is not events]

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

        log = self.dir / f"{file_name(name)}.log" if self.is_main else Path(os.devnull)
        service = Service(name, argv, log, **popen)
        self._services.append(service)
        return service

    def say(self, text: str) -> None:
        """Print one line for the person who watches."""
        if self.is_main:
            exits.tell(text)

    # ---- the record --------------------------------------------------------------------------------------------------

    @property
    def wall_s(self) -> float:
        """Seconds of this run, earlier attempts included."""
        return self._wall_before + time.monotonic() - self._clock

    def to_json(self, status: str) -> dict[str, Any]:
        """result.json's content now."""
        from common.processes import peak_rss_mb

        commit, dirty = result.git_state()
        own = peak_rss_mb() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # (macOS counts bytes)
        record = {
            "schema": result.SCHEMA, "paper": self.paper, "verb": self.verb, "experiment": self.experiment, "status": status,
            "seed": self.seed, "overrides": self.overrides, "config": self.config, "git_commit": commit, "git_dirty": dirty,
            "versions": result.versions(), "machine": result.machine(), "device": vars(self).get("device", self._device), "threads": self.threads,
            "started": self._started, "wall_s": round(self.wall_s, 3),
            "peak_rss_mb": round(own + sum(s.peak_rss_mb for s in self._services), 1),
            "metrics": dict(sorted(self.metrics.items())), "timings": self.timings, "tables": self.tables, "figures": self.figures,
            "data": self.data, "notes": self.notes, "claims": self.claims,
        }  # fmt: skip
        return record | ({"error": self.error} if self.error else {})

    def save(self, status: str) -> None:
        """Write result.json, whole or not at all."""
        if self.is_main:
            write_json(self.dir / "result.json", self.to_json(status))

    def checkpoint(self) -> None:
        """Called where work was just made safe: refresh result.json, then stop here if the user asked to stop."""
        self.save("running")
        signals.stop_if_asked()

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
