"""Quantise a whole language model: calibrate, quantise every linear of its decoder layers, put the results in place.

    quantized = quantize_model(model, calibration, "quip_sharp", bits=2, rng=0)
    summary(quantized)["bits_per_weight"]

Activations are propagated through the original layers (for the Hessians and the fine-tuning targets alike), so a layer
is quantised for the inputs that it was trained for. Embeddings, norms and the output head are kept.
"""

import copy
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from papers.quip_sharp.checkpoint import layer_state, restore_layer
from papers.quip_sharp.finetune import Tuning, finetune_block
from papers.quip_sharp.hessians import Visit, collect_hessians, decoder_layers, groups_of, output_head, walk
from papers.quip_sharp.incoherence import as_generator
from papers.quip_sharp.linear import FusedPart, QuantLinear, set_submodule
from papers.quip_sharp.quantize_weight import BASELINES, Quantized, quantize_linear

log = logging.getLogger(__name__)
Keep = Callable[..., dict]  # (name, fn, *args) -> fn(*args), or what it returned before


def quantize_model(
    model: nn.Module,
    calibration: Tensor | None,
    method: str = "quip_sharp",
    bits: int = 2,
    rng: object = 0,
    *,
    hessians: Mapping[str, Tensor] | None = None,
    fuse: bool = True,
    batch_size: int = 8,
    tuning: Tuning | None = None,
    inplace: bool = False,
    on_group: Callable[[dict], None] | None = None,
    keep: Keep | None = None,
    offload: str | None = None,
    **options: Any,
) -> nn.Module:
    """Returns the model with its decoder layers' linears quantised; a copy, unless inplace.

    calibration: (n_seq, ctx) int64; may be None where hessians, from `collect_hessians`, are given and tuning is off.
    QuIP# methods put `QuantLinear` in the linears' places (fuse: one for weights that share their inputs, each
    represented by a `FusedPart`); baselines leave an nn.Linear holding W_hat. Either way there is one row for each
    fused group, so that mean proxy errors of methods are over the same groups. method, bits, options (rho, tune,
    sigma, ...): see `quantize_weight.quantize_linear`. rng: seed or generator; each weight's signs depend on it and
    on the weight's name alone. tuning: a `finetune.Tuning`, for fine-tuning within each block (QuIP# sec. 5).
    on_group: called after each group with its row (name, bits_per_weight, proxy_error, ...).
    keep(name, fn, *args): fn(*args) or what an earlier call of it returned (`run.stage` with a prefix, say), once per
    decoder layer: what makes the work resumable. A copy takes one layer's weights at a time beside the words.
    offload: a folder for hidden states, where memory is too small for them.
    ValueError where a Hessian is missing, the calibration is not (n_seq, ctx) int64, or nothing is left to quantise.
    """
    if tuning is not None and method in BASELINES:
        raise ValueError(
            f"{method} has nothing to tune: fine-tuning within blocks would take its weights off their grid"
        )
    if calibration is None and (hessians is None or tuning is not None):
        raise ValueError("give calibration sequences (fine-tuning needs them even where the Hessians are given)")
    quantized_model = model if inplace else shallow_copy(model)
    seed = int(torch.randint(2**62, (), generator=as_generator(rng)).item())
    work = _Work(method, bits, seed, fuse, tuning, options)
    done, fresh = 0, set[str]()  # fresh: names of the layers that were quantised now, not found
    for place in _places(model, calibration, hessians, batch_size, tuning, offload):
        layer = quantized_model
        if place.name:
            layer = place.layer if inplace else copy.deepcopy(place.layer)
            set_submodule(quantized_model, place.name, layer)
        kept = (keep or _at_once)(place.name or "model", _quantize_layer, work, place, layer, fresh)
        if place.name not in fresh:
            restore_layer(layer, kept)
        for row in kept["rows"]:
            if on_group is not None:
                on_group(row)
        done += len(kept["rows"])
    if not done:
        raise ValueError("the model has no nn.Linear to quantise (besides its output head): is it quantised already?")
    _warn_of_rest(quantized_model)
    if method not in BASELINES and isinstance(quantized_model, PreTrainedModel):
        from papers.quip_sharp import transformers_io

        transformers_io.attach(quantized_model)
    return quantized_model


@dataclass(frozen=True)
class Place:
    """One decoder layer to quantise, or the whole model (name ""): its groups of linears and their Hessians."""

    name: str
    layer: nn.Module
    groups: list[tuple[str, ...]]
    hessian: Callable[[tuple[str, ...]], Tensor]
    visit: Visit | None = None  # what block fine-tuning needs


@dataclass(frozen=True)
class _Work:
    """What is the same for every layer of a model."""

    method: str
    bits: int
    seed: int
    fuse: bool
    tuning: Tuning | None
    options: dict[str, Any]


def _at_once(name: str, fn: Callable[..., dict], *args: Any) -> dict:
    return fn(*args)


def _quantize_layer(work: _Work, place: Place, layer: nn.Module, fresh: set[str]) -> dict:
    """Quantise the linears of `layer`, group by group, in place. Returns its `layer_state`."""
    rows: list[dict] = []
    prefix = f"{place.name}." if place.name else ""
    for group in place.groups:
        H, first = place.hessian(group), len(rows)
        for members in [group] if work.fuse else [(member,) for member in group]:
            weights = [_linear(layer, member).weight for member in members]
            generator = _generator(work.seed, prefix + members[0])
            quantized = quantize_linear(weights, H, work.method, work.bits, generator, **work.options)
            rows.append({"name": prefix + members[0], "weights_fused": len(members), **quantized.row()})
            _put(layer, members, quantized, rows[-1])
        if work.tuning is not None and place.visit is not None:
            visit = replace(place.visit, layer=layer, call=partial(place.visit.call, layer=layer))
            generator = _generator(work.seed, f"tuning {prefix}{group[0]}")
            last = group == place.groups[-1]
            rows[first]["tuning"] = finetune_block(visit, work.tuning, generator, last=last)
    fresh.add(place.name)
    return layer_state(layer, rows)


