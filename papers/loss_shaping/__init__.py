"""Loss Shaping: Loss Shaping Constraints for Long-Term Time Series Forecasting (Hounie, Porras-Valenzuela and Ribeiro, ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "DualVariables": "constraints",
        "levels_from_profile": "constraints",
        "resilient_step": "constraints",
        "ConstrainedTraining": "shaping",
        "WindowLosses": "shaping",
        "window_std": "metrics",
        "build_forecaster": "forecasters",
    },
)
