"""From a command line to a config: flags, experiments, overrides that are checked before anything heavy is imported.

A wrong line is answered in one sentence that names what would have been right. Hydra does the composing.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError, known
from common.files import digest

if TYPE_CHECKING:
    from omegaconf import DictConfig

# keys that do not change what a run computes
WHERE_ONLY = ("logger", "device", "threads", "paths", "resume", "launcher")
FLAGS = {
    "-h": "help",
    "--help": "help",
    "-m": "multirun",
    "--multirun": "multirun",
    "-r": "resolve",
    "--resolve": "resolve",
}
FLAGS_WITH_VALUE = {"-c": "cfg", "--cfg": "cfg", "-p": "package", "--package": "package"}


@dataclass
class CommandLine:
    """A command line taken apart: overrides in Hydra's spelling, flags wherever they stood."""

    overrides: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)


def parse_line(argv: Sequence[str]) -> CommandLine:
    """Split flags from overrides. Raises UserError for an unknown flag or a word that is neither."""
    line = CommandLine()
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("-") else (word, "", "")
        if name in FLAGS and not equals:
            line.flags[FLAGS[name]] = ""
        elif name in FLAGS_WITH_VALUE:
            value = value if equals else next(words, "")
            if name in ("-c", "--cfg") and value != "job":
                raise UserError(f"{name} takes job, not {value!r}: write `--cfg job`")
            line.flags[FLAGS_WITH_VALUE[name]] = value
        elif word.startswith("-"):
            valid = ", ".join(sorted({*FLAGS, *FLAGS_WITH_VALUE}))
            raise UserError(f"unknown flag {word!r}: the flags are {valid}; settings are written key=value")
        elif "=" not in word and not word.startswith("~"):
            raise UserError(
                f"{word!r} is neither a flag nor key=value: write settings as key=value, experiments as +exp=name"
            )
        else:
            line.overrides.append("+" + word if word.startswith("exp=") else word)
    if "cfg" not in line.flags and {"package", "resolve"} & set(line.flags):
        raise UserError("--package and --resolve go with --cfg job: write `--cfg job -p model`")
    if "cfg" in line.flags and "multirun" in line.flags:
        raise UserError("--cfg shows one config: leave out -m")
    return line


# ---- what there is to choose from ------------------------------------------------------------------------------------


def folder_of(package: str) -> Path:
    """Where a package of this project lies: "papers.quip_sharp", "configs.common". Raises UserError where there is none."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"there is no package {package}: check the spelling, or run from a whole clone")
    return Path(next(iter(spec.submodule_search_locations)))


def config_folders(paper: str) -> tuple[Path, Path]:
    """The shared configs and the paper's own."""
    return folder_of("configs.common"), folder_of(f"configs.{paper}")


def papers() -> list[str]:
    """The names of the papers that are here."""
    spec = find_spec("papers")
    return sorted(
        found.name for found in pkgutil.iter_modules(spec.submodule_search_locations if spec else []) if found.ispkg
    )


def verbs(paper: str) -> list[str]:
    """The jobs of a paper: each has a config of its name."""
    return sorted(path.stem for path in folder_of(f"configs.{paper}").glob("*.yaml"))


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str  # the first comment of its file
    verbs: tuple[str, ...]


def experiments(paper: str, verb: str = "train") -> list[Experiment]:
    """The experiments of a paper that `verb` can run, by name. `# verbs: a, b` in the head of a file says which (default train)."""
    found = []
    for path in sorted((folder_of(f"configs.{paper}") / "exp").glob("*.yaml")):
        title, verbs = _head(path)
        found.append(Experiment(path.stem, title, verbs))
    return [experiment for experiment in found if verb in experiment.verbs]


def _head(path: Path) -> tuple[str, tuple[str, ...]]:
    """What the comments at the top of an experiment say: its title, and its verbs."""
    head = [line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#")]
    verbs = next((line[6:] for line in head if line.startswith("verbs:")), "train")
    title = next((line for line in head if line and not line.startswith(("@", "verbs:"))), "")
    return title, tuple(re.split(r"[,\s]+", verbs.strip()))


def verb_of(paper: str, experiment: str) -> str:
    """The verb that runs an experiment: the first that its file names, train where it names none."""
    path = folder_of(f"configs.{paper}") / "exp" / f"{experiment}.yaml"
    return _head(path)[1][0]


def groups(paper: str, verb: str = "train") -> dict[str, list[str]]:
    """Config groups that a job takes: its paper's own, and the shared ones that a defaults list names. Name -> options."""
    shared, own = config_folders(paper)
    lists = [(shared / "base.yaml").read_text(), (own / f"{verb}.yaml").read_text()]
    found: dict[str, list[str]] = {}
    for base in (shared, own):
        for path in sorted(base.rglob("*.yaml")):
            name = path.parent.relative_to(base).as_posix()
            if name != "." and (base == own or any(re.search(rf"^ *- {name}\b", text, flags=re.M) for text in lists)):
                found.setdefault(name, []).append(path.stem)
    return found


def read_text(paper: str, verb: str) -> str:
    """The YAML of a job as it stands, without the parts that speak to Hydra."""
    text = (folder_of(f"configs.{paper}") / f"{verb}.yaml").read_text()
    return re.sub(r"^(defaults|hydra):\n(?:[ \t]+.*\n|\n)*", "", text, flags=re.M).strip() + "\n"


# ---- types of keys whose default is null -----------------------------------------------------------------------------

TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}
NULL_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w-]+):(?P<value>[^#]*?)(?:#\s*(?P<comment>.*))?$")


def null_types(path: Path) -> Iterator[tuple[str, str]]:
    """(dotted key, declared type) of the null defaults in a YAML file: `path: null  # str: what it is`.

    The type is "" where none is declared; a test keeps that from being committed.
    """
    stack: list[tuple[int, str]] = []
    for line in path.read_text().splitlines():
        if not (match := NULL_LINE.match(line)):
            continue
        indent = len(match["indent"])
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, match["key"]))
        if match["value"].strip() == "null":
            declared = re.match(r"(str|int|float|bool|list|dict)\b", match["comment"] or "")
            yield ".".join(key for _, key in stack), declared[1] if declared else ""


