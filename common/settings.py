"""Compose a job's config and check every setting by the comment that stands beside it in the YAML.

    n: 10000          # >= 2; points of the mixture
    metric: angular   # euclidean | angular; of the .npy set
    path: null        # str; a folder
    sizes: {m: 256, delta: 0.01}    # m >= 2, delta (0, 1); a flow mapping carries the rules of its keys

What stands before the first `;` is the rule, the rest is help. A comment without a rule is all help. Rules, joined by commas:
a type (str int float bool list dict: what a null default may become), ranges (>= 2, > 0, (0, 1), [0, 1)), choices (a | b),
`once` (no list entry twice), `may be empty`, `increasing`, `odd`, `even`, `or null`, `open` (a mapping to which keys may be
added), `any` (nothing but the type). Of a list, ranges and choices hold for each entry.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import line as lines
from common.catalogue import WHERE_ONLY, Catalogue, catalogue
from common.errors import UserError, did_you_mean, shorten
from common.files import digest
from common.line import Line

if TYPE_CHECKING:
    from omegaconf import DictConfig

TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}
WORDS = ("once", "may be empty", "increasing", "odd", "even", "or null", "open", "any")
NUMBER = r"[-+]?(?:inf|\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+)"
BOUND = re.compile(rf"(>=|<=|>|<)\s*({NUMBER})")
INTERVAL = re.compile(rf"([\[(])\s*({NUMBER})\s*,\s*({NUMBER})\s*([\])])")
ITEM = re.compile(rf"(?:[\[(]\s*{NUMBER}\s*,\s*{NUMBER}\s*[\])]|[^,\[\]()])+")
BEGINS_AS_RULE = re.compile(r"\s*(?:>=|<=|>|<|[\[(]\s*[-+.\d])")
OF_KEY = re.compile(r"([\w.]+)\s+(\S.*)")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
ASKED = {">=": "at least", "<=": "at most", ">": "a number above", "<": "a number below"}


@dataclass(frozen=True)
class Rule:
    """What a comment says of a value: its type where the default is null, ranges, choices and words."""

    kind: str | None = None
    bounds: tuple[tuple[str, float], ...] = ()
    interval: str | None = None  # how a two-sided range is written, for messages
    choices: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()

    @property
    def says_something(self) -> bool:
        return bool(self.bounds or self.choices or self.words)


@dataclass(frozen=True)
class Declared:
    """A key of a YAML file: its default, its rule, its help, and where it stands."""

    default: Any
    rule: Rule
    help: str
    where: str


class BadRule(ValueError):
    """A comment that begins as a rule and cannot be read as one."""


def read_rule(comment: str, mapping: bool = False) -> tuple[Rule, dict[str, Rule], str]:
    """(rule, rules of inner keys, help) of a comment. Raises BadRule where it begins as a rule and is none."""
    head, _, rest = comment.partition(";")
    if old := re.match(r"(str|int|float|bool|list|dict)\s*:\s*(.*)", comment):
        return Rule(kind=old[1]), {}, old[2]
    rule = Rule()
    inner: dict[str, Rule] = {}
    items = [item.strip() for item in ITEM.findall(head)] if head.strip() else []
    for item in items:
        if (more := _read_item(item, rule)) is not None:
            rule = more
            continue
        of_key = OF_KEY.fullmatch(item) if mapping else None
        if of_key and (more := _read_item(of_key[2], inner.get(of_key[1], Rule()))) is not None:
            inner[of_key[1]] = more
            continue
        if rule != Rule() or inner or BEGINS_AS_RULE.match(head):
            raise BadRule(f"{item!r} in {comment!r} is no rule: see common/settings.py")
        return Rule(), {}, comment.strip()
    return rule, inner, rest.strip()


def _read_item(item: str, rule: Rule) -> Rule | None:
    """`rule` with one more item, None where the item is not one."""
    if item in TYPES:
        return replace(rule, kind=item)
    if item in WORDS:
        return replace(rule, words=rule.words | {item})
    if match := BOUND.fullmatch(item):
        return replace(rule, bounds=(*rule.bounds, (match[1], float(match[2]))))
    if match := INTERVAL.fullmatch(item):
        low = (">=" if match[1] == "[" else ">", float(match[2]))
        high = ("<=" if match[4] == "]" else "<", float(match[3]))
        return replace(rule, bounds=(*rule.bounds, low, high), interval=item)
    options = [option.strip() for option in item.split("|")]
    if len(options) > 1 and all(re.fullmatch(r"[^\s|]+", option) for option in options):
        return replace(rule, choices=tuple(options))
    return None


# ---- the comments of a file ------------------------------------------------------------------------------------------


@cache
def declarations(path: Path) -> dict[str, Declared]:
    """Dotted key -> what its YAML file declares of it. Raises UserError for a file that is no YAML, BadRule."""
    import yaml
    from omegaconf._utils import get_yaml_loader  # reads 1e-3 as a number, as the composed config does

    try:
        text = path.read_text()
        tree = yaml.compose(text, Loader=get_yaml_loader())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read ({shorten(str(error))}): write it as YAML in UTF-8") from None
    found: dict[str, Declared] = {}
    if isinstance(tree, yaml.MappingNode):
        _declare(tree, text.splitlines(), "", {}, path, found)
    return found


def _declare(node: Any, text: list[str], prefix: str, inherited: Mapping[str, Rule], path: Path, found: dict) -> None:
    """Walk a mapping of the YAML tree; `inherited`: rules that the comment of a flow mapping gave its keys."""
    import yaml
    from omegaconf._utils import get_yaml_loader

    loader = get_yaml_loader()
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            nodes = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for inner in nodes:
                _declare(inner, text, prefix, {}, path, found)
            continue
        key = str(key_node.value)
        if not prefix and key in ("defaults", "hydra"):
            continue
        name = f"{prefix}{key}"
        mapping = isinstance(value_node, yaml.MappingNode)
        rule, inner, help_ = Rule(), {}, ""
        flow_parent = node.flow_style
        if not flow_parent:
            try:
                rule, inner, help_ = read_rule(_comment_of(key_node, value_node, text), mapping)
            except BadRule as error:
                raise BadRule(f"{path.name}, {name}: {error}") from None
        if (given := inherited.get(key)) is not None:
            rule = given
        default = {} if mapping else loader("").construct_object(value_node, deep=True)
        found[name] = Declared(default, rule, help_, f"{path.name}")
        if mapping:
            below = {k.partition(".")[2]: r for k, r in inherited.items() if k.startswith(f"{key}.")} | inner
            _declare(value_node, text, f"{name}.", below, path, found)
            for word in inner:
                if f"{name}.{word}" not in found:
                    raise BadRule(f"{path.name}, {name}: its comment has a rule for {word}, which it does not hold")


def _comment_of(key_node: Any, value_node: Any, text: list[str]) -> str:
    """The comment at the end of the line on which a value ends, or on which a block begins."""
    block = value_node.start_mark.line > key_node.end_mark.line or (
        hasattr(value_node, "flow_style") and not value_node.flow_style
    )
    mark = key_node.end_mark if block else value_node.end_mark
    rest = text[mark.line][mark.column :] if mark.line < len(text) else ""
    if block:
        rest = re.sub(r"^\s*:\s*(?:&\w+\s*)?", "", rest)
    match = re.match(r"\s*(?:,\s*)?#\s?(.*)$", rest)
    return match[1].strip() if match else ""


def declared(catalogue: Catalogue, choices: Mapping[str, str]) -> dict[str, Declared]:
    """Every key that a verb's YAML, the shared base and the chosen group options declare. choices: group -> option."""
    found = dict(declarations(catalogue.files["common/base"]))
    found |= declarations(catalogue.files[catalogue.verb])
    for group, option in choices.items():
        if group not in catalogue.groups or group == "exp" or (path := catalogue.option_file(group, option)) is None:
            continue
        whole = "@package _global_" in path.read_text()
        prefix = "" if whole else f"{group.replace('/', '.')}."
        if not whole:
            found.setdefault(prefix[:-1], Declared({}, Rule(), "", path.name))
        found |= {f"{prefix}{key}": value for key, value in declarations(path).items()}
    return found


