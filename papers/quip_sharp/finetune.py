"""Fine-tuning of a quantised model with its words frozen (QuIP# sec. 5): within each block, then end to end.

(a) While a block is being quantised, what is not yet quantised (the remaining weights, the norms) and the sign vectors
    of what is, are trained so that the block's outputs stay those of the original block.
(b) At the end all sign vectors, norms and the output head are trained on the original model's output distribution.

The sign vectors are relative factors that start at +-1, and the scale is kept apart, so one learning rate fits all of
them. The rates of the paper and the official code (5e-4 / 5e-5 and smaller) belong to models of 7B and more; the small
model here takes rates fifty times larger, so they are settings, not constants.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from papers.quip_sharp.hessians import Visit, check_calibration, decoder_layers, forward_ids, output_head
from papers.quip_sharp.linear import QuantLinear

Loop = Callable[[int, Mapping[str, Any]], Iterable[int]]  # (steps, state by name) -> 0 .. steps-1, or a rest of them


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Settings of a fine-tuning. Of its sequences the first `train` are trained on, the next `valid` choose the epoch.

    lr_signs is for SU and SV, lr_others for everything else; both fall linearly to 0. Training stops after `patience`
    epochs that were no better. micro_batch: sequences that pass through at a time (None: a whole batch), which bounds
    the memory; a step is taken after batch_size all the same.
    """

    train: int
    valid: int
    epochs: int
    lr_signs: float
    lr_others: float
    batch_size: int = 8
    micro_batch: int | None = None
    patience: int = 3

    @property
    def sequences(self) -> int:
        """Sequences that are needed in all."""
        return self.train + self.valid


def finetune_block(visit: Visit, tuning: Tuning, generator: torch.Generator, last: bool = False) -> list[dict]:
    """Fine-tuning (a), one stage: train what is still trainable in the visited layer to give the original's outputs.

    Called after each group of linears has been quantised; after the last one nothing is trained (as in the official
    code) and the sign vectors are rounded to float16. Returns the history of `fit`, empty for the last stage.
    ValueError where fewer sequences were kept than the tuning needs.
    """
    layer = visit.layer
    quantised = _quant_linears(layer)
    if last:
        for linear in quantised:
            linear.set_tuning(False)
        return []
    kept = sum(map(len, visit.inputs))
    if kept < tuning.sequences:
        raise ValueError(f"block fine-tuning needs {tuning.sequences} calibration sequences, got {kept}")
    for linear in quantised:
        linear.set_tuning(True)
    signs = _signs(quantised)
    others = [p for p in layer.parameters() if all(p is not s for s in signs)]

    def loss(index: Tensor) -> Tensor:
        output = visit.call(_gather(visit.inputs, index))  # (len(index), ctx, d)
        return nn.functional.mse_loss(output, _gather(visit.outputs, index).to(output.device))

    return fit(loss, signs, others, tuning, generator)


