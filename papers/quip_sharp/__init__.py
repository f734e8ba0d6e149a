"""QuIP#: Even Better LLM Quantization with Hadamard Incoherence and Lattice Codebooks (Tseng et al., ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {"quantize_linear": "quantize_weight", "quantize_model": "quantize_llm", "QuantLinear": "linear"},
)
