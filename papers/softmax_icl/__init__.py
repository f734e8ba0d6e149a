"""ICL convergence: In-context Convergence of Transformers (Huang, Cheng and Liang, ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "SoftmaxICL": "model",
        "frequencies": "laws",
        "make_features": "data",
        "sample_prompts": "data",
        "population_gradient": "population",
        "population_loss": "population",
        "integrate_flow": "flow",
        "Trajectory": "trajectory",
        "Phase": "trajectory",
        "phases": "trajectory",
        "closed_form": "",
    },
)
