"""The work of the verb `distil`: load, split, search as many settings for each method, train the chosen ones, judge, write."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.errors import UserError, user_errors
from common.run import Run
from papers.kd_aux import data, fit, metrics, models, taps
from papers.kd_aux.checkpoints import cache_key, load_taught, save_taught
from papers.kd_aux.distillers import Distiller, Taught
from papers.kd_aux.parts import draw, said


class Task(NamedTuple):
    """The pair and the rows of each part."""

    teacher: nn.Module
    student: nn.Module
    x: Any
    y: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor


def distil(cfg: Any, run: Run) -> None:
    """Raises UserError for models, data and settings that do not fit together."""
    task = load(cfg, run)
    chosen: dict[str, dict[str, Any]] = {"ce": {}}
    tried = []
    for method in dict.fromkeys(["kd", cfg.method]):
        if method == "ce":
            continue
        space = cfg.spaces["kd" if method == "kd" else "aux" if method.startswith("aux") else "other"]
        trials = []
        for i, settings in enumerate(draw(space, cfg.trials, run.rng("trials", method).numpy)):
            right = run.stage(f"trial.{method}.{i}", _right, cfg, run, task, method, settings, task.validation)
            trials.append((float(right.double().mean()), i, settings))
            tried.append({"method": method, "settings": said(settings), "validation": 100 * trials[-1][0]})
        chosen[method] = max(trials, key=lambda trial: (trial[0], -trial[1]))[2]
    run.table("trials", tried)
    rows: list[dict[str, Any]] = []
    final: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for method, settings in chosen.items():
        final[method], trained = run.stage(f"final.{method}", _final, cfg, run, task, method, settings)
        rows.append({"method": method, "settings": said(settings), "test": 100 * float(final[method].double().mean())})
        state = trained if method == cfg.method else state
    run.table("report", rows)
    report: dict[str, Any] = {
        "rows": rows,
        "test_rows": len(task.test),
        "trials": {m: cfg.trials if m != "ce" else 0 for m in chosen},
    }
    for other in [m for m in chosen if m != cfg.method]:
        gain = metrics.paired_bootstrap(final[cfg.method], final[other], run.rng("bootstrap", other).numpy)
        report[f"over_{other}"] = gain
        run.log(
            {
                f"distil.over_{other}": gain["mean"],
                f"distil.over_{other}.low": gain["low"],
                f"distil.over_{other}.high": gain["high"],
            }
        )
    run.log({f"distil.{row['method']}": row["test"] for row in rows})
    task.student.load_state_dict(state)  # only now: every method has begun from the same weights
    out = Path(cfg.out).expanduser() if cfg.out else run.dir / "student"
    models.write(task.student, out, cfg.student, report)
    run.say(f"student: {out}")


def load(cfg: Any, run: Run) -> Task:
    """Models and data, checked against each other."""
    teacher, student = models.load(cfg.teacher, "teacher", run), models.load(cfg.student, "student", run)
    if cfg.data.path is None:
        raise UserError(
            "data.path is not given: name a folder with a folder of images for each class, or an .npz with x (or input_ids) and y"
        )
    x, y, classes = data.own(cfg.data.path, "data.path", run, cfg.data.size or models.image_size(cfg.student))
    generator = run.rng("rows").numpy
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    for c in range(classes):
        rows = torch.from_numpy(generator.permutation((y == c).nonzero()[:, 0].numpy()))
        held, judged = (max(1, round(len(rows) * share)) for share in (cfg.data.validation, cfg.data.test))
        if len(rows) < held + judged + 1:
            raise UserError(
                f"data.path has {len(rows)} samples of class {c}: at least {held + judged + 1} are needed to train, choose and judge"
            )
        parts["test"].append(rows[:judged])
        parts["validation"].append(rows[judged : judged + held])
        parts["train"].append(rows[judged + held :])
    split = [torch.cat(parts[name]) for name in ("train", "validation", "test")]
    for who, model in (("teacher", teacher), ("student", student)):
        try:
            logits = fit.predict(model, taps.take(x, split[0][:2]))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"the {who} cannot read data.path: {' '.join(str(error).split())[:200]}") from None
        if logits.shape[1] < classes:
            raise UserError(f"the {who} has {logits.shape[1]} classes, data.path {classes}: they must be the same")
    return Task(teacher.eval(), student, x, y, *split)


def _distilled(cfg: Any, run: Run, task: Task, method: str, settings: Mapping[str, Any]) -> nn.Module:
    student = copy.deepcopy(task.student)
    own = dict(settings)
    if method.startswith("aux"):
        own["queue"] = max(min(cfg.queue, len(task.train)), cfg.recipe.batch_size)
    with user_errors():
        distiller = fit.init(lambda: Distiller(task.teacher, student, method, cfg.student.feature, cfg.teacher.feature,  # type: ignore[arg-type, return-value]
                                               example=taps.take(task.x, task.train[:2]), **own), run.rng("projections"))  # fmt: skip
        x = taps.take(task.x, task.train)
        taught = _taught(cfg, run, distiller, x) if method != "ce" else None  # type: ignore[arg-type]
        fit.distil(distiller, x, task.y[task.train], fit.recipe(cfg.recipe), run.rng("order"), taught=taught)  # type: ignore[arg-type]
    return student


def _taught(cfg: Any, run: Run, distiller: Distiller, x: Any) -> Taught:
    """What the teacher says of the training rows: from `cfg.cache` where that is of this teacher and these rows."""
    if not cfg.cache or not distiller.teacher_names:
        return fit.teach_all(distiller, x, cfg.recipe.batch_size)
    path = Path(cfg.cache).expanduser()
    key = cache_key(distiller.teacher, x, distiller.teacher_names)
    if path.exists():
        return load_taught(path, key)
    taught = fit.teach_all(distiller, x, cfg.recipe.batch_size)
    save_taught(path, taught, key)
    return taught


def _right(cfg: Any, run: Run, task: Task, method: str, settings: Mapping[str, Any], rows: Tensor) -> Tensor:
    """Which of these rows a student that was trained so gets right (n,) bool."""
    student = _distilled(cfg, run, task, method, settings)
    return fit.predict(student, taps.take(task.x, rows)).argmax(dim=1) == task.y[rows]


def _final(
    cfg: Any, run: Run, task: Task, method: str, settings: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    student = _distilled(cfg, run, task, method, settings)
    right = fit.predict(student, taps.take(task.x, task.test)).argmax(dim=1) == task.y[task.test]
    return right, {key: value.clone() for key, value in student.state_dict().items()}
