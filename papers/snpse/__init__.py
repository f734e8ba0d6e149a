"""SNPSE: Sequential Neural Score Estimation: Likelihood-Free Inference with Conditional Score Based Diffusion Models (Sharrock, Simons, Liu and Beaumont, ICML 2024)."""  # noqa: E501

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "SNPSE": "estimator",
        "Posterior": "posterior",
        "HPR": "truncation",
        "sde": "",
        "sampling": "",
        "tasks": "",
        "truncation": "",
        "corrections": "",
        "compose": "",
        "metrics": "",
    },
)
