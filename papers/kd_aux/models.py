"""A person's own models: a transformers folder, or an importable class with safetensors; and a student written back."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import UserError, user_errors
from common.files import write_json
from common.run import Run
from papers.kd_aux.checkpoints import load_into, read_state
from papers.kd_aux.data import own_path


class Scaled(nn.Module):
    """A model of images in [0, 1] whose folder asks for other means and deviations."""

    def __init__(self, model: nn.Module, mean: list[float], std: list[float]):
        super().__init__()
        self.model = model
        self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def forward(self, pixel_values: Tensor) -> Any:
        return self.model((pixel_values - self.mean.to(pixel_values)) / self.std.to(pixel_values))


def load(options: Any, key: str, run: Run) -> nn.Module:
    """The model of `key.path` (a transformers folder, or weights for `key.factory`). UserError says what is wrong with it."""
    if options.factory is not None:
        return _of_class(options, key, run)
    if options.path is None:
        raise UserError(f"{key}.path is not given: name a transformers folder, or {key}.factory=package.module:Class")
    folder = own_path(options.path, f"{key}.path", run, folder=True)
    with user_errors(f"{key}.path"):
        return of_folder(folder, run.rng("initial weights", key).seed)


def of_folder(folder: Path, seed: int) -> nn.Module:
    """A transformers model with a classification head, with its weights where the folder has them. ValueError where it is none."""
    import transformers

    from common.rng import seeded

    try:
        raw = json.loads((folder / "config.json").read_text())
        name = raw["architectures"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise ValueError(f"{folder} has no config.json with architectures: it is no transformers folder") from None
    make = getattr(transformers, str(name), None)
    if make is None or "Classification" not in str(name):
        raise ValueError(f"{folder.name} is a {name}: a model with a classification head is needed")
    try:
        with seeded(seed):
            if any(folder.glob("*.safetensors")):
                model = make.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            else:
                model = make(make.config_class(**raw))
    except Exception as error:  # the library's many ways to say that files do not fit
        raise ValueError(f"{folder.name} cannot be loaded ({' '.join(str(error).split())[:150]})") from None
    try:
        images = json.loads((folder / "preprocessor_config.json").read_text())
        return Scaled(model, images["image_mean"], images["image_std"])
    except (OSError, KeyError):
        return model
    except (ValueError, TypeError):
        raise ValueError(f"{folder.name}: preprocessor_config.json cannot be read") from None


def _of_class(options: Any, key: str, run: Run) -> nn.Module:
    """factory `package.module:Class`, called with `arguments`; weights of `path` where given."""
    from common.rng import seeded

    module, _, name = str(options.factory).partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the command
    try:
        make = getattr(importlib.import_module(module), name)
        with seeded(run.rng("initial weights", key).seed):
            model = make(**dict(options.arguments))
    except Exception as error:  # it is the user's own code
        raise UserError(
            f"{key}.factory: {options.factory} cannot be made ({type(error).__name__}: {' '.join(str(error).split())[:150]})"
        ) from None
    if not isinstance(model, nn.Module):
        raise UserError(f"{key}.factory: {options.factory} makes a {type(model).__name__}: a torch module is needed")
    if options.path is not None:
        path = own_path(options.path, f"{key}.path", run)
        with user_errors(f"{key}.path"):
            load_into(model, read_state(path), path.name)
    return model


def image_size(options: Any) -> int | None:
    """The side of the images that a transformers folder asks for."""
    try:
        found = json.loads((Path(str(options.path)).expanduser() / "config.json").read_text()).get("image_size")
        return int(found) if found else None
    except (OSError, ValueError, TypeError):
        return None


def write(model: nn.Module, folder: Path, options: Any, report: Mapping[str, Any]) -> None:
    """The student, to be loaded without this package: a transformers folder, or model.safetensors with model.json; and report.json."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    inner: Any = model.model if isinstance(model, Scaled) else model
    if hasattr(inner, "save_pretrained"):
        inner.save_pretrained(folder)
        source = Path(str(options.path)).expanduser()
        for name in (
            "preprocessor_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
        ):
            if (source / name).is_file():
                (folder / name).write_bytes((source / name).read_bytes())
    else:
        save_file(
            {key: value.contiguous().clone() for key, value in inner.state_dict().items()}, folder / "model.safetensors"
        )
        write_json(folder / "model.json", {"factory": options.factory, "arguments": dict(options.arguments),
                                           "load": "Class(**arguments).load_state_dict(safetensors.torch.load_file('model.safetensors'))"})  # fmt: skip
    write_json(folder / "report.json", report)


__all__ = ["Scaled", "image_size", "load", "of_folder", "write"]
