"""The parts of a run: identities, the table of distillers, what z learns, tuning, and where the auxiliary variable pays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.metrics.summary import spread
from common.rng import Rng
from common.run import Run
from papers.kd_aux import data, metrics, plots, worlds
from papers.kd_aux import identities as equations
from papers.kd_aux.distillers import AuxKD
from papers.kd_aux.fit import distil, features, teach_all, train_plain
from papers.kd_aux.inference import unit
from papers.kd_aux.taps import pooled

# ---- A5: identities --------------------------------------------------------------------------------------------------


def identities(cfg: Any, run: Run) -> None:
    """Every identity of the model on random draws, the largest deviation of each; and the bound on mutual information."""
    worst: dict[str, float] = {}
    for i in range(cfg.identities.draws):
        for name, error in equations.errors(run.rng("identities", i).numpy).items():
            worst[name] = max(worst.get(name, 0.0), error)
    run.table("identities", [{"identity": name, "largest_error": error} for name, error in worst.items()])
    bounds = [equations.mutual_information(run.rng("mutual", i).numpy) for i in range(cfg.identities.draws)]
    run.table("mutual_information", bounds)
    run.log(
        {
            "identities.error": max(worst.values()),
            "identities.mi_over_truth": max(b["estimate"] / b["truth"] for b in bounds),
        }
    )


# ---- A1, A6: every distiller in the same worlds ------------------------------------------------------------------------


def methods(cfg: Any, run: Run) -> None:
    """Accuracy of every method of `cfg.methods` in the worlds of `cfg.seeds`, and the paired differences of `cfg.compare`."""
    found, seeds = data.load(cfg.data.name, cfg, run), run.seeds(cfg.seeds)
    teachers = run.stage("teachers", worlds.train_teachers, found, cfg.study, seeds, run)
    own = worlds.teacher_accuracy(found, cfg.study, seeds, teachers, run)
    run.log({"methods.teacher": float(np.mean(own))})
    kept: dict[str, list[dict[str, float]]] = {}
    for name in run.progress(list(cfg.methods), "methods"):
        kept[name] = run.stage(f"methods.{name}", _judged, cfg, run, found, cfg.study, seeds, teachers, name, "test")
        run.log({f"methods.{name}.{key}": float(np.mean([row[key] for row in kept[name]])) for key in kept[name][0]})
    rows = [_row(name, kept[name], kept.get("ce")) for name in kept]
    run.table("methods", rows)
    _compare(cfg.compare, kept, run)
    heads = [name for name in kept if "prototype" in kept[name][0]]
    if "joint" in heads:
        gaps = [[row["linear"] - row[head] for row in kept["joint"]] for head in ("prototype", "knn")]
        run.log({"methods.prototype_loss": float(np.mean(gaps[0])), "methods.knn_loss": float(np.mean(gaps[1]))})
    run.figure("methods", plots.methods(rows))


def _judged(cfg: Any, run: Run, found: data.Set, study: Mapping[str, Any], seeds: list[int], teachers: list[dict[str, Tensor]],
            name: str, judged: str) -> list[dict[str, float]]:  # fmt: skip
    entry = dict(cfg.method_settings[name])
    method, extra_rows = entry.pop("method"), entry.pop("extra_rows", 0)
    return worlds.judged_all(found, study, seeds, method, entry, teachers, run, judged, extra_rows)


def _row(
    name: str, rows: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]] | None
) -> dict[str, Any]:
    """A row of the table: the mean of each head, calibration, and the difference to CE with its interval."""
    linear = [row["linear"] for row in rows]
    found: dict[str, Any] = {"method": name, "accuracy": float(np.mean(linear)), "sd": spread(linear)["sd"]}
    found |= {
        key: float(np.mean([row[key] for row in rows]))
        for key in ("prototype", "knn", "linear_ece", "prototype_ece")
        if key in rows[0]
    }
    if reference is not None and len(rows) > 1:
        gain = metrics.paired(linear, [row["linear"] for row in reference])
        found |= {"over_ce": gain["mean"], "low": gain["low"], "high": gain["high"]}
    return found


def _compare(wanted: Mapping[str, Sequence[str]], kept: Mapping[str, Sequence[Mapping[str, float]]], run: Run) -> None:
    """Paired differences by name, with their 95 % interval: `methods.<name>`, `.low`, `.high`."""
    rows = []
    for name, (ours, theirs) in wanted.items():
        if ours not in kept or theirs not in kept or len(kept[ours]) < 2:
            continue
        gain = metrics.paired(*([row["linear"] for row in kept[which]] for which in (ours, theirs)))
        rows.append({"comparison": name, "ours": ours, "theirs": theirs, **gain})
        run.log(
            {f"methods.{name}": gain["mean"], f"methods.{name}.low": gain["low"], f"methods.{name}.high": gain["high"]}
        )
    if rows:
        run.table("comparisons", rows)


# ---- what the auxiliary variable learns --------------------------------------------------------------------------------


def watch(cfg: Any, run: Run) -> None:
    """Mass of p_S(z|x) on instances of x's own class over training, and the gradient norm of each term."""
    found, options = data.load(cfg.data.name, cfg, run), cfg.watch
    (seed,) = run.seeds([options.seed])
    world = worlds.split(found, cfg.study, seed, run)
    both = worlds.pair(cfg.study, world)
    teacher = worlds.teacher_of(both, world, run)
    curves: dict[str, list[dict[str, float]]] = {}
    for name in options.methods:
        curves[name] = run.stage(f"watch.{name}", _watched, cfg, run, world, both, teacher, name)
        for point in curves[name]:
            run.log({f"watch.{name}.purity": point["purity"]}, step=int(point["step"]))
    run.table("watch", [{"method": name, **points[-1]} for name, points in curves.items()])
    run.figure("purity", plots.purity(curves))


