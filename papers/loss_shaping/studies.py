"""What the job is made of: methods on a data set, several seeds and sets (E2, E3), the control that must fail (E4), levels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import MissingData, user_errors
from papers.loss_shaping import data as datasets
from papers.loss_shaping import fitting, methods, metrics, plots

if TYPE_CHECKING:
    from omegaconf import DictConfig

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
        return self.fitted[segment].mean(1)

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


def load(cfg: Any, run: Run) -> Dataset:
    return datasets.load(cfg.data, run, context=cfg.context, label=cfg.label, horizon=cfg.horizon)


def train_methods(cfg: Any, run: Run, data: Dataset, names: list[str], seed: int, prefix: str) -> list[Outcome]:
    """ERM first, since levels are quantiles of its profile; then each method under those levels. ERM leads the list."""

    def outcome(method: str, levels: Any, rule: str = "") -> Outcome:
        weighting = methods.weighting(method, cfg, data, levels, erm.fitted if erm else {})
        name = "-".join(str(part) for part in (prefix, method, rule, seed) if part != "")
        return Outcome(method, seed, fitting.fit(cfg, run, data, weighting, name, seed), levels, rule)

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


# ---- parts -----------------------------------------------------------------------------------------------------------


def compare(cfg: DictConfig, run: Run) -> None:
    """All of cfg.methods on cfg.data with cfg.model: one table, and the profile before and after."""
    data = load(cfg, run)
    rows, details = [], []
    seeds = run.seeds(cfg.seeds)
    for seed in seeds:
        outcomes = train_methods(cfg, run, data, list(cfg.methods), seed, "compare")
        rows += [outcome.row(outcomes[0]) for outcome in outcomes]
        details += [outcome.details() for outcome in outcomes]
        if seed == seeds[0]:
            run.log({"compare.parameters": outcomes[0].fitted["parameters"]})
            shaped = [o for o in outcomes if "multipliers" in o.fitted]
            run.figure("profiles", plots.profiles(outcomes, f"{data.name}, {cfg.model.name}"))
            for outcome in shaped:
                if len(outcome.fitted["multipliers"]) == cfg.horizon:
                    run.figure(f"multipliers_{outcome.method}", plots.before_after(outcomes[0], outcome))
            run.table("profile", profile_rows(outcomes))
            intervals(cfg, run, outcomes)
            if cfg.groups:
                group_table(cfg, run, data, outcomes)
    run.table("compare", rows)
    run.table("details", details)
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        for key in ("mse", "mae", "window_std", "max_step", "mse_change", "window_std_change"):
            run.log({f"compare.{method}.{key}": float(np.mean([row[key] for row in mine]))})


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


def intervals(cfg: Any, run: Run, outcomes: list[Outcome]) -> None:
    """90 % block-bootstrap intervals of test MSE and Window STD over windows (overlapping windows stay together)."""
    rows = []
    for outcome in outcomes:
        losses = outcome.fitted["test_windows"].astype(float)
        block = min(len(losses), cfg.context + cfg.horizon)
        row: dict[str, Any] = {"method": outcome.method}
        for key, statistic in (("mse", np.mean), ("window_std", metrics.window_std)):
            rng = run.rng("bootstrap", outcome.seed).numpy  # the same blocks for every method
            row[f"{key}_low"], row[f"{key}_high"] = metrics.block_bootstrap(losses, statistic, rng, block=block)
        rows.append(row)
    run.table("intervals", rows)


def group_table(cfg: Any, run: Run, data: Dataset, outcomes: list[Outcome]) -> None:
    """What each group's error is under each method, on training windows and on test windows."""
    from papers.loss_shaping.constraints import group_operator

    A = group_operator(cfg.groups, cfg.horizon, data.columns)
    rows = []
    for k, group in enumerate(cfg.groups):
        for outcome in outcomes:
            row = {"group": k + 1, "level": float(group["level"]), "method": outcome.method}
            row |= {segment: float(A[k] @ outcome.fitted[segment].ravel()) for segment in datasets.SEGMENTS}
            if "multipliers" in outcome.fitted:
                row["price"] = float(outcome.fitted["multipliers"][k])
            rows.append(row)
    run.table("groups", rows)


def shaping(cfg: DictConfig, run: Run) -> None:
    """E2 and E3: the hard constraint against ERM on each set and seed, and what the multipliers say."""
    from omegaconf import OmegaConf

    rows, details = [], []
    for part in cfg.shaping.sets:
        own = OmegaConf.merge(cfg, {"data": {"name": part.data}, "epochs": part.epochs})
        try:
            data = load(own, run)
        except MissingData as error:
            run.note(f"set {part.data} is left out: {error}")
            continue
        pairs = []
        for seed in run.seeds(cfg.seeds):
            outcomes = train_methods(own, run, data, list(cfg.shaping.methods), seed, part.data)
            rows += [{"data": part.data, **outcome.row(outcomes[0])} for outcome in outcomes]
            details += [{"data": part.data, **outcome.details()} for outcome in outcomes]
            hard = next(outcome for outcome in outcomes if outcome.method == "hard")
            pairs.append((outcomes[0], hard))
        run.figure(f"shaping_{part.data}", plots.before_after(*pairs[0]))
        _shaping_metrics(run, part.data, pairs)
    run.table("shaping", rows)
    run.table("shaping_details", details)
    if rows:
        run.table("shaping_mean", _means(rows))


