"""In-context Convergence of Transformers: Huang, Cheng and Liang, ICML 2024 (arXiv 2310.05249)."""

from importlib import import_module

_EXPORTS = {
    "SoftmaxICL": "papers.softmax_icl.model",
    "frequencies": "papers.softmax_icl.laws",
    "make_features": "papers.softmax_icl.data",
    "sample_prompts": "papers.softmax_icl.data",
    "population_gradient": "papers.softmax_icl.population",
    "population_loss": "papers.softmax_icl.population",
    "integrate_flow": "papers.softmax_icl.flow",
    "Trajectory": "papers.softmax_icl.trajectory",
    "Phase": "papers.softmax_icl.trajectory",
    "phases": "papers.softmax_icl.trajectory",
}
__all__ = [*_EXPORTS, "closed_form"]


def __getattr__(name: str):
    """Import on first use (PEP 562), so that `import papers.softmax_icl` does not import torch."""
    if name == "closed_form":
        return import_module("papers.softmax_icl.closed_form")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
