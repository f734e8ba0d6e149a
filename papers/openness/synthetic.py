"""Made-up model folders whose true ratings are known: what a reader of folders can be held against.

Openness of a model's three stages is drawn with correlation 0.6; availability by cuts, the licence of what is public among
the table's, the more rights the more open; components do not apply, and cannot be determined, as often as in the authors'
table. Each model is written as a clone of a hub folder would look, with the traps that real ones have, and a manifest apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from papers.openness import data, licences
from papers.openness.folders import LIBRARIES
from papers.openness.rating import NO_RIGHTS, Rating, rate
from papers.openness.taxonomy import BY_ID, COMPONENTS, IDS, INFERENCE, PRETRAINING_DATA, STAGES, WEIGHTS

NA_RATE = {name: count / 45 for name, count in (
    ("training.code.finetuning", 15), ("training.code.alignment", 31), ("training.data.sft", 26), ("training.data.alignment", 31),
    ("evaluation.code.general", 3), ("evaluation.code.safety", 33), ("evaluation.data.utility", 27), ("evaluation.data.safety", 30),
)}  # fmt: skip
UNKNOWN_RATE = 17 / 540
CORRELATION, TILT = 0.6, 0.8
MEAN = {"training": 0.0, "evaluation": -0.2, "deployment": 0.8}
CODE = {"training.code.pretraining": "pretrain.py", "training.code.finetuning": "sft.py", "training.code.alignment": "dpo.py",
        "evaluation.code.general": "evaluate.py", "evaluation.code.safety": "red_team.py", "deployment.code.inference": "inference.py"}  # fmt: skip
TEXTS = {  # a title line by which a LICENSE text is known
    "MIT": "MIT License\n\nCopyright (c) the authors\n", "Apache-2.0": "Apache License\nVersion 2.0, January 2004\n",
    "GPL-3.0-only": "GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n", "CC-BY-NC-4.0": "Attribution-NonCommercial 4.0 International\n",
    "CC-BY-SA-4.0": "Attribution-ShareAlike 4.0 International\n", "LicenseRef-llama2": "LLAMA 2 COMMUNITY LICENSE AGREEMENT\n",
    "BSD-3-Clause": "BSD 3-Clause License\n", "LicenseRef-gemma": "Gemma Terms of Use\n",
}  # fmt: skip


@dataclass
class Made:
    """One made-up model: what is true of it."""

    name: str
    availability: dict[str, str] = field(default_factory=dict)
    licence: dict[str, str] = field(default_factory=dict)  # of what is public
    base: str | None = None
    own: str = ""  # the licence that the card states for the weights; the truth may join a base's

    @property
    def ratings(self) -> dict[str, Rating]:
        found = {}
        for name in IDS:
            rights = licences.rights(self.licence[name]) if name in self.licence else None
            found[name] = rate(BY_ID[name].kind, self.availability[name], rights)
        return found

    def manifest(self) -> dict[str, Any]:
        """What the release's own openness.yaml would say."""
        return {"name": self.name, "components": {
            name: {"availability": self.availability[name], **({"licence": self.licence[name]} if name in self.licence else {})} for name in IDS
        }}  # fmt: skip


def draw(n: int, generator: np.random.Generator) -> list[Made]:
    """n models; about a fifth are fine-tunes of an earlier one of them whose weights are public."""
    known = [entry for entry in licences.table().values() if entry.id != licences.NONE]
    points = np.array([entry.rights.points for entry in known], dtype=float)
    made: list[Made] = []
    for number in range(n):
        shared = generator.normal()
        z = {s: MEAN[s] + CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * generator.normal() for s in STAGES}
        one = Made(f"model-{number:03d}")
        for component in COMPONENTS:
            latent = z[component.stage] + 0.5 * generator.normal()
            if generator.random() < NA_RATE.get(component.id, 0.0):
                one.availability[component.id] = "na"
            elif generator.random() < UNKNOWN_RATE:
                one.availability[component.id] = "unknown"
            elif latent < 0:
                one.availability[component.id] = "none"
            elif latent < 0.3 and component.kind == "data":
                one.availability[component.id] = "api"
            else:
                one.availability[component.id] = "public"
                weight = np.exp(TILT * z[component.stage] * (points - 3) / 2)
                one.licence[component.id] = known[int(generator.choice(len(known), p=weight / weight.sum()))].id
        bases = [m for m in made if m.availability[WEIGHTS] == "public"]
        if one.availability[WEIGHTS] == "public":
            one.own = one.licence[WEIGHTS]
            if bases and generator.random() < 0.2:
                base = bases[int(generator.integers(len(bases)))]
                one.base = base.name
                theirs = licences.rights(base.licence[WEIGHTS]) or NO_RIGHTS
                if not theirs.relicense_derivative and base.licence[WEIGHTS] != one.own:
                    one.licence[WEIGHTS] = f"{one.own} AND {base.licence[WEIGHTS]}"
        made.append(one)
    return made


