"""Training loops: the small resumable one, for what Lightning does not fit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from common import codec
from common.run import Run


class Stateful(Protocol):
    """A module, an optimiser, a scheduler: anything with a state that can be taken and put back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def resumable(run: Run, name: str, steps: int, state: Mapping[str, Stateful], save_seconds: float = 30.0) -> Iterator[int]:
    """Yield the step numbers 0 .. steps-1; after a kill, go on from the last saved step with `state` put back.

    state: what changes from step to step, each with `state_dict`. Anything random in a step must come from
    `run.rng(..., step)`, so that the steps after a resume are the steps that would have been. What the loop logs is saved with it.

    >>> for step in resumable(run, "train", steps, {"model": model, "optimizer": optimizer}):     # doctest: +SKIP
    ...     loss = model(batch(run.rng("batch", step)))
    """
    path = run.dir / "checkpoints" / f"{name}.state"
    first = 0
    with run.recording() as events:
        if path.exists():
            kept = codec.load(path)
            first = kept["step"]
            for key, part in state.items():
                part.load_state_dict(kept["state"][key])
            run.replay(kept["events"])
        saved = time.monotonic()
        run.holding_signals += 1  # a signal now waits for the end of the step
        try:
            for step in run.progress(range(first, steps), name):
                yield step
                if run.deferred_stop is not None or step + 1 == steps or time.monotonic() - saved >= save_seconds:
                    if run.is_main:
                        parts = {key: part.state_dict() for key, part in state.items()}
                        codec.save(path, {"step": step + 1, "state": parts, "events": events})
                    run.checkpoint()
                    saved = time.monotonic()
        finally:
            run.holding_signals -= 1
