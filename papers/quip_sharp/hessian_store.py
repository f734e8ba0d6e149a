"""Hessians on disk, a decoder layer at a time, shared by all runs on the same model and calibration tokens.

One pass through the original model writes them; afterwards a layer's are read when that layer is quantised, so one
layer's are in memory at a time. A pass that was killed goes on: layers that are on disk are run, but not measured.
"""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from common.errors import UserError
from common.run import Run
from papers.quip_sharp.hessians import Visit, collect_hessians, decoder_layers, walk

FORMAT = 1  # to be raised when what is stored, or how it is computed, changes


def tokens_key(tokens: Tensor) -> list:
    """Shape and sha256 of a tensor of token ids."""
    return [list(tokens.shape), hashlib.sha256(tokens.contiguous().numpy().tobytes()).hexdigest()]


class StoredHessians(Mapping[str, Tensor]):
    """Name of a linear -> H (n, n) float64, named as `collect_hessians` names them. Made or found when constructed.

    key: what the Hessians depend on besides the calibration tokens (sums of the weights, the model's config and dtype).
    """

    def __init__(
        self, run: Run, model: nn.Module, calibration: Tensor, batch_size: int, key: list, offload: str | None = None
    ):
        self.run = run
        self.key = [FORMAT, key, tokens_key(calibration), batch_size, run.device, run.threads, torch.__version__]
        measure = _Measurement(model, calibration, batch_size, offload)
        self.layer_of: dict[str, str] = {}
        for layer in run.progress(measure.layers, "Hessians"):
            names = run.stage(f"hessians-{layer}", measure, layer, key=self.key, shared=True)
            self.layer_of |= dict.fromkeys(names, layer)
        self._latest: tuple[str, dict[str, Tensor]] = ("", {})  # the layer that was read last

    def __getitem__(self, name: str) -> Tensor:
        layer = self.layer_of[name]
        if self._latest[0] != layer:
            self._latest = ("", {})  # or two layers' would be in memory
            kept = self.run.stage(f"hessians-{layer}", _gone, layer, key=self.key, shared=True)
            self._latest = (layer, kept)
        return from_lower_triangle(self._latest[1][name])

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the file
        return name in self.layer_of

    def __iter__(self) -> Iterator[str]:
        return iter(self.layer_of)

    def __len__(self) -> int:
        return len(self.layer_of)


class _Measurement:
    """The Hessians of one layer after another, in one pass that begins with the first layer asked for."""

    def __init__(self, model: nn.Module, calibration: Tensor, batch_size: int, offload: str | None):
        self.model, self.calibration, self.batch_size, self.offload = model, calibration, batch_size, offload
        found = decoder_layers(model)
        self.layers = [] if found is None else [f"{found[0]}.{i}" for i in range(len(found[1]))]
        self.whole = not self.layers
        self.layers = self.layers or ["model"]
        self.visits: Iterator[Visit] | None = None

    def __call__(self, layer: str) -> dict[str, Tensor]:
        if self.whole:
            hessians = collect_hessians(self.model, self.calibration, self.batch_size)
            return finite({name: lower_triangle(H) for name, H in hessians.items()})
        if self.visits is None:
            rest = self.layers[self.layers.index(layer) :]
            self.visits = walk(self.model, self.calibration, self.batch_size, moments=rest, offload=self.offload)
        visit = next(visit for visit in self.visits if visit.name == layer)
        moments = visit.hessians.items()
        return finite({f"{layer}.{group[0]}": lower_triangle(moment.matrix()) for group, moment in moments})


def _gone(layer: str) -> dict[str, Tensor]:
    raise UserError(f"the cached Hessians of {layer} have been removed while they were in use: run again")


def finite(hessians: dict[str, Tensor]) -> dict[str, Tensor]:
    """The Hessians; UserError where one has NaN or infinite entries."""
    for name, H in hessians.items():
        if not torch.isfinite(H).all():
            raise UserError(
                f"the Hessian of {name} has NaN or infinite entries: the model overflows on its calibration text "
                "(use model.dtype=float32 or bfloat16, and check the weights)"
            )
    return hessians


def lower_triangle(H: Tensor) -> Tensor:
    """The lower triangle, row by row: (n, n) -> (n (n + 1) / 2,) float32, a quarter of the float64 matrix."""
    return torch.cat([row[: i + 1] for i, row in enumerate(H.float().cpu())])


def from_lower_triangle(lower: Tensor) -> Tensor:
    """Inverse of `lower_triangle`: -> (n, n) float64, symmetric."""
    n = int((2 * lower.numel()) ** 0.5)
    H = torch.zeros(n, n, dtype=torch.float64)
    for i, row in enumerate(lower.split(list(range(1, n + 1)))):
        H[i, : i + 1] = row
    return H + H.tril(-1).T
