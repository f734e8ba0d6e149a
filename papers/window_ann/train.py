"""Window search: nearest neighbours among points whose label lies in a window (Engels et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.window_ann import dry, settings

    settings.check(cfg)
    if cfg.run.dry:
        return dry.estimate(cfg, run)
    from papers.window_ann import parts  # needs numba, as a dry run does not

    run_parts(cfg, run, {
        "structure": parts.structures,  # sec. 3 and 5, E4: coverage, blowup, what is stored
        "curves": parts.curves,  # sec. 6, E1 and E2: distances against recall, every method and window size
        "adversarial": parts.adversarial,  # sec. 6, E3: windows far from the query
        "planner": parts.planner,  # ours, E7: the recall that is asked for, on labels of three kinds, with equal rows
        "branching": parts.branching,  # sec. 6, E5: the tree with other branching factors
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