def _watched(
    cfg: Any, run: Run, world: worlds.World, both: worlds.Pair, teacher: torch.nn.Module, name: str
) -> list[dict[str, float]]:
    entry = dict(cfg.method_settings[name])
    distiller = worlds.distiller_of(both, world, teacher, entry.pop("method"), entry)
    taught = teach_all(distiller, world.x)
    t = unit(pooled(taught.features[-1]))[0]
    term = distiller.term
    assert isinstance(term, AuxKD), f"{name} has no auxiliary variable"
    points: list[dict[str, float]] = []

    def look(step: int) -> None:
        if step % cfg.watch.every:
            return
        with torch.no_grad():
            s = term.embed(features(distiller.student, distiller.student_names, world.test_x))
            alive = s.abs().amax(dim=1) > 0
        rows = torch.arange(min(64, len(world.y)))
        distiller.gradients = True
        _, terms = distiller.loss(
            world.x[rows], world.y[rows], type(taught)([f[rows] for f in taught.features], taught.logits[rows])
        )
        distiller.gradients, distiller.step = False, distiller.step - 1
        norms = {key: value for key, value in terms.items() if key.startswith("gradient.")}
        points.append(
            {
                "step": float(step),
                "purity": metrics.purity(s[alive], world.test_y[alive], t, world.y, term.tau),
                **norms,
            }
        )

    distil(
        distiller, world.x, world.y, both.student_recipe, Rng(0, "student order", world.seed), taught=taught, watch=look
    )
    return points


# ---- equal tuning ------------------------------------------------------------------------------------------------------


def tune(cfg: Any, run: Run) -> None:
    """As many trials for every method, drawn from its space, judged on validation rows that no claim is judged on."""
    found, options = data.load(cfg.data.name, cfg, run), cfg.tune
    seeds = run.seeds(options.seeds)
    teachers = run.stage("tune.teachers", worlds.train_teachers, found, cfg.study, seeds, run)
    chosen, tried = [], []
    for name in run.progress(list(options.methods), "tune"):
        trials = []
        for i, settings in enumerate(draw(options.spaces[name], options.trials, run.rng("tune", name).numpy)):
            entry = dict(cfg.method_settings[name]) | settings
            method = entry.pop("method")
            rows = run.stage(
                f"tune.{name}.{i}",
                worlds.judged_all,
                found,
                cfg.study,
                seeds,
                method,
                entry,
                teachers,
                run,
                "validation",
            )
            trials.append(
                {
                    "method": name,
                    "settings": said(settings),
                    "accuracy": float(np.mean([row["linear"] for row in rows])),
                }
            )
        best = max(trials, key=lambda trial: trial["accuracy"])
        tried += trials
        chosen.append({**best, "trials": len(trials)})
        run.log({f"tune.{name}": best["accuracy"]})
    run.table("tuned", chosen)
    run.table("trials", tried)


