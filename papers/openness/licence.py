"""Read a licence expression or a LICENSE file: the five rights, the levels, why, and how sure that is."""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from common.experiment import Run, main


def licence(cfg: Any, run: Run) -> None:
    from common.data.locate import own_file
    from common.errors import user_errors
    from papers.openness import licences, parts

    if (cfg.expression is None) == (cfg.path is None):
        raise UserError("give either expression='MIT OR Apache-2.0' or path=LICENSE")
    parts.tables(run)
    expression = cfg.expression
    with user_errors():
        if cfg.path is not None:
            path = own_file(cfg.path, "path", run)
            expression = licences.identify(licences.read(path))
            if expression is None:
                raise ValueError(
                    f"{path.name}: its first lines are the title of no licence in the table: name it by expression="
                )
        rows = []
        for mode in licences.MODES:
            span = licences.span(expression, mode)
            row = {
                "expression": expression,
                "mode": mode,
                "C": licences.rating("code", span).span,
                "D": licences.rating("data", span).span,
            }
            fields = span.low._fields
            row |= {
                field: str(low) if low == high and span.sure else f"{low}-{high}"
                for field, low, high in zip(fields, span.low, span.high, strict=True)
            }
            rows.append(row)
        run.table("licence", rows)
        described = []
        for atom in licences.atoms(licences.parse(expression)):
            known = licences.find(atom.name)
            described.append({"licence": str(atom), "id": known.id if known else "", "rights": known.rights.bits if known else "not known",
                              "points": known.rights.points if known else None, "confidence": known.confidence if known else "",
                              "because": known.basis if known else "not in the table", "scancode": known.scancode if known else ""})  # fmt: skip
        run.table("atoms", described)
        rights = licences.rights(expression)
    if rights is not None:
        run.log(
            {
                "points": rights.points,
                "code_level": licences.level(expression, "code"),
                "data_level": licences.level(expression, "data"),
            }
        )
    run.note("a reading of terms by stated rules, no legal advice")


if __name__ == "__main__":
    main(licence)
