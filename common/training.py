"""Training loops that a kill does not spoil: a small one, and Lightning's.

Both save their state every `save_seconds`, and both make a step a function of (seed, name, step): what a resumed run
does from there on is what the uninterrupted run would have done. Lightning's own mid-epoch resume does not give this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from common import codec, signals, stages
from common.errors import UserError
from common.rng import seed_globals
from common.run import Run

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from omegaconf import DictConfig


class Stateful(Protocol):
    """A module, an optimiser, a scheduler: anything with a state that can be taken and put back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def resumable(
    run: Run, name: str, steps: int, state: Mapping[str, Stateful], save_seconds: float = 30.0
) -> Iterator[int]:
    """Yield the step numbers 0 .. steps-1; after a kill, go on from the last saved step with `state` put back.

    state: what changes from step to step, each with `state_dict`. Anything random in a step must come from
    `run.rng(..., step)`, so that the steps after a resume are the steps that would have been. What the loop logs is saved with it.

    >>> for step in resumable(run, "train", steps, {"model": model, "optimizer": optimizer}):     # doctest: +SKIP
    ...     loss = model(batch(run.rng("batch", step)))
    """
    with run.recording() as events:
        checkpoint = _Checkpoint(run, name, steps, state, events, save_seconds)
        first = checkpoint.restore()
        with signals.holding():  # a signal now waits for the end of the step
            for step in run.progress(range(first, steps), name):
                seed_globals(run.rng(name, step))  # for what draws from the global generators: dropout, say
                yield step
                checkpoint.after(step)


class _Checkpoint:
    """`<run>/checkpoints/<name>.state`: the parts' states and the next step; `<name>.events`: what was logged on the way.

    The events file only grows; the state says how much of it belongs to it, so that a save costs what is new.
    """

    def __init__(
        self, run: Run, name: str, steps: int, state: Mapping[str, Stateful], events: list, save_seconds: float
    ):
        run.reserve(f"loop {name!r}")
        self.run, self.steps, self.state, self.events, self.save_seconds = run, steps, state, events, save_seconds
        self.path: Path = run.dir / "checkpoints" / f"{name}.state"
        self.log = self.path.with_suffix(".events")
        self.logged = 0  # bytes of the events file that the state on disk speaks of
        self.saved = time.monotonic()

    def restore(self) -> int:
        """Put back what was saved and log again what had been logged; returns the first step to do.

        Raises UserError where the checkpoint is damaged.
        """
        self.saved = time.monotonic()
        if not self.path.exists():
            return 0
        try:
            kept = codec.load(self.path)
            self.logged = kept["logged"]
            lines = self.log.read_bytes()[: self.logged].splitlines() if self.logged else []
            stages.replay(self.run, [json.loads(line) for line in lines])
            for key, part in self.state.items():
                part.load_state_dict(kept["state"][key])
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
            raise UserError(
                f"the checkpoint {self.path} is damaged: delete it, and resume= begins that loop again"
            ) from error
        self.events.clear()  # they are on disk
        return kept["step"]

    def after(self, step: int) -> None:
        """Save where it is time, the loop ends, or a signal waits; then stop if asked to."""
        waited = time.monotonic() - self.saved >= self.save_seconds
        if signals.asked() is None and step + 1 < self.steps and not waited:
            return
        if self.run.is_main:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "r+b" if self.log.exists() else "w+b") as file:
                file.seek(self.logged)  # over what a killed process may have added after its last state
                file.writelines(json.dumps(plain_event(event)).encode() + b"\n" for event in self.events)
                file.truncate()
                self.logged = file.tell()
                file.flush()
                os.fsync(file.fileno())
            parts = {key: part.state_dict() for key, part in self.state.items()}
            codec.save(self.path, {"step": step + 1, "state": parts, "logged": self.logged})
        self.events.clear()
        self.run.checkpoint()
        self.saved = time.monotonic()


def plain_event(event: Sequence[Any]) -> list[Any]:
    """An event as JSON holds it. NaN stays NaN: these files are read by Python alone."""
    return [dict(part) if isinstance(part, Mapping) else part for part in event]


