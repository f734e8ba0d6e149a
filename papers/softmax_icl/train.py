"""The learning dynamics of one softmax-attention head in context (Huang et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.softmax_icl import beyond, networks, real_prompts, settings, theorems

    settings.check(cfg)
    run.use_data("prompts", "synthetic", "papers.softmax_icl.data.sample_prompts", None)
    run_parts(cfg, run, {
        # the paper's theorems
        "balanced": theorems.balanced,  # two phases; exact solution for infinite prompts
        "imbalanced": theorems.imbalanced,  # a dominant feature: one phase for it, four for the others
        "scaling": theorems.scaling,  # learning times against K, by the infinite-prompt flow
        "tokens": real_prompts.tokens,  # the transformer itself, on real prompts, tested on unseen tasks
        "ablations": real_prompts.ablations,  # trained nu, residual, no mask; linear attention, least squares, kernels
        # beyond the paper
        "spectrum": beyond.spectrum,  # p_k ~ k^-s: learning time against frequency
        "phase_diagram": beyond.phase_diagram,  # where four phases exist at all, in (K, p_1)
        "finite_n": beyond.finite_n,  # does a finite prompt move the switch?
        "transformers": networks.transformers,  # heads, trained matrices, residual, MLP, layers, Adam
        "finite_tasks": networks.finite_tasks,  # memorising M tasks against learning in context
        "optimisers": beyond.optimisers,  # SGD, class-balanced queries, sign descent, Adam
        "race": beyond.race,  # linear against softmax attention: learning time and floor
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