def draw(space: Mapping[str, Sequence[Any]], n: int, generator: np.random.Generator) -> list[dict[str, Any]]:
    """n different combinations of a space's values at random; all of them where there are fewer."""
    combinations = list(itertools.product(*space.values()))
    order = generator.permutation(len(combinations))[:n]
    return [dict(zip(space, combinations[i], strict=True)) for i in order]


def said(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()
    )


# ---- the research question: where does z pay? ---------------------------------------------------------------------------


def variants(cfg: Any, run: Run) -> None:
    """Variants of the auxiliary variable against tuned KD, each in worlds of its own, judged on validation rows alone."""
    options = cfg.variants
    seeds, rows = run.seeds(options.seeds), []
    sets: dict[str, data.Set] = {}
    for name in run.progress(list(options.run), "variants"):
        entry = dict(options.settings[name])
        source, changes = entry.pop("data", cfg.data.name), dict(entry.pop("study", {}))
        if source not in sets:
            sets[source] = data.load(source, cfg, run)
        study = dict(cfg.study) | changes
        rows.append(
            {"variant": name, **run.stage(f"variants.{name}", _variant, cfg, run, sets[source], study, seeds, entry)}
        )
        run.log({f"variants.{name}": rows[-1]["over_kd"]})
    run.table("variants", rows)
    run.figure("variants", plots.variants(rows))


def _variant(
    cfg: Any, run: Run, found: data.Set, study: Mapping[str, Any], seeds: list[int], entry: dict[str, Any]
) -> dict[str, float]:
    teachers = worlds.train_teachers(found, study, seeds, run)
    method, extra_rows = entry.pop("method", "aux_joint"), entry.pop("extra_rows", 0)
    ours = [
        row["linear"]
        for row in worlds.judged_all(found, study, seeds, method, entry, teachers, run, "validation", extra_rows)
    ]
    theirs = [
        row["linear"] for row in _judged(cfg, run, found, study, seeds, teachers, cfg.variants.against, "validation")
    ]
    gain = (
        metrics.paired(ours, theirs)
        if len(ours) > 1
        else {"mean": ours[0] - theirs[0], "low": float("nan"), "high": float("nan")}
    )
    return {
        "accuracy": float(np.mean(ours)),
        "kd": float(np.mean(theirs)),
        "over_kd": gain["mean"],
        "low": gain["low"],
        "high": gain["high"],
    }


# ---- A2, A3, A4 --------------------------------------------------------------------------------------------------------


def capacity(cfg: Any, run: Run) -> None:
    """A3: the teacher grows; accuracy of KD and of the joint form with each, and what the largest costs over the best."""
    found, seeds, rows = data.load(cfg.data.name, cfg, run), run.seeds(cfg.seeds), []
    for factor in run.progress(list(cfg.capacity.factors), "capacity"):
        study = dict(cfg.study) | {"teacher": [width * factor for width in cfg.study.teacher]}
        teachers = run.stage(f"capacity.teachers.{factor}", worlds.train_teachers, found, study, seeds, run)
        row: dict[str, Any] = {
            "factor": factor,
            "teacher": float(np.mean(worlds.teacher_accuracy(found, study, seeds, teachers, run))),
        }
        for name in cfg.capacity.methods:
            kept = run.stage(
                f"capacity.{name}.{factor}", _judged, cfg, run, found, study, seeds, teachers, name, "test"
            )
            row[name] = float(np.mean([r["linear"] for r in kept]))
        rows.append(row)
    run.table("capacity", rows)
    for name in cfg.capacity.methods:
        run.log({f"capacity.{name}.drop": max(row[name] for row in rows) - rows[-1][name]})
    run.figure("capacity", plots.capacity(rows, list(cfg.capacity.methods)))


