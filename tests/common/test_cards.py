"""paper.yaml is read strictly, and says what the package and pyproject.toml say."""

import ast
import tomllib
from pathlib import Path

import pytest

from common import cards, optional
from common.catalogue import folder_of, papers
from common.errors import UserError
from common.files import ROOT

GOOD = {
    "short": "Ours",
    "title": "A title",
    "authors": "Somebody",
    "area": "theory",
    "does": "Nothing.",
    "left": "All.",
}


def test_defaults_are_filled_in():
    found = cards.validate(GOOD, Path("paper.yaml"))
    assert (found["arxiv"], found["extras"], found["peers"]) == (None, {}, ())
    assert cards.Card(name="ours", **found).line == "Ours: A title (Somebody, ICML 2024)."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short": ""}, "short is a text"), ({"does": None}, "does is a text"), ({"surprise": 1}, "unknown field surprise"),
        ({"arxiv": 2402.04396}, "arxiv is a text"), ({"peers": "faiss"}, "peers is a list"), ({"extras": []}, "extras is a mapping"),
        ({"extras": {"rl": ["gymnasium"]}}, r"extras\.rl"), ({"needs": ["rl"]}, "needs names rl"), ({"use": {"verb": "train"}}, "use is"),
        ({"races": {"flow": "quick"}}, r"races\.flow"),
    ],
)  # fmt: skip
def test_a_wrong_card_is_refused_by_field(changes, message):
    with pytest.raises(ValueError, match=message):
        cards.validate(GOOD | changes, Path("paper.yaml"))


@pytest.mark.parametrize("gone", ["short", "title", "left"])
def test_a_missing_field_is_named(gone):
    with pytest.raises(ValueError, match=f"{gone} is missing"):
        cards.validate({key: value for key, value in GOOD.items() if key != gone}, Path("paper.yaml"))


def test_what_is_not_yaml_is_said_in_one_line(tmp_path):
    (tmp_path / "paper.yaml").write_text("short: [unclosed\n")
    with pytest.raises(ValueError, match=r"paper\.yaml is not YAML") as caught:
        cards.read(tmp_path / "paper.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("paper", papers())
def test_every_paper_has_a_card_that_its_package_repeats(paper):
    card = cards.card(paper)
    assert (folder_of(f"papers.{paper}") / (card.picture or "README.md")).is_file()
    doc = ast.get_docstring(ast.parse((folder_of(f"papers.{paper}") / "__init__.py").read_text()))
    assert doc == card.line


@pytest.mark.parametrize("paper", papers())
def test_peers_are_those_of_the_races(paper):
    bench = folder_of(f"papers.{paper}") / "bench.py"
    if not bench.exists():
        assert not cards.card(paper).peers
        return
    named = [
        ast.literal_eval(node.value)
        for node in ast.parse(bench.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PEERS"
    ]
    assert not named or tuple(cards.card(paper).peers) == tuple(named[0])


def test_extras_are_those_of_the_project_file():
    """`python -m scripts.pages` writes the papers' extras into pyproject.toml."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(optional.extras()) | {"papers"} == set(listed)
    for extra, modules in optional.extras().items():
        assert set(modules.values()) <= set(listed[extra]), extra
        if extra not in optional.COMMON:
            assert set(modules.values()) == set(listed[extra]), extra
    assert listed["papers"] == [f"icml24-papers[{','.join(sorted({need for c in cards.cards() for need in c.needs}))}]"]


def test_two_papers_ask_for_one_version_of_a_package(monkeypatch):
    def of(name, requirement):
        return cards.Card(name=name, **cards.validate(GOOD | {"extras": {"rl": {"gym": requirement}}}, Path("x")))

    monkeypatch.setattr(cards, "cards", lambda: [of("a", "gym>=1"), of("b", "gym>=2")])
    with pytest.raises(UserError, match="b asks for gym>=2"):
        optional.extras.__wrapped__()
