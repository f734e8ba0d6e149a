"""Cost estimate of a run without running it: parameters, memory and hours."""

from __future__ import annotations

from typing import Any

from common.run import Run
from papers.neg_ucb.worlds import method_of, task_of

FLOPS = 5e9  # of one core, a second
BIDS = 200  # valid bids of a round, about


def estimate(cfg: Any, run: Run) -> None:
    """A row a task: the parameters of NegUCB, memory (float64 arrays), hours of all methods and seeds by operation counts."""
    rows: list[dict[str, Any]] = []
    for name in cfg.tasks:
        task = task_of(cfg, name)
        bids = BIDS if task["search"]["method"] == "enumerate" else 60 * task["search"]["restarts"]
        m, p, work = task["m"] + 1, (task["m"] + 1) * (1 + task["hidden"]), 0.0
        for method in cfg.methods:
            entry = method_of(cfg, method, task)
            size = m * (1 + task["hidden"] * (entry.get("hidden") == "task")) if entry.get("map") == "nystrom" else m
            work += bids * m * m + 2 * size**2 + (size**3 + cfg.counterparts * size**2) / task["every"]
        memory = 8 * (4 * p * p + 2 * cfg.counterparts * m * m) / 1e9
        hours = work * task["rounds"] * min(len(cfg.seeds), task["worlds"]) / FLOPS / 3600
        rows.append({"task": name, "params": p, "memory_gb": memory, "hours": hours})
    run.table("dry", rows)
    most = {key: max((row[key] for row in rows), default=0) for key in ("params", "memory_gb")}
    run.log({**most, "hours": sum(row["hours"] for row in rows)})
    run.note("hours assume 5 GFlop/s of one core and about 200 bids a round; not measured, right to a factor of a few")
