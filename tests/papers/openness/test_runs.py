"""The verbs from end to end: what they write, what they refuse, what damaged files are told."""

import json

import pytest

from common.errors import UserError
from common.experiment import launch
from common.settings import compose
from papers.openness import classify as classify_verb  # noqa: F401  (either way to import it)
from papers.openness import settings
from papers.openness.published import long, table, wide
from papers.openness.taxonomy import IDS
from tests import damaged

WEIGHTS, DATA = IDS[11], IDS[3]


def line(verb, *overrides):
    from common.line import of

    return compose("openness", verb, of(list(overrides)))


def release(folder, licence="mit", files=("model.safetensors",)):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\nlicense: {licence}\nlibrary_name: transformers\n---\n# x\n")
    for name in files:
        (folder / name).write_text("")
    return folder


def run(verb, *overrides):
    return launch("openness", [*overrides, "threads=1", "device=cpu"], verb=verb)


def test_a_release_is_rated_compared_explained_and_written(tmp_path):
    formats = "formats=[md,html,csv,long,json,cyclonedx,badge,page]"
    what_if = f"set={{{DATA}: ODC-By-1.0}}"
    found = run(
        "classify",
        f"path={release(tmp_path / 'm')}",
        "against=pythia",
        f"component={WEIGHTS}",
        what_if,
        f"out={tmp_path / 'out'}",
        formats,
    )
    assert found.status == "done"
    tables = found.tables
    assert {row["component"]: row["rating"] for row in tables["components"]}[WEIGHTS] == "D5"
    assert {row["component"]: row["rating"] for row in tables["components"]}[DATA] == "D5"
    assert {row["component"]: row["first_is"] for row in tables["compared"]}[WEIGHTS] == "equal"
    assert any(row["what"] == "evidence" for row in tables["explained"])
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert len(first) == 8
    run("classify", f"path={tmp_path / 'm'}", what_if, f"out={tmp_path / 'out'}", formats)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first  # the same bytes
    bill = json.loads(first["openness.cdx.json"])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["components"][0]["licenses"] == [{"license": {"id": "MIT"}}]
    for name in ("openness.json", "openness.csv", "openness_long.csv", "openness_page.md"):
        assert run("validate", f"path={tmp_path / 'out' / name}").metrics["problems"] == 0


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT OR Apache-2.0", [{"expression": "MIT OR Apache-2.0"}]),
        ("GPL-3.0-or-later", [{"license": {"id": "GPL-3.0-or-later"}}]),
        ("llama2", [{"license": {"name": "LicenseRef-llama2"}}]),
        ("MIT AND LicenseRef-llama2", [{"license": {"id": "MIT"}}, {"license": {"name": "LicenseRef-llama2"}}]),
        ("Publicly available", [{"license": {"name": "Publicly available"}}]),
        ("MIT/Apache-2.0", [{"license": {"name": "MIT/Apache-2.0"}}]),
    ],
)
def test_a_bill_of_materials_has_spdx_ids_only_as_ids(licence, expected):
    from papers.openness.report import _bom_licences

    assert _bom_licences(licence) == expected


def test_a_folder_of_clones_is_a_table(tmp_path):
    for name, licence in (("b", "mit"), ("a", "cc-by-nc-4.0")):
        release(tmp_path / "all" / name, licence)
    found = run("classify", f"path={tmp_path / 'all'}")
    assert [row["model"] for row in found.tables["ratings"]] == ["a", "b"]


def test_an_unmet_requirement_says_which_and_writes_all_the_same(tmp_path):
    from papers.openness.classify import Unmet

    release(tmp_path / "m", "llama2")
    with pytest.raises(Unmet, match="D3, 5 is required"):
        run("classify", f"path={tmp_path / 'm'}", f"require={{{WEIGHTS}: 5}}", f"out={tmp_path / 'out'}")
    assert Unmet.exit_code == 3
    assert (tmp_path / "out" / "openness.html").exists()
    with pytest.raises(Unmet, match="MOF class none"):
        run("classify", f"path={tmp_path / 'm'}", "require_mof=3")
    assert run("classify", f"path={tmp_path / 'm'}", f"require={{{WEIGHTS}: 3}}").status == "done"


def test_licence():
    found = run("licence", "expression='CC-BY-SA-4.0 AND CC-BY-NC-4.0'")
    assert (found.metrics["points"], found.metrics["code_level"], found.metrics["data_level"]) == (3, 3, 3)
    assert [row["confidence"] for row in found.tables["atoms"]] == ["high", "high"]


def test_licence_of_a_file(tmp_path):
    (tmp_path / "LICENSE").write_text("GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n")
    assert run("licence", f"path={tmp_path / 'LICENSE'}").metrics["points"] == 4


@pytest.mark.parametrize(
    "overrides", [[], ["expression=MIT", "path=LICENSE"], ["expression=MIT AND"], ["expression='MIT/Apache-2.0'"]]
)
def test_licence_refuses(overrides):
    with pytest.raises(UserError):
        run("licence", *overrides)


