"""Loss shaping constraints for long-term forecasting (Hounie et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.loss_shaping import dry, settings, studies

    parts = {
        "compare": studies.compare,  # ERM, baselines and constrained training on your data and model
        "convex": studies.convex,  # E1: no duality gap, to the last digit
        "shaping": studies.shaping,  # E2, E3: real data, three seeds; what the prices say
        "control": studies.control,  # E4: steps that share no parameter cannot be shaped
        "recommend": studies.recommend,  # which levels are within reach, before training
    }
    settings.check(cfg)
    if cfg.run.dry:
        return dry.estimate(cfg, run)
    run_parts(cfg, run, parts)


if __name__ == "__main__":
    main(train)
