"""Proxy Hessians: second moments of each linear's inputs, streamed through the original model a layer at a time.

QuIP# sec. 3 calibrates with H = E[x x^T] of the unquantised model. Here one decoder layer is visited after another: all
sequences pass through it once, its linears' second moments are accumulated in float64, and its outputs replace its
inputs. Memory is one layer's hidden states and O(n^2) per Hessian, never the activations inside a layer.
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from papers.quip_sharp.hidden_states import HiddenStates

# Siblings that read the same input, and so share a Hessian and may be fused. Anything else stands alone.
SHARED_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class SecondMoment:
    """Streaming E[x x^T] of n features in float64: count, mean and centred scatter, merged by Chan's formula.

    name: of the linear whose inputs these are, for what there is to say about them.
    """

    def __init__(self, n: int, device: torch.device | str = "cpu", name: str = "the layer"):
        self.name = name
        self.count = 0
        self.mean = torch.zeros(n, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(n, n, dtype=torch.float64, device=device)  # sum (x - mean)(x - mean)^T

    def update(self, x: Tensor) -> None:
        """Take in inputs (..., n) of any float dtype."""
        # (tokens, n) in float64: float32 sums drift over 10^7 tokens
        x = x.detach().reshape(-1, x.shape[-1]).to(self.mean)
        if len(x):
            mean = x.mean(0)
            centred = x - mean
            self._merge(len(x), mean, centred.T @ centred)

    def merge(self, other: "SecondMoment") -> None:
        """Take in what another accumulator has seen: the result does not depend on how the data were divided."""
        if other.count:
            self._merge(other.count, other.mean.to(self.mean), other.scatter.to(self.scatter))

    def _merge(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        total = self.count + count
        delta = mean - self.mean
        self.scatter += scatter + torch.outer(delta, delta) * (self.count * count / total)
        self.mean += delta * (count / total)
        self.count = total

    def matrix(self) -> Tensor:
        """H = E[x x^T], not centred. (n, n) float64. ValueError where nothing was seen, or NaN or infinities."""
        if not self.count:
            raise ValueError(
                f"no inputs seen: {self.name} was not reached by the calibration data, or its weight is used without it"
            )
        if not torch.isfinite(self.scatter).all():
            raise ValueError(
                f"the inputs of {self.name} have NaN or infinite entries: the model overflows on its calibration data "
                "(run it in float32 or bfloat16, and check the calibration tokens)"
            )
        return self.scatter / self.count + torch.outer(self.mean, self.mean)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors only, so that it can be stored as safetensors."""
        return {"count": torch.tensor(self.count), "mean": self.mean, "scatter": self.scatter}

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> "SecondMoment":
        moment = cls(len(state["mean"]), state["mean"].device)
        moment.count = int(state["count"])
        moment.mean, moment.scatter = state["mean"].clone(), state["scatter"].clone()
        return moment


# ---------------------------------------------------------------------------------------------- what to quantise


def decoder_layers(model: nn.Module) -> tuple[str, nn.ModuleList] | None:
    """Name and list of the model's repeated blocks, the ModuleList with most linear weights, or None."""
    best = None
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module):
            size = sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))
            if size and (best is None or size > best[0]):
                best = (size, name, module)
    return best and best[1:]


