"""Check a manifest, a profile, a page, a file of claims or a table, with line numbers; of two tables, say what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import UserError
from common.experiment import Run, main


def validate(cfg: Any, run: Run) -> None:
    from common.data.locate import own_file
    from common.errors import user_errors

    if cfg.path is None:
        raise UserError("path is missing: name a file, path=openness.yaml")
    path = own_file(cfg.path, "path", run)
    with user_errors():
        kind, problems = check(path)
    run.log({"problems": len(problems)})
    run.table("problems", [{"file": path.name, "problem": problem} for problem in problems])
    run.say(f"{path.name}: {kind}, {len(problems)} problem(s)")
    if problems:
        rest = f" (and {len(problems) - 1} more, in result.json)" if len(problems) > 1 else ""
        raise UserError(f"{problems[0] if path.name in problems[0] else f'{path.name}: {problems[0]}'}{rest}")
    if cfg.against is not None:
        other = own_file(cfg.against, "against", run)
        with user_errors():
            rows = differences(path, other)
        run.log({"changed": len(rows)})
        run.table("changed", rows)


def check(path: Path) -> tuple[str, list[str]]:
    """(what the file is, what is wrong with it). ValueError for what cannot be read at all."""
    from papers.openness import documents, folders, schema

    suffix = path.suffix.lower()
    if suffix == ".json":
        import json

        try:
            raw = json.loads(documents.text_of(path))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"{path.name} is no JSON ({getattr(error, 'msg', 'nested too deeply')}, line {getattr(error, 'lineno', 1)})"
            ) from None
        profiles = raw if isinstance(raw, list) else [raw]
        if not profiles:
            raise ValueError(f"{path.name} holds no profile")
        return "profile", [f"{path.name}: {problem}" for entry in profiles for problem in schema.check_profile(entry)]
    if suffix == ".csv":
        return "table", _table_problems(path)
    if suffix in (".md", ".markdown"):
        folders.classify(path)
        return "card or page", []
    document = documents.read_yaml(path)
    if isinstance(document.value.get("claims"), list):
        return "claims", schema.check_claims(document, path.name)
    if "components" in document.value:
        return "manifest", schema.check_manifest(document, path.name)
    folders.classify(path)
    return folders.kind_of(document), []


def _rows(path: Path) -> list[dict[str, str]]:
    import csv
    import io

    from papers.openness import documents

    try:
        rows = list(csv.DictReader(io.StringIO(documents.text_of(path)), strict=True))
    except csv.Error as error:
        raise ValueError(f"{path.name} is no CSV table ({error})") from None
    if not rows or "slug" not in rows[0]:
        raise ValueError(f"{path.name} has no rows with a column slug: give a table as `formats=[csv]` writes it")
    return rows


def _table_problems(path: Path) -> list[str]:
    from papers.openness.published import read_cell
    from papers.openness.taxonomy import BY_ID, IDS

    rows, problems, seen = _rows(path), [], set()
    long = "component" in rows[0]
    if not long and (missing := [name for name in IDS if name not in rows[0]]):
        return [f"{path.name}: the column {missing[0]} is missing"]
    for number, row in enumerate(rows, 2):
        key = (row["slug"], row.get("component", ""))
        if key in seen:
            problems.append(f"{path.name}, line {number}: {' '.join(key).strip()} stands twice")
        seen.add(key)
        if long:
            problems += _long_problems(path, number, row)
            continue
        for name in IDS:
            try:
                read_cell(BY_ID[name].kind, row[name] or "")
            except ValueError as error:
                problems.append(f"{path.name}, line {number}, {name}: {error}")
    return problems


def _long_problems(path: Path, number: int, row: dict[str, str]) -> list[str]:
    from papers.openness.published import from_long
    from papers.openness.taxonomy import BY_ID

    if row["component"] not in BY_ID:
        return [f"{path.name}, line {number}: {row['component']!r} is no component"]
    try:
        from_long([row])
    except (ValueError, KeyError, TypeError) as error:
        return [f"{path.name}, line {number}: {error}"]
    return []


def differences(path: Path, other: Path) -> list[dict[str, Any]]:
    """What changed from `path` to `other`, two tables of one form: models that came or went, cells that differ."""
    from papers.openness.published import from_long, from_wide
    from papers.openness.taxonomy import IDS

    tables = []
    for file in (path, other):
        if file.suffix.lower() != ".csv" or _table_problems(file):
            raise ValueError(f"{file.name} is no valid table: give two tables as `formats=[csv]` writes them")
        rows = _rows(file)
        tables.append(from_long(rows) if "component" in rows[0] else from_wide(rows))
    before, after = tables
    changed: list[dict[str, Any]] = [
        {"model": slug, "component": "", "before": "", "after": "added"} for slug in sorted(set(after) - set(before))
    ]
    changed += [
        {"model": slug, "component": "", "before": "removed", "after": ""} for slug in sorted(set(before) - set(after))
    ]
    for slug in sorted(set(before) & set(after)):
        for name in IDS:
            a, b = before[slug].get(name), after[slug].get(name)
            if a != b:
                changed.append(
                    {"model": slug, "component": name, "before": a.span if a else "", "after": b.span if b else ""}
                )
    return changed


if __name__ == "__main__":
    main(validate)
