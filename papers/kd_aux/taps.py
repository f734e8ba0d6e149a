"""Features of any torch model by the dotted names of its modules, read by hooks that are gone after the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import did_you_mean

PENULTIMATE = "penultimate"  # what goes into the last linear layer


def call(model: nn.Module, x: Any) -> Any:
    """model(x), or model(**x) where x is a mapping (a tokenised batch)."""
    return model(**x) if isinstance(x, Mapping) else model(x)


def length(x: Any) -> int:
    """How many samples a batch or a mapping of batches has."""
    return len(next(iter(x.values()))) if isinstance(x, Mapping) else len(x)


def take(x: Any, rows: Any) -> Any:
    """These samples of a batch, or of each part of a mapping."""
    return {key: part[rows] for key, part in x.items()} if isinstance(x, Mapping) else x[rows]


def pieces(x: Any, size: int) -> list[Any]:
    """A batch in parts of at most `size` samples."""
    return [take(x, slice(i, i + size)) for i in range(0, length(x), size)]


def as_logits(out: Any) -> Tensor:
    """The logits among what a model returns: itself, `.logits`, or the first of a tuple. ValueError where there are none."""
    found = getattr(out, "logits", out)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.dim() != 2:
        raise ValueError("the model returns no table of logits (batch, classes): wrap it in one that does")
    return found


def last_linear(model: nn.Module) -> str:
    """The dotted name of the last linear layer. ValueError where there is none."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        raise ValueError("the model has no linear layer: name the module of its features")
    return names[-1]


def names_of(wanted: str | Sequence[str] | None) -> list[str]:
    if wanted is None:
        return [PENULTIMATE]
    return [wanted] if isinstance(wanted, str) else list(wanted)


def check_names(model: nn.Module, names: Sequence[str], who: str) -> None:
    """Raise ValueError for a name that no module of the model has."""
    there = dict(model.named_modules())
    for name in names:
        if name != PENULTIMATE and name not in there:
            raise ValueError(f"{who} has no module {name!r}: {did_you_mean('it has', name, [n for n in there if n])}")
        if name == PENULTIMATE:
            last_linear(model)


def width_of(model: nn.Module, name: str) -> int | None:
    """The width of a feature as far as its module says it: None where a batch is needed to know."""
    if name == PENULTIMATE:
        return dict(model.named_modules())[last_linear(model)].in_features
    module: Any = dict(model.named_modules())[name]
    while isinstance(module, nn.Sequential) and len(module):
        module = next(
            (m for m in reversed(module) if not isinstance(m, (nn.ReLU, nn.GELU, nn.Tanh, nn.Dropout, nn.Identity))),
            None,
        )
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.out_channels
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.num_features
    return None


def run(model: nn.Module, x: Any, names: Sequence[str]) -> tuple[list[Tensor], Tensor]:
    """One forward pass: the features by name, in order, and the logits."""
    found: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    with ExitStack() as hooks:
        for name in names:
            if name == PENULTIMATE:
                handle = modules[last_linear(model)].register_forward_pre_hook(_keep_input(found, name))
            else:
                handle = modules[name].register_forward_hook(_keep_output(found, name))
            hooks.callback(handle.remove)
        logits = as_logits(call(model, x))
    if absent := [name for name in names if name not in found]:
        raise ValueError(f"module {absent[0]!r} was not used in the forward pass: name another")
    mask = x.get("attention_mask") if isinstance(x, Mapping) else None
    return [_batch_first(found[name], len(logits), mask) for name in names], logits


def pooled(feature: Tensor) -> Tensor:
    """(B, D) of a feature: maps (B, C, H, W) and sequences (B, C, T) by their mean, a vector as it is."""
    return feature.flatten(2).mean(dim=2) if feature.dim() > 2 else feature


@contextmanager
def frozen(model: nn.Module) -> Any:
    """No gradient, evaluation mode, and afterwards every module in the mode it had."""
    modes = [(module, module.training) for module in model.modules()] if model.training else []
    modes += [(m, m.training) for m in model.modules() if m.training] if not modes else []
    for module, _ in modes:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _keep_output(found: dict[str, Tensor], name: str) -> Any:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        found[name] = _tensor(out, name)

    return hook


def _keep_input(found: dict[str, Tensor], name: str) -> Any:
    def hook(module: nn.Module, args: Any) -> None:
        found[name] = _tensor(args[0], name)

    return hook


def _tensor(out: Any, name: str) -> Tensor:
    if isinstance(out, Tensor):
        return out
    if hasattr(out, "last_hidden_state"):
        return out.last_hidden_state
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        return out[0]
    raise ValueError(f"module {name!r} returns no tensor: name another")


def _batch_first(feature: Tensor, batch: int, mask: Tensor | None) -> Tensor:
    """A sequence of tokens (B, T, D) as its mean over what the mask keeps (B, D); everything else as it is."""
    if len(feature) != batch:
        raise ValueError(
            f"a feature has {len(feature)} rows for {batch} samples: name a module that keeps the batch first"
        )
    if feature.dim() == 3:
        if mask is not None and mask.shape == feature.shape[:2]:
            weight = mask.to(feature.dtype)[..., None]
            return (feature * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)
        return feature.mean(dim=1)
    return feature