@cache
def declared_types(paper: str) -> dict[str, str]:
    """Dotted key -> type name, for every null default that a paper's configs and the shared ones declare."""
    declared: dict[str, str] = {}
    for base in config_folders(paper):
        for path in sorted(base.rglob("*.yaml")):
            group = path.parent.relative_to(base).as_posix().replace("/", ".")
            is_global = group in (".", "exp") or "@package _global_" in path.read_text()
            for key, kind in null_types(path):
                if kind:
                    declared[key if is_global else f"{group}.{key}"] = kind
    return declared


# ---- composing -------------------------------------------------------------------------------------------------------


def compose(paper: str, verb: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The config of a job, its overrides checked. Raises UserError naming what is valid."""
    parsed = parse_overrides(overrides)
    check_names(paper, verb, parsed)
    for override in parsed:
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line!r} is a list of values for a sweep: add -m, or write a list as {override.key_or_group}=[...]"
            )
    choices = [o.input_line for o in parsed if _is_choice(paper, verb, o)]
    base = _compose(paper, verb, choices)
    for override in parsed:
        if override.input_line not in choices:
            _check_value(paper, verb, base, override)
    cfg = _compose(paper, verb, overrides)
    _resolve(cfg)
    return cfg


def _compose(paper: str, verb: str, overrides: Sequence[str]) -> DictConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(config_module=f"configs.{paper}", version_base="1.3"):
            return hydra_compose(config_name=verb, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"the config of {paper} {verb} does not compose: {' '.join(str(error).split())}") from error
    finally:
        GlobalHydra.instance().clear()


def _resolve(cfg: DictConfig) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.resolve(cfg)
        missing = OmegaConf.missing_keys(cfg)
    except OmegaConfBaseException as error:
        raise UserError(f"the config does not resolve: {' '.join(str(error).split())}") from error
    if missing:
        raise UserError(f"{', '.join(sorted(missing))} must be given: add {sorted(missing)[0]}=... to the command")


def parse_overrides(overrides: Iterable[str]) -> list[Any]:
    """Hydra's own reading of each override. Raises UserError where one cannot be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException:
            raise UserError(
                f"cannot read {text!r}: write key=value, and quote a value with spaces or any of , = {{ }} [ ] as \"key='value'\""
            ) from None
    return parsed


def _is_choice(paper: str, verb: str, override: Any) -> bool:
    return override.key_or_group in groups(paper, verb) or override.key_or_group.startswith("hydra/")


def check_names(paper: str, verb: str, parsed: Sequence[Any]) -> None:
    """Raise UserError unless every override names an experiment, a group option or a key that exists. Values come later."""
    available, keys = groups(paper, verb), cached_keys(paper, verb, parsed)
    if len(chosen := [o.input_line for o in parsed if o.key_or_group == "exp"]) > 1:
        raise UserError(f"{' '.join(chosen)} are two experiments: choose one")
    for override in sorted(parsed, key=lambda o: o.key_or_group != "exp" and o.key_or_group not in available):
        key, text = override.key_or_group, override.input_line  # choices first: the keys depend on them
        if key == "exp":
            names = [e.name for e in experiments(paper, verb)]
            for value in _values(override):
                if value not in names:
                    raise UserError(
                        f"unknown experiment {value!r} of {paper} {verb}: {known('the experiments are', value, names)}"
                    )
            if override.is_delete() or override.is_force_add():
                raise UserError(f"{text!r}: write +exp={names[0] if names else 'name'}")
            continue
        if override.is_add() or override.is_force_add() or override.is_delete():
            raise UserError(
                f"{text!r}: keys cannot be added or removed, + is for +exp only; {known('the keys are', key, list(keys()))}"
            )
        if key in available:
            for value in _values(override):
                if value not in available[key]:
                    raise UserError(f"unknown {key} {value!r}: {known('choose', value, available[key])}")
            continue
        if key.startswith(("hydra.", "hydra/")):
            continue
        if key == "trainer":
            raise UserError(
                f"{paper} does not train with Lightning and takes no trainer=: choose the device with device=cpu or device=cuda"
            )
        if key == "run.dry" and key not in keys():
            raise UserError(f"{paper} {verb} has no dry run: leave out run.dry=true")
        if key not in keys():
            raise UserError(
                f"unknown key {key!r} of {paper} {verb}: {known('the keys are', key, [k for k, is_leaf in keys().items() if is_leaf] or list(keys()))}"
            )


def _values(override: Any) -> list[Any]:
    """The values an override takes: one, or each of a sweep's."""
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


def cached_keys(paper: str, verb: str, parsed: Iterable[Any]) -> Callable[[], dict[str, bool]]:
    """`_keys`, composed once and only when a name has to be looked up."""
    return cache(lambda: _keys(paper, verb, parsed))


def _keys(paper: str, verb: str, parsed: Iterable[Any]) -> dict[str, bool]:
    """Every dotted key of the composed config -> whether it holds a value (False: a mapping)."""
    choices = [o.input_line for o in parsed if _is_choice(paper, verb, o) and not o.is_sweep_override()]
    return dict(_walk(_compose(paper, verb, choices)))


def _walk(cfg: Any, prefix: str = "") -> Iterator[tuple[str, bool]]:
    from omegaconf import DictConfig

    for key, node in cfg.items_ex(resolve=False):
        name = f"{prefix}{key}"
        yield name, not isinstance(node, DictConfig)
        if isinstance(node, DictConfig) and not node._is_none():
            yield from _walk(node, f"{name}.")


# ---- types -----------------------------------------------------------------------------------------------------------


def _check_value(paper: str, verb: str, base: DictConfig, override: Any) -> None:
    from omegaconf import OmegaConf

    key = override.key_or_group
    if key.startswith("hydra."):
        raise UserError(f"{override.input_line!r} only acts on sweeps: add -m")
    value = override.value()
    if isinstance(value, str) and "${" in value:
        return  # an interpolation gets its type from what it names
    node = OmegaConf.select(base, key, throw_on_missing=False)
    _check_type(key, OmegaConf.to_container(node) if OmegaConf.is_config(node) else node, value, declared_types(paper))


def _check_type(key: str, default: Any, value: Any, declared: dict[str, str]) -> None:
    if isinstance(default, dict) and isinstance(value, dict):
        for name, part in value.items():
            if default and name not in default:
                raise UserError(f"unknown key {f'{key}.{name}'!r}: {known('the keys are', name, list(default))}")
            _check_type(f"{key}.{name}", default.get(name), part, declared)
        return
    if value is None and (default is None or key in declared):
        return
    name = declared.get(key) if default is None or key in declared else type(default).__name__
    if name is None:
        return
    ok = isinstance(value, TYPES.get(name, (object,))) and (name == "bool" or not isinstance(value, bool))
    if ok and name == "list" and default and isinstance(default, list):
        kinds = {type(v) for v in default}
        if len(kinds) == 1 and kinds <= {int, float, str, bool}:
            for item in value:
                _check_type(f"{key}[...]", default[0], item, {})
    if not ok:
        shown = "a mapping" if isinstance(value, dict) else f"{value!r} ({type(value).__name__})"
        hint = ""
        if name == "str" and isinstance(value, (int, float)):
            hint = f"; quote it: {key}=\"'{value}'\""
        elif name == "list" and not isinstance(value, dict):
            hint = f"; write {key}=[{value}]"
        raise UserError(f"{key} takes {_article(name)} (default {default!r}), not {shown}{hint}")


def _article(name: str) -> str:
    return f"{'an' if name == 'int' else 'a'} {name}"


def at_least(cfg: Any, bounds: Mapping[str, float]) -> None:
    """Raise UserError unless each dotted key of `cfg` holds a number of at least its bound, or a list of such numbers, not empty.

    A null passes: what it stands for is the job's to say.

    >>> at_least(cfg, {"rate.n": 2, "rate.repeats": 1})                            # doctest: +SKIP
    """
    from omegaconf import OmegaConf

    for key, least in bounds.items():
        value = OmegaConf.select(cfg, key)
        values = list(value) if OmegaConf.is_list(value) else [] if value is None else [value]
        if OmegaConf.is_list(value) and not values:
            raise UserError(f"{key} is empty: give at least one")
        if any(not isinstance(number, (int, float)) or not number >= least for number in values):
            raise UserError(f"{key} is {value}: give at least {least}")


# ---- what a run keeps ------------------------------------------------------------------------------------------------


def experiment_of(overrides: Iterable[str]) -> str:
    """The experiment that overrides choose, or "default"."""
    chosen = parse_overrides(text for text in overrides if text.lstrip("+").startswith("exp="))
    return "+".join(str(value) for o in chosen for value in _values(o)) or "default"


def config_hash(config: dict[str, Any]) -> str:
    """A hash of all that a config computes with; where it runs and logs is left out."""
    return digest({key: value for key, value in config.items() if key not in WHERE_ONLY})