def test_validate_says_what_changed(tmp_path):
    from papers.openness.report import _csv

    for name, rows in (("wide", wide), ("long", long)):
        (tmp_path / f"{name}_old.csv").write_text(_csv(rows(table())))
        (tmp_path / f"{name}_new.csv").write_text(_csv(rows(table(overlays=["xglm"])[1:])))
        found = run("validate", f"path={tmp_path / f'{name}_old.csv'}", f"against={tmp_path / f'{name}_new.csv'}")
        changed = [(row["model"], row["component"]) for row in found.tables["changed"]]
        assert changed == [("gpt-2", ""), ("xglm", "evaluation.data.utility"), ("xglm", "evaluation.data.safety")]


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        ([], "path is missing"),
        (["path=x", "component=weights"], "no component"),
        (["path=x", "set={weights: MIT}"], "no component"),
        (["path=x", f"set={{{WEIGHTS}: 'MIT AND'}}"], "expression"),
        (["path=x", f"require={{{WEIGHTS}: 6}}"], "1 to 5"),
        (["path=x", f"require={{{WEIGHTS}: open}}"], "1 to 5"),
        (["path=x", "as_of=June"], "as_of"),
    ],
)
def test_classify_refuses_before_it_reads(overrides, word):
    with pytest.raises(UserError, match=word):
        settings.check_classify(line("classify", *overrides))


@pytest.mark.parametrize(
    ("verb", "override"),
    [
        ("classify", "licence_mode=loose"),
        ("classify", "absent=open"),
        ("classify", "require_mof=4"),
        ("classify", "formats=[pdf]"),
        ("train", "overlays=[pythia]"),
        ("train", "bootstrap=1"),
        ("train", "classify.models=0"),
        ("train", "alpha=1"),
    ],
)
def test_settings_are_refused_at_composition(verb, override):
    with pytest.raises(UserError, match=override.partition("=")[0]):
        line(verb, override)


def test_claims_of_your_own_join_the_papers(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "claims:\n- {id: X1, stage: near, area: mine, side: risk, leans: open, claim: c, evidence: abstract, source: s}\n"
    )
    assert run("train", "parts=[risks]", f"risks.path={path}").metrics["risks.claims"] == 29
    path.write_text("claims:\n- {id: X1, stage: near, area: mine, side: risk, leans: open, claim: c}\n")
    with pytest.raises(UserError, match="evidence is missing"):
        run("train", "parts=[risks]", f"risks.path={path}")


# ---- damaged files ---------------------------------------------------------------------------------------------------

MANIFEST = "name: x\ncomponents:\n" + "".join(
    f"  {name}:\n    availability: public\n    licence: MIT\n    note: a note\n" for name in IDS
)


def write(text):
    return lambda path: path.write_text(text)


def by_classify(path):
    from common.errors import user_errors
    from papers.openness import folders

    with user_errors():
        if not path.exists():
            raise UserError(f"path: there is no {path}")
        folders.classify(path)


def by_validate(path):
    from common.errors import user_errors
    from papers.openness.validate import check

    with user_errors():
        problems = check(path)[1]
    if problems:
        raise UserError(problems[0] if path.name in problems[0] else f"{path.name}: {problems[0]}")


def profile_text(change=None):
    raw = table()[0].to_dict()
    if change:
        raw["components"][WEIGHTS].update(change)
    return json.dumps(raw)


def table_text():
    from papers.openness.report import _csv

    return _csv(wide(table()))


INPUTS = [
    damaged.Input("openness.yaml", write(MANIFEST), by_classify, {
        "not_finite": write(MANIFEST.replace("availability: public", "availability: .nan", 1)),
        "wrong_shape": write("components: [1, 2]\n"), "wrong_type": write("components:\n  deployment.data.weights: 5\n"),
        "other_licence": write(MANIFEST.replace("MIT", "MIT/Apache-2.0", 1)), "list": write("- a\n- b\n"),
    }),
    damaged.Input("profile.json", write(profile_text()), by_validate, {
        "not_finite": write(profile_text({"level": float("nan")})), "wrong_shape": write("[[]]"), "wrong_type": write(profile_text({"level": "5"})),
        "deep": write("[" * 100_000),
    }),
    damaged.Input("table.csv", write(table_text()), by_validate, {
        "not_finite": write(table_text().replace("C5", "CNaN", 1)), "wrong_shape": write("slug,title\npythia,Pythia\n"),
        "wrong_type": write(table_text().replace("D5", "C5")),
    }),
    damaged.Input("page.md", lambda path: path.write_text(__import__("papers.openness.published", fromlist=["page"]).page(table()[0])), by_classify, {
        "not_finite": write("---\ndeployment: {code: {inference: {value: .nan}}}\n---\n"), "wrong_shape": write("---\n- a\n---\n"),
        "wrong_type": write("---\ndeployment: {code: 5}\n---\n"),
    }),
]  # fmt: skip


@damaged.every_form(INPUTS)
def test_a_damaged_file_is_one_sentence(tmp_path, given, form):
    damaged.refused(tmp_path, given, form)


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.name)
def test_a_good_file_is_read(tmp_path, given):
    damaged.accepted(tmp_path, given)
