"""In-context convergence of transformers: the learning dynamics of one softmax-attention head (Huang et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, experiment


@experiment("softmax_icl")
def train(cfg, run: Run) -> None:
    from common.errors import UserError
    from papers.softmax_icl import beyond, networks, real_prompts, settings, theorems

    parts = {
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
    }
    if unknown := [name for name in cfg.parts if name not in parts]:
        raise UserError(f"unknown part {unknown[0]!r}: the parts are {', '.join(parts)}")
    if not cfg.seeds:
        raise UserError("seeds is empty: name at least one, seeds=[0] say")
    for name in cfg.parts:
        settings.check_sizes(cfg[name], name)
    for name in cfg.parts:
        parts[name](cfg, run)


if __name__ == "__main__":
    train()
