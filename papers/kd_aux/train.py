"""AuxKD: knowledge distillation with an auxiliary variable (Peng et al., ICML 2024), reconstructed. See README.md."""

from __future__ import annotations

from typing import Any

from common.experiment import Run, main, run_parts


def train(cfg: Any, run: Run) -> None:
    from papers.kd_aux import benchmark, dry, parts, settings

    settings.check(cfg)
    if cfg.run.dry:
        dry.estimate(cfg, run)
        return
    run_parts(cfg, run, {
        "identities": parts.identities,  # A5: eqs. (1) to (8), their gradients and limits
        "methods": parts.methods,  # A1, A6: every distiller in the same worlds, paired
        "watch": parts.watch,  # what p_S(z|x) learns over training, and which term steers
        "tune": parts.tune,  # as many trials for every method, on validation rows
        "variants": parts.variants,  # where does the auxiliary variable beat tuned KD?
        "transfer": parts.transfer,  # A2: linear probes on another data set
        "capacity": parts.capacity,  # A3: the teacher grows
        "tau_queue": parts.tau_queue,  # A4: tau and the queue's length
        "benchmark": benchmark.benchmark,  # pairs of CIFAR-100 and ImageNet at the paper's scale
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