# ---- composing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composed:
    """A job's config, checked; and what Hydra knows besides: the sweep that an experiment file defines, the launcher."""

    cfg: DictConfig
    sweep: dict[str, str] = field(default_factory=dict)


def compose(paper: str, verb: str, overrides: Sequence[str] | Line = ()) -> DictConfig:
    """The config of a job, every value of it checked. Raises UserError naming what is valid."""
    line = overrides if isinstance(overrides, Line) else lines.of(overrides)
    composed = compose_line(line, catalogue(paper, verb))
    given = {override.key_or_group for override in line.parsed}
    if swept := [key for key in composed.sweep if key.lstrip("+") not in given]:
        raise UserError(f"{line.experiment} is a sweep over {', '.join(swept)}: add -m")
    return composed.cfg


def compose_line(line: Line, catalogue: Catalogue) -> Composed:
    """Choose files with Hydra, once; then set the values of the line, resolve, and check every key."""
    from omegaconf import OmegaConf, open_dict

    lines.check_choices(line, catalogue)
    full = _hydra_compose(catalogue, lines.choices_of(line, catalogue))
    chosen = {str(k): str(v) for k, v in full.hydra.runtime.choices.items() if v is not None}
    sweep = {str(k): str(v) for k, v in (full.hydra.sweeper.get("params") or {}).items()}
    with open_dict(full):
        del full["hydra"]
    try:
        rules = declared(catalogue, chosen)
    except BadRule as error:
        raise UserError(f"a comment in configs/{catalogue.paper} cannot be read: {error}") from error
    _check_files(full, rules, line, catalogue)
    keys = dict(lines.keys_below(full))
    lines.check_keys(line, catalogue, keys)
    for override in line.parsed:
        key = override.key_or_group
        if key in catalogue.groups or key.startswith(("hydra.", "hydra/")):
            continue
        value = override.value()
        _check_type(key, _default(rules, full, key), value, rules, f"{key}=")
        try:
            with open_dict(full):  # new keys are where `_check_type` has let them be
                OmegaConf.update(full, key, value, merge=True)
        except Exception as error:
            raise UserError(f"{shorten(override.input_line)} cannot be set: {shorten(str(error), 160)}") from None
    _resolve(full)
    check(full, rules)
    return Composed(full, sweep)