def groups_of(layer: nn.Module) -> list[tuple[str, ...]]:
    """Groups of linears with the same input, in the order that a layer runs them.

    Llama: (q, k, v), (o,), (gate, up), (down,). Linears whose names follow no pattern in `SHARED_INPUT` stand alone.
    """
    linears = {name: module for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
    groups: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for name in linears:
        if name in seen:
            continue
        parent, _, leaf = name.rpartition(".")
        prefix = f"{parent}." if parent else ""
        pattern = next((p for p in SHARED_INPUT if leaf in p), (leaf,))
        group = tuple(prefix + sibling for sibling in pattern)
        fits = all(g in linears for g in group) and len({linears[g].in_features for g in group}) == 1
        groups.append(group if fits else (name,))
        seen.update(groups[-1])
    return groups


# ----------------------------------------------------------------------------------------------- layer by layer


@dataclass
class Visit:
    """One decoder layer, with what passed through it while it was still the original.

    hessians: second moment of each group's inputs. inputs, outputs: hidden states of the first `keep` sequences, in
    batches, on the CPU. call(hidden, layer=layer): the output of the layer (or of a copy of it) for a batch, with the
    rest of its arguments as the model would give them.
    """

    name: str
    layer: nn.Module
    hessians: dict[tuple[str, ...], SecondMoment]
    inputs: list[Tensor]
    outputs: list[Tensor]
    call: Callable[..., Tensor]


@torch.no_grad()
def walk(
    model: nn.Module,
    calibration: Tensor,
    batch_size: int = 8,
    keep: int = 0,
    moments: bool | Collection[str] = True,
    offload: str | None = None,
) -> Iterator[Visit]:
    """Visit the decoder layers in order. A layer may be changed while it is visited: its outputs are computed already.
    Its Hessians are gone once the next visit is asked for.

    calibration: (n_seq, ctx) int64. keep: sequences whose hidden states the visit offers (rounded up to whole
    batches). moments: whether to accumulate the Hessians, or the names of the layers to do it for. offload: a folder
    for the hidden states, where memory is too small for them. ValueError where the model has no list of decoder
    layers.
    """
    found = decoder_layers(model)
    if found is None:
        raise ValueError("the model has no ModuleList of decoder layers to walk through")
    check_calibration(calibration, model)
    prefix, layers = found
    training = model.training
    model.eval()
    hidden = HiddenStates(offload)
    try:
        arguments = _layer_arguments(model, layers, calibration, batch_size, hidden)
        for index, layer in enumerate(layers):
            rest = {shape: calls[index] for shape, calls in arguments.items()}

            def call(x: Tensor, layer: nn.Module = layer, rest: dict = rest) -> Tensor:
                args, kwargs = rest.get(tuple(x.shape[:2])) or _narrowed(rest, x)
                out = layer(x.to(next(layer.parameters()).device), *args, **kwargs)
                return out[0] if isinstance(out, tuple) else out

            name = f"{prefix}.{index}"
            wanted = moments if isinstance(moments, bool) else name in moments
            hessians = InputMoments(layer, groups_of(layer) if wanted else [], f"{name}.")
            kept_inputs = []
            with hessians:
                for i, x in enumerate(hidden):
                    if i * batch_size < keep:
                        kept_inputs.append(x)
                    hidden[i] = call(x)  # outputs replace inputs at once: one layer's hidden states in memory
            kept = [hidden[i] for i in range(len(kept_inputs))]
            yield Visit(name, layer, hessians.moments, kept_inputs, kept, call)
            hessians.moments.clear()  # or this layer's accumulators would be in memory beside the next one's
    finally:
        hidden.close()
        model.train(training)


def check_calibration(calibration: Tensor, model: nn.Module | None = None) -> None:
    """ValueError where calibration is not (n_seq, ctx) int64, or has tokens or a length that the model has not."""
    if not isinstance(calibration, Tensor):
        got = type(calibration).__name__
        raise TypeError(f"calibration must be a tensor of token ids (n_seq, ctx) int64, got {got}: see torch.as_tensor")
    if calibration.ndim != 2 or calibration.dtype != torch.int64 or not calibration.numel():
        shape, dtype = tuple(calibration.shape), calibration.dtype
        raise ValueError(f"calibration must be token ids (n_seq, ctx) int64, not empty, got {shape} {dtype}")
    count = None
    with suppress(NotImplementedError):  # some models do not say
        count = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "num_embeddings", None)
    low, high = (int(end) for end in calibration.aminmax())
    if low < 0 or (count is not None and high >= count):
        known = "" if count is None else f" below the {count} of the model's vocabulary"
        raise ValueError(f"calibration has token ids from {low} to {high}: they must be 0 or more{known}")
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(positions, int) and calibration.shape[1] > positions:
        raise ValueError(f"calibration sequences of {calibration.shape[1]} tokens: the model has {positions} positions")


class _Stop(Exception):
    """Raised in the first layer once its input is known: the rest of the forward pass is not needed."""


def _layer_arguments(
    model: nn.Module, layers: nn.ModuleList, calibration: Tensor, batch_size: int, hidden: HiddenStates
) -> dict:
    """Every layer's arguments besides the hidden states, per batch shape; those entering the first go into `hidden`.

    Without padding these arguments (mask, positions) depend on the shape alone. They are recorded layer by layer, since
    some models give each layer its own mask or rotary table.
    """
    arguments: dict[tuple[int, ...], list[tuple[tuple, dict]]] = {}
    record: list[tuple[tuple, dict]] = []
    stop = False

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
        kwargs = dict(kwargs)
        x, rest = (args[0], args[1:]) if args else (kwargs.pop("hidden_states"), ())
        if module is layers[0]:
            hidden.append(x)
        record.append((rest, kwargs))
        if stop:
            raise _Stop

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        for batch in calibration.split(batch_size):
            shape = tuple(batch.shape)
            stop, record = shape in arguments, []
            try:
                forward_ids(model, batch)
            except _Stop:
                continue
            arguments[shape] = record
    finally:
        for handle in handles:
            handle.remove()
    return arguments