def tau_queue(cfg: Any, run: Run) -> None:
    """A4: accuracy of the joint form over tau (with beta and alpha bound to it, or not) and over the queue's length."""
    found, seeds, options = data.load(cfg.data.name, cfg, run), run.seeds(cfg.seeds), cfg.tau_queue
    teachers = run.stage("tau_queue.teachers", worlds.train_teachers, found, cfg.study, seeds, run)

    seen: dict[str, float] = {}

    def mean(method: str, **settings: Any) -> float:
        name = f"tau_queue.{method}." + "_".join(f"{key}{value:g}" for key, value in settings.items())
        if name not in seen:
            kept = run.stage(name, worlds.judged_all, found, cfg.study, seeds, method, settings, teachers, run)
            seen[name] = float(np.mean([row["linear"] for row in kept]))
        return seen[name]

    by_tau = [{"tau": tau, "joint, beta = tau": mean("aux_joint", tau=tau, beta=tau), "joint, beta = 0.1": mean("aux_joint", tau=tau, beta=0.1),
               "marginal": mean("aux_marginal", tau=tau)} for tau in run.progress(list(options.tau), "tau")]  # fmt: skip
    by_queue = [
        {"queue": size, "accuracy": mean("aux_joint", tau=0.1, queue=size)}
        for size in run.progress(list(options.queue), "queue")
    ]
    run.table("tau", by_tau)
    run.table("queue", by_queue)
    lengths = [row["accuracy"] for row in by_queue]
    bound = [row["joint, beta = tau"] for row in by_tau]
    run.log({"tau_queue.queue_spread": max(lengths) - min(lengths), "tau_queue.tau_spread": max(bound) - min(bound)})
    run.figure("tau_queue", plots.tau_queue(by_tau, by_queue))


def transfer(cfg: Any, run: Run) -> None:
    """A2: students are frozen, and a linear classifier is trained on their features of another data set."""
    found, seeds = data.load(cfg.data.name, cfg, run), run.seeds(cfg.seeds)
    target = data.load(cfg.transfer.target, cfg, run)
    teachers = run.stage("transfer.teachers", worlds.train_teachers, found, cfg.study, seeds, run)
    kept = {
        name: run.stage(f"transfer.{name}", _probed, cfg, run, found, target, seeds, teachers, name)
        for name in cfg.transfer.methods
    }
    rows = [
        {"method": name, "probe": float(np.mean(values)), "sd": spread(values)["sd"]} for name, values in kept.items()
    ]
    run.table("transfer", rows)
    run.log({f"transfer.{name}": float(np.mean(values)) for name, values in kept.items()})
    if len(seeds) > 1 and {"joint", "kd"} <= set(kept):
        gain = metrics.paired(kept["joint"], kept["kd"])
        run.log(
            {
                "transfer.joint_over_kd": gain["mean"],
                "transfer.joint_over_kd.low": gain["low"],
                "transfer.joint_over_kd.high": gain["high"],
            }
        )


def _probed(
    cfg: Any,
    run: Run,
    found: data.Set,
    target: data.Set,
    seeds: list[int],
    teachers: list[dict[str, Tensor]],
    name: str,
) -> list[float]:
    x = F.interpolate(target.x, found.x.shape[2:], mode="bilinear", align_corners=False).expand(
        -1, found.x.shape[1], -1, -1
    )
    values = []
    for seed, state in zip(seeds, teachers, strict=True):
        world = worlds.split(found, cfg.study, seed, run)
        both = worlds.pair(cfg.study, world)
        teacher = both.teacher()
        teacher.load_state_dict(state)
        entry = dict(cfg.method_settings[name])
        distiller, _ = worlds.student_of(both, world, teacher.eval(), entry.pop("method"), entry)
        values.append(
            probe(features(distiller.student, ["penultimate"], x), target.y, target.classes, cfg.transfer, seed)
        )
    return values


def probe(f: Tensor, y: Tensor, classes: int, options: Mapping[str, Any], seed: int) -> float:
    """Accuracy of a linear classifier on half of the rows, trained on the other half: SGD at a rate that falls at 30, 60 and 90 %."""
    order = torch.from_numpy(Rng(0, "probe", seed).numpy.permutation(len(y)))
    half = len(y) // 2
    f = (f - f[order[:half]].mean(dim=0)) / (f[order[:half]].std(dim=0) + 1e-6)
    epochs = int(options["epochs"])
    from papers.kd_aux.fit import Recipe, init, predict

    how = Recipe(
        epochs, 64, float(options["lr"]), 0.0, "sgd", "steps", tuple(round(epochs * share) for share in (0.3, 0.6, 0.9))
    )
    head = init(lambda: torch.nn.Linear(f.shape[1], classes), Rng(0, "probe head", seed))
    train_plain(head, f[order[:half]], y[order[:half]], how, Rng(0, "probe order", seed))
    return metrics.accuracy(predict(head, f[order[half:]]), y[order[half:]])
