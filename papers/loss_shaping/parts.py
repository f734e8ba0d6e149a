"""The parts of the job: methods on a data set, several seeds and sets (E2, E3), the control that must fail (E4), levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import MissingData, user_errors
from papers.loss_shaping import data as datasets
from papers.loss_shaping import fitting, methods, metrics, plots
from papers.loss_shaping.outcome import Outcome, price_story, profile_rows, train_methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from omegaconf import DictConfig

    from common.run import Run
    from papers.loss_shaping.data import Dataset


CONTROLS = {
    "official": "released duals, memory as it is",
    "official_rescaled": "released duals, memory rescaled",
    "duals": "duals of E2, memory as it is",
    "duals_rescaled": "duals of E2, memory rescaled",
    "held": "their last prices, held",
}


def load(cfg: Any, run: Run) -> Dataset:
    """The data set of `cfg.data`, in windows of the config's sizes."""
    return datasets.load(cfg.data, run, context=cfg.context, label=cfg.label, horizon=cfg.horizon)


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
            tests = {outcome.method: outcome.profile("test") for outcome in outcomes}
            run.figure("profiles", plots.profiles(tests, f"{data.name}, {cfg.model.name}"))
            for outcome in shaped:
                if len(outcome.fitted["multipliers"]) == cfg.horizon:
                    run.figure(f"multipliers_{outcome.method}", before_after(outcomes[0], outcome))
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


def before_after(erm: Outcome, shaped: Outcome) -> Figure:
    """The picture of one constrained training beside ERM: profiles, levels and prices."""
    profiles = {segment: (erm.profile(segment), shaped.profile(segment)) for segment in ("train", "test")}
    fitted = shaped.fitted
    return plots.before_after(profiles, shaped.method, shaped.levels, fitted["multipliers"], fitted["path"], fitted["path_steps"])  # fmt: skip


def intervals(cfg: Any, run: Run, outcomes: list[Outcome]) -> None:
    """90 % block-bootstrap intervals of test MSE and Window STD over windows (overlapping windows stay together)."""
    rows = []
    for outcome in outcomes:
        losses = outcome.fitted["test_windows"].astype(float)
        block = min(len(losses), cfg.context + cfg.horizon)
        row: dict[str, Any] = {"method": outcome.method}
        for key, statistic in (("mse", np.mean), ("window_std", metrics.window_std)):
            generator = run.rng("bootstrap", outcome.seed).numpy  # the same blocks for every method
            row[f"{key}_low"], row[f"{key}_high"] = metrics.block_bootstrap(losses, statistic, generator, block=block)
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
    """E2 and E3: the hard constraint against ERM on each set and seed, and what the multipliers say.

    Where Adam's memory is treated in other ways too (methods hard_as_is, hard_rescaled, hard_exact), their changes stand beside.
    """
    from omegaconf import OmegaConf

    rows, details = [], []
    for part in cfg.shaping.sets:
        own = OmegaConf.merge(cfg, {"data": {"name": part.data}, "epochs": part.epochs})
        try:
            data = load(own, run)
        except MissingData as error:
            run.note(f"set {part.data} is left out: {error}")
            continue
        found: dict[str, list[Outcome]] = {}
        for seed in run.seeds(cfg.seeds):
            outcomes = train_methods(own, run, data, list(cfg.shaping.methods), seed, part.data)
            rows += [{"data": part.data, **outcome.row(outcomes[0])} for outcome in outcomes]
            details += [{"data": part.data, **outcome.details()} for outcome in outcomes]
            for outcome in outcomes:
                found.setdefault(outcome.method, []).append(outcome)
        run.figure(f"shaping_{part.data}", before_after(found["erm"][0], found["hard"][0]))
        _shaping_metrics(run, f"shaping.{part.data}", found["erm"], found["hard"])
        for method, state in methods.STATES.items():
            if method in found:
                run.log({f"shaping.{part.data}.{state}": changes(found["erm"], found[method])})
    run.table("shaping", rows)
    run.table("shaping_details", details)
    if rows:
        run.table("shaping_mean", _means(rows))


def changes(before: list[Outcome], after: list[Outcome]) -> dict[str, float]:
    """Changes in percent of Window STD, mean and largest step, seed by seed: means, the worst, and 95 % intervals."""

    def change(segment: str, figure: Any) -> list[float]:
        pairs = zip(before, after, strict=True)
        return [100 * (figure(b.profile(segment)) / figure(a.profile(segment)) - 1) for a, b in pairs]

    figures = {
        "train_std_change": change("train", metrics.window_std),
        "test_std_change": change("test", metrics.window_std),
        "test_mse_change": change("test", np.mean),
        "test_max_change": change("test", np.max),
    }
    found: dict[str, float] = {}
    for key, values in figures.items():
        found[key] = float(np.mean(values))
        if len(values) > 1:
            found[f"{key}.low"], found[f"{key}.high"] = metrics.paired_interval(values)
    train_std = figures["train_std_change"]
    found |= {"train_std_change_worst": max(train_std), "test_std_change_worst": max(figures["test_std_change"]),
              "train_std_share": float(np.mean(np.array(train_std) <= -3.0))}  # fmt: skip
    return found


