"""Rate what lies on disk: a model folder, or one file about a model, with the evidence of each rating.

What counts as evidence, and what it says:

    weight files            weights public, under the licence of the card (joined with LICENSE text and base where they differ)
    modeling_*.py           inference code public, under the licence of the code
    library_name, auto_map  inference code public, under the licence of a library that is known offline
    pretrain*, train*       training code, under the licence of the code; sft*, finetune*, dpo*, rlhf*, ppo* of their own kind
    datasets:               data public, under the licence of the data set's card where that lies beside, else level 3 to 5
    eval*, lm_eval*         evaluation code; red_team*, safety_eval* of the safety kind
    openness.yaml           the release's own manifest: overrides everything

What has no evidence is unknown (absent="unknown"), or not released (absent="closed", as the authors read it). The name of a model
is never evidence.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from papers.openness import data, documents, licences
from papers.openness.documents import Document, listed
from papers.openness.licences import Span
from papers.openness.profile import Evidence, Profile
from papers.openness.rating import ALL_RIGHTS, NO_RIGHTS, Rating, not_applicable, rate, rated, unknown
from papers.openness.taxonomy import BY_ID, IDS, INFERENCE, PRETRAINING_CODE, PRETRAINING_DATA, WEIGHTS

ABSENT = ("unknown", "closed")
MANIFEST = "openness.yaml"
CARDS = ("README.md", "readme.md", "Readme.md")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin", "model*.bin", "*.gguf", "*.ggml", "tf_model.h5", "flax_model.msgpack", "*.ckpt",
                "*.pt", "*.pth", "consolidated.*")  # fmt: skip
LIBRARIES = {"transformers": "Apache-2.0", "diffusers": "Apache-2.0", "peft": "Apache-2.0", "timm": "Apache-2.0"}
CODE_LICENCE = re.compile(r"(licen[sc]e|copying)([-._]?code)?(\.(md|txt|rst))?$", flags=re.I)
CARD_KEYS = ("license", "datasets", "base_model", "library_name", "language", "tags", "pipeline_tag", "license_name")
CODE_FILES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("evaluation.code.safety", ("red_team*.py", "redteam*.py", "safety_eval*.py", "eval_safety*.py")),
    ("training.code.alignment", ("dpo*.py", "rlhf*.py", "ppo*.py", "align*.py")),
    ("training.code.finetuning", ("sft*.py", "finetune*.py", "fine_tune*.py")),
    ("training.code.pretraining", ("pretrain*.py",)),
    ("evaluation.code.general", ("eval*.py", "lm_eval*.py")),
    ("deployment.code.inference", ("modeling_*.py", "inference*.py", "generate*.py")),
    ("training.code.pretraining", ("train*.py",)),  # finetuning where the card names a base model
)
DATA_FILES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("evaluation.data.safety", ("red_team*.jsonl", "redteam*.jsonl", "safety*.jsonl", "red_team*.csv", "safety*.csv")),
    ("evaluation.data.utility", ("eval*.jsonl", "benchmark*.jsonl", "eval*.csv", "benchmark*.csv")),
)


@dataclass
class _Reading:
    """What has been found of a model so far."""

    mode: str
    absent: str
    ratings: dict[str, Rating] = field(default_factory=dict)
    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    licences: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)

    def warn(self, code: str, text: str) -> None:
        if (code, text) not in self.warnings:
            self.warnings.append((code, text))

    def see(self, name: str, evidence: Evidence) -> None:
        self.evidence.setdefault(name, []).append(evidence)

    def public(self, name: str, found: _Licence | None, evidence: Evidence) -> None:
        """Say that a component is public under what is known of its licence."""
        kind = BY_ID[name].kind
        self.see(name, evidence)
        if found is None:  # no licence is named anywhere
            self.ratings[name] = rate(kind, "public", NO_RIGHTS if self.absent == "closed" else None)
            return
        self.ratings[name] = licences.rating(kind, found.span)
        self.licences[name] = found.text


@dataclass(frozen=True)
class _Licence:
    """A licence as it is named, and the rights it may give."""

    text: str
    span: Span
    atoms: tuple[str, ...] = ()

    def __and__(self, other: _Licence) -> _Licence:
        text = self.text if self.text == other.text else f"{_bracket(self.text)} AND {_bracket(other.text)}"
        return _Licence(text, self.span & other.span, self.atoms + other.atoms)


def _bracket(text: str) -> str:
    return f"({text})" if " OR " in text else text


def classify(path: str | Path, *, manifest: str | Path | Mapping[str, Any] | None = None, licence_mode: str = "criteria",
             absent: str = "unknown", bases: Sequence[str | Path] = (), as_of: str | None = None) -> Profile:  # fmt: skip
    """The profile of a model folder, or of one file: our openness.yaml, a card, a page of the authors' site, a MOF .yml, an index .yaml.

    manifest: a file, or the mapping itself, in place of the folder's openness.yaml. licence_mode: "criteria" | "published".
    absent: what no evidence means, "unknown" | "closed". bases: folders where a base model's card may lie (the base itself, or
    its parent). as_of: "2024-06-01" leaves out manifest entries of a later day. Raises ValueError for what cannot be read.
    """
    if licence_mode not in licences.MODES:
        raise ValueError(f"licence_mode is {licence_mode!r}: choose {', '.join(licences.MODES)}")
    if absent not in ABSENT:
        raise ValueError(f"absent is {absent!r}: choose {', '.join(ABSENT)}")
    day = day_of(as_of) if as_of is not None else None
    path = Path(path)
    reading = _Reading(licence_mode, absent)
    if path.is_dir():
        about = _folder(reading, path, [Path(base) for base in bases])
        own = path / MANIFEST
        if manifest is None and own.is_file():
            manifest = own
    elif path.is_file():
        about = _file(reading, path, [Path(base) for base in bases], day)
    else:
        raise ValueError(f"there is no {path}: give a model folder or a file about a model")
    if manifest is not None:
        _manifest(reading, manifest, day)
    for name in IDS:
        if name not in reading.ratings:
            kind = BY_ID[name].kind
            reading.ratings[name] = rated(kind, 1) if absent == "closed" else unknown(kind)
            reading.see(name, Evidence(f"absent.{absent}", path.name, note="no evidence"))
    about["tags"] = " ".join(dict.fromkeys(reading.tags))
    return Profile(
        name=about.pop("name", None) or path.resolve().name,
        title=about.pop("title", ""),
        ratings={name: reading.ratings[name] for name in IDS},
        evidence={name: reading.evidence[name] for name in IDS if name in reading.evidence},
        warnings=reading.warnings,
        licences=reading.licences,
        mode=licence_mode,
        release=about.pop("release", None),
        about={key: value for key, value in about.items() if value},
        hints=reading.hints,
        documents=reading.documents,
    )


# ---- a folder --------------------------------------------------------------------------------------------------------


@dataclass
class _Card:
    """A model's or data set's card, and the licence texts beside it."""

    folder: Path
    document: Document
    file: str | None
    texts: list[tuple[Path, str | None]]  # LICENSE files and the licence each holds

    @property
    def keys(self) -> Mapping[str, Any]:
        return self.document.value

    def line(self, key: str) -> int | None:
        return self.document.line(key)

    @property
    def bases(self) -> list[str]:
        return listed(self.keys.get("base_model"))


def _read_card(folder: Path) -> _Card:
    file = next((name for name in CARDS if (folder / name).is_file()), None)
    document = documents.front_matter(folder / file)[0] if file else Document({}, {})
    texts = []
    for path in sorted(folder.glob("*")):
        if path.is_file() and re.match(r"(licen[sc]e|copying)(\.(md|txt|rst))?$", path.name, flags=re.I):
            texts.append((path, _identified(path)))
    return _Card(folder, document, file, texts)


def _identified(path: Path) -> str | None:
    try:
        return licences.identify(licences.read(path))
    except ValueError:
        return None


def _named_licence(reading: _Reading, card: _Card) -> tuple[_Licence | None, Evidence | None]:
    """The licence of a card alone: key `license`, with license_name and license_link where that says `other`."""
    names = listed(card.keys.get("license"))
    if not names:
        return None, None
    line = card.line("license")
    if len(names) > 1:
        reading.warn("licence_list", f"{card.file}:{line} lists {', '.join(names)}: read as parts under each (AND)")
    found: _Licence | None = None
    for name in names:
        one = _one_licence(reading, card, name)
        found = one if found is None else found & one
    return found, Evidence("card.license", card.file or "", line, "license", found.text if found else None)


def _one_licence(reading: _Reading, card: _Card, name: str) -> _Licence:
    if name.lower() == "other":
        for key in ("license_name", "license_link"):
            for value in listed(card.keys.get(key)):
                if key == "license_name" and (known := licences.find(value)):
                    return _licence(known.id, reading)
                beside = card.folder / Path(value).name
                if key == "license_link" and "://" not in value and beside.is_file() and (text := _identified(beside)):
                    return _licence(text, reading)
        stated = " ".join(listed(card.keys.get("license_name"))) or "other"
        reading.warn("licence_unknown", f"{card.file}: the licence {stated!r} is not in the table")
        return _Licence(stated, Span(NO_RIGHTS, ALL_RIGHTS))
    try:
        found = _licence(name, reading)
    except ValueError as error:
        reading.warn("licence_no_expression", f"{card.file}:{card.line('license')}: {error}")
        return _Licence(name, Span(NO_RIGHTS, ALL_RIGHTS))
    if not found.span.exact:
        reading.warn("licence_unknown", f"{card.file}: {name!r} is a family of licences, or not in the table")
    return found


def _licence(expression: str, reading: _Reading) -> _Licence:
    found = licences.span(expression, reading.mode)
    if expression.lower() in ("other", "unknown", *licences.FAMILIES):
        return _Licence(expression, found)
    known = licences.ids(expression)
    return _Licence(known[0] if len(known) == 1 and " " not in expression else expression, found, tuple(known))


def _own_licence(reading: _Reading, card: _Card) -> tuple[_Licence | None, list[Evidence]]:
    """The licence of a card, joined with a LICENSE text that says another."""
    stated, evidence = _named_licence(reading, card)
    found = [evidence] if evidence else []
    for path, identified in card.texts:
        if identified is None:
            reading.warn("licence_text_unknown", f"{path.name}: its title is that of no licence in the table")
            continue
        text = _licence(identified, reading)
        found.append(Evidence("licence.text", path.name, 1, None, identified))
        if stated is None or not stated.atoms:  # nothing, a family, `other`: the text says which
            if stated is not None and not _in_family(identified, stated.text.lower()):
                reading.warn("licence_conflict", f"the card says {stated.text}, {path.name} is {identified}: both hold")
                stated = stated & text
            else:
                stated = text
        elif identified not in stated.atoms and not _same_text(identified, stated.atoms):
            reading.warn("licence_conflict", f"the card says {stated.text}, {path.name} is {identified}: both hold")
            stated = stated & text
    return stated, found


def _in_family(identified: str, family: str) -> bool:
    """Whether a licence may be meant by a family id; any may where the card names no family."""
    name = identified.lower().removeprefix("licenseref-")
    return family not in licences.FAMILIES or name.startswith(family) or (family == "openrail" and "rail" in name)


def _same_text(identified: str, named: Iterable[str]) -> bool:
    """Whether a text is that of a named licence: -only and -or-later share one."""
    stem = re.sub(r"-(only|or-later)$", "", identified)
    return any(re.sub(r"-(only|or-later)$|\+$", "", name) == stem for name in named)


def _with_bases(reading: _Reading, card: _Card, own: _Licence | None, found: list[Evidence], bases: Sequence[Path],
                above: tuple[Path, ...] = (), whole: bool = False) -> _Licence | None:  # fmt: skip
    """The licence of derived weights: own, joined with that of each base whose licence binds derivatives.

    whole: the folder holds the base's own weights (an adapter's base, a quantised copy), so the base's licence always joins.
    """
    here = card.folder.resolve()
    for base in card.bases:
        line = card.line("base_model")
        folder = _folder_of_base(card.folder, base, bases)
        key = Evidence("base_model", card.file or "", line, "base_model", None, base)
        if folder is not None and (folder.resolve() == here or folder.resolve() in above):
            reading.warn("base_cycle", f"{card.folder.name} and {base} name each other as their base")
            continue
        theirs: _Licence | None = None
        if folder is not None:
            below = _read_card(folder)
            theirs, _ = _own_licence(reading, below)
            theirs = _with_bases(reading, below, theirs, [], bases, (*above, here))
        elif (row := data.by("bases", "base").get(base)) is not None:
            theirs = _licence(row["licence"], reading)
        if theirs is None or not theirs.span.exact:
            reading.warn(
                "base_unread", f"the licence of the base {base} is not known: its terms may bind these weights too"
            )
            unread = _Licence(base, Span(NO_RIGHTS, ALL_RIGHTS))
            own = _Licence(own.text, own.span & unread.span, own.atoms) if own else None
            found.append(key)
            continue
        cycle = any(code == "base_cycle" for code, _ in reading.warnings)
        if own is None:  # no licence of its own is named: whatever it is, the base's joins
            if reading.absent == "unknown" and not theirs.span.low.relicense_derivative:
                reading.warn("base_licence", f"the base {base} is under {theirs.text}, which holds here too")
                own = _Licence(theirs.text, Span(NO_RIGHTS, theirs.span.high), theirs.atoms)
            continue
        if whole or cycle or not theirs.span.low.relicense_derivative:
            if not theirs.span.low.relicense_derivative or (own.span & theirs.span) != own.span:
                reading.warn("base_licence", f"the base {base} is under {theirs.text}, which holds here too")
                found.append(Evidence("base_model", card.file or "", line, "base_model", theirs.text, base))
            own = own if set(theirs.atoms) <= set(own.atoms) and theirs.atoms else own & theirs
    return own


def _folder_of_base(folder: Path, base: str, bases: Sequence[Path]) -> Path | None:
    last = base.rstrip("/").split("/")[-1]
    if not last or last in (".", ".."):
        return None
    candidates = [
        found
        for given in bases
        for found in (given / base, given / last, given if given.name == last else None)
        if found
    ]
    for candidate in [*candidates, folder.resolve().parent / last]:
        if candidate.is_dir():
            return candidate
    return None


def _folder(reading: _Reading, folder: Path, bases: Sequence[Path]) -> dict[str, Any]:
    card = _read_card(folder)
    files = [path.relative_to(folder) for path in documents.files_below(folder)]
    if not files:
        raise ValueError(f"{folder.name} is empty: give a model folder")
    own, found = _own_licence(reading, card)
    shards = [
        f
        for f in files
        if any(fnmatch(f.name, pattern) for pattern in WEIGHT_FILES) and f.parts[0] not in ("datasets", "data")
    ]
    adapters = [f for f in shards if f.name.startswith("adapter_model")]
    relation = " ".join(listed(card.keys.get("base_model_relation"))).lower()
    if card.keys.get("extra_gated_prompt") or any(str(key).startswith("extra_gated") for key in card.keys):
        reading.tags.append("gated")
        reading.warn("gated", f"{card.file}: access is on request; the licence is rated, not the gate")
    if relation in ("quantized", "adapter"):
        reading.tags.append(relation)
    if shards:
        if len(adapters) == len(shards):
            reading.tags.append("adapter")
            if not card.bases:
                reading.warn(
                    "base_unread", "an adapter without base_model in its card: the base's licence is not known"
                )
                own = _Licence(own.text, own.span & Span(NO_RIGHTS, ALL_RIGHTS), own.atoms) if own else None
        whole = len(adapters) == len(shards) or relation in ("quantized", "adapter")
        own = _with_bases(reading, card, own, found, bases, whole=whole)
        reading.public(WEIGHTS, own, Evidence("files.weights", str(shards[0]), note=f"{len(shards)} weight file(s)"))
        reading.evidence[WEIGHTS] += found
    elif any(f.name.endswith(".index.json") for f in files):
        reading.warn("shards_missing", "an index of weights is here, its shards are not")
    if any(f.name == "config.json" for f in files):
        reading.see(WEIGHTS, Evidence("files.config", "config.json", note="architecture"))
    _code_of(reading, card, files)
    _data_of(reading, card, folder, bases)
    return {"title": folder.resolve().name, "base_model": ", ".join(card.bases)}


def _code_of(reading: _Reading, card: _Card, files: Sequence[Path]) -> None:
    """Code files by their names, under the SPDX line in them, the LICENSE nearest above, else no known licence."""
    for file in files:
        if file.suffix != ".py" or file.parts[0] == "datasets":
            continue
        name = next(
            (name for name, patterns in CODE_FILES if any(fnmatch(file.name, pattern) for pattern in patterns)), None
        )
        if name is None:
            continue
        if name == PRETRAINING_CODE and file.name.startswith("train") and card.bases:
            name = "training.code.finetuning"
        found, why = _code_licence(reading, card.folder, file)
        before = reading.licences.get(name)
        evidence = Evidence("files.code", str(file), licence=found.text if found else None, note=why)
        if name not in reading.ratings:
            reading.public(name, found, evidence)
        else:  # several files: each under its own licence
            reading.see(name, evidence)
            if found is None or before is None:
                reading.ratings[name] = rate("code", "public", NO_RIGHTS if reading.absent == "closed" else None)
            elif found.text != before:
                joined = _licence(before, reading) & found
                reading.ratings[name] = licences.rating("code", joined.span)
                reading.licences[name] = joined.text
    for file in files:
        for name, patterns in DATA_FILES:
            inside = file.parts[0] == ".eval_results" and name == "evaluation.data.utility"
            if (
                name not in reading.ratings
                and file.parts[0] != "datasets"
                and (inside or any(fnmatch(file.name, p) for p in patterns))
            ):
                reading.public(name, None, Evidence("files.data", str(file), note="no licence of its own"))
    library = " ".join(listed(card.keys.get("library_name"))).lower()
    if INFERENCE not in reading.ratings and library:
        line = card.line("library_name")
        licence = LIBRARIES.get(library)
        found = _licence(licence, reading) if licence else _Licence(library, Span(NO_RIGHTS, ALL_RIGHTS))
        evidence = Evidence("card.library", card.file or "", line, "library_name", licence, library)
        reading.public(INFERENCE, found, evidence)


def _code_licence(reading: _Reading, folder: Path, file: Path) -> tuple[_Licence | None, str]:
    try:
        head = documents.text_of(folder / file, limit=4000)
    except ValueError:
        head = ""
    if spdx := re.search(r"SPDX-License-Identifier:[ \t]*([^\n*]+)", head):
        try:
            return _licence(spdx[1].strip().strip("#/ "), reading), "SPDX line"
        except ValueError as error:
            reading.warn("licence_no_expression", f"{file}: {error}")
            return _Licence(spdx[1].strip(), Span(NO_RIGHTS, ALL_RIGHTS)), "SPDX line"
    for above in file.parents:  # the nearest first, the folder itself last
        texts = sorted(path for path in (folder / above).glob("*") if path.is_file() and CODE_LICENCE.match(path.name))
        texts.sort(key=lambda p: "code" not in p.name.lower())
        for text in texts:
            identified = _identified(text)
            if identified:
                return _licence(identified, reading), f"{above / text.name}"
            return _Licence(text.name, Span(NO_RIGHTS, ALL_RIGHTS)), f"{above / text.name}, not recognised"
    return None, "no licence named"


def _data_of(reading: _Reading, card: _Card, folder: Path, bases: Sequence[Path]) -> None:
    """Data sets that a card names: of pre-training, or of fine-tuning where the card names a base model."""
    names = listed(card.keys.get("datasets"))
    if not names:
        return
    target = "training.data.sft" if card.bases else PRETRAINING_DATA
    joined = Span(ALL_RIGHTS, ALL_RIGHTS)
    texts = []
    for name in names:
        line = card.line("datasets")
        beside = _data_card(folder, name, bases)
        found: _Licence | None = None
        if beside is not None:
            theirs = _read_card(beside)
            found, _ = _own_licence(reading, theirs)
        reading.see(
            target, Evidence("card.datasets", card.file or "", line, "datasets", found.text if found else None, name)
        )
        if found is None:
            if beside is not None and reading.absent == "closed":
                joined &= Span(NO_RIGHTS, NO_RIGHTS)
            else:
                joined &= Span(NO_RIGHTS, ALL_RIGHTS)
                reading.warn(
                    "dataset_unread", f"no card with a licence of the data set {name} lies beside: level 3 to 5"
                )
        else:
            joined &= found.span
            texts.append(found.text)
    reading.ratings[target] = licences.rating("data", joined)
    if len(texts) == len(names):
        reading.licences[target] = " AND ".join(_bracket(text) for text in dict.fromkeys(texts))


def _data_card(folder: Path, name: str, bases: Sequence[Path]) -> Path | None:
    if name.startswith("/") or ".." in name.split("/"):
        return None
    places = [folder / "datasets", folder.resolve().parent / "datasets", *(Path(base) / "datasets" for base in bases)]
    for place in places:
        for candidate in (place / name, place / name.split("/")[-1]):
            if any((candidate / card).is_file() for card in CARDS):
                return candidate
    return None


# ---- a file ----------------------------------------------------------------------------------------------------------


def kind_of(document: Document) -> str:
    """What a YAML mapping is: manifest | page | mof | index | card. By its keys, never by its name."""
    keys = document.value
    if isinstance(keys.get("components"), dict):
        return "manifest"
    if isinstance(keys.get("release"), dict) and isinstance(keys["release"].get("components"), list):
        return "mof"
    if "deployment" in keys and isinstance(keys["deployment"], dict):
        return "page"
    from papers.openness import scales

    if len(scales.features_of(keys)) >= 6:
        return "index"
    return "card"


def _file(reading: _Reading, path: Path, bases: Sequence[Path], day: datetime.date | None) -> dict[str, Any]:
    if path.suffix.lower() in (".md", ".markdown"):
        document, _ = documents.front_matter(path)
        if not document.value:
            raise ValueError(f"{path.name} has no front matter between two lines of ---: give a card or a page")
    elif path.suffix.lower() in (".yaml", ".yml"):
        document = documents.read_yaml(path)
    else:
        raise ValueError(f"{path.name} is no .md, .yaml or .yml file: give a model folder or one of those")
    kind = kind_of(document)
    if kind == "manifest":
        _manifest(reading, path, day)
        title = document.value.get("name")
        return {"title": title if isinstance(title, str) else path.stem}
    if kind == "page":
        return _page(reading, path, document)
    if kind == "mof":
        return _mof(reading, path, document)
    if kind == "index":
        return _index(reading, path, document)
    if not any(key in document.value for key in CARD_KEYS):
        raise ValueError(f"{path.name} is no manifest, card, page, MOF or index file: none of their keys is in it")
    card = _Card(path.parent, document, path.name, [])
    own, found = _own_licence(reading, card)
    if own is not None:  # a card alone shows no weights: what they would be under, if they are public
        reading.see(WEIGHTS, found[0])
        reading.warn("weights_unseen", f"{path.name} alone shows no weight files: give the folder")
    _code_of(reading, card, [])
    _data_of(reading, card, path.parent, bases)
    return {"title": path.resolve().parent.name, "name": path.resolve().parent.name}


def _page(reading: _Reading, path: Path, document: Document) -> dict[str, Any]:
    """A page of the authors' site: its levels as they stand."""
    from papers.openness.published import FIELDS, read_cell

    for stage, kinds in FIELDS.items():
        for kind, names in kinds.items():
            for name in names:
                full = f"{stage}.{kind}.{name}"
                part: Any = document.value
                for key in full.split("."):
                    part = part.get(key) if isinstance(part, dict) else None
                line = document.line(full)
                if not isinstance(part, dict) or not isinstance(part.get("value"), str):
                    raise ValueError(f"{path.name}{f', line {line}' if line else ''}: {full} has no value")
                cell = part["value"]
                try:
                    found, _, hint = read_cell(kind, f"? {cell[7:]}" if cell.startswith("Unknown") else cell)
                except ValueError as error:
                    raise ValueError(f"{path.name}, line {document.line(f'{full}.value')}: {error}") from None
                reading.ratings[full] = found
                if hint:
                    reading.hints[full] = hint
                licence = part.get("license")
                if isinstance(licence, str) and licence:
                    reading.licences[full] = licence
                reading.see(full, Evidence("page", path.name, document.line(f"{full}.value"), f"{full}.value",
                                           licence if isinstance(licence, str) else None, hint or ""))  # fmt: skip
    release = document.value.get("release")
    when = None
    if isinstance(release, dict) and str(release.get("year", "")).isdigit() and str(release.get("month", "")).isdigit():
        when = f"{int(release['year'])}-{int(release['month']):02d}"
    title = document.value.get("title")
    link = document.value.get("link")
    return {"name": path.stem, "title": title if isinstance(title, str) else path.stem, "release": when,
            "link": link if isinstance(link, str) else ""}  # fmt: skip


