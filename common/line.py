"""A command line, read once: flags, experiment, overrides, and what a sweep runs through."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from common.catalogue import Catalogue
from common.errors import UserError, did_you_mean, shorten

FLAGS = {
    "-h": "help",
    "--help": "help",
    "-m": "multirun",
    "--multirun": "multirun",
    "-r": "resolve",
    "--resolve": "resolve",
}
FLAGS_WITH_VALUE = {"-c": "cfg", "--cfg": "cfg", "-p": "package", "--package": "package"}
MOST_JOBS = 10_000  # of a sweep


@dataclass(frozen=True)
class Line:
    """A command line taken apart. `overrides` are in Hydra's spelling; what they say is read at first use."""

    overrides: tuple[str, ...] = ()
    flags: dict[str, str] = field(default_factory=dict)

    @cached_property
    def parsed(self) -> list[Any]:
        """Hydra's own reading of each override. Raises UserError where one cannot be read."""
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        parser, found = OverridesParser.create(), []
        for text in self.overrides:
            try:
                override = parser.parse_override(text)
                if not override.is_sweep_override():
                    override.value()  # some functions only fail when they are carried out
            except (HydraException, ValueError, TypeError, ArithmeticError, RecursionError):
                raise UserError(
                    f"cannot read {shorten(repr(text))}: write key=value, and quote a value with spaces or any of"
                    " , = { } [ ] as \"key='value'\""
                ) from None
            if override.package is not None:
                raise UserError(f"{shorten(repr(text))}: write {override.key_or_group}=..., without @ and what follows")
            found.append(override)
        return found

    @cached_property
    def experiment(self) -> str:
        """The experiment that is chosen, "a+b" where a sweep lists several, or "default"."""
        chosen = [o for o in self.parsed if o.key_or_group == "exp"]
        if any(type(o.value()).__name__ == "Glob" for o in chosen):
            return "several"
        return "+".join(str(value) for o in chosen for value in values(o)) or "default"

    @cached_property
    def resume(self) -> str | None:
        """The folder of `resume=`, or None."""
        given = [o.value() for o in self.parsed if o.key_or_group == "resume" and not o.is_sweep_override()]
        if not given or given[-1] is None:
            return None
        if not str(given[-1]).strip():
            raise UserError("resume= needs the folder of a run: resume=runs/<paper>/<experiment>/<run>")
        return str(given[-1])

    def without(self, *keys: str) -> Line:
        """This line without its overrides of the keys and of what lies below them."""
        kept = [o.input_line for o in self.parsed if top(o.key_or_group) not in keys]
        return Line(tuple(kept), self.flags)

    def replaced(self, other: Line) -> Line:
        """This line with the overrides of another in place of its own of the same keys."""
        names = {o.key_or_group for o in other.parsed}
        kept = [o.input_line for o in self.parsed if o.key_or_group not in names]
        return Line((*kept, *other.overrides), self.flags)


def top(key: str) -> str:
    """The first name of a dotted key or group: "data" of "data.path"."""
    return key.lstrip("+~").split(".")[0].split("/")[0]


def parse_line(argv: Sequence[str]) -> Line:
    """Split flags from overrides. Raises UserError for an unknown flag or a word that is neither."""
    overrides: list[str] = []
    flags: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("-") else (word, "", "")
        if name in FLAGS and not equals:
            flags[FLAGS[name]] = ""
        elif name in FLAGS_WITH_VALUE:
            value = value if equals else next(words, "")
            if name in ("-c", "--cfg") and value != "job":
                raise UserError(f"{name} takes job, not {shorten(repr(value))}: write `--cfg job`")
            flags[FLAGS_WITH_VALUE[name]] = value
        elif word.startswith("-"):
            valid = ", ".join(sorted({*FLAGS, *FLAGS_WITH_VALUE}))
            raise UserError(
                f"unknown flag {shorten(repr(word))}: the flags are {valid}; settings are written key=value"
            )
        elif "=" not in word and not word.startswith("~"):
            raise UserError(
                f"{shorten(repr(word))} is neither a flag nor key=value: write settings as key=value, experiments as +exp=name"
            )
        else:
            overrides.append("+" + word if word.startswith("exp=") else word)
    if "cfg" not in flags and {"package", "resolve"} & set(flags):
        raise UserError("--package and --resolve go with --cfg job: write `--cfg job -p model`")
    if "cfg" in flags and "multirun" in flags:
        raise UserError("--cfg shows one config: leave out -m")
    return Line(tuple(overrides), flags)


