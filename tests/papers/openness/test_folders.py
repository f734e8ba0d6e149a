"""Folders, cards, manifests, pages: what they show, what they do not, and every trap that a card can hold."""

import json

import numpy as np
import pytest

from papers.openness import classify, folders, scales, synthetic
from papers.openness.published import model, page
from papers.openness.rating import Rating
from papers.openness.taxonomy import IDS

WEIGHTS, INFERENCE, SFT, DATA = IDS[11], IDS[10], IDS[4], IDS[3]


def make(folder, card="", files=(), texts=None):
    folder.mkdir(parents=True, exist_ok=True)
    if card is not None:
        (folder / "README.md").write_bytes(f"---\n{card}\n---\n# title\n\n---\n\nmore\n".encode())
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    for name, text in (texts or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def codes(profile):
    return [warning for warning, _ in profile.warnings]


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model-00001-of-00002.bin",
        "m.Q4_K_M.gguf",
        "tf_model.h5",
        "flax_model.msgpack",
        "w.pt",
    ],
)
def test_weight_files_are_public_under_the_cards_licence(tmp_path, name):
    found = classify(make(tmp_path / "m", "license: cc-by-nc-4.0", [name]))
    assert found.ratings[WEIGHTS].code == "D4"
    assert found.licences == {WEIGHTS: "CC-BY-NC-4.0"}
    assert found.evidence[WEIGHTS][1].line == 2


def test_the_cards_licence_speaks_of_the_weights_alone(tmp_path):
    found = classify(make(tmp_path / "m", "license: mit\ndatasets: somebody/data", ["model.safetensors", "train.py"]))
    assert found.ratings[WEIGHTS].code == "D5"
    assert (found.ratings[DATA].status, found.ratings[DATA].low, found.ratings[DATA].high) == ("unknown", 3, 5)
    assert (found.ratings[IDS[0]].status, found.ratings[IDS[0]].low) == ("unknown", 2)


def test_a_card_without_weights_shows_none(tmp_path):
    found = classify(make(tmp_path / "m", "license: mit", ["config.json"]))
    assert (found.ratings[WEIGHTS].low, found.ratings[WEIGHTS].high) == (1, 5)
    assert classify(tmp_path / "m", absent="closed").ratings[WEIGHTS].code == "D1"
    make(tmp_path / "m", "license: mit", ["model.safetensors.index.json"])
    assert "shards_missing" in codes(classify(tmp_path / "m"))


def test_no_licence_anywhere(tmp_path):
    make(tmp_path / "m", "language: en", ["model.safetensors"])
    assert classify(tmp_path / "m").ratings[WEIGHTS] == Rating("data", "unknown", None, 3, 5)
    assert classify(tmp_path / "m", absent="closed").ratings[WEIGHTS].code == "D3"


@pytest.mark.parametrize(
    ("card", "level", "warning"),
    [
        ("license: [mit, cc-by-nc-4.0]", 4, "licence_list"),
        ("license: [mit]", 5, None),
        ("license: other\nlicense_name: llama2", 3, None),
        ("license: other\nlicense_name: 1.0", None, "licence_unknown"),
        ("license: gpl", None, "licence_unknown"),
        ("license: unknown", None, "licence_unknown"),
        ("license: MIT/Apache-2.0", None, "licence_no_expression"),
        ("license: MIT OR GPL-3.0-only", 5, None),
        ("license: bsl-1.0", 5, None),
        ("language: no\nlicense: apache-2.0", 5, None),
        ("license: openmdw-1.0", 5, None),
    ],
)
def test_licence_keys(tmp_path, card, level, warning):
    found = classify(make(tmp_path / "m", card, ["model.safetensors"]))
    assert found.level(WEIGHTS) == level
    assert codes(found) == ([warning] if warning else [])


def test_the_file_behind_license_link(tmp_path):
    make(
        tmp_path / "m",
        "license: other\nlicense_name: mine\nlicense_link: TERMS.txt",
        ["model.safetensors"],
        {"TERMS.txt": "Gemma Terms of Use\n"},
    )
    assert classify(tmp_path / "m").level(WEIGHTS) == 4


