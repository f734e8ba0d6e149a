"""All distillers on one interface: loss = ce CE + kd T^2 KL + weight x the method's own term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import did_you_mean
from papers.kd_aux import auxiliary, baselines, losses, taps
from papers.kd_aux.baselines import Method, Views
from papers.kd_aux.inference import unit
from papers.kd_aux.queue import FeatureQueue


@dataclass(frozen=True)
class Entry:
    """A row of the table: what makes the method's term, and the weights it was published with."""

    make: type[Method] | None
    ce: float
    kd: float
    weight: float
    settings: dict[str, Any] = field(default_factory=dict)


class Taught(NamedTuple):
    """What a teacher says of a batch: its features by name, in order, and its logits. Kept between epochs where x does not change."""

    features: list[Tensor]
    logits: Tensor


class AuxKD(Method):
    """The paper's method in one of its readings: joint (8), marginal (6), elbo (7), or the feature term of (8) alone."""

    needs = "features"

    def prepare(self, student, teacher, classes, form="joint", tau=0.1, beta=None, alpha=1.0, T=4.0, logit=1.0, queue=4096,
                variable="instance", clusters=50, groups=2, exclude_self=False, dtype="float16"):  # fmt: skip
        if form not in ("joint", "marginal", "elbo", "feature"):
            raise ValueError(f"form is {form!r}: choose joint, marginal, elbo or feature")
        beta = tau if beta is None else beta
        losses._check_positive(tau=tau, beta=beta, alpha=alpha, T=T)
        width = teacher[-1]
        if width is None:
            raise ValueError(
                "the teacher's feature has a width that its module does not say: give example=, a batch of inputs"
            )
        same = student[-1] == width
        self.project = nn.Identity() if same else baselines.linear(student[-1], width)  # g_S
        self.queue = FeatureQueue(int(queue), width, classes, getattr(torch, dtype))
        self.variable = auxiliary.make(variable, clusters, groups)
        self.form, self.tau, self.beta, self.alpha, self.T, self.logit = form, tau, beta, alpha, T, logit
        self.exclude_self, self.by_instance = exclude_self, variable.startswith("instance")
        self.watched: dict[str, float] = {}

    def embed(self, feature: Tensor) -> Tensor:
        """s (B, D) of the student's features: projected, on the unit sphere."""
        return unit(self.project(taps.pooled(feature)))[0]

    def forward(self, v: Views) -> Tensor:
        t, teacher_alive = unit(taps.pooled(v.t[-1]))
        if not bool(teacher_alive.all()):
            raise ValueError("a teacher feature has norm zero: it has no direction, name another module")
        raw = taps.pooled(v.s[-1])
        s, alive = unit(self.project(raw))
        if not bool(alive.any()):
            raise ValueError(
                "every student feature has norm zero: the layer is dead, name another module or lower the rate"
            )
        if len(t) > self.queue.size:
            raise ValueError(f"the queue holds {self.queue.size} rows, the batch {len(t)}: give queue at least that")
        before = self.queue.mask if self.exclude_self else None
        slots = self.queue.counts.clone()
        self.queue.enqueue(t, v.logits_t, v.y)
        anchors = self.variable.anchors(self.queue)
        mask = anchors.mask
        if self.exclude_self and self.by_instance and before is not None and bool(before.any()):
            own = (slots[0] + torch.arange(len(t), device=mask.device)) % self.queue.size
            mask = mask.clone()
            mask[own] = False
        self._watch(s, v.y, mask, alive)
        s, t, logits_s, logits_t = s[alive], t[alive], v.logits_s[alive], v.logits_t[alive]
        if self.form == "marginal":
            return losses.marginal(s, anchors.t, anchors.logits, logits_t, self.tau, self.alpha, self.T, mask)
        if self.form == "elbo":
            return losses.elbo(s, t, anchors.t, anchors.logits, logits_t, self.tau, self.beta, self.alpha, self.T, mask)
        term = losses.feature(s, t, anchors.t, self.tau, self.beta, mask)
        if self.form == "joint" and self.logit:
            term = term + self.logit * losses.kd(logits_s, logits_t, self.T) / self.T**2
        return term

    @torch.no_grad()
    def _watch(self, s: Tensor, y: Tensor, mask: Tensor, alive: Tensor) -> None:
        """What a reader may ask of a batch: classes the queue lacks, rows without a direction."""
        self.watched = {"queue_filled": float(self.queue.filled), "zero_norm": float((~alive).sum())}
        if self.by_instance and not getattr(self, "_seen_all", False):
            missing = len(self.queue.missing())
            self._seen_all = not missing and self.queue.filled == self.queue.size
            self.watched["classes_missing"] = float(missing)


