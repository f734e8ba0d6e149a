"""E1 to E5 in small, the figures, the claims, and the bench: that each job finds what it says."""

import pytest
import torch
from matplotlib.figure import Figure

from common import claims
from papers.quip_sharp import bench, linear, parts, plots, synthetic


def test_layer_ratios_put_the_worse_over_the_better():
    error = {("quip_sharp", 2): 1.0, ("quip", 2): 2.0, ("quip_sharp_no_rht", 2): 9.0, ("quip_sharp_rfft", 2): 1.05}
    error |= {("quip_sharp", 3): 0.5, ("quip_sharp_rfft", 3): 0.46}
    found = parts.layer_ratios(error)
    assert found["layers.ratio.over_quip2"] == 0.5
    assert found["layers.ratio.no_rht2"] == 9.0
    assert found["layers.rfft_distance"] == pytest.approx(0.08)


def test_ratios_of_the_ladder_and_the_gap_that_tuning_closes():
    metrics = {f"lm.{m}2.excess": v for m, v in (("rtn", 3.0), ("gptq", 1.0), ("quip", 0.5), ("quip_sharp", 0.2))}
    found = parts.model_ratios(
        {**metrics, "lm.quip_sharp_ft2.excess": 0.15, "lm.quip_sharp2.proxy_error": 1, "lm.quip2.proxy_error": 2}
    )
    assert found["lm.excess2.rtn_over_gptq"] == 3
    assert found["lm.excess2.quip_over_quip_sharp"] == 2.5
    assert found["lm.gap_closed2"] == pytest.approx(0.25)
    assert found["lm.proxy_error2.quip_sharp_over_quip"] == 0.5


def test_every_gated_claim_of_this_models_text_names_its_corpus():
    for claim in claims.read("quip_sharp"):
        if claim["metric"].startswith("lm.") and claim["gate"] and "llama" not in claim["id"]:
            assert claim["requires"] == ["stdlib@9f15e99a"], claim["id"]


@pytest.mark.parametrize("outliers", [0, 4])
def test_synthetic_layer_has_unit_rms_and_a_hessian_of_unit_diagonal(outliers):
    W, H = synthetic.layer(32, 64, torch.Generator().manual_seed(0), outliers=outliers)
    assert W.square().mean().item() == pytest.approx(1, abs=1e-5)
    assert H.diagonal().mean().item() == pytest.approx(1.01)
    assert torch.allclose(H, H.T, atol=1e-12)
    assert torch.linalg.eigvalsh(H).min() > 0


def test_figures_are_drawn_from_rows():
    rows = [{"method": "fp", "bits_per_weight": 16, "perplexity": 10.0}]
    rows += [
        {"method": m, "bits_per_weight": b, "perplexity": 10 + 8 / b} for m in ("rtn", "quip_sharp_ft") for b in (2, 3)
    ]
    W, H = synthetic.layer(16, 32, torch.Generator().manual_seed(0))
    curve = [{"codebook": c, "scale": s, "mse": 0.1} for c in ("e8p", "d4") for s in (0.5, 1)]
    epochs = [{"epoch": e, "train_loss": 1.0 if e else None, "valid_loss": 1.0, "best": e == 1} for e in range(3)]
    sizes = [{"bits": b, "kilobytes": k, "perplexity": 30 / k} for b in (16, 3) for k in (1, 2)]
    for figure in (plots.perplexity(rows, 256), plots.incoherence(W, H, W, H), plots.codebooks(curve, 0.1175),
                   plots.tuning({2: epochs}), plots.scaling(sizes)):  # fmt: skip
        assert isinstance(figure, Figure)
        assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes if axis.get_label() != "<colorbar>")


@pytest.fixture
def raced(monkeypatch):
    """A race that every contestant runs once, and is said to have run in 2 ms, 1 at best and 4 at worst: what they return."""
    returned = {}

    def race(contestants, repeats):
        returned.update({name: run() for name, run in contestants.items()})
        times = {"median_s": 2e-3, "min_s": 1e-3, "max_s": 4e-3}
        return [{"contestant": name, **times, "ratio": 1.0} for name in contestants]

    monkeypatch.setattr("common.race.race", race)
    return returned


def test_bench_of_products_reports_milliseconds_weights_per_second_and_bytes(raced):
    rows = {row["engine"]: row for row in bench.matvec(quick=True)}
    assert rows.keys() == raced.keys() >= {"float32", "bfloat16", *(f"QuantLinear, {bits} bits" for bits in (2, 3, 4))}
    for row in rows.values():
        assert [row[key] for key in ("ms_low", "ms", "ms_high")] == pytest.approx([1, 2, 4])
        assert row["weights_per_s"] == pytest.approx(256 * 256 / 2e-3)
    assert (rows["float32"]["bytes"], rows["bfloat16"]["bytes"]) == (4 * 256**2, 2 * 256**2)
    for bits in (2, 3, 4):  # the words, 256 + 256 signs in float16, a scale
        assert rows[f"QuantLinear, {bits} bits"]["bytes"] == bits * 256**2 / 8 + 2 * 512 + 4
    same = raced["QuantLinear, 2 bits"], raced["QuantLinear, 2 bits, decoded"]
    assert torch.allclose(*same, rtol=1e-3, atol=1e-3 * same[0].abs().max().item())
    assert linear.KERNELS["cpu"] is linear.cpu_kernel  # the race has put it back


def test_decoded_contestants_run_without_the_compiled_product(raced, monkeypatch):
    monkeypatch.setitem(linear.KERNELS, "cpu", lambda words, *_: torch.zeros(1, len(words)))
    bench.matvec(quick=True)
    assert (raced["QuantLinear, 2 bits"] == 0).all()
    assert (raced["QuantLinear, 2 bits, decoded"] != 0).any()


def test_bench_of_encoders_counts_the_weights_that_each_was_given(raced):
    rows = {row["encoder"]: row for row in bench.encode(quick=True)}
    assert rows.keys() == {"2 bits", "2 bits, search of 1,366 rows", "3 bits", "4 bits"}
    for name, vectors in (("2 bits", 1000), ("2 bits, search of 1,366 rows", 500), ("4 bits", 1000)):
        rates = [rows[name][key] for key in ("low", "million_weights_per_s", "high")]
        assert rates == pytest.approx([vectors * 8 / 1e6 / seconds for seconds in (4e-3, 2e-3, 1e-3)])
        assert len(raced[name]) == vectors


def test_bench_of_writing_counts_the_tokens_that_were_written(raced):
    rows = {row["engine"]: row for row in bench.generate(quick=True)}
    assert rows.keys() == raced.keys() == {"float32", "bfloat16", "QuIP#, 2 bits", "QuIP#, 2 bits, decoded"}
    for name, row in rows.items():
        assert raced[name].shape == (1, 8 + 4)
        assert [row[key] for key in ("low", "tokens_per_s", "high")] == pytest.approx([1000, 2000, 4000])
    assert torch.equal(raced["QuIP#, 2 bits"], raced["QuIP#, 2 bits, decoded"])
    assert rows["QuIP#, 2 bits"]["megabytes"] < rows["bfloat16"]["megabytes"]  # the embedding stays in float32
    assert linear.KERNELS["cpu"] is linear.cpu_kernel


def test_searching_both_cosets_finds_what_the_encoder_finds():
    from papers.quip_sharp import e8p

    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    error = (x - e8p.decode(e8p.encode(x))).square().sum(1)
    assert torch.allclose(bench._searched(x), error, atol=1e-5)