# ---- what a sweep runs through ---------------------------------------------------------------------------------------


def values(override: Any, names: Sequence[str] | None = None) -> list[Any]:
    """The values that an override takes: one, or each of a sweep's. names: what a glob chooses from.

    Raises UserError for a sweep that has no values, too many, or that only an optimiser could run.
    """
    if not override.is_sweep_override():
        return [override.value()]
    text = shorten(repr(override.input_line))
    kind = type(override.value()).__name__
    if kind == "IntervalSweep":
        raise UserError(f"{text}: an interval is for an optimiser, which a sweep has not: write the values, seed=0,1,2")
    if kind == "Glob":
        if names is None:
            raise UserError(f"{text}: glob chooses among experiments and groups only: write the values, seed=0,1,2")
        glob = override.value()
        found: list[Any] = [
            name
            for name in names
            if any(fnmatchcase(name, pattern) for pattern in glob.include)
            and not any(fnmatchcase(name, pattern) for pattern in glob.exclude)
        ]
    else:
        try:
            found = list(itertools.islice(override.sweep_iterator(), MOST_JOBS + 1))
        except Exception:
            raise UserError(f"{text} gives no list of values: write them out, seed=0,1,2") from None
    if not found:
        raise UserError(f"{text} gives no value at all: write the values, seed=0,1,2")
    if len(found) > MOST_JOBS:
        raise UserError(f"{text} gives more than {MOST_JOBS:,} values: sweep over fewer")
    return found


def jobs_of(
    line: Line, catalogue: Catalogue, params: dict[str, str] | None = None
) -> tuple[list[list[str]], list[str]]:
    """The override lists of a sweep's jobs, the last key fastest, and the names of the keys that it runs through.

    params: what an experiment file sweeps over (hydra.sweeper.params); the command line comes before it. Raises UserError.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    given = {o.key_or_group for o in line.parsed}
    added = Line(tuple(f"{key}={value}" for key, value in (params or {}).items() if key.lstrip("+") not in given))
    parts: list[list[str]] = []
    swept: list[str] = []
    for override in [*line.parsed, *added.parsed]:
        key = override.key_or_group
        if key.startswith(("hydra.", "hydra/")) or key == "launcher":
            continue  # they speak to the launcher, not to a job
        if not override.is_sweep_override():
            parts.append([override.input_line])
            continue
        swept.append(key)
        found = values(override, catalogue.groups.get(key))
        glob = type(override.value()).__name__ == "Glob"
        texts = (
            [str(v) for v in found] if glob else list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
        )
        plus = "+" if override.is_add() or key == "exp" else ""
        parts.append([f"{plus}{key}={text}" for text in texts])
    count = 1
    for part in parts:
        count *= len(part)
    if count > MOST_JOBS:
        raise UserError(f"this sweep has {count:,} jobs, more than {MOST_JOBS:,}: sweep over fewer values")
    jobs = [list(combination) for combination in itertools.product(*parts)]
    parser = OverridesParser.create()
    seen: set[tuple[str, ...]] = set()
    for job in jobs:
        read = tuple(sorted(f"{o.key_or_group}={o.value()!r}" for o in parser.parse_overrides(job)))
        if read in seen:
            raise UserError(f"the sweep has the job {shorten(' '.join(job))!r} twice: give each value once")
        seen.add(read)
    return jobs, swept


def chosen_first(line: Line, catalogue: Catalogue) -> Line:
    """A sweep's line as the config of its first choices: groups at their first value, swept values left out."""
    kept = []
    for override in line.parsed:
        key = override.key_or_group
        if not override.is_sweep_override():
            kept.append(override.input_line)
        elif key in catalogue.groups:
            kept.append(f"{'+' if key == 'exp' else ''}{key}={values(override, catalogue.groups[key])[0]}")
    return Line(tuple(kept), line.flags)


# ---- names -----------------------------------------------------------------------------------------------------------