def test_bom_crlf_and_a_fence_at_the_end_of_the_file(tmp_path):
    make(tmp_path / "m", None, ["model.safetensors"])
    for raw in (
        b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\nbody\r\n---\r\n",
        b"---\nlicense: mit\n---",
        b"---\nlicense: mit\n--- \n",
    ):
        (tmp_path / "m" / "README.md").write_bytes(raw)
        assert classify(tmp_path / "m").level(WEIGHTS) == 5, raw


def test_card_against_licence_text(tmp_path):
    make(
        tmp_path / "m",
        "license: mit",
        ["model.safetensors"],
        {"LICENSE": "Attribution-NonCommercial 4.0 International"},
    )
    found = classify(tmp_path / "m")
    assert codes(found) == ["licence_conflict"]
    assert found.ratings[WEIGHTS].code == "D4"
    make(
        tmp_path / "n",
        "license: gpl-3.0",
        ["model.safetensors"],
        {"COPYING": "GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007"},
    )
    assert codes(classify(tmp_path / "n")) == []
    make(tmp_path / "o", "language: en", ["model.safetensors"], {"LICENSE.md": "MIT License"})
    assert classify(tmp_path / "o").level(WEIGHTS) == 5


# ---- bases -----------------------------------------------------------------------------------------------------------


def test_a_fine_tune_is_bound_by_a_base_that_binds_derivatives(tmp_path):
    make(tmp_path / "Base-7B", "license: llama2", ["model.safetensors"])
    make(tmp_path / "tune", "license: mit\nbase_model: somebody/Base-7B", ["model.safetensors"])
    found = classify(tmp_path / "tune")
    assert found.ratings[WEIGHTS].code == "D3"
    assert codes(found) == ["base_licence"]
    make(tmp_path / "Base-7B", "license: cc-by-nc-4.0", ["model.safetensors"])  # binds no derivatives
    assert classify(tmp_path / "tune").ratings[WEIGHTS].code == "D5"


def test_an_adapter_is_under_its_base_in_any_case(tmp_path):
    make(tmp_path / "Base-7B", "license: cc-by-nc-4.0", ["model.safetensors"])
    found = classify(
        make(tmp_path / "lora", "license: mit\nbase_model: somebody/Base-7B", ["adapter_model.safetensors"])
    )
    assert found.ratings[WEIGHTS].code == "D4"
    assert "adapter" in found.tags


def test_an_unread_base_opens_the_bounds_downwards(tmp_path):
    found = classify(make(tmp_path / "m", "license: cc-by-sa-4.0\nbase_model: nobody/knows-it", ["model.safetensors"]))
    assert found.ratings[WEIGHTS] == Rating("data", "unknown", None, 3, 4)
    assert codes(found) == ["base_unread"]


def test_bases_are_found_in_given_folders_beside_and_in_the_shipped_table(tmp_path):
    make(tmp_path / "m", "license: mit\nbase_model: meta-llama/Llama-2-7b-hf", ["model.safetensors"])
    assert classify(tmp_path / "m").ratings[WEIGHTS].code == "D3"
    make(tmp_path / "elsewhere" / "Llama-2-7b-hf", "license: apache-2.0", ["model.safetensors"])
    assert classify(tmp_path / "m", bases=[tmp_path / "elsewhere"]).ratings[WEIGHTS].code == "D5"
    assert classify(tmp_path / "m", bases=[tmp_path / "elsewhere" / "Llama-2-7b-hf"]).ratings[WEIGHTS].code == "D5"