def _gather(batches: Sequence[Tensor], index: Tensor) -> Tensor:
    """Sequences of a list of batches, all but the last of one size, where they are: the whole list may be in files."""
    size = len(batches[0])
    return torch.stack([batches[i // size][i % size] for i in index.tolist()])


def finetune_model(
    model: nn.Module,
    teacher: nn.Module,
    tokens: Tensor,
    tuning: Tuning,
    generator: torch.Generator,
    *,
    head: bool = True,
    recompute: bool = False,
    loop: Loop | None = None,
) -> list[dict]:
    """Fine-tuning (b): train all sign vectors, norms and the output head on the teacher's probabilities, in place.

    tokens: (n_seq, ctx) int64, used as `Tuning` says. The loss is the cross-entropy against the teacher's softmax at
    positions 0 .. ctx-2. A head that shares its weight with the embedding is untied first, and is then stored beside
    it; head=False leaves the head as it is. Everything else in the model, the words above all, stays as it was.
    recompute: keep only the inputs of each decoder layer for the backward pass and run the layer again in it, a third
    more work for a fraction of the memory. loop: see `fit`, whose history is returned. ValueError where there are too
    few sequences, or no QuantLinear.
    """
    check_calibration(tokens, model)
    if len(tokens) < tuning.sequences or tuning.train < 1 or tuning.valid < 1:
        raise ValueError(
            f"need training and validation sequences, got {len(tokens)} in all for train={tuning.train} and "
            f"valid={tuning.valid}"
        )
    if head:
        untie_head(model)
    quantised = _quant_linears(model)
    if not quantised:
        raise ValueError("the model has no QuantLinear: only the QuIP# methods have sign vectors to tune")
    for linear in quantised:
        linear.set_tuning(True)
    signs, others = _signs(quantised), _norms(model) + (_head(model) if head else [])
    modes = (model.training, teacher.training)
    model.eval(), teacher.eval()

    def loss(index: Tensor) -> Tensor:
        batch = tokens[index]
        with torch.no_grad():
            target = _logits(teacher, batch)[:, :-1].float().softmax(-1)  # (b, ctx - 1, vocabulary)
        log_p = _logits(model, batch)[:, :-1].float().log_softmax(-1)
        return -(target * log_p).sum(-1).mean()

    frozen = {p for p in model.parameters() if p.requires_grad} - {*signs, *others}
    for p in frozen:
        p.requires_grad_(False)
    try:
        with recomputed(model if recompute else None):
            return fit(loss, signs, others, tuning, generator, loop)
    finally:
        for p in frozen:
            p.requires_grad_(True)
        for linear in quantised:
            linear.set_tuning(False)
        model.train(modes[0]), teacher.train(modes[1])


def fit(
    loss: Callable[[Tensor], Tensor],
    signs: list[nn.Parameter],
    others: list[nn.Parameter],
    tuning: Tuning,
    generator: torch.Generator,
    loop: Loop | None = None,
) -> list[dict]:
    """Adam with linear decay over two groups of parameters; the epoch with the lowest validation loss is kept.

    loss(index): mean loss of the sequences at index. Sequences 0 .. train-1 are trained on, in an order that the
    generator alone decides; the next `valid` are validated on. Epoch 0, before any step, takes part in the choice, so
    the result is never worse on the validation set. loop(steps, state): the step numbers to do; one that restores
    `state` (modules and optimisers by name) and goes on, as `common.training.resumable` does, gives the result of the
    uninterrupted loop. Returns rows {epoch, train_loss, valid_loss, best}. ValueError for half-precision parameters.
    """
    parameters = [*signs, *others]
    if any(p.dtype not in (torch.float32, torch.float64) for p in parameters):
        raise ValueError("fine-tuning needs float32 parameters (Adam's steps vanish in half): use model.float()")
    # All orders are drawn before the first step, so that they do not depend on where a resumed loop begins.
    orders = [torch.randperm(tuning.train, generator=generator).split(tuning.batch_size) for _ in range(tuning.epochs)]
    valid = torch.arange(tuning.train, tuning.sequences)
    micro = tuning.micro_batch or tuning.batch_size

    @torch.no_grad()
    def validate() -> float:
        return sum(loss(part).item() * len(part) for part in valid.split(micro)) / len(valid)

    rates = (tuning.lr_signs, tuning.lr_others)
    optimiser = torch.optim.Adam([{"params": signs}, {"params": others}])
    best = _Best(parameters)
    batches = -(-tuning.train // tuning.batch_size)
    steps = tuning.epochs * batches
    for step in (loop or _all)(steps, {"tuned": best, "optimiser": optimiser}):
        if step == 0:
            best.epoch_ended(validate())
        epoch, batch = divmod(step, batches)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / steps)
        optimiser.zero_grad(set_to_none=True)
        index = orders[epoch][batch]
        for part in index.split(micro):
            share = loss(part) * (len(part) / len(index))
            share.backward()
            best.train_loss += share.item() * len(index) / tuning.train
        optimiser.step()
        if batch == batches - 1:
            best.epoch_ended(validate())
            if best.age() >= tuning.patience:
                break
    if not best.history:  # no steps were asked for
        best.epoch_ended(validate())
    return best.restore()


def _all(steps: int, state: Mapping[str, Any]) -> Iterable[int]:
    return range(steps)


class _Best:
    """The parameters as they are and as they were after the best epoch, and the history: what `fit` resumes from."""

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self.values: list[Tensor] = []
        self.history: list[dict] = []
        self.train_loss = 0.0  # of the epoch under way

    def epoch_ended(self, valid_loss: float) -> None:
        """A row for the epoch; its parameters are kept where no earlier epoch was as good."""
        epoch = len(self.history)
        better = epoch == 0 or valid_loss < min(row["valid_loss"] for row in self.history if row["best"])
        if better:
            self.values = [p.detach().clone() for p in self.parameters]
            for row in self.history:
                row["best"] = False
        train_loss = self.train_loss if epoch else None
        self.history.append({"epoch": epoch, "train_loss": train_loss, "valid_loss": valid_loss, "best": better})
        self.train_loss = 0.0

    def age(self) -> int:
        """Epochs since the best one."""
        return len(self.history) - 1 - next(row["epoch"] for row in self.history if row["best"])

    @torch.no_grad()
    def restore(self) -> list[dict]:
        """Put the best epoch's parameters in place; returns the history."""
        for p, value in zip(self.parameters, self.values, strict=True):
            p.copy_(value)
            p.grad = None
        return self.history

    def state_dict(self) -> dict[str, Any]:
        now = [p.detach() for p in self.parameters]
        return {"now": now, "best": self.values, "history": self.history, "train_loss": self.train_loss}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for p, value in zip(self.parameters, state["now"], strict=True):
            p.copy_(value)
        self.values, self.history, self.train_loss = state["best"], state["history"], state["train_loss"]


@contextmanager
def recomputed(model: nn.Module | None) -> Iterator[None]:
    """While entered, decoder layers run again in the backward pass instead of keeping what they computed."""
    found = None if model is None else decoder_layers(model)
    layers = [] if found is None else list(found[1])
    own = [vars(layer).get("forward") for layer in layers]  # where a device map has put one on the instance
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            del layer.forward
            if forward is not None:
                layer.forward = forward


# ------------------------------------------------------------------------------------------- what is trained


def untie_head(model: nn.Module) -> bool:
    """Give the output head a weight of its own where it shares the embedding's. Returns whether it did."""
    head = output_head(model)
    get_embeddings = getattr(model, "get_input_embeddings", None)
    if head is None or get_embeddings is None or head.weight is not get_embeddings().weight:
        return False
    head.weight = nn.Parameter(head.weight.detach().clone())
    if (config := getattr(model, "config", None)) is not None:
        config.tie_word_embeddings = False  # or transformers would tie them again on loading
    return True


def _quant_linears(module: nn.Module) -> list[QuantLinear]:
    return [m for m in module.modules() if isinstance(m, QuantLinear)]


def _signs(linears: list[QuantLinear]) -> list[nn.Parameter]:
    return [cast(nn.Parameter, vector) for linear in linears for vector in (linear.SU, linear.SV)]


def _norms(model: nn.Module) -> list[nn.Parameter]:
    """Parameters of the modules called ...Norm..."""
    return [p for m in model.modules() if "norm" in type(m).__name__.lower() for p in m.parameters(recurse=False)]


def _head(model: nn.Module) -> list[nn.Parameter]:
    head = output_head(model)
    return list(head.parameters()) if head is not None else []


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    out = forward_ids(model, ids)
    return out if isinstance(out, Tensor) else out.logits