def _shaping_metrics(run: Run, name: str, pairs: list[tuple[Outcome, Outcome]]) -> None:
    def change(segment: str, figure: Any) -> list[float]:
        return [100 * (figure(hard.profile(segment)) / figure(erm.profile(segment)) - 1) for erm, hard in pairs]

    train_std, test_std = change("train", metrics.window_std), change("test", metrics.window_std)
    run.log({f"shaping.{name}": {
        "train_std_change_worst": max(train_std),
        "train_std_change": float(np.mean(train_std)),
        "test_std_change": float(np.mean(test_std)),
        "test_std_change_worst": max(test_std),
        "test_mse_change": float(np.mean(change("test", np.mean))),
        "test_max_change": float(np.mean(change("test", np.max))),
        "erm_unevenness": min(erm.profile("test").max() / erm.profile("test").mean() for erm, _ in pairs),
    }})  # fmt: skip
    told = [price_story(erm, hard) for erm, hard in pairs]
    run.log({f"shaping.{name}.spearman": min(rank for rank, _ in told)})
    shares = [share for _, share in told if share is not None]
    if shares:
        run.log({f"shaping.{name}.free_share": float(np.mean(shares))})
    else:
        run.note(f"{name}: no step's ERM loss is 20 % under its level, so there is no price to look for at zero there")


def price_story(erm: Outcome, hard: Outcome) -> tuple[float, float | None]:
    """E3: Spearman correlation of prices with ERM train losses; share of zero prices where ERM is 20 % under the level."""
    from scipy.stats import spearmanr

    losses, prices = erm.profile("train"), hard.fitted["multipliers"]
    assert hard.levels is not None
    easy = losses < 0.8 * hard.levels
    return float(spearmanr(prices, losses).statistic), float((prices[easy] == 0).mean()) if easy.any() else None


def _means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, a row for each data set and method."""
    found = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        keys = [key for key, value in mine[0].items() if isinstance(value, float)]
        found.append({"data": data, "method": method, "seeds": len(mine)} | {k: float(np.mean([r[k] for r in mine])) for k in keys})  # fmt: skip
    return found


def control(cfg: DictConfig, run: Run) -> None:
    """E4: a linear map with a row of weights for each step cannot be shaped, since no two steps share a parameter.

    Four tries: the released code's duals; the duals of E2; and, under the prices that those end with, the exact minimiser,
    and the same training with these prices held from its first step to its last.
    """
    import torch
    from omegaconf import OmegaConf

    from papers.loss_shaping.shaping import Fixed

    seed, rows = run.seeds(cfg.seeds)[0], []
    for name in dict.fromkeys([cfg.control.data, "synthetic"]):
        own = OmegaConf.merge(cfg, {"data": {"name": name, "stride": {"train": 1, "test": 1}}, "model": {"name": "linear"},
                                    "lr": cfg.control.lr, "epochs": cfg.control.epochs, "level": cfg.control.level})  # fmt: skip
        try:
            data = load(own, run)
        except MissingData as error:
            run.note(f"control on {name} is left out: {error}")
            continue
        official = OmegaConf.merge(own, {"dual": cfg.control.official_dual})
        erm, hard = train_methods(official, run, data, ["hard"], seed, f"control-official-{name}")
        duals = methods.weighting("hard", own, data, hard.levels, erm.fitted)
        moving = fitting.fit(own, run, data, duals, f"control-moving-{name}", seed)
        uniform = np.full(cfg.horizon, 1.0 / cfg.horizon)
        weights = moving["multipliers"] + uniform
        held = fitting.fit(own, run, data, Fixed(torch.as_tensor(weights)), f"control-held-{name}", seed)
        exact = [run.stage(f"control-exact-{name}", partial(_solved, own, data, w), key=[data.sha, w.tolist()])
                 for w in (uniform, weights)]  # fmt: skip
        tries = {
            "official": ("official duals", erm.profile("test"), hard.profile("test")),
            "duals": ("duals of E2", erm.profile("test"), moving["test"].mean(1)),
            "held": ("their last prices, held", erm.profile("test"), held["test"].mean(1)),
            "solved": ("the same, solved exactly", exact[0].mean(1), exact[1].mean(1)),
        }
        for key, (label, before, after) in tries.items():
            mse, std = (100 * (f(after) / f(before) - 1) for f in (np.mean, metrics.window_std))
            rows.append({"data": name, "try": label, "erm_mse": before.mean(), "erm_std": before.std(), "hard_mse": after.mean(),
                         "hard_std": after.std(), "mse_change": mse, "std_change": std})  # fmt: skip
            run.log({f"control.{name}.{key}": {"mse_change": abs(mse), "std_change": abs(std)}})
    run.table("control", rows)


def _solved(cfg: Any, data: Dataset, w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Test errors (T, C) of the linear map that minimises sum_i w_i l_i over the training windows, by least squares."""
    from papers.loss_shaping.forecasters.linear import Linear
    from papers.loss_shaping.recommender import moments

    m = moments(data.segments["train"])
    rows = [np.linalg.solve(w_i * m.G, w_i * b_i) for w_i, b_i in zip(w, m.B, strict=True)]
    forecaster = fitting.make_forecaster(cfg.model, data, seed=0)
    assert isinstance(forecaster, Linear)
    solution = np.stack(rows)  # (T, T_c + 1)
    forecaster.assign(solution[:, :-1], solution[:, -1])
    return fitting.evaluate(forecaster, data.segments["test"], cfg.eval_batch)["mse"]


