"""Parts of a run besides regret and tuning: bids that grow, human offers, hidden states, warm starts, identities."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.errors import UserError
from common.metrics.summary import spread
from common.run import Run
from papers.neg_ucb import baselines, data, environments, features, methods, paired, plots, replay
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.environments.allocation import AllocationComplementary
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.environments.cardinality import Cardinality, ItemMeans
from papers.neg_ucb.environments.casino import CasinoReplay
from papers.neg_ucb.kernel import ExactNegUCB
from papers.neg_ucb.negotiation import Optimistic, Policy, RandomBid, negotiate
from papers.neg_ucb.worlds import method_of, play_out, policy_of, task_of, worlds_of

# ---- a bonus for the bid, or for each of its items: C6 -----------------------------------------------------------------


def cardinality(cfg: Any, run: Run) -> None:
    """Regret as bids grow at a fixed feature dimension: one confidence width for the bid, against the sum of its items'."""
    options, rows, seeds = cfg.cardinality, [], run.seeds(cfg.cardinality.seeds)
    found: dict[tuple[str, int], list[float]] = {}
    for n in run.progress(list(options["items"]), "cardinality"):
        for name in options.policies:
            for seed in seeds:
                env = Cardinality(seed=seed, items=n)
                policy = _item_policy(name, env, options, run.rng("cardinality", name, n, seed).numpy)
                kept = play_out(run, f"cardinality.{name}.{n}.{seed}", env, policy, options.rounds)
                found.setdefault((name, n), []).append(kept["regret"])
        mean = {name: float(np.mean(found[name, n])) for name in options.policies}
        rows.append({"items": n, **mean})
        run.log({f"cardinality.n{n}": mean})
    run.table("cardinality", rows)

    def compare(metric: str, own: tuple[str, int], other: tuple[str, int]) -> dict[str, float]:
        draws = run.rng("paired", "cardinality", metric, *own, *other).numpy
        return paired.ratio(found[own], [found[other]], draws)

    for name in options.policies:  # growth with the number of items
        if name != "random" and {16, 64} <= set(options["items"]):
            metric = f"cardinality.{name}_64_over_16"
            run.log(paired.named(metric, compare(metric, (name, 64), (name, 16))))
    for name in options.policies:  # the bid's bonus against another, at the size where it does worst
        if name not in ("random", "whole") and "whole" in options.policies:
            metric = f"cardinality.whole_over_{name}"
            worst = max((compare(metric, ("whole", n), (name, n)) for n in options["items"]), key=lambda r: r[""])
            run.log(paired.named(metric, worst))
    run.figure("cardinality", plots.cardinality(rows))


def _item_policy(name: str, env: Cardinality, options: Any, generator: np.random.Generator) -> Policy:
    if name == "random":
        return RandomBid(generator)
    if name == "one_hot":  # a weight for each item: the dimension grows with the number of items
        return Optimistic(baselines.lin_ucb(features.Linear(env.dim, env.bound), options.alpha), generator)
    phi = ItemMeans(env)
    if name == "whole":
        return Optimistic(baselines.lin_ucb(phi, options.alpha), generator)
    alpha = options.alpha_summed_tuned if name == "summed_tuned" else options.alpha
    return Optimistic(baselines.C2UCB(phi, env.encoding, alpha, average=name == "averaged"), generator)


# ---- human offers ----------------------------------------------------------------------------------------------------


def casino(cfg: Any, run: Run) -> None:
    """CaSiNo: log-loss of predict-then-update on the last half of the offers, against base rates."""
    offers, options = data.offers(cfg, run), cfg.casino
    rows, curves = [], {}
    for name, entry in options.models.items():
        kept = run.stage(f"casino.{name}", _replayed, offers, entry, options, run)
        found = replay.scores(kept["q"], kept["y"])
        rows.append({"model": name, **found})
        run.log({f"casino.{name}": found})
        curves[name] = kept
    run.table("casino", rows)
    run.figure("casino", plots.casino(curves))


