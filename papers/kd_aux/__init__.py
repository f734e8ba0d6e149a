"""AuxKD: Knowledge Distillation with Auxiliary Variable (Peng, Fang, Zhang & Lu, ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "Distiller": "distillers",
        "FeatureQueue": "queue",
        "knn_classifier": "inference",
        "prototype_classifier": "inference",
        "vmf_log_normaliser": "inference",
        "auxiliary": "",
        "distillers": "",
        "losses": "",
        "metrics": "",
        "networks": "",
    },
)