def convex(cfg: DictConfig, run: Run) -> None:
    """E1: duals of a convex problem against a general solver; divergence where no model is feasible; resilience."""
    from papers.loss_shaping import convex as exact

    c = cfg.convex
    q = exact.problem(np.random.default_rng(c.seed), steps=c.steps, d=c.d, samples=c.samples, noise=c.noise)
    erm = q.losses(q.minimise(np.full(c.steps, 1.0 / c.steps)))
    lowest = exact.lowest_level(q)
    run.log({"convex.erm": {"mean": erm.mean(), "std": metrics.window_std(erm), "max": erm.max()}, "convex.lowest_level": lowest})  # fmt: skip
    levels = {"tight": c.tight * lowest, "loose": (lowest + erm.max()) / 2, "infeasible": c.infeasible * lowest}
    rows, saddles = [], {}
    for name, level in levels.items():
        eps = np.full(c.steps, level)
        for variant in ("hard", "resilient") if name == "infeasible" else ("hard",):
            soft = variant == "resilient"
            steps = c.infeasible_iterations if name == "infeasible" and not soft else c.iterations
            s = exact.dual_ascent(q, eps, lr=c.dual_lr, steps=steps, slack_lr=c.slack_lr if soft else 0.0, alpha=cfg.resilience.alpha)  # fmt: skip
            value, _, feasible = exact.solve(q, eps, alpha=cfg.resilience.alpha if soft else None)
            key = variant if name == "infeasible" else name
            saddles[key] = s
            row = {"level": level, "primal": s.primal, "dual": s.dual, "gap": abs(s.primal - s.dual), "kkt": s.kkt,
                   "std": metrics.window_std(s.losses), "max": s.losses.max(), "active": int((s.multipliers > 1e-9).sum()),
                   "sum_prices": s.multipliers.sum(), "violation": max(0.0, (s.losses - eps - s.slack).max()),
                   "solver": value, "solver_difference": abs(s.primal - value), "max_slack": s.slack.max(),
                   "identity": np.abs(s.multipliers - cfg.resilience.alpha * s.slack).max()}  # fmt: skip
            if not soft and name == "infeasible":  # no saddle: prices grow at the rate of the violation, for ever
                middle, end = s.path[len(s.path) // 2].sum(), s.path[-1].sum()
                row |= {"growth": (end - middle) / middle, "solver_feasible": int(feasible)}
            rows.append({"case": f"{name}, {variant}", **row})
            run.log({f"convex.{key}": row})
    solvable = [row for row in rows if row["case"] != "infeasible, hard"]
    run.log({f"convex.{key}_worst": max(row[key] for row in solvable) for key in ("gap", "kkt", "solver_difference")})
    run.table("convex", rows)
    run.figure("convex", plots.convex(erm, levels, saddles))


def recommend(cfg: DictConfig, run: Run) -> None:
    """Levels before training: what a common level costs a linear stand-in whose steps share parameters, and the lowest it holds."""
    from papers.loss_shaping.recommender import frontier, held

    data = load(cfg, run)
    with run.time("recommend_s"), user_errors(f"recommend.dual_lr={cfg.recommend.dual_lr:g} (a smaller one may do)"):
        rows, picture = frontier(data, **cfg.recommend)
    run.table("frontier", rows)
    run.log(
        {"recommend": {"lowest_level": picture["lowest"], "bound": picture["bound"], "level": picture["recommended"]}}
    )
    run.note(f"recommended level: levels=[{picture['recommended']:.3f}], the tightest that costs the stand-in at most {cfg.recommend.cost:g} % "
             f"of mean error; it can hold {picture['lowest']:.4f} at every step, and no model of its kind goes below {picture['bound']:.4f}")  # fmt: skip
    if slow := sum(not held(row) for row in rows):
        run.note(f"{slow} of {len(rows)} levels were not held after {cfg.recommend.steps} steps of the prices, which did not converge there: "
                 f"raise recommend.steps or recommend.dual_lr to learn whether these levels cost less than the recommended one allows")  # fmt: skip
    run.figure("frontier", plots.frontier(rows, picture))