def _shaping_metrics(run: Run, name: str, erm: list[Outcome], hard: list[Outcome]) -> None:
    run.log({name: changes(erm, hard)})
    run.log({f"{name}.erm_unevenness": min(o.profile("test").max() / o.profile("test").mean() for o in erm)})
    told = [price_story(*pair) for pair in zip(erm, hard, strict=True)]
    run.log({f"{name}.spearman": min(rank for rank, _ in told)})
    shares = [share for _, share in told if share is not None]
    if shares:
        run.log({f"{name}.free_share": float(np.mean(shares))})
    else:
        run.note(f"{name}: no step's ERM loss is 20 % under its level, so there is no price to look for at zero there")


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

    The released code's duals and those of E2, each with Adam's memory as it is and rescaled; and the prices that those of E2
    end with, held from the first step to the last.
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
        erm, *_ = train_methods(own, run, data, ["erm"], seed, f"control-{name}")
        levels = methods.levels_of(own, own.level, erm.fitted)
        tries: dict[str, NDArray[np.float64]] = {}
        weights = None
        for kind, duals in (("official", cfg.control.official_duals), ("duals", {})):
            for method, suffix in (("hard_as_is", ""), ("hard_rescaled", "_rescaled")):
                mine = methods.with_state(OmegaConf.merge(own, {"duals": duals}), method)
                prices = methods.weighting("hard", mine, data, levels, erm.fitted)
                fitted = fitting.fit(mine, run, data, prices, f"control-{kind}{suffix}-{name}", seed)
                tries[f"{kind}{suffix}"] = fitted["test"].mean(1)
                if (kind, suffix) == ("duals", ""):
                    weights = fitted["multipliers"] + np.full(cfg.horizon, 1.0 / cfg.horizon)
        held = fitting.fit(own, run, data, Fixed(torch.as_tensor(weights)), f"control-held-{name}", seed)
        tries["held"] = held["test"].mean(1)
        before = erm.profile("test")
        for key, after in tries.items():
            mse, std = (100 * (f(after) / f(before) - 1) for f in (np.mean, metrics.window_std))
            rows.append({"data": name, "try": CONTROLS[key], "erm_mse": before.mean(), "erm_std": before.std(), "hard_mse": after.mean(),
                         "hard_std": after.std(), "mse_change": mse, "std_change": std})  # fmt: skip
            run.log({f"control.{name}.{key}": {"mse_change": abs(mse), "std_change": abs(std)}})
    run.table("control", rows)


def tuned(cfg: DictConfig, run: Run) -> None:
    """Every method tuned alike and judged on seeds of their own; Adam's memory rescaled beside as it is, seed by seed."""
    from omegaconf import OmegaConf

    from papers.loss_shaping import tuning

    tables: dict[str, list[dict[str, Any]]] = {"tuned_trials": [], "tuned_seeds": [], "tuned": []}
    for part in cfg.tuned.sets:
        own = OmegaConf.merge(cfg, {"data": {"name": part.data}, "epochs": part.epochs})
        try:
            data = load(own, run)
        except MissingData as error:
            run.note(f"set {part.data} is left out: {error}")
            continue
        searched, judged, chosen = tuning.compare_tuned(own, run, data)
        tables["tuned_trials"] += searched
        tables["tuned_seeds"] += judged
        changes_of: dict[str, dict[str, NDArray[np.float64]]] = {}
        for method, settings in chosen.items():
            mine = [row for row in judged if row["method"] == method]
            row: dict[str, Any] = {
                "data": part.data,
                "method": method,
                "settings": ", ".join(f"{k}={v:g}" for k, v in settings.items()),
            }
            changes_of[method] = {
                key: np.array([r[key] for r in mine]) for key in ("train_std_change", "window_std_change", "mse_change")
            }
            for key, values in changes_of[method].items():
                if method != "erm":
                    row |= {key: float(values.mean())} | _with_interval(
                        run, f"tuned.{part.data}.{method}.{key}", values
                    )
            tables["tuned"].append(row)
        for one, other in (("rescaled", "as_is"), ("rescaled", "penalty")):
            if {one, other} <= set(changes_of):
                for key in ("window_std_change", "mse_change"):
                    gap = changes_of[one][key] - changes_of[other][key]  # percentage points of ERM's figure
                    _with_interval(run, f"tuned.{part.data}.{one}_minus_{other}.{key}", gap)
    for name, rows in tables.items():
        run.table(name, rows)


def _with_interval(run: Run, name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Log the mean of paired changes with its 95 % interval; the interval as columns of a table."""
    run.log({name: float(values.mean())})
    if len(values) < 2:
        return {}
    low, high = metrics.paired_interval(values)
    run.log({f"{name}.low": low, f"{name}.high": high})
    key = name.rpartition(".")[2]
    return {f"{key}_low": low, f"{key}_high": high}


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
