"""Openness: Position: Near to Mid-term Risks and Opportunities of Open-Source Generative AI (Eiras et al., ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "Evidence": "profile",
        "Profile": "profile",
        "Rating": "rating",
        "Rights": "rating",
        "classify": "folders",
        "rate": "rating",
        "table": "published",
        "licences": "",
        "scales": "",
        "stats": "",
        "taxonomy": "",
    },
)
