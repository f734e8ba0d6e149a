"""Real negotiations by path (Deal or No Deal, CaSiNo, ANAC), and generators for where they are not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.data.registry import own_file, read_text, real_or_synthetic
from common.errors import choose, user_errors
from common.run import Run
from papers.neg_ucb import anac

ISSUES = ("Food", "Water", "Firewood")
CONTEXT = re.compile(r"<input>((?:\s+\d+){6})\s+</input>.*<partner_input>((?:\s+\d+){6})\s+</partner_input>")
LINE = re.compile(
    r"^((?:\d+ ){6})(.*?)<selection>(.*?)<eos> reward=(no agreement|disconnect|\d+)(?: (agree|disagree))? ((?:\d+ ?){6})$"
)


# ---- Deal or No Deal -------------------------------------------------------------------------------------------------


def deal_contexts(text: str) -> np.ndarray:
    """Contexts of the tagged form (`val.txt`, `test.txt`): (n, 2, 3) counts and own values of each line's first side.

    Raises ValueError where there is none, or where a side's values do not sum to 10.
    """
    rows = [[int(v) for v in match[1].split()] for match in map(CONTEXT.search, text.splitlines()) if match]
    if not rows:
        raise ValueError("no line of the form <input> count value ... </input>")
    contexts = np.array(rows).reshape(-1, 3, 2).transpose(0, 2, 1)
    if not ((contexts[:, 0] * contexts[:, 1]).sum(1) == 10).all():
        raise ValueError("a line whose counts times values do not sum to 10")
    return contexts


def deal_outcomes(text: str) -> list[dict]:
    """The lines of `data.txt`: {counts, values, partner, take, reward, status}.

    status: agree | disagree, or, where the reward is no number, what stands in its place (`no agreement`, with a space, or `disconnect`).
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = LINE.match(line.strip())
        if not match:
            raise ValueError(f"line {number} is not a Deal-or-No-Deal line: {line[:60]!r}")
        six, partner = ([int(v) for v in part.split()] for part in (match[1], match[6]))
        take = [int(v) for v in re.findall(r"item\d=(\d+)", match[3])]
        reward = int(match[4]) if match[4].isdigit() else None
        found.append(
            {
                "counts": six[::2],
                "values": six[1::2],
                "partner": partner[1::2],
                "take": take,
                "reward": reward,
                "status": match[4] if reward is None else match[5],
            }
        )
    return found


def generated_contexts() -> np.ndarray:
    """Every context of Deal or No Deal's kind: 3 item types, 5 to 7 items, values 0..10 with sum(count * value) = 10: (n, 2, 3)."""
    pools = [c for c in itertools.product(range(1, 5), repeat=3) if 5 <= sum(c) <= 7]
    return np.array([[c, v] for c in pools for v in itertools.product(range(11), repeat=3) if np.dot(c, v) == 10])


# ---- CaSiNo ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """One structured human offer and its answer. takes: packages the responder would get of each of ISSUES, 0..3."""

    dialogue: str
    turn: int
    proposer: str
    responder: str
    takes: tuple[int, ...]
    accepted: bool
    preference: tuple[int, ...]  # points of a package to the responder: 5, 4, 3; not shown to the learner
    points: int


def casino_offers(text: str) -> list[Offer]:
    """The offers of `casino_offers.jsonl` in dialogue order. Counts may be text, as in the dialogues themselves.

    Raises ValueError naming the line where an issue's packages do not sum to 3.
    """
    offers = []
    for number, line in enumerate(text.splitlines(), 1):
        raw = json.loads(line)
        points = {"High": 5, "Medium": 4, "Low": 3}
        takes = tuple(int(raw["theyget"][issue]) for issue in ISSUES)
        if any(int(raw["youget"][issue]) + theirs != 3 for issue, theirs in zip(ISSUES, takes, strict=True)):
            raise ValueError(f"line {number}: the packages of an issue do not sum to 3")
        offers.append(Offer(str(raw["dialogue_id"]), int(raw["turn"]), raw["proposer"], raw["responder"], takes, raw["response"] == "accept",
                            tuple(points[raw["responder_pref"][issue]] for issue in ISSUES), int(raw["responder_points"])))  # fmt: skip
    return offers


def generated_offers(generator: np.random.Generator, dialogues: int = 500) -> list[Offer]:
    """Made-up offers for where CaSiNo is absent: near-even splits, answered by q = sigmoid(0.6 (points - 13))."""
    offers = []
    for d in range(dialogues):
        preference = tuple(int(v) for v in generator.permutation([5, 4, 3]))
        for turn in range(3):
            takes = tuple(int(v) for v in generator.binomial(3, np.clip((np.array(preference) - 2.5) / 3, 0.2, 0.8)))
            points = int(np.dot(takes, preference))
            accepted = bool(generator.random() < 1 / (1 + np.exp(-0.6 * (points - 13))))
            offers.append(
                Offer(str(d), turn, f"agent_{(turn + 1) % 2}", f"agent_{turn % 2}", takes, accepted, preference, points)
            )
            if accepted:
                break
    return offers


# ---- for a run -------------------------------------------------------------------------------------------------------


def contexts(cfg: Any, run: Run) -> np.ndarray:
    """Contexts of Deal or No Deal, or all those of its kind: (n, 2, 3), see `deal_contexts`."""

    def read(path: Path) -> np.ndarray:
        return deal_contexts(read_text(path))

    return real_or_synthetic("dealornodeal_val", read, generated_contexts, run=run, fallback=cfg.data.fallback)


def offers(cfg: Any, run: Run) -> list[Offer]:
    """The human offers of CaSiNo, or made-up ones."""

    def read(path: Path) -> list[Offer]:
        return casino_offers(read_text(path))

    def made_up() -> list[Offer]:
        return generated_offers(run.rng("casino").numpy)

    return real_or_synthetic("casino_offers", read, made_up, run=run, fallback=cfg.data.fallback)


def domain(cfg: Any, run: Run, task: Mapping[str, Any]) -> anac.Domain:
    """task["domain"]: a folder of your own (a path), or one of the ANAC collection ("y2011/Energy"), which task["sizes"] stand in for."""
    name, key = task["domain"], f"task_settings.{task['name']}.domain"

    def read(collection: Path) -> anac.Domain:
        choose(
            key, name, sorted({path.parent.relative_to(collection).as_posix() for path in collection.rglob("*.xml")})
        )
        return anac.load(collection / name)

    def made_up() -> anac.Domain:
        return anac.generate(task["sizes"], run.rng("domain", name).numpy, f"generated {name}")

    if Path(name).is_absolute() or name.startswith((".", "~")):
        with user_errors():
            found = anac.load(own_file(name, key, run, folder=True))
    else:
        found = real_or_synthetic("anac", read, made_up, run=run, fallback=cfg.data.fallback)
    for note in found.notes:
        run.note(note)
    return found