TABLE: dict[str, Entry] = {
    "ce": Entry(None, 1.0, 0.0, 0.0),
    "kd": Entry(None, 0.1, 0.9, 0.0),
    "fitnet": Entry(baselines.FitNet, 1.0, 0.0, 100.0),
    "at": Entry(baselines.AT, 1.0, 0.0, 1000.0),
    "sp": Entry(baselines.SP, 1.0, 0.0, 3000.0),
    "cc": Entry(baselines.CC, 1.0, 0.0, 0.02),
    "vid": Entry(baselines.VID, 1.0, 0.0, 1.0),
    "rkd": Entry(baselines.RKD, 1.0, 0.0, 1.0),
    "pkt": Entry(baselines.PKT, 1.0, 0.0, 30000.0),
    "ab": Entry(baselines.AB, 1.0, 0.0, 1.0),
    "ft": Entry(baselines.FT, 1.0, 0.0, 200.0),
    "fsp": Entry(baselines.FSP, 1.0, 0.0, 50.0),
    "nst": Entry(baselines.NST, 1.0, 0.0, 50.0),
    "crd": Entry(baselines.CRD, 1.0, 0.0, 0.8),
    "dkd": Entry(baselines.DKD, 1.0, 0.0, 1.0),
    "reviewkd": Entry(baselines.ReviewKD, 1.0, 0.0, 1.0),
    "dist": Entry(baselines.DIST, 1.0, 0.0, 1.0),
    "aux_joint": Entry(AuxKD, 1.0, 0.0, 1.0, {"form": "joint"}),
    "aux_marginal": Entry(AuxKD, 1.0, 0.0, 1.0, {"form": "marginal"}),
    "aux_elbo": Entry(AuxKD, 1.0, 0.0, 1.0, {"form": "elbo"}),
    "aux_feature": Entry(AuxKD, 1.0, 0.0, 1.0, {"form": "feature"}),
}  # fmt: skip


def names(needs: Sequence[str] = ("logits", "features", "maps", "stages")) -> list[str]:
    """The methods of the table; with `needs`, those that get by with these kinds of views."""
    return [name for name, entry in TABLE.items() if entry.make is None or entry.make.needs in needs]