def _warn_of_rest(model: nn.Module) -> None:
    """Log matrices of decoder layers that are left as they were: experts that are kept in one tensor, say."""
    found = decoder_layers(model)
    layers = [model] if found is None else list(found[1])
    quantised = sum(row["weights"] for row in rows_of(model))
    kept = [isinstance(m, nn.Linear | nn.Embedding) for m in model.modules()]  # baselines' own, heads and embeddings
    inside = {id(p) for m, skip in zip(model.modules(), kept, strict=True) if skip for p in m.parameters(recurse=False)}
    left = sum(p.numel() for layer in layers for p in layer.parameters() if p.ndim > 1 and id(p) not in inside)
    if left > 0.01 * (left + quantised):
        log.warning(
            "%.0f %% of the decoder layers' weights are not in an nn.Linear and stay as they are",
            100 * left / (left + quantised),
        )


def _places(
    model: nn.Module,
    calibration: Tensor | None,
    hessians: Mapping[str, Tensor] | None,
    batch_size: int,
    tuning: Tuning | None,
    offload: str | None,
) -> Iterator[Place]:
    """The model's parts in the order to quantise them."""
    found = decoder_layers(model)
    if calibration is not None and found is not None and (hessians is None or tuning is not None):
        keep = tuning.sequences if tuning is not None else 0
        if hessians is not None:
            calibration = calibration[:keep]  # only what tuning needs: the Hessians are there
        for visit in walk(model, calibration, batch_size, keep, moments=hessians is None, offload=offload):
            own = {group: moment.matrix() for group, moment in visit.hessians.items()}
            hessian = own.__getitem__ if hessians is None else partial(_stored, hessians, f"{visit.name}.")
            yield Place(visit.name, visit.layer, groups_of(visit.layer), hessian, visit)
        return
    if tuning is not None:
        raise ValueError("block fine-tuning needs a model with a list of decoder layers")
    if hessians is None and calibration is not None:
        hessians = collect_hessians(model, calibration, batch_size)
    assert hessians is not None
    if found is None:
        head = output_head(model)
        groups = [g for g in groups_of(model) if model.get_submodule(g[0]) is not head]
        yield Place("", model, groups, partial(_stored, hessians, ""))
        return
    name, layers = found
    for i, layer in enumerate(layers):
        prefix = f"{name}.{i}"
        yield Place(prefix, layer, groups_of(layer), partial(_stored, hessians, f"{prefix}."))


def _stored(hessians: Mapping[str, Tensor], prefix: str, group: tuple[str, ...]) -> Tensor:
    name = prefix + group[0]
    if name not in hessians:
        raise ValueError(f"no Hessian for {name!r}: collect them from this very model")
    return hessians[name]


def shallow_copy(model: nn.Module) -> nn.Module:
    """A copy of everything but the decoder layers, which are shared with the original until they are replaced."""
    found = decoder_layers(model)
    shared = {} if found is None else {id(layer): layer for layer in found[1]}
    return copy.deepcopy(model, shared)


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator for one weight that depends on the seed and the name alone, not on what was quantised before it."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _linear(parent: nn.Module, name: str) -> nn.Linear:
    return cast(nn.Linear, parent.get_submodule(name))


def _put(parent: nn.Module, members: tuple[str, ...], quantized: Quantized, row: dict) -> None:
    """Put the quantised weight of `members` where they stand in parent."""
    linears = [_linear(parent, member) for member in members]
    if quantized.words is None:
        for linear, weight in zip(linears, quantized.weight.split(quantized.splits), strict=True):
            linear.weight.data = weight.to(linear.weight)
        linears[0].quantization = row  # type: ignore[assignment]  # a plain attribute: it is no part of the state
        return
    bias = None
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([w.weight.new_zeros(w.out_features) if w.bias is None else w.bias for w in linears])
    fused = QuantLinear.from_quantized(quantized, bias)
    fused.quantization = row
    for index, member in enumerate(members):
        set_submodule(parent, member, fused if len(members) == 1 else FusedPart(fused, index))


def rows_of(model: nn.Module) -> list[dict]:
    """Figures that the quantiser found for every weight matrix (fused ones count once), in model order."""
    found = (getattr(module, "quantization", None) for module in model.modules())
    return [row for row in found if row]


def summary(model: nn.Module) -> dict[str, float]:
    """bits_per_weight over all quantised weights, all that is stored included; mean proxy_error over matrices."""
    rows = rows_of(model)
    if not rows:
        raise ValueError("the model has no quantised weights")
    weights = sum(row["weights"] for row in rows)
    return {
        "bits_per_weight": sum(row["bits_per_weight"] * row["weights"] for row in rows) / weights,
        "proxy_error": sum(row["proxy_error"] for row in rows) / len(rows),
    }


def bits_per_weight(model: nn.Module) -> float:
    """Bits stored for the quantised weights over their number, from the tensors themselves; biases are not weights."""
    linears = [module for module in model.modules() if isinstance(module, QuantLinear)]
    if not linears:
        raise ValueError("the model has no QuantLinear")
    stored = sum(t.numel() * t.element_size() for q in linears for name, t in q.named_buffers() if name != "bias")
    return 8 * stored / sum(q.in_features * q.out_features for q in linears)
