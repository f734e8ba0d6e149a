"""The papers of this project, their verbs, experiments and config groups, and where each lies."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from common.errors import UserError, did_you_mean, shorten
from common.files import ROOT

# keys that say where a run runs and logs, not what it computes: they may be changed when it is resumed
WHERE_ONLY = ("logger", "device", "threads", "paths")


def folder_of(package: str) -> Path:
    """The folder of a package: "papers.quip_sharp", "configs.common". Raises UserError where there is none."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"there is no package {package}: check the spelling, or run from a whole clone")
    return Path(next(iter(spec.submodule_search_locations)))


def papers() -> list[str]:
    """The names of the papers that are here."""
    spec = find_spec("papers")
    places = spec.submodule_search_locations if spec else []
    return sorted(found.name for found in pkgutil.iter_modules(places) if found.ispkg)


def verbs(paper: str) -> list[str]:
    """The verbs of a paper: each has a config of its name."""
    return sorted(path.stem for path in folder_of(f"configs.{paper}").glob("*.yaml"))


def title_of(paper: str) -> str:
    """The first line of a paper's docstring, read without importing it: `Short name: Full title (Authors, ICML 2024).`"""
    tree = ast.parse((folder_of(f"papers.{paper}") / "__init__.py").read_text())
    return (ast.get_docstring(tree) or paper).splitlines()[0]


def module_of(paper: str, verb: str = "train") -> str:
    """The module of a job: `papers.<paper>.<verb>`, or `<paper>.<verb>` where a package of jobs lies beside papers.

    Raises UserError naming what there is.
    """
    here = papers()
    beside = paper.isidentifier() and (ROOT / paper).is_dir() and (ROOT / "configs" / paper).is_dir()
    if paper not in here and (not beside or paper == "common"):
        raise UserError(f"unknown paper {shorten(repr(paper))}: {did_you_mean('the papers are', paper, here)}")
    if verb not in (known := verbs(paper)):
        raise UserError(f"{paper} has no verb {shorten(repr(verb))}: {did_you_mean('its verbs are', verb, known)}")
    return f"papers.{paper}.{verb}" if paper in here else f"{paper}.{verb}"


@dataclass(frozen=True)
class Experiment:
    """An experiment file: its name, the first comment in it, and the verbs that run it."""

    name: str
    title: str
    verbs: tuple[str, ...]


def experiments(paper: str, verb: str | None = None) -> list[Experiment]:
    """The experiments of a paper by name, those that `verb` can run, or all.

    `# verbs: a, b` in the head of a file says which verbs run it (default train).
    """
    found = []
    for path in sorted((folder_of(f"configs.{paper}") / "exp").glob("*.yaml")):
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            found.append(Experiment(path.stem, f"(cannot be read: {type(error).__name__})", ("train",)))
            continue
        head = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
        listed = next((line[6:] for line in head if line.startswith("verbs:")), "train")
        title = next((line for line in head if line and not line.startswith(("@", "verbs:"))), "")
        found.append(Experiment(path.stem, title, tuple(re.split(r"[,\s]+", listed.strip()))))
    return [experiment for experiment in found if verb is None or verb in experiment.verbs]


def verb_of(paper: str, experiment: str) -> str:
    """The verb that runs an experiment: the first that its file names, train where it names none."""
    return next((e.verbs[0] for e in experiments(paper) if e.name == experiment), "train")


def read_yaml(paper: str, verb: str) -> str:
    """The YAML of a job as it stands, without the parts that speak to Hydra."""
    text = (folder_of(f"configs.{paper}") / f"{verb}.yaml").read_text()
    return re.sub(r"^(defaults|hydra):\n(?:[ \t]+.*\n|\n)*", "", text, flags=re.M).strip() + "\n"


@dataclass(frozen=True)
class Catalogue:
    """What one verb of one paper can be told: made once, by one walk of its config folders."""

    paper: str
    verb: str

    @cached_property
    def files(self) -> dict[str, Path]:
        """ "train", "exp/ci", "data/etth1", "common/base", "common/logger/csv" -> its file."""
        found: dict[str, Path] = {}
        for prefix, base in (("common/", folder_of("configs.common")), ("", folder_of(f"configs.{self.paper}"))):
            for path in sorted(base.rglob("*.yaml")):
                found[prefix + path.relative_to(base).with_suffix("").as_posix()] = path
        return found

    @cached_property
    def experiments(self) -> list[Experiment]:
        return experiments(self.paper, self.verb)

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Config groups that the job takes: its paper's own, and the shared ones that a defaults list names."""
        lists = [self.files[name].read_text() for name in ("common/base", self.verb)]
        found: dict[str, list[str]] = {}
        for name in self.files:
            shared = name.startswith("common/")
            group, _, option = name.removeprefix("common/").rpartition("/")
            if group and (not shared or any(re.search(rf"^ *- {group}\b", text, flags=re.M) for text in lists)):
                found.setdefault(group, []).append(option)
        return found

    def option_file(self, group: str, option: str) -> Path | None:
        """The file of a group's option, the paper's own before the shared one."""
        return self.files.get(f"{group}/{option}") or self.files.get(f"common/{group}/{option}")


@cache
def catalogue(paper: str, verb: str) -> Catalogue:
    """The catalogue of a verb, kept for the life of the process. Raises UserError where there is no such paper or verb."""
    module_of(paper, verb)
    return Catalogue(paper, verb)


def yamls(paper: str) -> Iterator[Path]:
    """Every config file that a paper's runs may read."""
    for package in ("configs.common", f"configs.{paper}"):
        yield from sorted(folder_of(package).rglob("*.yaml"))
