"""State of a quantised model or layer besides its tensors: which linears are QuantLinears, and how they are made again.

`transformers_io.py` keeps this in a folder's config.json, a run in the stage of each layer; the tensors are a state
dict.
"""

import copy

import torch
from torch import nn

from papers.quip_sharp.finetune import untie_head
from papers.quip_sharp.hessians import output_head
from papers.quip_sharp.linear import FusedPart, QuantLinear, set_submodule

FORMAT = 1  # of `structure`, to be raised when it changes


def structure(model: nn.Module) -> dict:
    """Which modules are quantised and how, plain JSON."""
    owners = {id(m): name for name, m in model.named_modules() if isinstance(m, QuantLinear)}
    linears = {
        name: {**m.spec(), "quantization": m.quantization} for name, m in model.named_modules() if id(m) in owners
    }
    parts = {
        name: {"of": owners[id(m._shared[0])], "index": m.index}
        for name, m in model.named_modules()
        if isinstance(m, FusedPart)
    }
    head, embeddings = output_head(model), getattr(model, "get_input_embeddings", lambda: None)()
    tied = head is not None and embeddings is not None and head.weight is embeddings.weight
    return {"format": FORMAT, "tied_head": tied, "linears": linears, "parts": parts}


def rebuild(model: nn.Module, stored: dict) -> None:
    """Put empty QuantLinears and FusedParts where `structure` says, to be filled by load_state_dict."""
    fused = {}
    for name, spec in stored["linears"].items():
        spec = copy.deepcopy(spec)
        record = spec.pop("quantization")
        spec["splits"], spec["cores"], spec["sizes"] = (tuple(spec[k]) for k in ("splits", "cores", "sizes"))
        fused[name] = QuantLinear(**spec)
        fused[name].quantization = record
    for name, part in stored["parts"].items():
        set_submodule(model, name, FusedPart(fused[part["of"]], part["index"]))
    inside_parts = {part["of"] for part in stored["parts"].values()}
    for name, linear in fused.items():
        if name not in inside_parts:
            set_submodule(model, name, linear)
    if not stored["tied_head"]:
        untie_head(model)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    for linear in fused.values():
        linear.to(dtype) if linear.bias is not None else None


def layer_state(layer: nn.Module, rows: list[dict]) -> dict:
    """A quantised layer as tensors and plain JSON, its rows of figures beside it: what `restore_layer` takes."""
    state = {name: tensor.detach() for name, tensor in layer.state_dict().items()}
    return {"structure": structure(layer), "state": state, "rows": rows}


def restore_layer(layer: nn.Module, kept: dict) -> None:
    """Make the original layer the quantised one that `layer_state` was taken of."""
    device = next((p.device for p in layer.parameters()), None)
    rebuild(layer, kept["structure"])
    layer.load_state_dict(kept["state"])
    layer.to(device)
    for row in kept["rows"]:
        if "codebook" not in row:  # a baseline: its linear stays, and carries the row as a plain attribute
            own = [name for name, m in layer.named_modules() if name and row["name"].endswith(name)]
            if own:
                layer.get_submodule(max(own, key=len)).quantization = row