def write(made: list[Made], folder: Path, generator: np.random.Generator) -> None:
    """A folder `clones` of hub folders without manifests, a folder `manifests`, and truth.json."""
    import yaml

    hub = {row["licence"]: row["hub"] for row in data.rows("licences") if row["hub"]}
    (folder / "manifests").mkdir(parents=True)
    for one in made:
        clone = folder / "clones" / one.name
        clone.mkdir(parents=True)
        (folder / "manifests" / f"{one.name}.yaml").write_text(yaml.safe_dump(one.manifest(), sort_keys=False))
        _write_clone(one, clone, hub, generator)
    truth = {one.name: {name: [r.code, r.low, r.high] for name, r in one.ratings.items()} for one in made}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1, sort_keys=True) + "\n")


def _write_clone(one: Made, clone: Path, hub: Mapping[str, str], generator: np.random.Generator) -> None:
    card: list[str] = ["language: no", "tags:", "- text-generation"]
    if one.availability[WEIGHTS] == "public":
        (clone / "model.safetensors").write_bytes(b"")
        (clone / "config.json").write_text("{}\n")
        card += [f"license: {hub[one.own]}"] if one.own in hub else ["license: other", f"license_name: {one.own}"]
        if one.own in TEXTS and generator.random() < 0.5:
            (clone / "LICENSE").write_text(TEXTS[one.own])
        if one.base:
            card += [f"base_model: somebody/{one.base}"]
    elif generator.random() < 0.3:
        card += ["license: mit"]  # says nothing: no weights are here
    if (
        one.availability[INFERENCE] == "public"
        and one.licence[INFERENCE] == LIBRARIES["transformers"]
        and generator.random() < 0.7
    ):
        card += ["library_name: transformers"]
    for name, file in CODE.items():
        if one.availability[name] != "public" or generator.random() < 0.15:  # evidence that nobody put there
            continue
        place = clone / name.split(".")[2]
        place.mkdir()
        (place / file).write_text(f"# SPDX-License-Identifier: {one.licence[name]}\n")
    target = "training.data.sft" if one.base else PRETRAINING_DATA
    if one.availability[target] == "public" and generator.random() < 0.8:
        card += ["datasets:", f"- somebody/{one.name}-data"]
        if generator.random() < 0.7:
            beside = clone / "datasets" / f"{one.name}-data"
            beside.mkdir(parents=True)
            stated = one.licence[target]
            lines = [f"license: {hub[stated]}"] if stated in hub else ["license: other", f"license_name: {stated}"]
            (beside / "README.md").write_text("\n".join(["---", *lines, "---", ""]))
    for name, file in (("evaluation.data.safety", "red_team.jsonl"), ("evaluation.data.utility", "benchmark.jsonl")):
        if one.availability[name] == "public" and generator.random() < 0.5:
            (clone / file).write_text("")
    end = "\r\n" if generator.random() < 0.2 else "\n"
    start = "\ufeff" if generator.random() < 0.2 else ""
    body = ["# " + one.name, "", "---", "", "A horizontal rule stands above."]
    text = start + end.join(["---", *card, "---", *(body if generator.random() < 0.8 else [])])
    (clone / "README.md").write_bytes(text.encode())
