"""Replay of human offers (CaSiNo): who was offered what, and whether they said yes. Nothing to choose, only to predict.

Each logged offer is an episode with one valid bid. The responder's preferences are not in x: they are what stays hidden. x holds the
packages the responder would get, their number and evenness, how many offers were turned down before in the dialogue, and what
the responder itself last asked for in an offer of its own (a counter-proposal), less what it is offered now.
"""

from __future__ import annotations

import numpy as np

from common.rng import Rng
from papers.neg_ucb import data
from papers.neg_ucb.environments.base import Environment, each


class CasinoReplay(Environment):
    """offers: a list of `data.Offer` in dialogue order; made-up ones by default. proposer utilities are what is left, over 36 points."""

    name = "casino_replay"
    dim, encoding = 10, 3
    bound = 3.0
    knows_q = False

    def __init__(self, seed: int = 0, offers: list[data.Offer] | None = None, **options):
        self.offers = data.generated_offers(Rng(0, "offers").numpy) if offers is None else offers
        if not self.offers:
            raise ValueError("offers: at least one is needed")
        self.x = _features(self.offers)
        self.people = [f"{offer.dialogue}/{offer.responder}" for offer in self.offers]
        options.pop("counterparts", None)
        super().__init__(seed, counterparts=len(set(self.people)), **options)

    def _people(self, generator):
        self.number = {who: i for i, who in enumerate(dict.fromkeys(self.people))}

    @property
    def offer(self) -> data.Offer:
        return self.offers[self.episode % len(self.offers)]

    def _arrive(self, generator):
        self.counterpart = self.number[self.people[self.episode % len(self.offers)]]

    def _options(self):
        return [4, 4, 4]

    def most_bids(self):
        return 1

    def _all_bids(self):
        return np.array([self.offer.takes])

    def context(self):
        return np.append(self.x[self.episode % len(self.offers), 3:], super().context())

    def _features(self, bids):
        """x of the logged offer: it is the only bid."""
        return np.repeat(self.x[[self.episode % len(self.offers)]], len(bids), 0)

    @each
    def utility(self, bids):
        return (
            9 - bids.sum(1)
        ) / 9  # what is left of the nine packages, the proposer's own preference being unknown here

    @each
    def accept_prob(self, bids):
        raise ValueError("casino_replay: people's acceptance probabilities are not known, only their answers are")

    def respond(self, bid):
        bid = np.asarray(bid, int)
        if not self.is_valid(bid):
            raise ValueError(f"bid {bid.tolist()} is not the logged offer {self.offer.takes}")
        self.over = True
        return int(self.offer.accepted)


def _features(offers: list[data.Offer]) -> np.ndarray:
    x = np.zeros((len(offers), CasinoReplay.dim))
    asked: dict[tuple[str, str], np.ndarray] = {}  # by dialogue and agent: what it last wanted for itself
    rejected: dict[str, int] = {}
    for row, offer in zip(x, offers, strict=True):
        takes = np.array(offer.takes)
        wish = asked.get((offer.dialogue, offer.responder))
        row[:3] = takes / 3
        row[3], row[4], row[5] = takes.sum() / 9, takes.min() / 3, takes.max() / 3
        row[6] = min(rejected.get(offer.dialogue, 0), 3) / 3
        if wish is not None:
            row[7], row[8], row[9] = 1, np.clip((takes - wish).sum() / 3, -1, 1), np.abs(takes - wish).sum() / 9
        if not offer.accepted:
            rejected[offer.dialogue] = rejected.get(offer.dialogue, 0) + 1
        asked[offer.dialogue, offer.proposer] = 3 - takes
    return x
