"""QuIP#: 2-bit weights by incoherence and the E8 lattice (Tseng et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.quip_sharp import dry, parts, scaling, settings

    settings.check(cfg)
    if cfg.run.dry:
        return dry.estimate(cfg, run)
    run_parts(cfg, run, {
        "incoherence": parts.incoherence_of_rotations,  # E1, sec. 3
        "gaussian": parts.error_of_codebooks,  # E2, sec. 4.2
        "layers": parts.error_of_layers,  # E3, sec. 4.1
        "language": parts.perplexity_of_models,  # E4, sec. 5 and 6: the paper's tables
        "scaling": scaling.perplexity_by_size,  # E5, sec. 6
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
