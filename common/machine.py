"""What a run sets in its process: threads, device, global seeds, environment, signals; and puts back at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.run import Run, seed_globals

if TYPE_CHECKING:
    from omegaconf import DictConfig


@contextlib.contextmanager
def process_state(run: Run) -> Iterator[None]:
    """Environment and library switches that a run sets, put back at its end (but numba's): a process may launch many."""
    before = dict(os.environ)
    if run.is_main:
        os.environ["PAPERS_RUN_FOLDER"] = str(run.dir)  # for the ranks that this process may start
    if data := os.environ.get("PAPERS_DATA"):
        folders = [os.path.abspath(os.path.expanduser(part)) for part in data.split(os.pathsep) if part]
        os.environ["PAPERS_DATA"] = os.pathsep.join(folders)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS is not deterministic
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its pool ignores `threads` and warns after a fork
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
        if "numba" in sys.modules:
            # its pool has the size that it was imported with, and it refuses to compile where this says another
            import numba

            os.environ["NUMBA_NUM_THREADS"] = str(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        if "torch" in sys.modules:
            import torch

            torch.use_deterministic_algorithms(False)


def limit_threads(threads: int) -> None:
    """Let every library use this many CPU threads, whether it is imported already or will be. UserError below 1."""
    if threads < 1:
        raise UserError(f"threads is {threads}: give at least 1, or leave it out for all cores")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    torch.set_num_threads(threads)
    if "numba" in sys.modules:  # its pool may have started, and then refuses another size of itself
        import numba

        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    else:
        os.environ["NUMBA_NUM_THREADS"] = str(threads)


def prepare(run: Run, cfg: DictConfig) -> None:
    """Threads, device and global seeds."""
    if cfg.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device {cfg.device!r}: choose auto, cpu or cuda")
    limit_threads(run.threads)
    import torch

    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device=cuda, but no CUDA device is found: use device=cpu, or install a CUDA build of torch (README, Install)"
        )
    run.device = "cuda" if cfg.device != "cpu" and torch.cuda.is_available() else "cpu"
    if cfg.device == "auto" and run.device == "cpu":
        run.note("device=auto: no CUDA device here, running on the CPU")
    seed_globals(run.rng("global"))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs time and hides nothing here


@contextlib.contextmanager
def handling_signals(stop: Callable[[int, Any], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop(number, frame)` inside the block (in the main thread)."""
    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
