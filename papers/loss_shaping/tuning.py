"""Equal tuning: every method by as many trials on seeds that judge nothing, then all on others, seed by seed beside ERM."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from papers.loss_shaping import fitting, methods, metrics
from papers.loss_shaping.outcome import Outcome

if TYPE_CHECKING:
    from common.run import Run
    from papers.loss_shaping.data import Dataset

Row = dict[str, Any]


def trials(grid: Any) -> list[dict[str, Any]]:
    """Every combination of a grid's values, as settings by dotted key."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def changed(cfg: Any, settings: dict[str, Any]) -> Any:
    """A copy of `cfg` with settings by dotted key."""
    cfg = OmegaConf.create(OmegaConf.to_container(cfg))
    for key, value in settings.items():
        OmegaConf.update(cfg, key, value)
    return cfg


def train(cfg: Any, run: Run, data: Dataset, method: str, seed: int, name: str, erm: Outcome | None = None) -> Outcome:
    """One method on one seed; levels and fixed weights from `erm` of the same seed."""
    levels = methods.levels_of(cfg, cfg.level, erm.fitted) if erm and method in methods.NEED_LEVELS else None
    weighting = methods.weighting(method, cfg, data, levels, erm.fitted if erm else {})
    fitted = fitting.fit(methods.with_state(cfg, method), run, data, weighting, name, seed)
    return Outcome(method, seed, fitted, levels)


def compare_tuned(cfg: Any, run: Run, data: Dataset) -> tuple[list[Row], list[Row], dict[str, dict[str, Any]]]:
    """Rows of the trials, rows of the seeds that judge, and the settings that each method was given, on one data set."""
    part, searched, chosen = cfg.tuned, [], {}
    baseline: dict[int, Outcome] = {}  # ERM as tuned, on the seeds that choose
    for entry in part.methods:
        found: list[tuple[dict[str, Any], list[Outcome]]] = []
        for number, settings in enumerate(trials(entry.grid)):
            own = changed(cfg, settings)
            outcomes = [
                train(
                    own,
                    run,
                    data,
                    entry.method,
                    seed,
                    f"try-{data.name}-{entry.name}-{number}-{seed}",
                    baseline.get(seed),
                )
                for seed in run.seeds(part.seeds)
            ]
            found.append((settings, outcomes))
        if entry.method == "erm":
            best = min(found, key=lambda pair: float(np.mean([o.profile("val").mean() for o in pair[1]])))
            baseline = {outcome.seed: outcome for outcome in best[1]}
        rows = [_trial(data.name, entry.name, settings, outcomes, baseline) for settings, outcomes in found]
        cheapest = min(range(len(rows)), key=lambda number: float(rows[number]["val_mse_change"]))
        chosen[entry.name] = found[cheapest if entry.method == "erm" else choice(rows, part.cost)][0]
        searched += rows
    judged = []
    for seed in run.seeds(part.judge):
        erm = train(changed(cfg, chosen[part.methods[0].name]), run, data, "erm", seed, f"judge-{data.name}-erm-{seed}")
        for entry in part.methods:
            outcome = erm
            if entry.method != "erm":
                own = changed(cfg, chosen[entry.name])
                outcome = train(own, run, data, entry.method, seed, f"judge-{data.name}-{entry.name}-{seed}", erm)
            train_std = metrics.window_std(outcome.profile("train")) / metrics.window_std(erm.profile("train"))
            judged.append({"data": data.name, **outcome.row(erm), "method": entry.name, "train_std_change": 100 * (train_std - 1)})  # fmt: skip
    return searched, judged, chosen


def _trial(
    data: str, name: str, settings: dict[str, Any], outcomes: list[Outcome], baseline: dict[int, Outcome]
) -> Row:
    def change(figure: Any) -> float:
        return float(
            np.mean([100 * (figure(o.profile("val")) / figure(baseline[o.seed].profile("val")) - 1) for o in outcomes])
        )

    shown = ", ".join(f"{key}={value:g}" for key, value in settings.items())
    return {"data": data, "method": name, "settings": shown, "val_std_change": change(metrics.window_std), "val_mse_change": change(np.mean)}  # fmt: skip


def choice(rows: list[Row], cost: float) -> int:
    """Which trial: the flattest on validation of those that cost at most `cost` % of mean error; if none, the cheapest."""
    affordable = [row for row in rows if row["val_mse_change"] <= cost]
    key = "val_std_change" if affordable else "val_mse_change"
    return rows.index(min(affordable or rows, key=lambda row: row[key]))
