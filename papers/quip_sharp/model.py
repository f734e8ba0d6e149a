"""Quantise a whole language model: calibrate, quantise every linear of its decoder layers, put the results in place.

    quantized = quantize_model(model, calibration, "quip_sharp", bits=2, rng=0)
    summary(quantized)["bits_per_weight"]

Activations are propagated through the original layers (for the Hessians and the fine-tuning targets alike), so a layer
is quantised for the inputs that it was trained for. Embeddings, norms and the output head are kept.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from papers.quip_sharp.finetune import BlockTuning, finetune_block
from papers.quip_sharp.hessians import collect_hessians, decoder_layers, groups_of, output_head, walk
from papers.quip_sharp.incoherence import as_generator
from papers.quip_sharp.linear import FusedPart, QuantLinear
from papers.quip_sharp.quantizer import Quantized, quantize_linear


def quantize_model(
    model: nn.Module,
    calibration: Tensor | None,
    method: str = "quip_sharp",
    bits: int = 2,
    rng: object = 0,
    *,
    hessians: dict[str, Tensor] | None = None,
    fuse: bool = True,
    batch_size: int = 8,
    tuning: BlockTuning | None = None,
    inplace: bool = False,
    on_group: Callable[[dict], None] | None = None,
    **options: Any,
) -> nn.Module:
    """Returns the model with its decoder layers' linears quantised; a copy, unless inplace.

    calibration: (n_seq, ctx) int64; may be None where hessians, from `collect_hessians`, are given and tuning is off.
    QuIP# methods put `QuantLinear` in the linears' places (fuse: one for weights that share their inputs, each
    represented by a `FusedPart`); baselines put a dense nn.Linear holding W_hat. method, bits, options (rho, tune,
    sigma, ...): see `quantizer.quantize_linear`. rng: seed or generator; each weight's signs depend on it and on the
    weight's name alone. tuning: a `finetune.BlockTuning`, for fine-tuning within each block (QuIP# sec. 5).
    on_group: called after each group with its record (name, bits_per_weight, proxy_error, ...).
    ValueError where a Hessian is missing, the calibration is not (n_seq, ctx) int64, or nothing is left to quantise.
    """
    if calibration is None and (hessians is None or tuning is not None):
        raise ValueError("give calibration sequences (fine-tuning needs them even where the Hessians are given)")
    model = model if inplace else copy.deepcopy(model)
    seed = int(torch.randint(2**62, (), generator=as_generator(rng)).item())
    done = 0
    for parent, prefix, group, H, tune in _work(model, calibration, hessians, batch_size, tuning):
        rows = []
        for members in [group] if fuse and method.startswith("quip_sharp") else [(member,) for member in group]:
            weights = [_linear(parent, member).weight for member in members]
            generator = _generator(seed, prefix + members[0])
            quantized = quantize_linear(weights, H.to(weights[0].device), method, bits, generator, **options)
            rows.append({"name": prefix + members[0], "weights_fused": len(members), **quantized.record()})
            _put(parent, members, quantized, rows[-1])
        if tune is not None:
            rows[0]["tuning"] = tune(_generator(seed, f"tuning {prefix}{group[0]}"))
        if on_group is not None:
            for row in rows:
                on_group(row)
        done += len(rows)
    if not done:
        raise ValueError("the model has no nn.Linear to quantise (besides its output head): is it quantised already?")
    return model


Work = tuple[nn.Module, str, tuple[str, ...], Tensor, Callable[[torch.Generator], list[dict]] | None]


def _work(
    model: nn.Module,
    calibration: Tensor | None,
    hessians: dict[str, Tensor] | None,
    batch_size: int,
    tuning: BlockTuning | None,
) -> Iterator[Work]:
    """Every group in the order to quantise: (parent module, its name + ".", members, H, fine-tuning stage)."""

    def hessian_of(name: str) -> Tensor:
        if hessians is None or name not in hessians:
            raise ValueError(f"no Hessian for {name!r}: collect them from this very model")
        return hessians[name]

    found = decoder_layers(model)
    if calibration is not None and found is not None and (hessians is None or tuning is not None):
        keep = tuning.sequences if tuning is not None else 0
        for visit in walk(model, calibration, batch_size, keep, moments=hessians is None):
            groups, prefix = groups_of(visit.layer), f"{visit.name}."
            for group in groups:
                H = visit.hessians[group].matrix() if hessians is None else hessian_of(prefix + group[0])
                last = group == groups[-1]
                tune = None if tuning is None else partial(finetune_block, visit, tuning, last=last)
                yield visit.layer, prefix, group, H, tune
        return
    if tuning is not None:
        raise ValueError("block fine-tuning needs a model with a list of decoder layers")
    if hessians is None and calibration is not None:
        hessians = collect_hessians(model, calibration, batch_size)
    if found is None:
        head = output_head(model)
        places = [("", model, [g for g in groups_of(model) if model.get_submodule(g[0]) is not head])]
    else:
        name, layers = found
        places = [(f"{name}.{i}.", layer, groups_of(layer)) for i, layer in enumerate(layers)]
    for prefix, parent, groups in places:
        for group in groups:
            yield parent, prefix, group, hessian_of(prefix + group[0]), None


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator for one weight that depends on the seed and the name alone, not on what was quantised before it."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _linear(parent: nn.Module, name: str) -> nn.Linear:
    return cast(nn.Linear, parent.get_submodule(name))


def _put(parent: nn.Module, members: tuple[str, ...], quantized: Quantized, record: dict) -> None:
    """Put the quantised weight of `members` where they stand in parent."""
    linears = [_linear(parent, member) for member in members]
    if quantized.words is None:
        for linear, weight in zip(linears, quantized.weight.split(quantized.splits), strict=True):
            linear.weight.data = weight.to(linear.weight)
        linears[0].quantization = record  # type: ignore[assignment]  # a plain attribute: it is no part of the state
        return
    bias = None
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([w.weight.new_zeros(w.out_features) if w.bias is None else w.bias for w in linears])
    fused = QuantLinear.from_quantized(quantized, bias)
    fused.quantization = record
    for index, member in enumerate(members):
        set_submodule(parent, member, fused if len(members) == 1 else FusedPart(fused, index))


def set_submodule(parent: nn.Module, name: str, module: nn.Module) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(parent.get_submodule(path), leaf, module)


def records(model: nn.Module) -> list[dict]:
    """What the quantiser found for every weight matrix (fused ones count once), in model order."""
    found = (getattr(module, "quantization", None) for module in model.modules())
    return [row for row in found if row]


def summary(model: nn.Module) -> dict:
    """bits_per_weight over all quantised weights, all that is stored included; mean proxy_error over matrices."""
    rows = records(model)
    if not rows:
        raise ValueError("the model has no quantised weights")
    weights = sum(row["weights"] for row in rows)
    return {
        "bits_per_weight": sum(row["bits_per_weight"] * row["weights"] for row in rows) / weights,
        "proxy_error": sum(row["proxy_error"] for row in rows) / len(rows),
        "weights": weights,
        "matrices": len(rows),
    }