def test_bases_of_bases_and_cycles(tmp_path):
    make(tmp_path / "a", "license: llama2", ["model.safetensors"])
    make(tmp_path / "b", "license: mit\nbase_model: x/a", ["model.safetensors"])
    make(tmp_path / "c", "license: apache-2.0\nbase_model: x/b", ["model.safetensors"])
    assert classify(tmp_path / "c").ratings[WEIGHTS].code == "D3"
    make(tmp_path / "a", "license: cc-by-nc-4.0\nbase_model: x/b", ["model.safetensors"])
    for name in ("a", "b"):
        found = classify(tmp_path / name)
        assert "base_cycle" in codes(found)
        assert found.ratings[WEIGHTS].code == "D4"
    make(tmp_path / "self", "license: mit\nbase_model: x/self", ["model.safetensors"])
    assert "base_cycle" in codes(classify(tmp_path / "self"))


# ---- code and data ---------------------------------------------------------------------------------------------------


def test_code_under_its_spdx_line_or_the_nearest_licence(tmp_path):
    make(tmp_path / "m", "license: cc-by-nc-4.0", ["model.safetensors"], {
        "src/pretrain.py": "# SPDX-License-Identifier: GPL-3.0-only\n", "tune/sft_main.py": "", "tune/LICENSE": "MIT License\n",
        "red_team_prompts.py": "", "eval_all.py": "# SPDX-License-Identifier: MIT OR GPL-3.0-only\n",
    })  # fmt: skip
    found = classify(tmp_path / "m")
    assert [found.ratings[IDS[i]].code for i in (0, 1, 6)] == ["C4", "C5", "C5"]
    assert (found.ratings[IDS[7]].low, found.ratings[IDS[7]].high) == (2, 5)


def test_inference_code_by_library(tmp_path):
    assert classify(make(tmp_path / "m", "library_name: transformers", ["a.gguf"])).ratings[INFERENCE].code == "C5"
    assert classify(make(tmp_path / "n", "library_name: homegrown", ["a.gguf"])).ratings[INFERENCE].status == "unknown"


def test_data_sets_with_a_card_beside(tmp_path):
    make(tmp_path / "m", "license: mit\ndatasets: [x/one, x/two]", ["model.safetensors"])
    make(tmp_path / "m" / "datasets" / "one", "license: cc-by-4.0")
    make(tmp_path / "datasets" / "x" / "two", "license: cc-by-sa-4.0")
    assert classify(tmp_path / "m").ratings[DATA].code == "D4"
    make(tmp_path / "t", "license: mit\nbase_model: openai-community/gpt2\ndatasets: x/two", ["model.safetensors"])
    assert classify(tmp_path / "t").ratings[SFT].code == "D4"


# ---- manifests -------------------------------------------------------------------------------------------------------


def test_a_manifest_overrides_everything(tmp_path):
    make(tmp_path / "m", "license: mit", ["model.safetensors"])
    manifest = {"components": {WEIGHTS: {"availability": "public", "licence": "CC-BY-NC-ND-4.0"}, IDS[2]: {"availability": "na"},
                               IDS[0]: {"availability": "public"}, IDS[1]: {"availability": "public", "licence": "none"},
                               DATA: {"availability": "api"}, IDS[6]: {"availability": "none"}}}  # fmt: skip
    found = classify(tmp_path / "m", manifest=manifest)
    assert [found.ratings[IDS[i]].code for i in (11, 2, 0, 1, 3, 6)] == ["D3", "N/A", "Unknown", "C2", "D2", "C1"]


def test_evidence_of_a_later_day_is_left_out(tmp_path):
    make(tmp_path / "m", "language: en", ["config.json"])
    entries = [
        {"availability": "api", "as_of": "2023-11-01"},
        {"availability": "public", "licence": "Apache-2.0", "as_of": "2024-03-17"},
    ]
    manifest = {"components": {WEIGHTS: entries}}
    assert classify(tmp_path / "m", manifest=manifest).ratings[WEIGHTS].code == "D5"
    before = classify(tmp_path / "m", manifest=manifest, as_of="2024-01-01")
    assert before.ratings[WEIGHTS].code == "D2"
    assert codes(before) == ["later_evidence"]


