"""Rate a model release from a folder, a folder of clones or one file: profile with evidence, other scales, what would raise it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import UserError
from common.experiment import Run, main


class Unmet(UserError):
    """A requirement of the command line that the release does not meet: what was found is written all the same."""

    exit_code = 3


def classify(cfg: Any, run: Run) -> None:
    from common.data.locate import own_file
    from common.errors import user_errors
    from papers.openness import advice, folders, report, scales, settings
    from papers.openness.taxonomy import IDS

    settings.check_classify(cfg)
    path = own_file(cfg.path, "path", run, folder=None)
    options = {
        "licence_mode": cfg.licence_mode,
        "absent": cfg.absent,
        "bases": [Path(base) for base in cfg.bases],
        "as_of": cfg.as_of,
    }
    with user_errors():
        batch = path.is_dir() and not folders.is_model_folder(path)
        paths = folders.clones(path) if batch else [path]
        profiles = [_what_if(folders.classify(one, **options), cfg.set) for one in run.progress(paths, "read")]
    run.table("ratings", [{"model": p.name, "score": p.score, "label": ", ".join([p.label, *p.tags]), "rated": f"{p.n_rated} of {p.n_applicable}",
                           **{name: p.ratings[name].span for name in IDS}} for p in profiles])  # fmt: skip
    run.log({"models": len(profiles), "rated": sum(p.n_rated for p in profiles), "applicable": sum(p.n_applicable for p in profiles),
             "warnings": sum(len(p.warnings) for p in profiles)})  # fmt: skip
    first = profiles[0]
    if len(profiles) == 1:
        other = folders.classify(
            path, **options | {"licence_mode": "published" if cfg.licence_mode == "criteria" else "criteria"}
        )
        run.table("components", _rows(first, other))
        run.table("changes", advice.changes(first))
        if first.score is not None:
            run.log({"score": first.score})
        if first.bounds:
            run.log({"score_low": first.bounds[0], "score_high": first.bounds[1]})
        run.note(f"next: {advice.next_step(first)}")
    run.table("scales", [scales.every(p) for p in profiles])
    run.table(
        "warnings", [{"model": p.name, "code": code, "text": text} for p in profiles for code, text in p.warnings]
    )
    if cfg.component is not None:
        run.table("explained", advice.explain(first, cfg.component))
    if cfg.against is not None:
        run.table("compared", advice.compare(first, _other(cfg.against, options, run)))
    out = Path(cfg.out).expanduser() if cfg.out is not None else run.dir / "report"
    if out.exists() and not out.is_dir():
        raise UserError(f"out: {cfg.out} is a file: give a folder to write to")
    out.mkdir(parents=True, exist_ok=True)
    for name in cfg.formats:
        file, form = report.FORMS[name]
        (out / file).write_text(form(profiles), encoding="utf-8")
    run.say(f"written: {out}")
    _require(cfg, profiles, path)


def _rows(profile: Any, other: Any) -> list[dict[str, Any]]:
    """A row for each component: its rating in both licence modes, evidence and advice."""
    from papers.openness import advice

    return [
        {
            "component": name,
            "rating": rating.span,
            other.mode: other.ratings[name].span,
            "licence": profile.licences.get(name, ""),
            "evidence": "; ".join(map(str, profile.evidence.get(name, []))),
            "would raise it": advice.raises(profile, name),
        }
        for name, rating in profile.ratings.items()
    ]


def _what_if(profile: Any, changes: Any) -> Any:
    """The profile with components under other licences: `set={training.data.pretraining: ODC-By-1.0}`."""
    from papers.openness import licences
    from papers.openness.profile import Evidence
    from papers.openness.rating import NO_RIGHTS, rate
    from papers.openness.settings import WHAT_IF
    from papers.openness.taxonomy import BY_ID

    for name, value in changes.items():
        availability, licence = WHAT_IF.get(value, ("public", value))
        kind = BY_ID[name].kind
        if licence in (None, "none"):
            rating = rate(kind, availability, NO_RIGHTS)
        else:
            rating = licences.rating(kind, licences.span(licence, profile.mode))
        profile = profile.with_rating(name, rating, licence, Evidence("what-if", "set", key=name, licence=licence))
    return profile


def _other(against: str, options: dict[str, Any], run: Run) -> Any:
    """The release to compare with: a folder or file, or a model of the authors' table by its slug."""
    from common.data.locate import own_file
    from common.errors import user_errors
    from papers.openness import folders, published

    if not Path(against).expanduser().exists():
        found = {p.name: p for p in published.table()}
        if against in found:
            return found[against]
    path = own_file(against, "against", run, folder=None)
    with user_errors():
        return folders.classify(path, **options)


def _require(cfg: Any, profiles: list[Any], path: Path) -> None:
    from papers.openness import scales

    unmet = []
    for p in profiles:
        for name, level in cfg.require.items():
            if p.level(name) is None or p.level(name) < level:
                unmet.append(f"{p.name}: {name} is {p.ratings[name].span}, {level} is required")
        if cfg.require_mof is not None:
            found = (
                scales.mof(path)["class"]
                if path.suffix in (".yml", ".yaml") and _is_mof(path)
                else scales.mof(p)["class"]
            )
            if found == 0 or found > cfg.require_mof:
                unmet.append(f"{p.name}: MOF class {found or 'none'}, class {cfg.require_mof} is required")
    if unmet:
        raise Unmet(f"{len(unmet)} requirement(s) not met: {'; '.join(unmet[:3])}")


def _is_mof(path: Path) -> bool:
    from papers.openness import documents, folders

    return folders.kind_of(documents.read_yaml(path)) == "mof"


class _Callable(ModuleType):
    """`from papers.openness import classify` is the library's function, also once this verb's module has been imported."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from papers.openness.folders import classify

        return classify(*args, **options)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    main(classify)
