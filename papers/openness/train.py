"""Openness: the taxonomy of Eiras et al. (ICML 2024) as software: the table, its observations, other scales. See README.md."""

from __future__ import annotations

from typing import Any

from common.experiment import Run, main, run_parts


def train(cfg: Any, run: Run) -> None:
    from papers.openness import parts, settings

    settings.check(cfg)
    run_parts(cfg, run, {
        "table": parts.table,  # the 45 models: counts, scores, revisions, round trips
        "o1": parts.o1,  # T1-T3: weights are open, training and safety evaluation are not
        "o2": parts.o2,  # T4: the more open had lower Arena ratings, and what this does not say
        "trend": parts.trend,  # T5: by time
        "licences": parts.licences,  # L: criteria against the printed levels
        "agreement": parts.agreement,  # A, M: MOF, the openness index, OSAID, simpler raters
        "classify": parts.classify,  # K: made-up hub folders with known truth
        "risks": parts.risks,  # the paper's claims as data
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