def test_documents_of_a_manifest_lift_the_mof_class(tmp_path):
    make(tmp_path / "m", "license: mit", ["model.safetensors"])
    documents = dict.fromkeys(("Model card", "Data card", "Technical report", "Evaluation results"), "CC-BY-4.0")
    (tmp_path / "m" / "openness.yaml").write_text(
        json.dumps({"documents": documents, "components": {WEIGHTS: {"availability": "public", "licence": "MIT"}}})
    )
    assert scales.mof(classify(tmp_path / "m"))["class"] == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("components:\n  deployment.data.weights:\n    availability: open\n", 3),
        ("components:\n  weights: {availability: public}\n", 2),
        ("components:\n  deployment.data.weights: {availability: public, licence: MIT/Apache-2.0}\n", 2),
        ("components:\n  deployment.data.weights:\n    availability: public\n    level: 5\n", 4),
        (
            "components:\n  deployment.data.weights: {availability: public}\n  deployment.data.weights: {availability: none}\n",
            3,
        ),
        ("a: [\n", 2),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said_with_its_line(tmp_path, text, line):
    path = tmp_path / "openness.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"openness.yaml, line {line}"):
        classify(path)


def test_bombs_are_refused(tmp_path):
    path = tmp_path / "openness.yaml"
    path.write_text(
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{c}: &{c} [{','.join(['*' + chr(ord(c) - 1)] * 10)}]\n" for c in "bcdefgh")
    )
    with pytest.raises(ValueError, match="entries"):
        classify(path)
    path.write_text("a: &a [*a]\n")
    with pytest.raises(ValueError, match=r"openness\.yaml"):
        classify(path)
    path.write_text("a: " + "[" * 50_000 + "]" * 50_000)
    with pytest.raises(ValueError, match=r"openness\.yaml"):
        classify(path)


# ---- other files -----------------------------------------------------------------------------------------------------


def test_pages_of_the_site_come_back(tmp_path):
    for slug in ("llama", "bloom", "gpt-4"):
        path = tmp_path / f"{slug}.md"
        path.write_text(page(model(slug)))
        assert dict(classify(path).ratings) == dict(model(slug).ratings)
        assert page(classify(path)) == page(model(slug))


def test_a_mof_file_and_an_index_file(tmp_path):
    path = tmp_path / "x.yml"
    path.write_text(
        "release:\n  license: {}\n  components:\n  - {name: Model parameters (Final), license: Apache-2.0}\n  - {name: Datasets, license: odd}\n"
    )
    found = classify(path)
    assert found.ratings[WEIGHTS].code == "D5"
    assert found.ratings[DATA] == Rating("data", "unknown", None, 3, 5)
    path.write_text("\n".join(f"{name}: {{class: closed}}" for name in scales.INDEX["2026"]))
    assert classify(path).ratings[IDS[0]].code == "C1"
    assert (classify(path).ratings[WEIGHTS].low, classify(path).ratings[WEIGHTS].high) == (1, 2)


def test_a_name_alone_is_no_evidence(tmp_path):
    found = classify(make(tmp_path / "Llama-2-7b", "tags: [x]"))
    assert {r.status for r in found.ratings.values()} == {"unknown"}


def test_both_ways_to_import_the_function(tmp_path):
    import papers.openness
    import papers.openness.classify

    make(tmp_path / "m", "license: mit", ["model.safetensors"])
    assert papers.openness.classify(tmp_path / "m").level(WEIGHTS) == 5


# ---- made-up folders -------------------------------------------------------------------------------------------------


def test_made_up_folders_are_recovered(tmp_path):
    made = synthetic.draw(60, np.random.default_rng(5))
    synthetic.write(made, tmp_path, np.random.default_rng(6))
    for one in made:
        clone = tmp_path / "clones" / one.name
        assert dict(classify(clone, manifest=tmp_path / "manifests" / f"{one.name}.yaml").ratings) == one.ratings
        for name, seen in classify(clone).ratings.items():
            truth = one.ratings[name]
            if seen.status == "rated":
                assert seen == truth, (one.name, name)
            elif truth.low is not None:
                assert seen.low <= truth.low <= truth.high <= seen.high
    assert len(folders.clones(tmp_path / "clones")) == 60
    assert any(one.base for one in made)
