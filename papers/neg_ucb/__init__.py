"""NegUCB: A Contextual Combinatorial Bandit Approach to Negotiation (Li, Mu & Qi, ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "NegUCB": "acceptance",
        "AcceptanceModel": "acceptance",
        "ExactNegUCB": "kernel",
        "OnlineChoice": "online",
        "Optimistic": "negotiation",
        "negotiate": "negotiation",
        "best_bid": "oracle",
        "make": "environments",
        "anac": "",
        "baselines": "",
        "environments": "",
        "features": "",
        "oracle": "",
    },
)
