"""Window search: Approximate Nearest Neighbor Search with Window Filters (Engels, Landrum, Yu, Dhulipala & Shun, ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "WindowIndex": "index",
        "rank_interval": "windows",
        "Tree": "tree",
        "OverlappingRows": "overlap",
        "vamana": "",
        "metrics": "",
        "synthetic": "",
    },
)
