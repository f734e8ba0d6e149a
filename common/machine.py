"""Threads, device, environment and global generators of a run: set when it begins, put back when it ends."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.rng import seed_globals

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from common.run import Run

RANKS = (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


def _number(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdigit() else None


def rank() -> int:
    """This process's place among the ranks of a distributed job; only its being 0 matters: 0 alone writes.

    A rank counts only beside the size of its world (WORLD_SIZE, SLURM_NTASKS) above 1: one that a pod or a shell has left
    in the environment says nothing.
    """
    for name, world in RANKS:
        if (number := _number(name)) is not None and (_number(world) or 1) > 1:
            return number or (_number("NODE_RANK") or 0 if name == "LOCAL_RANK" else 0)
    return 0


def stray_rank() -> str | None:
    """The variable that names a rank above 0 where there is no world of ranks, or None."""
    return next((name for name, world in RANKS if _number(name) and (_number(world) or 1) <= 1), None)


@contextlib.contextmanager
def process_state(run: Run) -> Iterator[None]:
    """Everything that a run sets in its process, put back at its end: a notebook may launch many.

    Environment, thread counts and BLAS limits, torch's deterministic mode, and the global generators.
    """
    before = dict(os.environ)
    if run.is_main:
        os.environ["PAPERS_RUN_FOLDER"] = str(run.dir)  # for the ranks that this process may start
    if data := os.environ.get("PAPERS_DATA"):
        folders = [os.path.abspath(os.path.expanduser(part)) for part in data.split(os.pathsep) if part]
        os.environ["PAPERS_DATA"] = os.pathsep.join(folders)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS is not deterministic
    os.environ["MPLBACKEND"] = "Agg"  # figures are files; a wrong value here would stop matplotlib's import
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its pool ignores `threads` and warns after a fork
    kept = contextlib.ExitStack()
    run.on_exit = kept
    _keep_generators(kept)
    try:
        yield
    finally:
        kept.close()
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
        if "numba" in sys.modules:
            # its pool has the size that it was imported with, and it refuses to compile where this says another
            import numba

            os.environ["NUMBA_NUM_THREADS"] = str(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def _keep_generators(kept: contextlib.ExitStack) -> None:
    """Put the global generators of Python, numpy and torch back where they are now."""
    kept.callback(random.setstate, random.getstate())
    if "numpy" in sys.modules:
        import numpy as np

        kept.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
    if "torch" in sys.modules:
        import torch

        kept.callback(torch.set_rng_state, torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            kept.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())


def limit_threads(threads: int, kept: contextlib.ExitStack | None = None) -> None:
    """Let every library use this many CPU threads, whether it is imported already or will be, until `kept` is closed.

    Raises UserError below 1.
    """
    if threads < 1:
        raise UserError(f"threads is {threads}: give at least 1, or leave it out for all cores")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    limits = threadpool_limits(threads)
    torch.set_num_threads(threads)
    if kept is not None:
        kept.callback(torch.set_num_threads, before)
        kept.callback(limits.restore_original_limits)
    if "numba" in sys.modules:  # its pool may have started, and then refuses another size of itself
        import numba

        if kept is not None:
            kept.callback(numba.set_num_threads, numba.get_num_threads())
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    else:
        os.environ["NUMBA_NUM_THREADS"] = str(threads)


def device_of(wanted: str) -> str:
    """ "cpu" or "cuda": what `device=auto|cpu|cuda` means here. Raises UserError for a GPU that is not there."""
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise UserError(
            "device=cuda, but no CUDA device is found: use device=cpu, or install a CUDA build of torch (README, Install)"
        )
    return "cpu"


def prepare(run: Run, cfg: DictConfig) -> None:
    """Threads, device and global seeds, inside `process_state`."""
    if stray := stray_rank():
        run.note(
            f"{stray}={os.environ[stray]} in the environment is ignored: no size of a world of ranks stands beside it"
        )
    limit_threads(run.threads, run.on_exit)
    import torch

    if cfg.device == "auto" and run.device == "cpu":
        run.note("device=auto: no CUDA device here, running on the CPU")
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill: Any = torch.utils.deterministic
    run.on_exit.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warn_only)
    run.on_exit.callback(setattr, fill, "fill_uninitialized_memory", fill.fill_uninitialized_memory)
    seed_globals(run.rng("global"))
    torch.use_deterministic_algorithms(True, warn_only=True)
    fill.fill_uninitialized_memory = False  # costs time and hides nothing here
