"""Fine-tuning of a quantised model with its words frozen (QuIP# sec. 5): within each block, then end to end.

(a) While a block is being quantised, what is not yet quantised (the remaining weights, the norms) and the sign vectors
    of what is, are trained so that the block's outputs stay those of the original block.
(b) At the end all sign vectors, norms and the output head are trained on the original model's output distribution.

The sign vectors are relative factors that start at +-1, and the scale is kept apart, so one learning rate fits all of
them. The paper's rates (5e-4 / 5e-5 and smaller) belong to 7B models and thousands of steps; on a 3.8M model with 64 to
192 steps they close 3 % of the gap where 5e-3 / 1e-3 close 22 to 37 %, so they are arguments here, not constants.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from papers.quip_sharp.hessians import Visit, check_calibration, forward_ids, output_head
from papers.quip_sharp.incoherence import as_generator
from papers.quip_sharp.linear import QuantLinear


@dataclass(frozen=True)
class BlockTuning:
    """Settings of fine-tuning (a): the first `train` calibration sequences are trained on, the next `valid` choose the
    epoch. lr_signs is for SU and SV, lr_others for everything else. Training stops after `patience` worse epochs."""

    train: int = 128
    valid: int = 32
    epochs: int = 2
    batch_size: int = 8
    lr_signs: float = 2e-3
    lr_others: float = 3e-4
    patience: int = 3

    @property
    def sequences(self) -> int:
        """Calibration sequences whose hidden states have to be kept."""
        return self.train + self.valid


def finetune_block(visit: Visit, tuning: BlockTuning, rng: object, last: bool = False) -> list[dict]:
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
    X, Y = torch.cat(visit.inputs), torch.cat(visit.outputs)  # (n_seq, ctx, d)
    if len(X) < tuning.sequences:
        raise ValueError(f"block fine-tuning needs {tuning.sequences} calibration sequences, got {len(X)}")
    for linear in quantised:
        linear.set_tuning(True)
    signs = _signs(quantised)
    others = [p for p in layer.parameters() if all(p is not s for s in signs)]
    valid = torch.arange(tuning.train, tuning.sequences)

    def loss(index: Tensor) -> Tensor:
        return nn.functional.mse_loss(output := visit.call(X[index]), Y[index].to(output.device))

    return fit(
        loss,
        signs,
        others,
        train=tuning.train,
        valid=valid,
        epochs=tuning.epochs,
        batch_size=tuning.batch_size,
        lr_signs=tuning.lr_signs,
        lr_others=tuning.lr_others,
        patience=tuning.patience,
        rng=rng,
    )


def finetune_model(
    model: nn.Module,
    teacher: nn.Module,
    tokens: Tensor,
    rng: object,
    *,
    valid: int = 32,
    epochs: int = 2,
    batch_size: int = 8,
    lr_signs: float = 5e-3,
    lr_others: float = 1e-3,
    patience: int = 3,
) -> list[dict]:
    """Fine-tuning (b): train all sign vectors, norms and the output head on the teacher's probabilities, in place.

    tokens: (n_seq, ctx) int64, of which the last `valid` sequences choose the epoch. The loss is the cross-entropy
    against the teacher's softmax at positions 0 .. ctx-2. A head that shares its weight with the embedding is untied
    first. Returns the history of `fit`. Everything else in the model, the words above all, stays as it was.
    """
    check_calibration(tokens)
    train = len(tokens) - valid
    if train < 1 or valid < 1:
        raise ValueError(f"need training and validation sequences, got {len(tokens)} in all with valid={valid}")
    untie_head(model)
    quantised = _quant_linears(model)
    if not quantised:
        raise ValueError("the model has no QuantLinear: only the QuIP# methods have sign vectors to tune")
    for linear in quantised:
        linear.set_tuning(True)
    signs, others = _signs(quantised), _norms_and_head(model)
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
        return fit(
            loss,
            signs,
            others,
            train=train,
            valid=torch.arange(train, len(tokens)),
            epochs=epochs,
            batch_size=batch_size,
            lr_signs=lr_signs,
            lr_others=lr_others,
            patience=patience,
            rng=rng,
        )
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
    *,
    train: int,
    valid: Tensor,
    epochs: int,
    batch_size: int,
    lr_signs: float,
    lr_others: float,
    patience: int,
    rng: object,
) -> list[dict]:
    """Adam with linear decay over two groups of parameters; the epoch with the lowest validation loss is kept.

    loss(index): mean loss of the sequences at index. Sequences 0 .. train-1 are trained on, in an order that rng alone
    decides; valid (n,) holds the indices to validate on. Epoch 0, before any step, takes part in the choice, so the
    result is never worse on the validation set. Returns rows {epoch, train_loss, valid_loss, best}.
    """
    generator = as_generator(rng)
    parameters = [*signs, *others]
    if any(p.dtype not in (torch.float32, torch.float64) for p in parameters):
        raise ValueError("fine-tuning needs float32 parameters (Adam's steps vanish in half): use model.float()")
    optimiser = torch.optim.Adam([{"params": signs, "lr": lr_signs}, {"params": others, "lr": lr_others}])
    steps = max(1, epochs * -(-train // batch_size))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)

    @torch.no_grad()
    def validate() -> float:
        parts = valid.split(batch_size)
        return sum(loss(part).item() * len(part) for part in parts) / len(valid)

    def snapshot() -> list[Tensor]:
        return [p.detach().clone() for p in parameters]

    best_loss, best, worse = validate(), snapshot(), 0
    history = [{"epoch": 0, "train_loss": None, "valid_loss": best_loss, "best": True}]
    for epoch in range(1, epochs + 1):
        total = 0.0
        for index in torch.randperm(train, generator=generator).split(batch_size):
            optimiser.zero_grad(set_to_none=True)
            value = loss(index)
            value.backward()
            optimiser.step()
            schedule.step()
            total += value.item() * len(index)
        valid_loss = validate()
        better = valid_loss < best_loss
        history.append({"epoch": epoch, "train_loss": total / train, "valid_loss": valid_loss, "best": better})
        if better:
            best_loss, best, worse = valid_loss, snapshot(), 0
        else:
            worse += 1
            if worse >= patience:
                break
    with torch.no_grad():
        for p, value in zip(parameters, best, strict=True):
            p.copy_(value)
            p.grad = None
    for row in history:  # only the epoch that was kept is marked
        row["best"] = row["best"] and row["valid_loss"] == best_loss
    return history


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


def _norms_and_head(model: nn.Module) -> list[nn.Parameter]:
    """Parameters of the modules called ...Norm... and of the output head."""
    norms = [p for m in model.modules() if "norm" in type(m).__name__.lower() for p in m.parameters(recurse=False)]
    head = output_head(model)
    return norms + (list(head.parameters()) if head is not None else [])


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    out = forward_ids(model, ids)
    return out if isinstance(out, Tensor) else out.logits