def _replayed(offers: list[data.Offer], entry: Any, options: Any, run: Run) -> dict[str, np.ndarray]:
    env = CasinoReplay(offers=offers)
    phi = features.make(entry.map, env.dim, generator=run.rng("casino", "map").numpy, m=options.m, bound=env.bound,
                        candidates=env.x[: options.landmarks_from])  # fmt: skip
    model = NegUCB(phi, hidden=entry.hidden, spread=entry.spread, lambda_theta=options.lambda_theta,
                   exploration="greedy", every=options.every, seed=run.seed)  # fmt: skip
    return replay.predict_then_update(env, model)


# ---- what the hidden states know ---------------------------------------------------------------------------------------


def clusters(cfg: Any, run: Run) -> None:
    """Two kinds of counterparts (complementary allocation): do the learnt states W h_g fall into the same two groups?"""
    from scipy.cluster.vq import kmeans2

    options, task, (seed,) = cfg.clusters, task_of(cfg, "allocation_complementary"), run.seeds([0])
    env = AllocationComplementary(seed=seed, contexts=data.contexts(cfg, run), counterparts=options.counterparts)
    policy = policy_of("neg_ucb", method_of(cfg, "neg_ucb", task), task, env, seed)
    kept = run.stage("clusters", _states, env, policy, options.rounds, run.seed)
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


def _states(env: Environment, policy: Any, rounds: int, seed: int) -> dict[str, np.ndarray]:
    """Counterparts met (G,), and what the state of each adds to the shared prediction of a sample of bids (G, bids)."""
    negotiate(env, policy, rounds)
    model = policy.model
    model.alternate()
    who, special = model.weights()
    return {"who": np.array(who), "special": special @ model.phi(methods.candidates(env, seed)).T}


def warm_start(cfg: Any, run: Run) -> None:
    """Logged offers (made at random, answered) fitted before the first negotiation, against starting cold."""
    options, task = cfg.warm_start, task_of(cfg, cfg.warm_start.task)
    world, entry, rows = worlds_of(cfg, run, task), method_of(cfg, "neg_ucb", task), []
    for n in options.logged:
        runs = []
        for seed in run.seeds(cfg.seeds)[: options.worlds]:
            env = world(seed)
            policy: Any = policy_of("neg_ucb", entry, task, env, seed)
            x, g, y = logged(env, n, run.rng("logged", seed).numpy)
            if n:
                policy.model.fit(x, g, y)
            runs.append(play_out(run, f"warm_start.{n}.{seed}", env, policy, options.rounds)["regret"])
        rows.append({"logged": n, "regret": float(np.mean(runs)), "regret_sd": spread(runs)["sd"]})
        run.log({f"warm_start.n{n}": rows[-1]["regret"]})
    run.table("warm_start", rows)
    if len(rows) > 1:
        run.log({"warm_start.ratio": rows[-1]["regret"] / rows[0]["regret"]})


def logged(env: Environment, n: int, generator: np.random.Generator) -> tuple[np.ndarray, list[int], np.ndarray]:
    """n random offers and their answers: x (n, d), counterparts, y (n,). The environment stands where the log ends."""
    x, g, y = np.zeros((n, env.dim)), [], np.zeros(n)
    for t in range(n):
        bid = env.random_bids(1, generator)
        x[t] = env.features(bid)[0]
        g.append(env.counterpart)
        y[t] = env.respond(bid[0])
        if env.over:
            env.arrive()
    return x, g, y


# ---- identities ------------------------------------------------------------------------------------------------------


def identities(cfg: Any, run: Run) -> None:
    """Numbers that must be zero whatever the data: the objective never rises, the dual form equals the primal."""
    (seed,) = run.seeds([0])
    env = environments.make("allocation_complementary", seed=seed, contexts=data.contexts(cfg, run))
    generator = run.rng("identities").numpy
    primal_map = features.Polynomial(env.dim, env.bound)
    primal = NegUCB(primal_map, hidden=2, every=10, seed=run.seed)
    dual = ExactNegUCB(primal_map.kernel, hidden=2, every=10, seed=run.seed)
    watched = NegUCB(features.RandomFourier(env.dim, 48, 1.0, generator), hidden=2, every=10**9, seed=run.seed)
    gap, rise = 0.0, 0.0
    for t in range(cfg.identities.rounds):
        x, g, bid = env.features(env.bids()), env.counterpart, int(generator.integers(env.n_bids))
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
        env.arrive()
    run.log({"identities.dual_gap": gap, "identities.objective_rise": rise})