def _narrowed(rest: dict, x: Tensor) -> tuple[tuple, dict]:
    """Arguments for a batch size that was not recorded: those of a recorded one, cut along the batch axis."""
    same = [shape for shape in rest if shape[1] == x.shape[1]]
    if not same:
        raise ValueError(f"the layer was recorded for contexts {sorted(s[1] for s in rest)}, got {x.shape[1]}")
    shape = max(same)

    def cut(value):
        if isinstance(value, tuple):
            return tuple(cut(v) for v in value)
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == shape[0] > 1:
            if x.shape[0] > shape[0]:
                return value[:1].expand(x.shape[0], *value.shape[1:])
            return value[: x.shape[0]]
        return value

    args, kwargs = rest[shape]
    return cut(args), {name: cut(value) for name, value in kwargs.items()}


def forward_ids(model: nn.Module, ids: Tensor):
    """model(ids) without a key-value cache where the model takes that option; ids are moved to the model's device."""
    device = next(model.parameters()).device
    takes_cache = "use_cache" in inspect.signature(model.forward).parameters
    return model(ids.to(device), **({"use_cache": False} if takes_cache else {}))


class InputMoments:
    """While entered, accumulates the second moment of what each group of linears reads.

    The members of a group must read one and the same input: ValueError where they turn out not to.
    prefix: what comes before the names in messages.
    """

    def __init__(self, module: nn.Module, groups: list[tuple[str, ...]], prefix: str = ""):
        self.members = {group: [_linear(module, name) for name in group] for group in groups}
        self.moments = {
            group: SecondMoment(linears[0].in_features, linears[0].weight.device, prefix + group[0])
            for group, linears in self.members.items()
        }
        self.latest: dict[tuple[str, ...], tuple[Tensor, list[int]]] = {}  # an input, and who has read it

    def __enter__(self) -> "InputMoments":
        self.handles = [
            linear.register_forward_pre_hook(partial(self._take, group, index))
            for group, linears in self.members.items()
            for index, linear in enumerate(linears)
        ]
        return self

    def _take(self, group: tuple[str, ...], index: int, module: nn.Module, args: tuple) -> None:
        (x,) = args
        first, readers = self.latest.get(group, (x, []))
        if not readers or index in readers:  # whoever comes first, or again, begins anew
            self.moments[group].update(x)
            self.latest[group] = (x, [index])
        elif x is first or torch.equal(x, first):
            readers.append(index)
        else:
            other = group[readers[0]]
            raise ValueError(f"{group[index]} does not read the same input as {other}: they cannot share a Hessian")
        if len(self.latest[group][1]) == len(group):
            del self.latest[group]

    def __exit__(self, *_: object) -> None:
        self.latest.clear()
        for handle in self.handles:
            handle.remove()


def _linear(module: nn.Module, name: str) -> nn.Linear:
    return cast(nn.Linear, module.get_submodule(name))


# ------------------------------------------------------------------------------------------------ the whole model


def collect_hessians(model: nn.Module, calibration: Tensor, batch_size: int = 8) -> dict[str, Tensor]:
    """H (n, n) float64 of every group, keyed by the full name of its first linear ("model.layers.0.self_attn.q_proj").

    Models without a list of decoder layers are run whole, with all accumulators in memory at once; their output head
    is left out. ValueError where a linear was not reached.
    """
    if decoder_layers(model) is None:
        check_calibration(calibration, model)
        return _collect_whole(model, calibration, batch_size)
    return {
        f"{visit.name}.{group[0]}": moment.matrix()
        for visit in walk(model, calibration, batch_size)
        for group, moment in visit.hessians.items()
    }


@torch.no_grad()
def _collect_whole(model: nn.Module, calibration: Tensor, batch_size: int) -> dict[str, Tensor]:
    head = output_head(model)
    groups = [g for g in groups_of(model) if model.get_submodule(g[0]) is not head]
    with InputMoments(model, groups) as hooks:
        for batch in calibration.split(batch_size):
            forward_ids(model, batch)
    return {group[0]: moment.matrix() for group, moment in hooks.moments.items()}


def output_head(model: nn.Module) -> nn.Linear | None:
    """The layer that makes the logits, which is not quantised: the model's own answer, else a child called lm_head."""
    getter = getattr(model, "get_output_embeddings", None)
    return (getter() if getter else None) or getattr(model, "lm_head", None)
