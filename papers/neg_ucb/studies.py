"""The other studies behind the claims: each takes (cfg, run, data), logs its metrics, and draws its figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.errors import UserError
from common.run import Run
from papers.neg_ucb import baselines, environments, features, methods, plots, replay
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.data import Data
from papers.neg_ucb.environments.allocation import AllocationComplementary
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.environments.cardinality import Cardinality, ItemMeans
from papers.neg_ucb.environments.casino import CasinoReplay
from papers.neg_ucb.kernel import ExactNegUCB
from papers.neg_ucb.negotiation import Optimistic, RandomBid, negotiate
from papers.neg_ucb.settings import environment_of, method_of, play_out, policy_of, seeds_of, task_of

# ---- a bonus for the bid, or for each of its items: C6 -----------------------------------------------------------------


def cardinality(cfg, run: Run, data: Data) -> None:
    """Regret as bids grow at a fixed feature dimension: one confidence width for the bid, against the sum of its items'."""
    options, rows = cfg.cardinality, []
    for n in run.progress(list(options["items"]), "cardinality"):
        mean = {}
        for name in ("whole", "summed", "averaged", "summed_tuned", "random"):
            runs = []
            for seed in options.seeds:
                env = Cardinality(seed=int(seed) + 1000 * run.seed, items=n)
                rng = run.rng("cardinality", name, n, seed).numpy
                runs.append(
                    play_out(
                        run,
                        f"cardinality.{name}.{n}.{seed}",
                        env,
                        _item_policy(name, env, options, rng),
                        options.rounds,
                    )["regret"]
                )
            mean[name] = float(np.mean(runs))
        rows.append(
            {
                "items": n,
                **mean,
                "whole_over_summed": mean["whole"] / mean["summed"],
                "whole_over_tuned": mean["whole"] / mean["summed_tuned"],
            }
        )
        run.log({f"cardinality.n{n}": mean})
    run.table("cardinality", rows)
    by_size = {row["items"]: row["whole"] for row in rows}
    if {16, 64} <= set(by_size):
        run.log({"cardinality.whole_64_over_16": by_size[64] / by_size[16]})
    run.log(
        {
            "cardinality.whole_over_summed": max(row["whole_over_summed"] for row in rows),
            "cardinality.whole_over_tuned": max(row["whole_over_tuned"] for row in rows),
        }
    )
    run.figure("cardinality", plots.cardinality(rows))


def _item_policy(name: str, env, options, rng: np.random.Generator):
    if name == "random":
        return RandomBid(rng)
    phi = ItemMeans(env)
    if name == "whole":
        return Optimistic(baselines.lin_ucb(phi, options.alpha), rng)
    alpha = options.alpha_summed_tuned if name == "summed_tuned" else options.alpha
    return Optimistic(baselines.C2UCB(phi, env.encoding, alpha, average=name == "averaged"), rng)


# ---- human offers ----------------------------------------------------------------------------------------------------


def casino(cfg, run: Run, data: Data) -> None:
    """CaSiNo: log-loss of predict-then-update on the last half of the offers, against base rates."""
    offers, options = data.offers(), cfg.casino
    rows, curves = [], {}
    for name, entry in options.models.items():

        def work(entry: Any = entry) -> dict[str, np.ndarray]:
            env = CasinoReplay(offers=offers)
            phi = features.make(
                entry.map,
                env.dim,
                rng=run.rng("casino", "map").numpy,
                m=options.m,
                bound=env.bound,
                candidates=env.x[: options.landmarks_from],
            )
            model = NegUCB(
                phi,
                hidden=entry.hidden,
                spread=entry.spread,
                lambda_theta=options.lambda_theta,
                exploration="greedy",
                every=options.every,
                seed=run.seed,
            )
            return replay.predict_then_update(env, model)

        kept = run.stage(f"casino.{name}", work)
        found = replay.scores(kept["q"], kept["y"])
        rows.append({"model": name, **found})
        run.log({f"casino.{name}": found})
        curves[name] = kept
    run.table("casino", rows)
    run.figure("casino", plots.casino(curves))


# ---- what the hidden states know ---------------------------------------------------------------------------------------


def clusters(cfg, run: Run, data: Data) -> None:
    """Two kinds of counterparts (complementary allocation): do the learnt states W h_g fall into the same two groups?"""
    from scipy.cluster.vq import kmeans2

    options, task = cfg.clusters, task_of(cfg, "allocation_complementary")
    env = AllocationComplementary(seed=1000 * run.seed, contexts=data.contexts(), counterparts=options.counterparts)

    def work() -> dict[str, np.ndarray]:
        policy = methods.make(method_of(cfg, "neg_ucb", task), env, 1000 * run.seed, task)
        negotiate(env, policy, options.rounds)
        model = policy.model  # type: ignore[attr-defined]
        model.alternate()
        who, special = model.weights()
        sample = model.phi(methods.candidates(env, run.seed))
        return {
            "who": np.array(who),
            "special": special @ sample.T,
            "visits": np.bincount(np.array(who), minlength=len(who)),
        }

    kept = run.stage("clusters", work)
    if len(kept["who"]) < 2:
        raise UserError(f"clusters.rounds is {options.rounds}: only one counterpart was met, give more rounds")
    types = env.types()[kept["who"]]
    centred = kept["special"] - kept["special"].mean(
        0
    )  # (G, bids): what each adds to the shared prediction, free of any rotation
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    places = U[:, :2] * s[:2]
    _, label = kmeans2(places, places[[places[:, 0].argmin(), places[:, 0].argmax()]], minit="matrix")
    agree = float((label == types).mean())
    run.log(
        {"clusters.agreement": max(agree, 1 - agree), "clusters.majority": float(max(types.mean(), 1 - types.mean()))}
    )
    run.figure("clusters", plots.clusters(places, types))


