"""Statistics against other libraries and hand cases; the other scales against their own published results."""

import numpy as np
import pytest

from papers.openness import data, scales, stats, table
from papers.openness.published import model


def draw(n=40, levels=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(1, levels + 1, n), rng.integers(1, levels + 1, n)


@pytest.mark.parametrize("seed", range(5))
def test_spearman_is_that_of_scipy(seed):
    from scipy.stats import spearmanr

    x, y = draw(seed=seed)
    theirs, ours = spearmanr(x, y), stats.spearman(x, y)
    assert (ours.value, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_ranks_are_those_of_scipy():
    from scipy.stats import rankdata

    x, _ = draw()
    assert stats.ranks(x) == pytest.approx(rankdata(x))


@pytest.mark.parametrize(("plus", "minus"), [(22, 0), (18, 2), (6, 4), (0, 0), (1, 1)])
def test_sign_test_is_the_binomial_one(plus, minus):
    from scipy.stats import binomtest

    expected = binomtest(plus, plus + minus).pvalue if plus + minus else 1.0
    found = stats.sign_test([1] * plus + [-1] * minus + [0, 0])
    assert found == pytest.approx((plus, minus, expected))


def test_holm_is_that_of_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(0).random(11) ** 3
    assert stats.holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_kappa_is_that_of_scikit_learn(weights):
    metrics = pytest.importorskip("sklearn.metrics")
    x, y = draw(levels=4)
    assert stats.cohen_kappa(list(x), list(y), weights) == pytest.approx(
        metrics.cohen_kappa_score(x, y, weights=weights)
    )


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_alpha_is_that_of_a_library(level):
    krippendorff = pytest.importorskip("krippendorff")
    rng = np.random.default_rng(1)
    ratings = rng.integers(1, 5, (4, 30)).astype(float)
    ratings[rng.random(ratings.shape) < 0.2] = np.nan
    ours = stats.krippendorff_alpha([[None if np.isnan(v) else v for v in row] for row in ratings], level)
    assert ours == pytest.approx(krippendorff.alpha(ratings, level_of_measurement=level))


def test_alpha_by_hand():
    assert stats.krippendorff_alpha([[1, 2, 3, 4], [1, 2, 3, 4]]) == pytest.approx(1)
    assert stats.krippendorff_alpha([[1, 2, 1, 2], [2, 1, 2, 1]]) < 0


def test_gamma_counts_pairs():
    assert stats.gamma([1, 2, 3], [1, 2, 3]) == 1
    assert stats.gamma([1, 2, 3], [3, 2, 1]) == -1
    assert stats.gamma([1, 1, 2], [1, 2, 2]) == 1  # ties left out


def test_interval_holds_the_value_and_permutations_agree():
    x, y = np.arange(20.0), np.arange(20.0) + np.random.default_rng(0).normal(0, 5, 20)
    found = stats.spearman(x, y, 500, np.random.default_rng(0))
    assert found.low < found.value < found.high
    assert stats.spearman(x, y, permutations=2000).p < 0.01


# ---- MOF -------------------------------------------------------------------------------------------------------------


def test_required_sets():
    for rule, sizes in (("current", (6, 10, 14)), ("legacy", (6, 11, 15))):
        for level, size in zip((3, 2, 1), sizes, strict=True):
            rows = data.rows("mof_components")
            assert sum(int(r["class"]) >= level and scales._required(r, rule) for r in rows) == size


def test_all_273_models_of_the_tool():
    found = [(m, scales.mof(m["licences"])) for m in scales.mof_models()]
    assert len(found) == 273
    assert all(scales.as_printed(m, f) for m, f in found)
    by_file = {m["file"]: f for m, f in found}
    assert [by_file[name]["class"] for name in ("Pythia-12B", "Amber", "GPT-NeoX-20B", "BLOOM")] == [1, 1, 3, 0]
    assert [round(by_file["GPT-NeoX-20B"]["progress"][k], 1) for k in (3, 2, 1)] == [100, 90, 92.3]
    assert [round(by_file["BLOOM"]["progress"][k], 1) for k in (3, 2, 1)] == [16.7, 10, 14.3]


def test_a_paper_stands_for_a_report_only_where_it_is_included():
    listing = dict.fromkeys(
        ("Model architecture", "Model parameters (Final)", "Model card", "Data card", "Evaluation results"), "MIT"
    )
    assert scales.mof({**listing, "Research paper": "CC-BY-4.0"})["class"] == 3
    assert scales.mof({**listing, "Research paper": "Component Component not included"})["class"] == 0
    assert scales.mof(listing)["class"] == 0


def test_the_slips_of_the_tool_are_kept():
    assert not scales.mof_open("PDDL-1.0")
    assert scales.mof_open("CC0-1.0")
    assert not scales.mof_open("LicenseRef-llama2")


def test_own_licence_before_that_of_the_type_before_that_of_all(tmp_path):
    text = """
release:
  license: {distribution: {name: MIT}, data: {name: CC-BY-4.0}}
  components:
  - {name: Datasets}
  - {name: Training code}
  - {name: Inference code, license: ''}
  - {name: Model card, license: CC0-1.0}
"""
    path = tmp_path / "x.yml"
    path.write_text(text)
    found = scales.mof(path)["components"]
    assert {found[name] for name in ("Datasets", "Training code", "Model card")} == {"included"}
    assert found["Inference code"] == "unlicensed"  # the key is set, to nothing
    assert found["Evaluation code"] == "missing"


# ---- the others ------------------------------------------------------------------------------------------------------


def test_totals_of_both_indexes():
    for year, n, features in (("2023", 46, 14), ("2026", 170, 12)):
        rows = data.rows(f"index_{year}")
        assert len(rows) == n
        for row in rows:
            found = scales.eosai(row)
            assert (found["total"], found["version"], found["of"]) == (float(row["total"]), year, features)
    totals = {row["system"]: float(row["total"]) for row in data.rows("index_2023")}
    assert totals["OLMo 7B Instruct"] == 12.5
    assert sum(float(row["total"]) == 12 for row in data.rows("index_2026")) == 2


def test_an_index_file_is_read_nested_or_not(tmp_path):
    lines = ["system: {name: X}", "availability:"]
    lines += [
        f"  {name}: {{class: {'open' if i % 2 else 'partial'}, link: '', notes: ''}}"
        for i, name in enumerate(scales.INDEX["2026"])
    ]
    path = tmp_path / "x.yaml"
    path.write_text("\n".join(lines))
    assert scales.eosai(path)["total"] == 9
    path.write_text("\n".join(lines[:-2]))
    with pytest.raises(ValueError, match="missing"):
        scales.eosai(path)


def test_the_proxy_of_osaid_names_fourteen():
    named = [p.name for p in table() if scales.osaid(p)["pass"]]
    assert named == ["t5", "mt5", "gpt-neo", "gpt-j-6b", "codet5", "fairseq-dense", "xglm", "gpt-neox-20b", "polycoder", "ul2", "pythia",
                     "cerebras-gpt", "stable-lm-base-alpha-base-alpha-tuned", "openllama"]  # fmt: skip
    assert "weights" in scales.osaid(model("bloom"))["why"][0]


def test_gradient_and_simple_raters():
    assert [scales.solaiman(model(s)) for s in ("gopher", "gpt-4", "llama-2", "pythia")] == [
        "closed",
        "api",
        "downloadable",
        "fully open",
    ]
    assert scales.solaiman(model("gopher"), hosted=True) == "hosted"
    assert sum(bool(scales.open_weights(p)) for p in table()) == 28
    assert scales.licence_only(model("llama-2")) is False
    assert scales.licence_only(model("pythia")) is True
