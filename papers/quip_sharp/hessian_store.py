"""Hessians on disk, a decoder layer at a time, shared by all runs on the same model and calibration tokens.

One pass through the original model writes them; afterwards a layer's are read when that layer is quantised, so one
layer's are in memory at a time. A pass that was killed goes on: layers that are on disk are run, but not measured.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from common.errors import UserError
from common.files import sha256_of
from common.run import Run
from papers.quip_sharp.hessians import Visit, collect_hessians, decoder_layers, walk

FORMAT = 1  # to be raised when what is stored, or how it is computed, changes


def model_key(folder: str) -> list[str]:
    """What tells one model's weights from another's: the sha256 of their files (of a hub id, its name)."""
    files = sorted(Path(folder).glob("*.safetensors"))
    return [sha256_of(file) for file in files] or [folder]


def tokens_key(tokens: Tensor) -> list:
    """Shape and sha256 of a tensor of token ids."""
    return [list(tokens.shape), hashlib.sha256(tokens.contiguous().numpy().tobytes()).hexdigest()]


class StoredHessians(Mapping[str, Tensor]):
    """Name of a linear -> H (n, n) float64, named as `collect_hessians` names them. Made or found when constructed.

    key: what the Hessians depend on besides the calibration tokens (`model_key`, the model's config and dtype).
    """

    def __init__(
        self, run: Run, model: nn.Module, calibration: Tensor, batch_size: int, key: list, offload: str | None = None
    ):
        self.run = run
        self.key = [FORMAT, key, tokens_key(calibration), batch_size, run.device, run.threads, torch.__version__]
        found = decoder_layers(model)
        layers = ["model"] if found is None else [f"{found[0]}.{i}" for i in range(len(found[1]))]
        visits: Iterator[Visit] | None = None
        self.layer_of: dict[str, str] = {}
        for index, layer in enumerate(run.progress(layers, "Hessians")):

            def measure(index: int = index, layer: str = layer) -> dict[str, Tensor]:
                nonlocal visits
                if found is None:
                    return {name: pack(H) for name, H in collect_hessians(model, calibration, batch_size).items()}
                if visits is None:
                    visits = walk(model, calibration, batch_size, moments=layers[index:], offload=offload)
                visit = next(visit for visit in visits if visit.name == layer)
                return {f"{layer}.{group[0]}": pack(moment.matrix()) for group, moment in visit.hessians.items()}

            names = run.stage(f"hessians-{layer}", lambda: finite(measure()), self.key, shared=True)
            self.layer_of |= dict.fromkeys(names, layer)
        self._read = lru_cache(maxsize=1)(self._read_layer)

    def _read_layer(self, layer: str) -> dict[str, Tensor]:
        def gone() -> dict:
            raise UserError(f"the cached Hessians of {layer} have been removed while they were in use: run again")

        return self.run.stage(f"hessians-{layer}", gone, self.key, shared=True)

    def __getitem__(self, name: str) -> Tensor:
        return unpack(self._read(self.layer_of[name])[name])

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the file
        return name in self.layer_of

    def __iter__(self) -> Iterator[str]:
        return iter(self.layer_of)

    def __len__(self) -> int:
        return len(self.layer_of)


def finite(hessians: dict[str, Tensor]) -> dict[str, Tensor]:
    """The Hessians; UserError where one has NaN or infinite entries."""
    for name, H in hessians.items():
        if not torch.isfinite(H).all():
            raise UserError(
                f"the Hessian of {name} has NaN or infinite entries: the model overflows on its calibration text "
                "(use model.dtype=float32 or bfloat16, and check the weights)"
            )
    return hessians


def pack(H: Tensor) -> Tensor:
    """The lower triangle, row by row: (n, n) -> (n (n + 1) / 2,) float32, a quarter of the float64 matrix."""
    return torch.cat([row[: i + 1] for i, row in enumerate(H.float().cpu())])


def unpack(lower: Tensor) -> Tensor:
    """Inverse of `pack`: -> (n, n) float64, symmetric."""
    n = int((2 * lower.numel()) ** 0.5)
    H = torch.zeros(n, n, dtype=torch.float64)
    for i, row in enumerate(lower.split(list(range(1, n + 1)))):
        H[i, : i + 1] = row
    return H + H.tril(-1).T