def warm_start(cfg, run: Run, data: Data) -> None:
    """Logged offers (made at random, answered) fitted before the first negotiation, against starting cold."""
    options, task = cfg.warm_start, task_of(cfg, cfg.warm_start.task)
    rows = []
    for n in options.logged:
        runs = []
        for seed in seeds_of(cfg, run):
            env = environment_of(cfg, task, seed, data)
            policy = policy_of(cfg, "neg_ucb", task, env, seed)
            x, g, y = logged(env, n, run.rng("logged", seed).numpy)
            if n:
                policy.model.fit(x, g, y)
            runs.append(play_out(run, f"warm_start.{n}.{seed}", env, policy, options.rounds)["regret"])
        rows.append({"logged": n, "regret": float(np.mean(runs)), "regret_sd": float(np.std(runs))})
        run.log({f"warm_start.n{n}": rows[-1]["regret"]})
    run.table("warm_start", rows)
    if len(rows) > 1:
        run.log({"warm_start.ratio": rows[-1]["regret"] / rows[0]["regret"]})


def logged(env: Environment, n: int, rng: np.random.Generator) -> tuple[np.ndarray, list[int], np.ndarray]:
    """n random offers and their answers: x (n, d), counterparts, y (n,). The environment stands where the log ends."""
    x, g, y = np.zeros((n, env.dim)), [], np.zeros(n)
    for t in range(n):
        bid = env.random_bids(1, rng)
        x[t] = env.features(bid)[0]
        g.append(env.counterpart)
        y[t] = env.respond(bid[0])
        if env.over:
            env.reset()
    return x, g, y


# ---- identities ------------------------------------------------------------------------------------------------------


def identities(cfg, run: Run, data: Data) -> None:
    """Numbers that must be zero whatever the data: the objective never rises, the dual form equals the primal."""
    env = environments.make("allocation_complementary", seed=1000 * run.seed, contexts=data.contexts())
    rng = run.rng("identities").numpy
    primal_map = features.Polynomial(env.dim, env.bound)
    primal = NegUCB(primal_map, hidden=2, every=10, seed=run.seed)
    dual = ExactNegUCB(primal_map.kernel, hidden=2, every=10, seed=run.seed)
    watched = NegUCB(features.RandomFourier(env.dim, 48, 1.0, rng), hidden=2, every=10**9, seed=run.seed)
    gap, rise = 0.0, 0.0
    for t in range(cfg.identities.rounds):
        x, g, bid = env.features(env.bids()), env.counterpart, int(rng.integers(env.n_bids))
        for a, b in zip(primal.ucb(x, g), dual.ucb(x, g), strict=True):
            gap = max(gap, float(np.abs(a - b).max()))
        y = env.respond(env.bids()[bid])
        for model in (primal, dual, watched):
            model.update(x[bid], g, y)
        if t % 10 == 9:
            for step in (watched.h_step, watched.rebuild):
                before = watched.objective()
                step()
                rise = max(rise, (watched.objective() - before) / max(before, 1e-12))
        env.reset()
    run.log({"identities.dual_gap": gap, "identities.objective_rise": rise})


# ---- what a run would cost -------------------------------------------------------------------------------------------


def dry(cfg, run: Run) -> None:
    """run.dry: parameters, memory and an estimate of hours, without running."""
    rows = []
    for name in cfg.tasks:
        task = task_of(cfg, name)
        bids = 200 if task["search"]["method"] == "enumerate" else 60 * task["search"]["restarts"]
        m, p, work = task["m"] + 1, (task["m"] + 1) * (1 + task["hidden"]), 0.0
        for method in cfg.methods:
            entry = method_of(cfg, method, task)
            size = m * (1 + task["hidden"] * (entry.get("hidden") == "task")) if entry.get("map") == "nystrom" else m
            work += bids * m * m + 2 * size**2 + (size**3 + cfg.counterparts * size**2) / task["every"]
        rows.append({"task": name, "params": p, "memory_gb": 8 * (4 * p * p + 2 * cfg.counterparts * m * m) / 2**30,
                     "hours": work * task["rounds"] * len(cfg.seeds) / 5e9 / 3600})  # fmt: skip
    run.table("dry", rows)
    run.log(
        {
            "params": max((r["params"] for r in rows), default=0),
            "memory_gb": max((r["memory_gb"] for r in rows), default=0.0),
            "hours": sum(r["hours"] for r in rows),
        }
    )
    run.note("hours assume 5 GFlop/s of one core and about 200 bids a round; not measured, right to a factor of a few")