def _default(rules: Mapping[str, Declared], cfg: DictConfig, key: str) -> Any:
    from omegaconf import OmegaConf

    if key in rules and not isinstance(rules[key].default, dict):
        return rules[key].default
    node = OmegaConf.select(cfg, key, throw_on_missing=False)
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def _hydra_compose(catalogue: Catalogue, choices: Sequence[str]) -> DictConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    paper, verb = catalogue.paper, catalogue.verb
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(config_module=f"configs.{paper}", version_base="1.3"):
            return hydra_compose(config_name=verb, overrides=list(choices), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, UnicodeDecodeError, AttributeError) as error:
        raise UserError(f"the config of {paper} {verb} does not compose: {shorten(str(error), 300)}") from error
    except Exception as error:  # YAML's own, of an experiment file
        if type(error).__module__.startswith("yaml"):
            raise UserError(f"a config file of {paper} is no YAML: {shorten(str(error), 300)}") from error
        raise
    finally:
        GlobalHydra.instance().clear()


def _resolve(cfg: DictConfig) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.resolve(cfg)
        missing = OmegaConf.missing_keys(cfg)
    except (OmegaConfBaseException, RecursionError) as error:
        raise UserError(f"the config does not resolve: {shorten(str(error), 160)}") from error
    if missing:
        raise UserError(f"{', '.join(sorted(missing))} must be given: add {sorted(missing)[0]}=... to the command")


