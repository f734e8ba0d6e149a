"""Weights from disk: checkpoints of the CIFAR-100 benchmark and safetensors, and a cache of what a teacher has said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.files import digest, sha256_of_arrays
from papers.kd_aux.distillers import Taught


def read_state(path: Path) -> dict[str, Tensor]:
    """The state of a .safetensors file, or of a .pth as the benchmark writes it ({"model": state}); weights only, nothing is run.

    ValueError where it is neither.
    """
    if path.suffix == ".safetensors":
        return _safetensors(path)[0]
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names a damaged file, and one that would run code, in a dozen ways
        why = " ".join(str(error).split())[:120]
        raise ValueError(f"{path.name} is no checkpoint of weights alone ({type(error).__name__}: {why})") from None
    if isinstance(found, Mapping):
        for key in ("model", "state_dict", "net"):
            if isinstance(found.get(key), Mapping):
                found = found[key]
                break
    if not isinstance(found, Mapping) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"{path.name} holds no table of weights: a state dict, or one under 'model', is expected")
    return {str(key).removeprefix("module."): value for key, value in found.items()}


def _safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 (no mapping)
    except Exception as error:  # the library's own class and several of the system's
        raise ValueError(f"{path.name} is no safetensors file ({' '.join(str(error).split())[:120]})") from None


def load_into(model: nn.Module, state: Mapping[str, Tensor], name: str) -> nn.Module:
    """Put a state into a model. ValueError names what is missing, unexpected, of another shape, or not finite."""
    own = model.state_dict()
    optional = {key for key in own if key.endswith("num_batches_tracked")}
    missing, unexpected = sorted(set(own) - set(state) - optional), sorted(set(state) - set(own))
    if missing or unexpected:
        parts = [f"lacks {missing[0]} ({len(missing)} in all)"] if missing else []
        parts += [f"has {unexpected[0]}, which the model has not ({len(unexpected)} in all)"] if unexpected else []
        raise ValueError(f"{name} {' and '.join(parts)}: it belongs to another model")
    for key, value in state.items():
        if tuple(value.shape) != tuple(own[key].shape):
            raise ValueError(
                f"{name} has {key} of shape {tuple(value.shape)}, the model {tuple(own[key].shape)}: it belongs to another model"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name}: {key} is not finite")
    model.load_state_dict(own | dict(state))
    return model


# ---- what a teacher has said ------------------------------------------------------------------------------------------


def cache_key(teacher: nn.Module, x: Any, names: list[str], augmentation: str = "none") -> str:
    """What a teacher's words depend on: its weights, the inputs, the modules read, and how the inputs were changed."""
    state = teacher.state_dict()
    inputs = [x[key] for key in sorted(x)] if isinstance(x, Mapping) else [x]
    weights = sha256_of_arrays(*(state[key].detach().cpu().float().numpy() for key in sorted(state)))
    return digest(
        [sorted(state), weights, sha256_of_arrays(*(part.cpu().numpy() for part in inputs)), names, augmentation]
    )


def save_taught(path: Path, taught: Taught, key: str) -> None:
    """Keep features and logits as one safetensors file under their key."""
    from safetensors.torch import save_file

    from common.files import atomic_path

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"feature{i}": f.contiguous() for i, f in enumerate(taught.features)} | {
        "logits": taught.logits.contiguous()
    }
    with atomic_path(path) as scratch:
        save_file(tensors, scratch, metadata={"key": key})


def load_taught(path: Path, key: str) -> Taught:
    """Read what `save_taught` wrote. ValueError where it belongs to another teacher, other data or another augmentation."""
    tensors, metadata = _safetensors(path)
    if metadata.get("key") != key:
        raise ValueError(
            f"{path.name} belongs to another teacher, other data or another augmentation: delete it, or name another"
        )
    features = [tensors[f"feature{i}"] for i in range(len(tensors) - 1)]
    return Taught(features, tensors["logits"])


__all__ = ["cache_key", "load_into", "load_taught", "read_state", "save_taught"]