def choices_of(line: Line, catalogue: Catalogue) -> list[str]:
    """The overrides of a line that choose files (experiment, groups, launchers), in its order."""
    groups = catalogue.groups
    return [o.input_line for o in line.parsed if o.key_or_group in groups or o.key_or_group.startswith("hydra/")]


def check_choices(line: Line, catalogue: Catalogue) -> None:
    """Raise UserError unless every override has a form that is taken, and names an experiment or option that exists."""
    groups, paper, verb = catalogue.groups, catalogue.paper, catalogue.verb
    if len(chosen := [o.input_line for o in line.parsed if o.key_or_group == "exp"]) > 1:
        raise UserError(f"{' '.join(chosen)} are two experiments: choose one")
    for override in sorted(line.parsed, key=lambda o: o.key_or_group != "exp"):
        key, text = override.key_or_group, override.input_line
        if override.is_sweep_override() and "multirun" not in line.flags:
            raise UserError(
                f"{shorten(repr(text))} is a list of values for a sweep: add -m, or write a list as {key}=[...]"
            )
        if key == "exp":
            names = [e.name for e in catalogue.experiments]
            if override.is_delete() or override.is_force_add():
                raise UserError(f"{text!r}: write +exp={names[0] if names else 'name'}")
            for value in values(override, names):
                if value not in names:
                    hint = did_you_mean("the experiments are", value, names)
                    raise UserError(f"unknown experiment {shorten(repr(value))} of {paper} {verb}: {hint}")
        elif key in groups and not (override.is_add() or override.is_force_add() or override.is_delete()):
            for value in values(override, groups[key]):
                if value not in groups[key]:
                    raise UserError(
                        f"unknown {key} {shorten(repr(value))}: {did_you_mean('choose', value, groups[key])}"
                    )
        elif key == "trainer" or key.startswith("trainer."):
            if "trainer" not in groups:
                raise UserError(
                    f"{paper} does not train with Lightning and takes no trainer=: choose the device with device=cpu or device=cuda"
                )
        elif key.startswith(("hydra.", "hydra/")):
            if "multirun" not in line.flags:
                raise UserError(f"{shorten(repr(text))} only acts on sweeps: add -m")
            if not key.startswith(("hydra.launcher.", "hydra/launcher")):
                raise UserError(
                    f"{shorten(repr(text))}: of Hydra's own settings a sweep takes hydra.launcher.* alone; "
                    "set the folder with paths.runs and write the values themselves, seed=0,1,2"
                )
    if "launcher" in {o.key_or_group for o in line.parsed} and "multirun" not in line.flags:
        raise UserError("launcher= runs the jobs of a sweep: add -m, or leave it out")


def check_keys(line: Line, catalogue: Catalogue, keys: dict[str, bool]) -> None:
    """Raise UserError unless every override that is no choice names a key. keys: dotted key -> whether it holds a value."""
    paper, verb = catalogue.paper, catalogue.verb
    for override in line.parsed:
        key, text = override.key_or_group, override.input_line
        if key == "exp" or key.startswith(("hydra.", "hydra/")):
            continue
        if override.is_add() or override.is_force_add() or override.is_delete():
            raise UserError(
                f"{shorten(repr(text))}: keys cannot be added or removed, + is for +exp only; "
                f"{did_you_mean('the keys are', key, list(keys))}"
            )
        if key in catalogue.groups:
            continue
        if key not in keys:
            if key == "run.dry":
                raise UserError(f"{paper} {verb} has no dry run: leave out run.dry=true")
            leaves = [name for name, leaf in keys.items() if leaf] or list(keys)
            raise UserError(
                f"unknown key {shorten(repr(key))} of {paper} {verb}: {did_you_mean('the keys are', key, leaves)}"
            )


def keys_below(cfg: Any, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Every dotted key of a config, and whether it holds a value (False: a mapping)."""
    from omegaconf import DictConfig

    for key, node in cfg.items_ex(resolve=False):
        name = f"{prefix}{key}"
        yield name, not isinstance(node, DictConfig)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_interpolation():
            yield from keys_below(node, f"{name}.")


def of(overrides: Iterable[str], **flags: str) -> Line:
    """A line of overrides as a program gives them: `exp=ci` counts as `+exp=ci`."""
    line = parse_line(list(overrides))
    return Line(line.overrides, {**line.flags, **flags})