def _check_files(cfg: DictConfig, rules: Mapping[str, Declared], line: Line, catalogue: Catalogue) -> None:
    """Raise UserError where an experiment file brings a key that the job has not."""
    from omegaconf import DictConfig

    file = f"configs/{catalogue.paper}/exp/{line.experiment}.yaml"

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items_ex(resolve=False):
            name = f"{prefix}{key}"
            if name == "exp" and name not in rules:
                raise UserError(
                    f"{file} needs the first line `# @package _global_`: without it its settings do nothing"
                )
            if name not in rules:
                near = [known[len(prefix) :] for known in rules if known.startswith(prefix)]
                near = [known for known in near if "." not in known]
                raise UserError(
                    f"{file}: unknown key {shorten(repr(name))}: {did_you_mean('the keys there are', str(key), near)}"
                )
            if (
                isinstance(value, DictConfig)
                and not (value._is_none() or value._is_interpolation())
                and not _takes_any_key(name, rules)
            ):
                walk(value, f"{name}.")

    walk(cfg, "")


def _takes_any_key(name: str, rules: Mapping[str, Declared]) -> bool:
    """Whether a mapping may hold keys that its YAML does not: it says so, or it is empty there."""
    entry = rules[name]
    return "open" in entry.rule.words or not any(known.startswith(f"{name}.") for known in rules)


# ---- checking --------------------------------------------------------------------------------------------------------


def check(cfg: DictConfig, rules: Mapping[str, Declared]) -> None:
    """Raise UserError for the first value of a resolved config that its comment does not allow."""
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(cfg)
    for name, value in _leaves(whole, rules):
        entry = rules.get(name)
        if entry is None:
            continue
        _check_type(name, entry.default, value, rules)
        check_value(name, value, entry)


