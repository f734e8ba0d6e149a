"""Quantise a whole language model: calibrate, quantise every linear of its decoder layers, put the results in place.

    quantized = quantize_model(model, calibration, "quip_sharp", bits=2, rng=0)
    summary(quantized)["bits_per_weight"]

Activations are propagated through the original layers (for the Hessians and the fine-tuning targets alike), so a layer
is quantised for the inputs that it was trained for. Embeddings, norms and the output head are kept.
"""

import copy
import hashlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from papers.quip_sharp.finetune import BlockTuning, finetune_block
from papers.quip_sharp.hessians import _collect_whole, check_calibration, decoder_layers, groups_of, output_head, walk
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
    **options,
) -> nn.Module:
    """Returns the model with its decoder layers' linears quantised; a copy, unless inplace.

    calibration: (n_seq, ctx) int64; may be None where hessians, from `collect_hessians`, are given and tuning is off.
    QuIP# methods put `QuantLinear` in the linears' places (fuse: one for weights that share their inputs, each
    represented by a `FusedPart`); baselines put a dense nn.Linear holding W_hat. method, bits, options (rho, tune,
    sigma, ...): see `quantizer.quantize_linear`. rng: seed or generator; each weight's signs depend on it and on the
    weight's name alone. tuning: a `finetune.BlockTuning`, for fine-tuning within each block (QuIP# sec. 5).
    on_group: called after each group with its record (name, bits_per_weight, proxy_error, ...).
    ValueError where a Hessian is missing or the calibration is not (n_seq, ctx) int64.
    """
    if calibration is None and (hessians is None or tuning is not None):
        raise ValueError("give calibration sequences (fine-tuning needs them even where the Hessians are given)")
    model = model if inplace else copy.deepcopy(model)
    seed = torch.randint(2**62, (), generator=as_generator(rng)).item()

    def quantize_group(parent: nn.Module, prefix: str, group: tuple[str, ...], H: Tensor, tune=None) -> None:
        rows = []
        together = [group] if fuse and method.startswith("quip_sharp") else [(member,) for member in group]
        for members in together:
            linears = [parent.get_submodule(member) for member in members]
            weights = [linear.weight.detach() for linear in linears]
            generator = _generator(seed, prefix + members[0])
            quantized = quantize_linear(weights, H.to(weights[0].device), method, bits, generator, **options)
            record = {"name": prefix + members[0], "weights_fused": len(members), **quantized.record()}
            _put(parent, members, linears, quantized, record)
            rows.append(record)
        if tune is not None:
            rows[0]["tuning"] = tune(_generator(seed, f"tuning {prefix}{group[0]}"))
        for row in rows if on_group is not None else ():
            on_group(row)

    def hessian_of(name: str) -> Tensor:
        if name not in hessians:
            raise ValueError(f"no Hessian for {name!r}: collect them from the same model (have {len(hessians)})")
        return hessians[name]

    found = decoder_layers(model)
    if found is None:
        if tuning is not None:
            raise ValueError("block fine-tuning needs a model with a list of decoder layers")
        check_calibration(calibration) if hessians is None else None
        hessians = hessians or _collect_whole(model, calibration, batch_size)
        head = output_head(model)
        for group in groups_of(model):
            if model.get_submodule(group[0]) is not head:
                quantize_group(model, "", group, hessian_of(group[0]))
        return model

    if hessians is not None and tuning is None:
        prefix, layers = found
        for index, layer in enumerate(layers):
            for group in groups_of(layer):
                name = f"{prefix}.{index}."
                quantize_group(layer, name, group, hessian_of(name + group[0]))
        return model

    keep = tuning.sequences if tuning is not None else 0
    for visit in walk(model, calibration, batch_size, keep, moments=hessians is None):
        groups, name = groups_of(visit.layer), f"{visit.name}."
        for group in groups:
            H = visit.hessians[group].matrix() if hessians is None else hessian_of(name + group[0])
            tune = partial(finetune_block, visit, tuning, last=group == groups[-1]) if tuning is not None else None
            quantize_group(visit.layer, name, group, H, tune)
    return model


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator for one weight that depends on the seed and the name alone, not on what was quantised before it."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _put(parent: nn.Module, members: tuple[str, ...], linears: list[nn.Linear], quantized: Quantized, record: dict) -> None:
    if quantized.words is None:
        rows = quantized.weight.split(quantized.splits)
        for linear, weight in zip(linears, rows, strict=True):
            linear.weight.data = weight.to(linear.weight)
        linears[0].quantization = record
        return
    biases = [linear.bias for linear in linears]
    bias = None
    if any(b is not None for b in biases):
        bias = torch.cat(
            [torch.zeros(n).to(linears[0].weight) if b is None else b for b, n in zip(biases, quantized.splits, strict=True)]
        )
    fused = QuantLinear.from_quantized(quantized, bias)
    fused.quantization = record
    for index, member in enumerate(members):
        _set_submodule(parent, member, fused if len(members) == 1 else FusedPart(fused, index))


def _set_submodule(parent: nn.Module, name: str, module: nn.Module) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(parent.get_submodule(path), leaf, module)


def records(model: nn.Module) -> list[dict]:
    """What the quantiser found for every weight matrix (fused ones count once), in model order."""
    return [m.quantization for m in model.modules() if getattr(m, "quantization", None)]


def summary(model: nn.Module) -> dict:
    """bits_per_weight over all quantised weights, everything stored included; mean relative proxy_error over matrices."""
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