MOF_TO_COMPONENT = {
    "Training code": PRETRAINING_CODE, "Datasets": PRETRAINING_DATA, "Evaluation code": "evaluation.code.general",
    "Evaluation data": "evaluation.data.utility", "Inference code": INFERENCE, "Model parameters (Final)": WEIGHTS,
}  # fmt: skip


def _mof(reading: _Reading, path: Path, document: Document) -> dict[str, Any]:
    """A file of the Model Openness Tool: what it lists is public; it does not tell apart fine-tuning, alignment or safety."""
    from papers.openness import scales

    listing = scales.mof_licences(document.value)
    for component, licence in listing.items():
        name = MOF_TO_COMPONENT.get(component)
        if name is None:
            continue
        evidence = Evidence("mof.component", path.name, document.line("release.components"), component, licence or None)
        if not licence:
            reading.public(name, None, evidence)
            continue
        try:
            found = _licence(licence, reading)
        except ValueError:
            found = _Licence(licence, Span(NO_RIGHTS, ALL_RIGHTS))
        reading.public(name, found, evidence)
    title = document.value["release"].get("name")
    return {"name": path.stem, "title": title if isinstance(title, str) else path.stem}


INDEX_TO_COMPONENT = {  # feature -> component, in both versions
    "opencode": PRETRAINING_CODE, "trainingcode": PRETRAINING_CODE, "llmdata": PRETRAINING_DATA,
    "datasources_basemodel": PRETRAINING_DATA, "rldata": "training.data.sft", "datasources_endmodel": "training.data.sft",
    "llmweights": WEIGHTS, "weights_endmodel": WEIGHTS,
}  # fmt: skip


