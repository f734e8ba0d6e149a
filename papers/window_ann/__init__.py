"""Window search: Approximate Nearest Neighbor Search with Window Filters (Engels, Landrum, Yu, Dhulipala & Shun, ICML 2024)."""

from importlib import import_module

_EXPORTS = {
    "WindowIndex": "papers.window_ann.index",
    "rank_interval": "papers.window_ann.windows",
    "Tree": "papers.window_ann.tree",
    "OverlappingRows": "papers.window_ann.overlap",
}
_MODULES = ("vamana", "evaluate", "datasets")
__all__ = [*_EXPORTS, *_MODULES]


def __getattr__(name: str):
    """Import on first use (PEP 562), so that `import papers.window_ann` imports neither numba nor numpy."""
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
