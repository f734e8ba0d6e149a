"""One method on one data set and seed: its profile, its rows in the tables, and the order in which methods are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from papers.loss_shaping import fitting, methods, metrics

if TYPE_CHECKING:
    from common.run import Run
    from papers.loss_shaping.data import Dataset

RULES = [f"{segment}_q{q}" for segment in ("train", "val") for q in (25, 50, 75)]


@dataclass
class Outcome:
    """One method on one data set and seed. fitted: what `fitting.fit` returns; levels: (T,) or None where it has none."""

    method: str
    seed: int
    fitted: dict[str, Any]
    levels: NDArray[np.float64] | None
    rule: str = ""

    def profile(self, segment: str) -> NDArray[np.float64]:
        """(T,)"""
        return np.nanmean(self.fitted[segment], axis=1)  # a channel that a gap hides at a step is left out there

    def row(self, erm: Outcome) -> dict[str, Any]:
        """A line of the headline table: mean, Window STD and largest step on test, and their changes against ERM in percent."""
        test, base = (metrics.describe(o.profile("test"), o.fitted["test_mae"]) for o in (self, erm))
        row: dict[str, Any] = {"method": self.method, "seed": self.seed}
        for key in ("mse", "window_std", "max_step"):
            row |= {key: test[key], f"{key}_change": 100 * (test[key] / base[key] - 1)}
        return row | {"mae": test["mae"]}

    def details(self) -> dict[str, Any]:
        """The other figures: the profile's shape, the train and validation sides, and how the levels are met."""
        test = metrics.describe(self.profile("test"), levels=self.levels)
        row: dict[str, Any] = {"method": self.method, "seed": self.seed}
        row |= {key: test[key] for key in ("iqr", "cvar_10", "linearity")}
        row |= {"train_mse": float(self.profile("train").mean()), "train_std": metrics.window_std(self.profile("train")),
                "val_mse": float(self.profile("val").mean()), "epoch": self.fitted["epoch"]}  # fmt: skip
        if self.levels is not None:
            row |= {"level": float(np.mean(self.levels)), "infeasible": test["infeasible"], "violation": test["violation"],
                    "train_infeasible": metrics.infeasible_rate(self.profile("train"), self.levels)}  # fmt: skip
        if "multipliers" in self.fitted:
            row |= {"sum_prices": float(self.fitted["multipliers"].sum()), "max_slack": float(self.fitted["slack"].max())}  # fmt: skip
        return row


def train_methods(cfg: Any, run: Run, data: Dataset, names: list[str], seed: int, prefix: str) -> list[Outcome]:
    """ERM first, since levels are quantiles of its profile; then each method under those levels. ERM leads the list."""

    def outcome(method: str, levels: Any, rule: str = "") -> Outcome:
        weighting = methods.weighting(method, cfg, data, levels, erm.fitted if erm else {})
        name = "-".join(str(part) for part in (prefix, method, rule, seed) if part != "")
        return Outcome(
            method, seed, fitting.fit(methods.with_state(cfg, method), run, data, weighting, name, seed), levels, rule
        )

    erm: Outcome | None = None
    erm = outcome("erm", None)
    outcomes = [erm]
    for method in dict.fromkeys(name for name in names if name != "erm"):
        if method not in methods.NEED_LEVELS:
            outcomes.append(outcome(method, None))
        elif cfg.level == "select" and cfg.levels is None:  # the paper's protocol: never by what test says
            tried = [outcome(method, methods.levels_of(cfg, rule, erm.fitted), rule) for rule in RULES]
            outcomes.append(min(tried, key=lambda found: float(found.profile("val").mean())))
            run.note(f"{method}, seed {seed}: level {outcomes[-1].rule} has the lowest validation loss of six")
        else:
            outcomes.append(outcome(method, methods.levels_of(cfg, cfg.level, erm.fitted)))
    return outcomes


def profile_rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """A row for each step: every method's test error there, and the level and final price of those that have them."""
    columns: dict[str, Any] = {}
    for outcome in outcomes:
        columns[outcome.method] = outcome.profile("test")
        if outcome.levels is not None:
            columns[f"{outcome.method}.level"] = outcome.levels
        prices = outcome.fitted.get("multipliers")
        if prices is not None and len(prices) == len(outcome.profile("test")):
            columns[f"{outcome.method}.price"] = prices
    return [{"step": i + 1} | {key: float(value) for key, value in zip(columns, step, strict=True)}
            for i, step in enumerate(zip(*columns.values(), strict=True))]  # fmt: skip


def price_story(erm: Outcome, hard: Outcome) -> tuple[float, float | None]:
    """E3: Spearman correlation of prices with ERM train losses; share of zero prices where ERM is 20 % under the level."""
    from scipy.stats import spearmanr

    losses, prices = erm.profile("train"), hard.fitted["multipliers"]
    assert hard.levels is not None
    easy = losses < 0.8 * hard.levels
    return float(spearmanr(prices, losses).statistic), float((prices[easy] == 0).mean()) if easy.any() else None
