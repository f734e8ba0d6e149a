"""Races: licence expressions against license-expression, front matter against huggingface_hub, folders by the thousand. See README.md."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common.optional import installed
from common.race import race

TRAPS = {  # what a card holds, and what its keys license, datasets and base_model should say
    "plain": ("license: mit\ndatasets: [a/b]\nbase_model: c/d\n", ["mit"], ["a/b"], ["c/d"]),
    "language: no": ("language: no\nlicense: mit\n", ["mit"], [], []),
    "list of licences": ("license: [mit, apache-2.0]\n", ["mit", "apache-2.0"], [], []),
    "several bases": ("license: mit\nbase_model:\n- a/b\n- c/d\n", ["mit"], [], ["a/b", "c/d"]),
    "number for a licence": ("license: 1.0\n", ["1.0"], [], []),
    "on for a licence": ("license: on\n", ["on"], [], []),
}


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name. quick: sizes for a test of the bench itself."""
    return {
        "expressions": expressions(quick),
        "front_matter": front_matter(quick),
        "folders": folders(quick),
        "traps": traps(),
    }


def expressions(quick: bool = False) -> list[dict[str, Any]]:
    """Parse random SPDX expressions; `same` counts those in which both find the same licences in the same order."""
    from papers.openness import licences

    names = [entry.id for entry in licences.table().values() if entry.spdx]
    drawn = random.Random(0)

    def expression(depth: int) -> str:
        if depth == 0 or drawn.random() < 0.3:
            return drawn.choice(names)
        text = f" {drawn.choice(['AND', 'OR'])} ".join(expression(depth - 1) for _ in range(drawn.randint(2, 3)))
        return f"({text})" if drawn.random() < 0.5 else text

    texts = [expression(3) for _ in range(20 if quick else 300)]
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: [[a.name for a in licences.atoms(licences.parse(text))] for text in texts]
    }
    if installed("license_expression"):
        from license_expression import Licensing

        licensing = Licensing()
        ways["license-expression"] = lambda: [licensing.license_keys(text, unique=False) for text in texts]
    ours = ways["ours"]()
    return [
        row | {"expressions": len(texts), "same": sum(a == b for a, b in zip(ours, ways[row["contestant"]](), strict=True))}
        for row in race(ways, 3 if quick else 7)
    ]  # fmt: skip


def front_matter(quick: bool = False) -> list[dict[str, Any]]:
    """Read the front matter of a thousand cards from disk."""
    from papers.openness import documents

    n = 20 if quick else 1000
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"{number}.md" for number in range(n)]
        for path in paths:
            path.write_text(
                "---\nlicense: mit\nlanguage: [en, no]\ndatasets:\n- a/b\n- c/d\ntags: [x, y]\nbase_model: e/f\n---\n# card\n"
            )
        ways: dict[str, Callable[[], Any]] = {"ours": lambda: [documents.front_matter(path) for path in paths]}
        if installed("huggingface_hub"):
            from huggingface_hub import ModelCard

            ways["huggingface_hub"] = lambda: [ModelCard.load(path) for path in paths]
        return [row | {"cards": n} for row in race(ways, 3 if quick else 7)]


def folders(quick: bool = False) -> list[dict[str, Any]]:
    """Rate made-up folders whose truth is known: seconds, levels stated and contradicted, by three readers."""
    import numpy as np

    from papers.openness import baselines, synthetic
    from papers.openness.folders import classify
    from papers.openness.taxonomy import IDS

    made = synthetic.draw(10 if quick else 1000, np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as name:
        synthetic.write(made, Path(name), np.random.default_rng(1))
        clones = [Path(name) / "clones" / one.name for one in made]
        readers: dict[str, Callable[[Path], Any]] = {
            "ours": lambda path: classify(path).ratings,
            "the card's licence for all": baselines.card_for_all,
        }
        ways: dict[str, Callable[[], Any]] = {key: partial(_read_all, read, clones) for key, read in readers.items()}
        rows = race(ways, 1 if quick else 7)
        for row in rows:
            found = [readers[row["contestant"]](path) for path in clones]
            stated = [
                (one.ratings[key], r[key])
                for one, r in zip(made, found, strict=True)
                for key in IDS
                if r[key].status == "rated"
            ]
            row |= {
                "folders": len(made),
                "levels": len(stated),
                "contradicted": sum(a.level != b.level for a, b in stated),
            }
        return rows


def _read_all(read: Callable[[Path], Any], clones: list[Path]) -> list[Any]:
    return [read(path) for path in clones]


def traps() -> list[dict[str, Any]]:
    """Cards that YAML misreads: whether license, datasets and base_model come out as written."""
    from papers.openness import documents

    rows = []
    for what, (text, *expected) in TRAPS.items():
        row: dict[str, Any] = {"card": what}
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "README.md"
            path.write_text(f"---\n{text}---\n")
            keys = documents.front_matter(path)[0].value
            row["ours"] = [documents.listed(keys.get(key)) for key in ("license", "datasets", "base_model")] == expected
            if installed("huggingface_hub"):
                from huggingface_hub import ModelCard

                try:
                    data = ModelCard.load(path).data
                    theirs = [getattr(data, key, None) for key in ("license", "datasets", "base_model")]
                    row["huggingface_hub"] = [
                        v if isinstance(v, list) else [v] if v is not None else [] for v in theirs
                    ] == expected
                except (ValueError, TypeError) as error:
                    row["huggingface_hub"] = f"refused: {type(error).__name__}"
        rows.append(row)
    return rows
