"""Stages: units of work whose results are kept, with what was logged on the way, so that a killed run goes on after them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from common import codec
from common.files import cache_folder, digest, file_name, sha256_of
from common.rng import seed_globals

if TYPE_CHECKING:
    from common.run import Run

T = TypeVar("T")

# what a stage keeps of the run's calls -> the types of their arguments
EVENTS: dict[str, tuple[tuple[type, ...], ...]] = {
    "log": ((dict,), (int, type(None))),
    "measure": ((str,), (int, float)),
    "add_time": ((str,), (int, float)),
    "table": ((str,), (list, tuple)),
    "note": ((str,),),
    "use_data": ((str,), (str,), (str,), (str, type(None))),
}


def stage(run: Run, name: str, fn: Callable[..., T], args: tuple, key: Any, shared: bool) -> T:
    """See `Run.stage`."""
    if shared and key is None:
        raise ValueError(f"stage {name!r} is shared: give a key that says all that it depends on")
    file = f"{file_name(name)}-{digest([name, key])}.stage"
    if not shared:
        run.reserve(f"stage {file}")
    path = (cache_folder() / "stages" / run.paper if shared else run.dir / "stages") / file
    with _lock(run, path, shared):
        if path.exists():
            try:
                kept = _load(path)
            except (ValueError, OSError) as error:
                run.note(f"stage {name} is damaged and computed again ({type(error).__name__})")
            else:
                replay(run, kept["events"])
                seed_globals(run.rng("after stage", file))
                return _used(run, name, kept["value"], path, shared)
        seed_globals(run.rng("stage", file))
        with run.recording() as events:
            value = fn(*args)
        seed_globals(run.rng("after stage", file))  # what follows must not depend on whether the stage was computed
        if run.is_main:
            codec.save(path, {"value": value, "events": events})
            run.checkpoint()
    return _used(run, name, value, path, shared)


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is no file")
    kept = codec.load(path)
    if not isinstance(kept, dict) or set(kept) != {"value", "events"}:
        raise ValueError("it holds no stage")
    check_events(kept["events"])
    return kept


def check_events(events: Any) -> None:
    """Raise ValueError unless these are calls that a run has logged."""
    if not isinstance(events, (list, tuple)):
        raise ValueError("its events are no list")
    for event in events:
        if not isinstance(event, (list, tuple)) or not event or event[0] not in EVENTS:
            raise ValueError("it holds what no run has logged")
        kinds, args = EVENTS[event[0]], event[1:]
        if len(args) != len(kinds) or not all(map(isinstance, args, kinds)):
            raise ValueError(f"a call of {event[0]} in it has other arguments")
        if event[0] == "log" and not all(isinstance(v, (int, float, type(None))) for v in args[0].values()):
            raise ValueError("a metric in it is no number")
        if event[0] == "table" and not all(isinstance(row, Mapping) for row in args[1]):
            raise ValueError("a table in it has no rows")


def replay(run: Run, events: Iterable[Sequence]) -> None:
    """Log again what `Run.recording` collected. Raises ValueError, before it logs any, for anything else."""
    events = list(events)
    check_events(events)
    for name, *args in events:
        getattr(run, name)(*args)


def _used(run: Run, name: str, value: T, path: Path, shared: bool) -> T:
    if shared and run.is_main:
        known = run.data.get(name, {})  # read before in this run: not read again only for its sum
        sha256 = known["sha256"] if known.get("path") == str(path) else sha256_of(path)
        run.use_data(name, "artefact", path, sha256)
    return value


@contextlib.contextmanager
def _lock(run: Run, path: Path, shared: bool) -> Iterator[None]:
    if not (shared and run.is_main):
        yield
        return
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield
