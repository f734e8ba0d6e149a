"""Posteriors of simulators by diffusion, sequentially (Sharrock et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.snpse import dry, settings, single, studies

    settings.check(cfg)
    if cfg.run.dry:
        dry.estimate(cfg, run)
        return
    run.use_data("simulations", "synthetic", "papers.snpse.tasks", None)
    run_parts(cfg, run, {
        "linear": single.linear,  # E1: a posterior in closed form
        "moons": single.moons,  # E2: what simulations and steps are worth
        "rounds": studies.rounds,  # E3, E5: truncated proposals against the prior; what the truncation keeps
        "corrections": studies.corrections,  # E4: SNPSE-A, -B, -C against truncation
        "valid": studies.valid,  # E6: a simulator that fails almost everywhere
        "scales": single.scales,  # E7: parameters of very different sizes
        "samplers": single.samplers,  # error of few-step samplers
        "heads": single.heads,  # score, eps, energy, edm at equal steps
        "calibration": studies.calibration,  # SBC, coverage, TARP
        "benchmark": studies.benchmark,  # eight tasks, budgets, observations
        "pyloric": studies.pyloric,  # 31 parameters of a neural circuit
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
