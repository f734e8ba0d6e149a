"""The taxonomy: twelve components of a model's pipeline, of two kinds, in three stages, each with a level 1 to 5."""

from __future__ import annotations

from dataclasses import dataclass

STAGES = ("training", "evaluation", "deployment")
KINDS = ("code", "data")


@dataclass(frozen=True)
class Component:
    """One rated box of the pipeline. `id` is `<stage>.<kind>.<field>`: the authors' own keys, joined."""

    id: str
    label: str

    @property
    def stage(self) -> str:
        return self.id.split(".")[0]

    @property
    def kind(self) -> str:
        return self.id.split(".")[1]


COMPONENTS = (
    Component("training.code.pretraining", "Pre-training code"),
    Component("training.code.finetuning", "Fine-tuning code"),
    Component("training.code.alignment", "Alignment code"),
    Component("training.data.pretraining", "Pre-training data"),
    Component("training.data.sft", "Supervised fine-tuning data"),
    Component("training.data.alignment", "Alignment data or models"),
    Component("evaluation.code.general", "General evaluation code"),
    Component("evaluation.code.safety", "Safety evaluation code"),
    Component("evaluation.data.utility", "Internal benchmarks"),
    Component("evaluation.data.safety", "Safety evaluation data"),
    Component("deployment.code.inference", "Inference code"),
    Component("deployment.data.weights", "Architecture and weights"),
)
IDS = tuple(component.id for component in COMPONENTS)
BY_ID = {component.id: component for component in COMPONENTS}
WEIGHTS, INFERENCE, PRETRAINING_DATA, PRETRAINING_CODE = IDS[11], IDS[10], IDS[3], IDS[0]
NEVER_RATED = "evaluation.data.common"  # common benchmarks: public by nature, grey in the pipeline figure

# which artefact feeds which; a stage stands for all of its boxes
EDGES = (
    ("training.data.pretraining", "training.code.pretraining"),
    ("training.data.sft", "training.code.finetuning"),
    ("training.data.alignment", "training.code.alignment"),
    ("training.code.alignment", "training.data.alignment"),
    (NEVER_RATED, "evaluation.code.general"),
    ("evaluation.data.utility", "evaluation.code.general"),
    ("evaluation.data.safety", "evaluation.code.safety"),
    ("evaluation.code.safety", "evaluation.data.safety"),
    ("deployment.data.weights", "deployment.code.inference"),
    ("evaluation", "training"),
    ("deployment", "training"),
)

MEANING = {
    "code": {
        1: "not released",
        2: "public, 0 or 1 of the five rights",
        3: "public, 2 or 3 of the five rights",
        4: "public, 4 of the five rights",
        5: "public, all five rights",
    },
    "data": {
        1: "not released",
        2: "through an API only",
        3: "public, at most 3 of the five rights",
        4: "public, 4 of the five rights",
        5: "public, all five rights",
    },
}
COLOURS = {"1": "#c00000", "2": "#c55c10", "3": "#c1820c", "4": "#957e0a", "5": "#474d20", "N/A": "#434343", "Unknown": "#888888"}  # fmt: skip


def component(name: str) -> Component:
    """The component of this id. ValueError naming those there are."""
    if name not in BY_ID:
        from common.errors import did_you_mean

        raise ValueError(f"{name!r} is no component: {did_you_mean('choose', name, list(IDS))}")
    return BY_ID[name]


def short(name: str) -> str:
    """`training.code.pretraining` as a column of a narrow table says it."""
    return {"training.code.pretraining": "pre-training code", "training.code.finetuning": "fine-tuning code",
            "training.code.alignment": "alignment code", "training.data.pretraining": "pre-training data",
            "training.data.sft": "SFT data", "training.data.alignment": "alignment data", "evaluation.code.general": "evaluation code",
            "evaluation.code.safety": "safety code", "evaluation.data.utility": "benchmarks", "evaluation.data.safety": "safety data",
            "deployment.code.inference": "inference code", "deployment.data.weights": "weights"}[name]  # fmt: skip