class Distiller:
    """A teacher, a student and a method: `loss(x, y)` of a batch, and the parameters to train.

    student_feature, teacher_feature: dotted module names, or lists of as many of both (early to late); None for what goes
    into the last linear layer. weights: ce, kd, weight (of the method's term), T (of kd, and of the method where it has one),
    and the method's own settings (tau, beta, alpha, queue, ... of aux_*). example: a batch of inputs, for features whose
    width their modules do not say. The teacher is only read: evaluation mode, no gradient, its buffers stay.

    >>> teacher, student = (nn.Sequential(nn.Linear(4, d), nn.ReLU(), nn.Linear(d, 3)) for d in (16, 2))
    >>> distiller = Distiller(teacher, student, "aux_joint", queue=64)
    >>> loss, terms = distiller.loss(torch.randn(8, 4), torch.arange(8) % 3)
    >>> sorted(terms)
    ['aux_joint', 'ce', 'queue_filled', ...]                                                     # doctest: +SKIP
    """

    def __init__(self, teacher: nn.Module, student: nn.Module, method: str = "aux_joint", student_feature: str | Sequence[str] | None = None,
                 teacher_feature: str | Sequence[str] | None = None, example: Any = None, **weights: Any):  # fmt: skip
        if method not in TABLE:
            raise ValueError(f"method is {method!r}: {did_you_mean('choose', method, names())}")
        self.teacher, self.student, self.method = teacher, student, method
        self.entry = TABLE[method]
        self.needs = self.entry.make.needs if self.entry.make else "logits"
        reads = self.needs != "logits"
        self.student_names = taps.names_of(student_feature) if reads else []
        self.teacher_names = taps.names_of(teacher_feature) if reads else []
        taps.check_names(student, self.student_names, "the student")
        taps.check_names(teacher, self.teacher_names, "the teacher")
        if len(self.student_names) != len(self.teacher_names):
            raise ValueError(
                f"{len(self.student_names)} student features for {len(self.teacher_names)} of the teacher: name them in pairs"
            )
        if self.needs == "stages" and len(self.student_names) < 2:
            raise ValueError(f"{method} compares layers: name at least two features of each model, early to late")
        self.ce, self.kd, self.weight = (float(weights.pop(k, getattr(self.entry, k))) for k in ("ce", "kd", "weight"))
        self.T = float(weights.get("T", 4.0))
        losses._check_positive(T=self.T)
        self.step, self.gradients = 0, False
        self.classes: int | None = None
        self.term = self._make(weights, example)

    def _make(self, weights: dict[str, Any], example: Any) -> Method | None:
        own = self.entry.settings | weights
        if self.entry.make is None:
            own.pop("T", None)
            if own:
                raise ValueError(f"{self.method} has no setting {sorted(own)[0]}: it has ce, kd, weight, T")
            return None
        import inspect

        known = list(inspect.signature(self.entry.make.prepare).parameters)[4:]
        if "T" not in known:
            own.pop("T", None)
        if unknown := sorted(set(own) - set(known)):
            raise ValueError(f"{self.method} has no setting {unknown[0]}: it has ce, kd, weight, T, {', '.join(known)}")
        widths = [[taps.width_of(model, name) for name in named] for model, named in self._sides()]
        if example is not None:
            widths = [[f.shape[1] for f in self._look(model, named, example)[0]] for model, named in self._sides()]
        classes = self._classes(self.teacher, example)
        like = next(self.student.parameters(), torch.zeros(()))
        return self.entry.make(widths[0], widths[1], classes, **own).to(like.device)

    def _sides(self) -> list[tuple[nn.Module, list[str]]]:
        return [(self.student, self.student_names), (self.teacher, self.teacher_names)]

    def _look(self, model: nn.Module, named: list[str], x: Any) -> tuple[list[Tensor], Tensor]:
        with taps.frozen(model):
            return taps.run(model, x, named)

    def _classes(self, model: nn.Module, example: Any) -> int:
        """The classes of a model: the width of its last linear layer, or of what it returns for the example."""
        if example is not None:
            return self._look(model, [], example)[1].shape[1]
        return dict(model.named_modules())[taps.last_linear(model)].out_features

    # ---- training ----------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is to be trained: the student's parameters and the projections of the method."""
        yield from self.student.parameters()
        if self.term is not None:
            yield from self.term.parameters()

    def to(self, device: Any) -> Distiller:
        """Student, teacher and projections on this device."""
        for module in (self.student, self.teacher, *([self.term] if self.term is not None else [])):
            module.to(device)
        return self

    def teach(self, x: Any) -> Taught:
        """What the teacher says of a batch: without a gradient, in evaluation mode."""
        if self.method == "ce" and not self.kd:
            return Taught([], torch.zeros(0, 0))
        return Taught(*self._look(self.teacher, self.teacher_names, x))

    def loss(self, x: Any, y: Tensor, taught: Taught | None = None) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch (a scalar with a graph), and its terms before weighting, by name. y (B,) labels.

        taught: what `teach` has said of this very batch, where it is kept. ValueError for labels outside the classes,
        class counts that differ where a logit term needs them equal, a batch larger than the queue, dead features.
        """
        features, logits = taps.run(self.student, x, self.student_names)
        losses.check_labels(y, logits.shape[1])
        terms: dict[str, Tensor] = {
            "ce": F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), y.long())
        }
        weighted = {"ce": self.ce}
        taught = self.teach(x) if taught is None and (self.kd or self.term is not None) else taught
        if self.kd:
            assert taught is not None
            terms["kd"], weighted["kd"] = losses.kd(logits, taught.logits, self.T), self.kd
        notes: dict[str, float] = {}
        if self.term is not None:
            assert taught is not None
            self._check_classes(logits, taught.logits)
            if self.needs == "maps" and any(f.dim() != 4 for f in (*features, *taught.features)):
                raise ValueError(f"{self.method} compares maps (B, C, H, W): name convolutional modules")
            terms[self.method] = self.term(Views(features, taught.features, logits, taught.logits, y, self.step))
            weighted[self.method] = self.weight
            notes = dict(getattr(self.term, "watched", {}))
        total = sum((weighted[name] * term for name, term in terms.items() if weighted[name]), logits.new_zeros(()))
        assert isinstance(total, Tensor)
        if self.gradients:
            notes |= self._gradient_norms(
                {name: weighted[name] * term for name, term in terms.items() if weighted[name]}
            )
        self.step += 1
        return total, {name: float(term.detach()) for name, term in terms.items()} | notes

    def _check_classes(self, logits_s: Tensor, logits_t: Tensor) -> None:
        """Feature terms do not ask how many classes the teacher has; logit terms do."""
        uses = self.needs == "logits" or (
            isinstance(self.term, AuxKD) and self.term.form in ("joint", "marginal", "elbo")
        )
        if uses and logits_s.shape[1] != logits_t.shape[1]:
            raise ValueError(
                f"the teacher has {logits_t.shape[1]} classes, the student {logits_s.shape[1]}: {self.method} compares logits"
            )

    def _gradient_norms(self, weighted: dict[str, Tensor]) -> dict[str, float]:
        """|gradient| of each weighted term on the student's parameters: which of them steers."""
        parameters = [p for p in self.student.parameters() if p.requires_grad]
        found = {}
        for name, term in weighted.items():
            if term.requires_grad:
                parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
                found[f"gradient.{name}"] = float(sum(float(p.square().sum()) for p in parts if p is not None) ** 0.5)
        return found

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Student, projections, queue and step; the teacher is not in it."""
        return {
            "student": self.student.state_dict(),
            "term": self.term.state_dict() if self.term is not None else {},
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.student.load_state_dict(state["student"])
        if self.term is not None:
            self.term.load_state_dict(state["term"])
        self.step = int(state["step"])

    def embed(self, feature: Tensor) -> Tensor:
        """s of the student's last feature, for prototype and neighbour classifiers (aux_* methods)."""
        if not isinstance(self.term, AuxKD):
            raise ValueError(f"{self.method} has no embedding on the teacher's sphere: choose a method aux_*")
        return self.term.embed(feature)
