"""NegUCB: A Contextual Combinatorial Bandit Approach to Negotiation (Li, Mu, Qi, ICML 2024); a reconstruction, see README.md."""

from importlib import import_module

_EXPORTS = {
    "NegUCB": "papers.neg_ucb.acceptance",
    "AcceptanceModel": "papers.neg_ucb.acceptance",
    "ExactNegUCB": "papers.neg_ucb.kernel",
    "Optimistic": "papers.neg_ucb.negotiation",
    "negotiate": "papers.neg_ucb.negotiation",
    "best_bid": "papers.neg_ucb.oracle",
    "make": "papers.neg_ucb.environments",
    "anac": "",
    "baselines": "",
    "environments": "",
    "features": "",
    "oracle": "",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str):
    """Import on first use (PEP 562), so that `import papers.neg_ucb` imports nothing heavy."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name) if _EXPORTS[name] else import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
