"""Loss Shaping Constraints for Long-Term Time Series Forecasting: Hounie, Porras-Valenzuela and Ribeiro, ICML 2024 (arXiv 2402.09373)."""

from importlib import import_module

_EXPORTS = {
    "DualVariables": "papers.loss_shaping.constraints",
    "levels_from_profile": "papers.loss_shaping.constraints",
    "resilient_step": "papers.loss_shaping.constraints",
    "ConstrainedTraining": "papers.loss_shaping.shaping",
    "WindowLosses": "papers.loss_shaping.shaping",
    "window_std": "papers.loss_shaping.metrics",
    "build_forecaster": "papers.loss_shaping.forecasters",
}
__all__ = [*_EXPORTS]


def __getattr__(name: str):
    """Import on first use (PEP 562), so that `import papers.loss_shaping` does not import torch."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