def lightning_fit(module: pl.LightningModule, batch: Callable[[int], Any], steps: int, cfg: DictConfig, run: Run, *, name: str = "train",
                  after_step: Callable[[int], None] | None = None, save_seconds: float = 30.0, **trainer: Any) -> None:  # fmt: skip
    """Train a LightningModule for `steps` steps with Lightning's Trainer, resumable to the same result.

    batch(step): the joint batch of a step, a tensor or a nested tuple/list/dict of tensors with samples first; with
    several processes each takes its share of every batch. `cfg.trainer` (groups trainer=cpu|gpu|ddp) says on what;
    further keywords go to `pl.Trainer`. after_step(step) runs after each step on every rank, the place for validation.
    `self.log` in the module reaches `run.log`. The global torch generator is set anew from (seed, name, step) before each
    step, so dropout too is a function of the step. After a resume `trainer.global_step` goes on where it was; the index
    that training_step is given counts from the resume. Raises UserError where the trainer's devices are not there, and
    for 16-mixed precision, whose scaler is a state that is not kept.
    """
    import logging
    import signal
    import threading
    import warnings

    import pytorch_lightning as pl

    if cfg.trainer.precision == "16-mixed":
        raise UserError("trainer.precision=16-mixed cannot be resumed exactly: use bf16-mixed or 32-true")
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)  # its greetings, not its warnings
    warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)  # Lightning's own, about itself
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # the batches are made, not read
    with run.recording() as events:
        checkpoint = _Checkpoint(run, name, steps, {"module": module}, events, save_seconds)
        optimizers = _Optimizers(module)
        checkpoint.state = {"module": module, "optimizers": optimizers}
        first = checkpoint.restore()
        if first >= steps:
            return

        class Steps(pl.Callback):
            """Each step's generator before it; its checkpoint before the next, since Lightning logs a step after its hooks."""

            def on_fit_start(self, trainer: Any, module: Any) -> None:
                optimizers.attach(trainer)
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, partial(_stop_all_ranks, trainer, terminated))

            def on_train_start(self, trainer: Any, module: Any) -> None:
                loop = trainer.fit_loop.epoch_loop  # so that global_step, and the steps of what is logged, go on too
                loop.automatic_optimization.optim_progress.optimizer.step.total.completed = first
                loop.manual_optimization.optim_step_progress.total.completed = first
                loop._batches_that_stepped = first

            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
                if index:
                    checkpoint.after(first + index - 1)
                seed_globals(run.rng(name, first + index))

            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
                if after_step is not None:
                    after_step(first + index)
                next(bar, None)

            def on_train_end(self, trainer: Any, module: Any) -> None:
                checkpoint.after(steps - 1)

        bar = iter(run.progress(range(first, steps), name))
        next(bar, None)
        options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1,
                   "max_steps": steps, "max_epochs": -1, "num_sanity_val_steps": 0, "use_distributed_sampler": False, "barebones": False}  # fmt: skip
        chosen = dict(cfg.trainer)
        terminated = signal.getsignal(signal.SIGTERM)  # Lightning puts its own in place, which ends in SystemExit
        held = signals.holding()
        held.__enter__()
        try:
            with _bad_trainer():
                fitted = pl.Trainer(
                    **options | chosen | trainer,
                    logger=_run_logger(run),
                    callbacks=[Steps()],
                    default_root_dir=str(run.dir),
                )
            fitted.fit(module, train_dataloaders=_step_loader(batch, first, steps))
        except (pl.utilities.exceptions.MisconfigurationException, _BadTrainer) as error:
            raise UserError(
                f"trainer={chosen}: {str(error).splitlines()[0]}; choose trainer=cpu, or devices that are here"
            ) from error
        finally:
            held.__exit__(None, None, None)
            getattr(bar, "close", lambda: None)()


class _BadTrainer(ValueError):
    """Options that Lightning's Trainer does not take."""


@contextlib.contextmanager
def _bad_trainer() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise _BadTrainer(str(error) or type(error).__name__) from error


def _stop_all_ranks(trainer: Any, handler: Any, number: int, frame: Any) -> None:
    """The run's own way to stop, here and in the processes that Lightning has started."""
    if trainer.strategy.launcher is not None:
        trainer.strategy.launcher.kill(number)
    if callable(handler):
        handler(number, frame)


class _Optimizers:
    """The states of a module's optimisers and schedulers, which exist only once its trainer has made them."""

    def __init__(self, module: pl.LightningModule):
        self.parts: list[Stateful] = []
        self.waiting: dict[str, Any] | None = None

    def attach(self, trainer: Any) -> None:
        self.parts = [*trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs)]
        if self.waiting is not None:
            for part, state in zip(self.parts, self.waiting["parts"], strict=True):
                part.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = state


def _step_loader(batch: Callable[[int], Any], first: int, steps: int) -> Any:
    """A loader whose n-th item is this rank's share of batch(first + n)."""
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            parallel = distributed.is_available() and distributed.is_initialized()
            part, world = (distributed.get_rank(), distributed.get_world_size()) if parallel else (0, 1)
            for step in range(first, steps):
                yield _share(batch(step), part, world)

    return DataLoader(Batches(), batch_size=None)


def _share(batch: Any, part: int, world: int) -> Any:
    """Every world-th sample of a batch, beginning at `part`. Raises ValueError where the parts would not be equal."""
    if world == 1:
        return batch
    if isinstance(batch, Mapping):
        return {key: _share(value, part, world) for key, value in batch.items()}
    if hasattr(batch, "_make"):  # a NamedTuple
        return batch._make(_share(value, part, world) for value in batch)
    if isinstance(batch, (tuple, list)):
        return type(batch)(_share(value, part, world) for value in batch)
    if len(batch) % world:
        raise ValueError(
            f"a joint batch of {len(batch)} does not divide over {world} processes: choose a batch size that does"
        )
    return batch[part::world]


def _run_logger(run: Run) -> Any:
    """Lightning's logger interface in front of `run.log`."""
    from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
    from pytorch_lightning.utilities.rank_zero import rank_zero_only

    class RunLogger(Logger):
        name, version = "run", ""

        @property
        @rank_zero_experiment
        def experiment(self) -> Run:
            return run

        @rank_zero_only
        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
            pass

        @rank_zero_only
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            found = {key: value for key, value in metrics.items() if key != "epoch"}
            if found:
                run.log(found, step=step)

    return RunLogger()
