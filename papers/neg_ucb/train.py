"""NegUCB: contextual combinatorial bandits for negotiation (Li, Mu, Qi, ICML 2024; a reconstruction). See README.md."""

from __future__ import annotations

from typing import Any

from common.experiment import Run, main, run_parts


def train(cfg: Any, run: Run) -> None:
    from papers.neg_ucb import dry, play, regret, settings, studies

    settings.check(cfg)
    if cfg.run.dry:
        dry.estimate(cfg, run)
        return
    run_parts(cfg, run, {
        "identities": studies.identities,  # the alternation only lowers its objective; kernel form = feature form
        "regret": regret.regret,  # every method in every task: regret, acceptance (C1-C5)
        "cardinality": studies.cardinality,  # a bonus for the bid against one for each item (C6)
        "casino": studies.casino,  # human offers: predicted, then learnt
        "clusters": studies.clusters,  # what the hidden states say of the counterparts
        "warm_start": studies.warm_start,  # logged offers before the first negotiation
        "tune": regret.tune,  # the same grid of alpha for every method, on seeds of its own
        "play": play.play,  # you are the counterpart
    })  # fmt: skip


if __name__ == "__main__":
    main(train)
