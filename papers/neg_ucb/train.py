"""NegUCB: contextual combinatorial bandits for negotiation (Li, Mu, Qi, ICML 2024; a reconstruction). See README.md."""

from __future__ import annotations

from common.experiment import Run, experiment

STUDIES = {
    "identities": "studies:identities",  # the alternation only lowers its objective; kernel form = feature form
    "regret": "regret:regret",  # every method in every task: regret, acceptance (C1-C5)
    "cardinality": "studies:cardinality",  # a bonus for the bid against one for each item (C6)
    "casino": "studies:casino",  # human offers: predicted, then learnt
    "clusters": "studies:clusters",  # what the hidden states say of the counterparts
    "warm_start": "studies:warm_start",  # logged offers before the first negotiation
    "tune": "regret:tune",  # the same grid of alpha for every method, on seeds of its own
    "play": "play:play",  # you are the counterpart
}


@experiment("neg_ucb", dry=True)
def train(cfg, run: Run) -> None:
    from importlib import import_module

    from common.configs import known
    from common.errors import UserError
    from papers.neg_ucb.data import Data

    data = Data(run)
    for name in cfg.studies:
        if name not in STUDIES:
            raise UserError(f"unknown study {name!r}: {known('the studies are', name, list(STUDIES))}")
    import_module("papers.neg_ucb.settings").check(cfg)
    if cfg.run.dry:
        import_module("papers.neg_ucb.studies").dry(cfg, run)
        return
    for name in cfg.studies:
        module, _, function = STUDIES[name].partition(":")
        getattr(import_module(f"papers.neg_ucb.{module}"), function)(cfg, run, data)


if __name__ == "__main__":
    train()