def _index(reading: _Reading, path: Path, document: Document) -> dict[str, Any]:
    """A file of the openness index: open, partial and closed say what is public, not under which licence: bounds."""
    from papers.openness import scales

    for feature, value in scales.features_of(document.value).items():
        name = INDEX_TO_COMPONENT.get(feature)
        if name is None:
            continue
        kind = BY_ID[name].kind
        closed = unknown("data", 1, 2) if name == WEIGHTS else rated(kind, 1)
        ratings = {"open": unknown(kind, 3 if kind == "data" else 2, 5), "partial": unknown(kind, 2 if kind == "data" else 1, 5), "closed": closed}  # fmt: skip
        reading.ratings[name] = ratings[value]
        reading.see(name, Evidence("index.feature", path.name, document.line(feature), feature, None, value))
    system = document.value.get("system")
    title = system.get("name") if isinstance(system, dict) else None
    return {"name": path.stem, "title": title if isinstance(title, str) else path.stem}


# ---- the manifest ----------------------------------------------------------------------------------------------------


def day_of(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except (ValueError, TypeError):
        raise ValueError(f"as_of is {text!r}: write a day as 2024-06-01") from None


def _manifest(reading: _Reading, given: str | Path | Mapping[str, Any], day: datetime.date | None) -> None:
    """Read `components: {<id>: {availability, licence, ...}}`: what it says overrides every other evidence."""
    from papers.openness.schema import check_manifest

    if isinstance(given, (str, Path)):
        path = Path(given)
        document, source = documents.read_yaml(path), path.name
    else:
        document, source = Document(_as_text(given), {}), "manifest"
    if problems := check_manifest(document, source):
        raise ValueError(problems[0])
    reading.documents |= document.value.get("documents", {})
    for name, entries in document.value["components"].items():
        entry = _in_time(reading, name, entries, day)
        if entry is None:
            continue
        kind = BY_ID[name].kind
        line = document.line(f"components.{name}")
        licence = entry.get("licence") or None
        found = None
        availability = entry["availability"]
        if availability == "public" and licence is not None:
            found = (
                _Licence(licences.NONE, Span(NO_RIGHTS, NO_RIGHTS))
                if licence.lower() == "none"
                else _licence(licence, reading)
            )
        elif availability == "public" and name == WEIGHTS and name in reading.licences:
            continue  # the folder says under which licence
        reading.evidence[name] = []
        reading.licences.pop(name, None)
        evidence = Evidence("manifest", source, line, name, licence, entry.get("note", ""), entry.get("as_of"))
        if entry.get("gated") == "true":
            reading.tags.append("gated")
        if availability == "public":
            reading.public(name, found, evidence)
        elif availability == "unknown" and ("low" in entry or "high" in entry):
            reading.ratings[name] = unknown(kind, int(entry.get("low", 1)), int(entry.get("high", 5)))
            reading.see(name, evidence)
        else:
            reading.ratings[name] = not_applicable(kind) if availability == "na" else rate(kind, availability)
            reading.see(name, evidence)


def _in_time(reading: _Reading, name: str, entries: Any, day: datetime.date | None) -> Mapping[str, Any] | None:
    """The entry that held on that day: of several, the last."""
    several = entries if isinstance(entries, list) else [entries]
    dated = [(day_of(entry["as_of"]) if entry.get("as_of") else datetime.date.min, entry) for entry in several]
    kept = [(when, entry) for when, entry in dated if day is None or when <= day]
    if len(kept) < len(dated):
        reading.warn("later_evidence", f"{name}: evidence of a later day is left out")
    return max(kept, key=lambda pair: pair[0])[1] if kept else None


def _as_text(value: Any) -> Any:
    """A mapping from Python as one from YAML would be: all scalars text, None left out."""
    if isinstance(value, Mapping):
        return {str(key): _as_text(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def own_rating(path: Path) -> Rating | None:
    """The rating of a folder's weights under its own licence, whatever its base says; None where no weights are seen."""
    seen = classify(path).evidence[WEIGHTS]
    own, _ = _own_licence(_Reading("criteria", "unknown"), _read_card(path))
    return licences.rating("data", own.span) if own and any(item.rule == "files.weights" for item in seen) else None


def is_model_folder(path: Path) -> bool:
    """Whether a folder itself is a model: a card, a manifest or weights lie in it."""
    names = [entry.name for entry in path.iterdir() if entry.is_file()] if path.is_dir() else []
    return any(n in (*CARDS, MANIFEST) or any(fnmatch(n, pattern) for pattern in WEIGHT_FILES) for n in names)


def clones(path: Path) -> list[Path]:
    """The model folders right below a folder that is none itself, by name. ValueError where there is none."""
    found = sorted(
        (entry for entry in path.iterdir() if entry.is_dir() and entry.name != "datasets" and is_model_folder(entry)),
        key=lambda p: p.name,
    )
    if not found:
        raise ValueError(
            f"{path.name} holds no model: no card, {MANIFEST} or weight files in it or in the folders below"
        )
    return found
