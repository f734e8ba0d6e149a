"""QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice Codebooks (Tseng et al., ICML 2024)."""

from importlib import import_module

_EXPORTS = {
    "quantize_linear": "papers.quip_sharp.quantizer",
    "quantize_model": "papers.quip_sharp.model",
    "QuantLinear": "papers.quip_sharp.linear",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str):
    """Import on first use (PEP 562), so that `import papers.quip_sharp` does not import torch."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
