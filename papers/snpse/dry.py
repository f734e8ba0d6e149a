"""Cost estimate of a run without running it: parameters, memory and hours."""

from __future__ import annotations

from typing import Any

import torch

from common.run import Run
from papers.snpse import tasks
from papers.snpse.networks import ScoreModel, options_of
from papers.snpse.sde import VE
from papers.snpse.single import options_of as training_of

FLOPS = 1.5e10  # of one core with small matrices, a second


def estimate(cfg: Any, run: Run) -> None:
    """A row a task of the benchmark: parameters of the network, memory, hours over budgets, observations, methods, rounds."""
    from papers.snpse.training import training_options

    part, rows = cfg.benchmark, []
    options = training_options(training_of(cfg, steps=part.steps, n_hpr=part.n_hpr))
    for name in part.tasks:
        task = tasks.get(name)
        with torch.device("meta"):
            model = ScoreModel(task.d, task.p, VE(), **options_of(options))
        params = sum(p.numel() for p in model.parameters())
        fit = 6.0 * params * options["steps"] * options["batch_size"]
        density = 2.0 * params * 4 * options["density_steps"] * (1 + 2 * task.d) * 3 * options["n_hpr"]
        work = 0.0
        for method in part.methods:
            r = part.rounds if method != "npse" else 1
            work += r * fit + (r - 1) * density
        work *= len(part.budgets) * len(part.observations) * len(cfg.seeds)
        memory = 4 * (4 * params + max(part.budgets) * (task.d + task.p) + 20_000 * options["width"] * 8) / 1e9
        rows.append({"task": name, "params": params, "memory_gb": memory, "hours": work / FLOPS / 3600})
    run.table("dry", rows)
    run.log(
        {
            "params": max(r["params"] for r in rows),
            "memory_gb": max(r["memory_gb"] for r in rows),
            "hours": sum(r["hours"] for r in rows),
        }
    )
    run.note(
        "hours assume 15 GFlop/s of one core and no time in simulators and C2ST; not measured, right to a factor of a few"
    )