def _leaves(part: Mapping[Any, Any], rules: Mapping[str, Declared], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        name = f"{prefix}{key}"
        yield name, value
        if isinstance(value, dict):
            yield from _leaves(value, rules, f"{name}.")


def check_value(key: str, value: Any, entry: Declared) -> None:
    """Raise UserError unless a value obeys its rule: range, choices, and the words for lists."""
    rule = entry.rule
    if value is None or isinstance(value, dict):
        return
    values = value if isinstance(value, list) else [value]
    shown = shorten(repr(value) if isinstance(value, str) else str(value))
    if isinstance(value, list):
        if not value and entry.default not in ([], None) and "may be empty" not in rule.words:
            raise UserError(f"{key} is empty: give at least one")
        if "once" in rule.words:
            for place, item in enumerate(value):
                if item in value[:place]:
                    raise UserError(f"{key} has {shorten(str(item))} twice: name each once")
        if "increasing" in rule.words and any(not a < b for a, b in zip(value, value[1:], strict=False)):
            raise UserError(f"{key} is {shown}: give them in rising order, each once")
    for item in values:
        if isinstance(item, (list, dict)):
            continue
        if rule.choices and str(item) not in rule.choices:
            raise UserError(f"{key} is {shown}: {did_you_mean('choose', item, list(rule.choices))}")
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            continue
        if math.isnan(item) or (math.isinf(item) and "any" not in rule.words and rule.bounds):
            raise UserError(f"{key} is {shown}: give a finite number")
        for op, bound in rule.bounds:
            if not COMPARE[op](item, bound):
                asked = f"a number in {rule.interval}" if rule.interval else f"{ASKED[op]} {bound:g}"
                raise UserError(f"{key} is {shown}: give {asked}")
        if "odd" in rule.words and item % 2 != 1:
            raise UserError(f"{key} is {shown}: give an odd number")
        if "even" in rule.words and item % 2 != 0:
            raise UserError(f"{key} is {shown}: give an even number")


def _check_type(key: str, default: Any, value: Any, rules: Mapping[str, Declared], given: str = "") -> None:
    """Raise UserError unless a value has the type of its default, or the one that its comment declares."""
    entry = rules.get(key)
    rule = entry.rule if entry else Rule()
    if isinstance(value, str) and "${" in value and given:
        return  # an interpolation: looked at when it is resolved
    if isinstance(default, dict) and isinstance(value, dict):
        for name, part in value.items():
            inner = f"{key}.{name}"
            names = [
                k.removeprefix(f"{key}.") for k in rules if k.startswith(f"{key}.") and "." not in k[len(key) + 1 :]
            ]
            names = names or [str(k) for k in default]
            if names and str(name) not in names and "open" not in rule.words:
                raise UserError(f"unknown key {shorten(repr(inner))}: {did_you_mean('the keys are', name, names)}")
            below = rules[inner].default if inner in rules else default.get(name)
            _check_type(inner, below, part, rules, given)
        return
    if value is None and (default is None or "or null" in rule.words or rule.kind is not None):
        return
    kind = rule.kind if default is None or rule.kind else type(default).__name__
    if kind is None or kind not in TYPES:
        return
    ok = isinstance(value, TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
    if ok and kind == "list" and isinstance(default, list):
        kinds = {type(item) for item in default}
        number = kinds <= {int, float} and len(kinds) == 2
        if (len(kinds) == 1 and kinds <= {int, float, str, bool}) or number:
            like = 0.0 if number else default[0]
            for item in value:
                _check_type(f"{key}[...]", like, item, {})
    if not ok:
        shown = "a mapping" if isinstance(value, dict) else f"{shorten(repr(value))} ({type(value).__name__})"
        hint = ""
        if kind == "str" and isinstance(value, (int, float)):
            hint = f"; quote it: {key}=\"'{value}'\""
        elif kind == "list" and not isinstance(value, dict):
            hint = f"; write {key}=[{shorten(str(value))}]"
        article = "an" if kind == "int" else "a"
        raise UserError(f"{key} takes {article} {kind} (default {shorten(repr(default))}), not {shown}{hint}")


# ---- what a run reads ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reads() -> Iterator[set[str]]:
    """The dotted keys of configs that are looked at inside the block."""
    from omegaconf import DictConfig

    seen: set[str] = set()
    original = DictConfig._get_node

    def watched(self: Any, key: Any, *args: Any, **options: Any) -> Any:
        names, node = [str(key)], self
        while node is not None and node._key() is not None:
            names.append(str(node._key()))
            node = node._get_parent()
        seen.add(".".join(reversed(names)))
        return original(self, key, *args, **options)

    DictConfig._get_node = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        DictConfig._get_node = original  # type: ignore[method-assign]


def unread(line: Line, catalogue: Catalogue, read: set[str]) -> list[str]:
    """The settings of a line that nothing has looked at: those of a part, or of a task, that did not run."""
    found = []
    for override in line.parsed:
        key = override.key_or_group
        if lines.top(key) in ("seed", "exp", "resume", "stop_at_first_failure", "hydra", "run", *WHERE_ONLY):
            continue
        if key in catalogue.groups or key == "data.download":
            continue
        value = override.value()
        below = [f"{key}.{name}" for name in value] if isinstance(value, dict) and value else [key]
        if not any(name in read for name in below):
            found.append(override.input_line)
    return found


# ---- what a run keeps ------------------------------------------------------------------------------------------------


def config_hash(config: Mapping[str, Any]) -> str:
    """A hash of all that a config computes with; where it runs and logs is left out."""
    return digest({key: value for key, value in config.items() if key not in (*WHERE_ONLY, "resume", "launcher")})


SECRET = re.compile(r"(?i)(api_?key|token|secret|passw|credential|private)")


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """A composed config as plain values; what an environment variable with the name of a secret holds is left out."""
    import os

    from omegaconf import OmegaConf

    from common.files import plain

    secrets = [value for name, value in os.environ.items() if SECRET.search(name) and len(value) >= 8]

    def hidden(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hidden(part) for key, part in value.items()}
        if isinstance(value, list):
            return [hidden(part) for part in value]
        if isinstance(value, str) and any(secret in value for secret in secrets):
            return "(hidden)"
        return value

    return hidden(plain(OmegaConf.to_container(cfg, resolve=True)))
