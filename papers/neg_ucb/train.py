"""NegUCB: contextual combinatorial bandits for negotiation (Li, Mu, Qi, ICML 2024), reconstructed. See README.md."""

from __future__ import annotations

from typing import Any

from common.experiment import Run, main, run_parts


def train(cfg: Any, run: Run) -> None:
    from papers.neg_ucb import dry, parts, play, regret, settings, tune

    settings.check(cfg)
    if cfg.run.dry:
        dry.estimate(cfg, run)
        return
    run_parts(cfg, run, {
        "identities": parts.identities,  # the alternation only lowers its objective; kernel form = feature form
        "regret": regret.regret,  # every method in every task: regret, acceptance (C1-C5)
        "cardinality": parts.cardinality,  # a bonus for the bid against one for each item (C6)
        "casino": parts.casino,  # human offers: predicted, then learnt
        "clusters": parts.clusters,  # what the hidden states say of the counterparts
        "warm_start": parts.warm_start,  # logged offers before the first negotiation
        "tune": tune.tune,  # as many trials for every method, on worlds of their own
        "play": play.play,  # you are the counterpart
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
