"""Loss shaping constraints for long-term forecasting (Hounie et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.loss_shaping import dry, parts, settings

    settings.check(cfg)
    if cfg.run.dry:
        return dry.estimate(cfg, run)
    run_parts(cfg, run, {
        "compare": parts.compare,  # ERM, baselines and constrained training on your data and model
        "convex": parts.convex,  # E1: no duality gap, to the last digit
        "shaping": parts.shaping,  # E2, E3: real data, three seeds; what the prices say
        "control": parts.control,  # E4: steps that share no parameter cannot be shaped
        "tuned": parts.tuned,  # every method tuned alike, judged on twenty seeds
        "recommend": parts.recommend,  # which levels are within reach, before training
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
