"""QuantLinear: a linear layer that keeps its weight as packed lattice words (QuIP# algorithm "Inference").

    y = scale * SU * U^T (W~ (V (SV * x)))        W~ decoded from words, U and V the fast rotations

Names follow the paper: SV (n,) sits on the inputs, SU (m,) on the outputs. (The official code calls them the other way
round.) They start as random signs and may become arbitrary reals in fine-tuning; the scale is kept apart.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import UserError
from papers.quip_sharp import codebooks
from papers.quip_sharp.codebooks import Codebook
from papers.quip_sharp.incoherence import apply_core, empty_state

if TYPE_CHECKING:
    from papers.quip_sharp.quantize_weight import Quantized

log = logging.getLogger(__name__)
CHUNK = 1 << 18  # weights decoded at a time: 1 MB of float32, which stays in cache; 4096 x 4096 would be 64 MB
# (words, codebook, columns, y (..., columns)) -> W~ y (..., rows), or None for what it leaves to the decoded product
Kernel = Callable[[Tensor, Codebook, int, Tensor], Tensor | None]


def cpu_kernel(words: Tensor, codebook: Codebook, columns: int, y: Tensor) -> Tensor | None:
    """`kernels.multiply` where numba is installed."""
    multiply = _compiled()
    return multiply(words, codebook, columns, y) if multiply else None


@cache
def _compiled() -> Kernel | None:
    try:
        from papers.quip_sharp.kernels import multiply
    except UserError as error:
        log.warning("products with single vectors are three times slower than they need be: %s", error)
        return None
    return multiply


KERNELS: dict[str, Kernel] = {"cpu": cpu_kernel}  # by device type: the place for a Triton or CUDA kernel


class QuantLinear(nn.Module):
    """y = W_hat x + bias with W_hat (out_features, in_features) held as words.

    Buffers: words (rows, bytes) uint8; SU (out,), SV (in,) float16, float32 parameters while tuning (`set_tuning`);
    scale (len(splits),) float32, one per fused weight; and the tensors of the two rotations (phases, say).
    splits: output rows of each fused weight, (out_features,) where there is one; `parts` returns them apart.
    Inputs of any float dtype (..., in_features); computed in at least float32 and returned in the input's dtype.
    """

    words: Tensor
    SU: Tensor
    SV: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        codebook: str,
        *,
        splits: tuple[int, ...] | None = None,
        cores: tuple[str, str] = ("hadamard", "hadamard"),
        sizes: tuple[int, int] | None = None,
        residual_scale: float | None = None,
        bias: bool = False,
    ):
        """An empty layer, for `load_state_dict`; `from_quantized` makes a filled one. cores, sizes: (U's, V's)."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.codebook = codebooks.get(codebook, residual_scale)
        self.splits = tuple(splits or (out_features,))
        self.cores, self.sizes = tuple(cores), tuple(sizes or (out_features, in_features))
        if sum(self.splits) != out_features:
            raise ValueError(f"splits {self.splits} must add up to out_features ({out_features})")
        rows, columns = self.sizes
        if columns % self.codebook.block:
            raise ValueError(f"the rotated input size ({columns}) must be a multiple of {self.codebook.block}")
        self.register_buffer(
            "words", torch.zeros(rows, self.codebook.row_bytes(columns // self.codebook.block), dtype=torch.uint8)
        )
        self.register_buffer("SU", torch.ones(out_features, dtype=torch.float16))
        self.register_buffer("SV", torch.ones(in_features, dtype=torch.float16))
        self.register_buffer("scale", torch.ones(len(self.splits)))
        self._rotation_tensors: dict[str, tuple[str, ...]] = {}  # names of what each rotation needs beside the signs
        for side, core, size in zip("UV", self.cores, self.sizes, strict=True):
            state = empty_state(core, size)
            self._rotation_tensors[side] = tuple(state)
            for name, value in state.items():
                self.register_buffer(f"{side}_{name}", value)
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)
        self.quantization: dict = {}  # what the quantiser found: bits_per_weight, proxy_error, ...
        self._dense: Tensor | None = None  # the decoded W~ while tuning
        self._pending: tuple | None = None  # see `part`

    @classmethod
    def from_quantized(cls, quantized: "Quantized", bias: Tensor | None = None) -> "QuantLinear":
        """The layer of a weight that was quantised by a QuIP# method: ValueError for one that has no words."""
        U, V, codebook = quantized.U, quantized.V, quantized.codebook
        if quantized.words is None or U is None or V is None or codebook is None:
            raise ValueError(f"method {quantized.method!r} leaves a dense weight, not words: use it in nn.Linear")
        layer = cls(V.n, U.n, codebook.name, splits=quantized.splits, cores=(U.core, V.core), sizes=(U.size, V.size),
                    residual_scale=codebook.residual_scale, bias=bias is not None)  # fmt: skip
        state = {
            "words": quantized.words,
            "SU": quantized.SU,
            "SV": quantized.SV,
            "scale": quantized.scale,
            "bias": bias,
        }
        state |= {f"U_{name}": value for name, value in U.state.items()}
        state |= {f"V_{name}": value for name, value in V.state.items()}
        for name, value in state.items():
            if value is not None:
                setattr(layer, name, value.detach().clone())
        layer.quantization = quantized.row()
        return layer.to(quantized.words.device)

    def spec(self) -> dict:
        """The constructor's arguments, plain JSON: with the state dict, all that is needed to build the layer again."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "codebook": self.codebook.name,
            "splits": list(self.splits),
            "cores": list(self.cores),
            "sizes": list(self.sizes),
            "residual_scale": self.codebook.residual_scale,
            "bias": self.bias is not None,
        }

    # ------------------------------------------------------------------------------------------------ forward

    @torch.compiler.disable  # a compiled model calls its quantised layers as they are
    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), x's dtype."""
        if not x.is_floating_point():
            raise TypeError(f"expected inputs of floating-point numbers, got {x.dtype}")
        if not x.ndim or x.shape[-1] != self.in_features:
            raise ValueError(f"expected inputs with {self.in_features} features, got a shape of {tuple(x.shape)}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        # The rotations are matrix products, which autocast would round to bfloat16.
        with torch.autocast(x.device.type, enabled=False):
            y = x.to(dtype) * self.SV.to(dtype)
            y = F.pad(y, (0, self.sizes[1] - self.in_features))
            y = self._rotate("V", y)
        y = self._multiply(y)  # (..., rows)
        with torch.autocast(x.device.type, enabled=False):
            y = self._rotate("U", y.to(dtype), inverse=True)[..., : self.out_features]
            y = y * (self.SU * self._row_scale()).to(dtype)
            if self.bias is not None:
                y = y + self.bias.to(dtype)
        return y.to(x.dtype)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the fused weights, apart: (..., splits[i]) each."""
        return self(x).split(self.splits, -1)

    def part(self, x: Tensor, index: int) -> Tensor:
        """Output of fused weight `index`. The parts of one and the same input tensor are computed together, once.

        A model calls q_proj(x), k_proj(x), v_proj(x) in turn. The first call computes all and keeps the rest until
        they are fetched; another tensor, or a second call for a part already fetched, computes anew.
        """
        key = (x, None if x.is_inference() else x._version, torch.is_grad_enabled())
        pending = self._pending
        if pending is None or pending[0][0] is not x or pending[0][1:] != key[1:] or index not in pending[1]:
            pending = (key, dict(enumerate(self.parts(x))))
        out = pending[1].pop(index)
        self._pending = pending if pending[1] else None
        return out

    def _multiply(self, y: Tensor) -> Tensor:
        """W~ y. Decodes a panel of rows at a time unless W~ has been materialised for tuning."""
        if self._dense is not None:
            return F.linear(y, self._dense.to(y.dtype))
        rows, columns = self.sizes
        kernel = KERNELS.get(y.device.type)
        if kernel is not None and (out := kernel(self.words, self.codebook, columns, y)) is not None:
            return out
        step = max(1, CHUNK // columns)
        panels = [F.linear(y, self._decode(start, start + step).to(y.dtype)) for start in range(0, rows, step)]
        return torch.cat(panels, -1)

    def _decode(self, start: int, end: int) -> Tensor:
        """Rows start .. end of W~, (rows, columns) float32."""
        return self.codebook.decode_packed(self.words[start:end], self.sizes[1] // self.codebook.block)

    def _rotate(self, side: str, y: Tensor, inverse: bool = False) -> Tensor:
        core = self.cores["UV".index(side)]
        state = {name: getattr(self, f"{side}_{name}") for name in self._rotation_tensors[side]}
        return apply_core(core, state, y, inverse)

    def _row_scale(self) -> Tensor:
        if len(self.splits) == 1:
            return self.scale
        return torch.cat([s.expand(rows) for s, rows in zip(self.scale, self.splits, strict=True)])

    # --------------------------------------------------------------------------------------- weights and tuning

    @torch.no_grad()
    def dense_weight(self) -> Tensor:
        """W_hat in the original basis, (out_features, in_features) float32: the reference that `forward` must equal."""
        y = self._rotate("V", self._decode(0, self.sizes[0]), inverse=True)[:, : self.in_features] * self.SV.float()
        y = self._rotate("U", y.T, inverse=True)[:, : self.out_features]  # (in, out)
        return (y * self.SU.float() * self._row_scale()).T.contiguous()

    def set_tuning(self, on: bool = True) -> "QuantLinear":
        """Tuning mode: SU and SV become float32 parameters, and W~ is decoded once and kept. Words never change.

        on=False rounds SU and SV to float16 buffers again and drops W~.
        """
        if on == isinstance(self.SU, nn.Parameter):
            return self
        for name in ("SU", "SV"):
            value = getattr(self, name).detach()
            delattr(self, name)
            if on:
                setattr(self, name, nn.Parameter(value.float()))
            else:
                self.register_buffer(name, value.half())
        self._dense = self._decode(0, self.sizes[0]) if on else None
        self._pending = None
        return self

    def _apply(self, fn, recurse: bool = True):
        """`model.to(bfloat16)` moves the layer but leaves its own dtypes: the scale and the phases need theirs."""
        kept = {name: value for name, value in self.named_buffers() if name != "bias"}
        super()._apply(fn, recurse)
        for name, value in self.named_buffers():
            if name in kept and kept[name].dtype != value.dtype:
                self._buffers[name] = kept[name].to(value.device)
        self._dense = None if self._dense is None else self._dense.to(self.words.device)
        self._pending = None
        return self

    def __getstate__(self) -> dict:
        # outputs kept for a moment are no part of a copy; a codebook is its name, as its functions cannot be pickled
        return {**self.__dict__, "_pending": None, "codebook": (self.codebook.name, self.codebook.residual_scale)}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__({**state, "codebook": codebooks.get(*state["codebook"])})

    def extra_repr(self) -> str:
        codebook = f"{self.codebook.name} ({self.codebook.bits} bits)"
        return f"{self.in_features}, {self.out_features}, {codebook}, splits={self.splits}, cores={self.cores}"


class FusedPart(nn.Module):
    """One of the weights of a fused QuantLinear, standing where the model has its own linear (q_proj, say).

    The first part owns the layer, so that its tensors appear once in the state dict; the others only refer to it.
    """

    def __init__(self, fused: QuantLinear, index: int):
        super().__init__()
        self.index = index
        self._shared = (fused,)  # in a tuple, so that it is not registered as a submodule
        if index == 0:
            self.fused = fused
        self.in_features, self.out_features = fused.in_features, fused.splits[index]

    def forward(self, x: Tensor) -> Tensor:
        return self._shared[0].part(x, self.index)

    def extra_repr(self) -> str:
        return f"rows of weight {self.index} of {len(self._shared[0].splits)} fused"


def set_submodule(parent: nn.Module, name: str, module: nn.Module) -> None:
    """Put module in the place of parent's submodule called name."""
    path, _, leaf = name.rpartition(".")
    setattr(parent.get_submodule(path), leaf, module)
