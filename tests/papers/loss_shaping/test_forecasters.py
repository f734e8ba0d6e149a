"""Forecasters: shapes, parameter counts, and outputs of the benchmark's own code on weights that a formula gives."""

import math

import pytest
import torch

from papers.loss_shaping.forecasters import DEFAULTS, FORECASTERS, Shape, build_forecaster
from papers.loss_shaping.forecasters.autoformer import AutoCorrelation
from papers.loss_shaping.forecasters.film import impulse_response, legendre_memory
from papers.loss_shaping.forecasters.informer import ProbSparse
from papers.loss_shaping.forecasters.layers import Decomposition, Softmax
from papers.loss_shaping.forecasters.pyraformer import pyramid
from papers.loss_shaping.forecasters.reformer import lsh_attention

SMALL = {"d_model": 16, "heads": 2, "d_ff": 32, "hippo_order": 16, "patch": 8, "patch_stride": 4, "projector": [8, 8]}

# at the benchmark's size for ETTh1: d = 512, d_ff = 2048, 2 + 1 layers, T_c = T_p = 96, T_l = 48, C = 7, d_m = 4
ATTENTION, FF = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512
EMBEDDING = 3 * 7 * 512 + 4 * 512
ENCODER, DECODER, OUT = ATTENTION + FF + 2 * 1024, 2 * ATTENTION + FF + 3 * 1024, 512 * 7 + 7
DISTIL = 3 * 512 * 512 + 512 + 1024
FACTOR = 96 * 3 + 14 * 128 + 128 + 128 * 128 + 128
VANILLA = 2 * EMBEDDING + 2 * ENCODER + DECODER + 2 * 1024 + OUT
COUNTS = {
    "transformer": VANILLA,
    "informer": VANILLA + DISTIL,
    "nonstationary": VANILLA + 2 * FACTOR + 128 + 128 * 96,
    "autoformer": VANILLA - 3 * (2048 + 512) - 2 * 2 * 1024 - 3 * 1024 + 3 * 512 * 7,  # no biases, no norms in blocks; trend
    "reformer": EMBEDDING + 2 * (3 * 512 * 512 + 512 + FF + 2 * 1024) + 1024 + OUT,
    "pyraformer": EMBEDDING + 2 * (ATTENTION + FF + 1024) + 2 * 512 * 128 + 128 + 512 + 1024 + 2 * (4 * 128 * 128 + 128 + 256)
    + 3 * 512 * 96 * 7 + 96 * 7,
    "itransformer": 96 * 512 + 512 + 2 * ENCODER + 1024 + 512 * 96 + 96,
    "film": 2 * 7 + 3 * 2 * 256 * 256 * 32 + 4,
    "dlinear": 2 * (96 * 96 + 96),
    "linear": 96 * 96 + 96,
    "bottleneck": 96 * 3 + 3 + 3 * 96 + 96,
}  # fmt: skip

# (first value, last value, deviation, mean) of the benchmark's code at evaluation and in training, dropout 0
REFERENCE = {
    "transformer": ([-0.42239, -0.08626, 0.26135, -0.09534], [-0.42239, -0.08626, 0.26135, -0.09534]),
    "informer": ([0.1237, 0.02792, 0.19489, -0.06079], [0.1237, 0.02792, 0.19489, -0.06078]),
    "nonstationary": ([-0.29664, 0.15244, 0.27505, 0.04098], [-0.29664, 0.15244, 0.27505, 0.04098]),
    "autoformer": ([-0.0979, 0.18548, 0.11969, 0.04023], [-0.09787, 0.18541, 0.1197, 0.04021]),
    "itransformer": ([-0.26679, 0.13823, 0.20997, 0.10227], [-0.26679, 0.13823, 0.20997, 0.10227]),
    "reformer": ([-0.36513, 0.01268, 0.21645, -0.07709], [-0.36513, 0.01268, 0.21645, -0.07709]),
    "pyraformer": ([0.24175, 0.19824, 0.21248, 0.00174], [0.24175, 0.19824, 0.21248, 0.00174]),
    "film": ([-0.09114, 0.2077, 0.11148, 0.0452], [-0.09114, 0.2077, 0.11148, 0.0452]),
    "dlinear": ([0.29832, 0.35, 0.24059, -0.00728], [0.29832, 0.35, 0.24059, -0.00728]),
}


def inputs(B: int, C: int, Tc: int, Tl: int, Tp: int) -> tuple[torch.Tensor, ...]:
    """x, m_x, dec_in, m_y from sines."""
    t = torch.arange(Tc + Tp, dtype=torch.float32)
    y = torch.stack([torch.sin(t * (0.2 + 0.1 * c) + b) + 0.1 * b * c for b in range(B) for c in range(C)])
    y = y.reshape(B, C, -1).transpose(1, 2)
    marks = torch.stack([torch.cos(t * 0.3 * (k + 1)) / 2 for k in range(4)], -1).expand(B, -1, -1)
    known = torch.cat([y[:, Tc - Tl : Tc], torch.zeros(B, Tp, C)], 1)
    return y[:, :Tc], marks[:, :Tc], known, marks[:, Tc - Tl :]


@pytest.mark.parametrize("name", FORECASTERS)
@pytest.mark.parametrize("horizon", [12, 40])
def test_a_forecast_has_the_horizon_s_shape_and_reaches_every_parameter(name, horizon):
    torch.manual_seed(0)
    forecaster = build_forecaster(name, Shape(3, 4, 24, 8, horizon), SMALL)
    out = forecaster(*inputs(5, 3, 24, 8, horizon))
    assert out.shape == (5, horizon, 3)
    assert out.isfinite().all()
    out.square().sum().backward()
    missed = [k for k, p in forecaster.named_parameters() if p.grad is None]
    assert not missed


@pytest.mark.parametrize("name", COUNTS)
def test_the_number_of_parameters_is_the_benchmark_s(name):
    """Held against the benchmark's code, bottleneck and linear apart; Pyraformer's there has tables for the calendar."""
    with torch.device("meta"):
        forecaster = build_forecaster(name, Shape(7, 4, 96, 48, 96))
    assert sum(p.numel() for p in forecaster.parameters()) == COUNTS[name]


def test_the_library_s_defaults_are_the_configs():
    from common import settings

    for name in FORECASTERS:
        chosen = settings.compose("loss_shaping", "train", [f"model={name}"]).model
        differs = {key for key, value in chosen.items() if key in DEFAULTS and value != DEFAULTS[key]}
        assert not differs or name == "patchtst"  # its config has its authors' values, not the benchmark's


def test_patchtst_has_the_authors_size():
    options = {"d_model": 128, "heads": 16, "encoder_layers": 3, "d_ff": 256, "dropout": 0.2}
    forecaster = build_forecaster("patchtst", Shape(7, 4, 96, 48, 96), options)
    patches, d = (96 - 16) // 8 + 2, 128  # 11 and the one of repeated rows
    layer = 4 * (d * d + d) + 2 * d * 256 + 256 + d + 2 * 2 * d
    trained = sum(p.numel() for p in forecaster.parameters() if p.requires_grad)
    assert trained == 16 * d + d + 3 * layer + patches * d + patches * d * 96 + 96


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_the_benchmark_code_s(name, training):
    """Informer: the benchmark's code forgets to move heads back before it joins them; the figures are with that mended."""
    forecaster = build_forecaster(name, Shape(3, 4, 32, 8, 16), d_model=32, heads=4, d_ff=64, projector=[16, 16], moving_average=5, dropout=0.0)  # fmt: skip
    with torch.no_grad():
        for i, p in enumerate(forecaster.parameters()):
            wave = 0.3 * torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (0.7 + 0.13 * i) + i)
            p.copy_((wave / (1 if p.ndim < 2 else p.shape[1] ** 0.5)).reshape(p.shape))
            if name == "film" and p.ndim == 3 and len(p) == 256:
                p.mul_(1 / 16)
            if name == "film" and i == 0:
                p.add_(1.0)  # a gain near one
        x = inputs(2, 3, 32, 8, 16)
        if training:  # as the figures were made: once at evaluation, then in training (batch norm remembers)
            forecaster.eval()(*x)
        torch.manual_seed(7)
        out = forecaster.train(training)(*x)
    found = [out[0, 0, 0].item(), out[-1, -1, -1].item(), out.std().item(), out.mean().item()]
    assert found == pytest.approx(REFERENCE[name][training], abs=3e-5)


@pytest.mark.parametrize("name", ["transformer", "informer", "autoformer", "nonstationary", "reformer"])
def test_the_decoder_input_s_future_is_empty(name):
    """What the forecast may see of the answer is nothing: WindowLosses gives zeros there."""
    from papers.loss_shaping.shaping import predict

    x, x_mark, _, y_mark = inputs(2, 3, 24, 8, 12)
    torch.manual_seed(0)
    forecaster = build_forecaster(name, Shape(3, 4, 24, 8, 12), SMALL).eval()
    out = []
    for y in (torch.zeros(2, 12, 3), 100 * torch.ones(2, 12, 3)):
        torch.manual_seed(1)
        out.append(predict(forecaster, {"x": x, "y": y, "x_mark": x_mark, "y_mark": y_mark}))
    assert torch.equal(*out)


def test_the_trend_is_a_moving_average_with_its_ends_repeated():
    x = torch.tensor([1.0, 2.0, 6.0, 3.0]).reshape(1, 4, 1)
    season, trend = Decomposition(3)(x)
    torch.testing.assert_close(trend.flatten(), torch.tensor([4 / 3, 3.0, 11 / 3, 4.0]))
    torch.testing.assert_close(season + trend, x)


def test_prob_sparse_attention_with_all_queries_kept_is_attention():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 6, 2, 4).unbind(0)
    for causal in (False, True):
        torch.testing.assert_close(ProbSparse(6, causal=causal)(q, k, v), Softmax(causal=causal)(q, k, v))


def test_autocorrelation_rolls_values_by_the_lag_of_the_queries():
    """q is k, five rows late: the best lag is 5, and with one lag the output is v rolled by it."""
    torch.manual_seed(0)
    k, v = torch.randn(2, 1, 16, 1, 8).unbind(0)
    out = AutoCorrelation(factor=0).eval()(k.roll(5, 1), k, v)  # int(0 ln L) = 0: at least one lag
    torch.testing.assert_close(out, v.roll(-5, 1))


def test_hashed_attention_in_one_bucket_is_attention_without_oneself():
    torch.manual_seed(0)
    qk, v = torch.randn(2, 3, 8, 4).unbind(0)
    keys = torch.nn.functional.normalize(qk, dim=-1)
    logits = (qk @ keys.mT / 2.0).masked_fill(torch.eye(8, dtype=torch.bool), -math.inf)
    # two buckets of 4: each chunk sees itself and the one before, which is the other: all 8 rows
    torch.testing.assert_close(lsh_attention(qk, v, bucket_size=4, hashes=1), logits.softmax(-1) @ v)


def test_pyramid_nodes_see_neighbours_children_and_parent():
    mask, sizes = pyramid(9, [4, 2], 3)
    assert sizes == [9, 2, 1]
    assert torch.equal(mask, mask.T)
    assert mask[0].nonzero().flatten().tolist() == [0, 1, 9]
    assert mask[8].nonzero().flatten().tolist() == [7, 8, 10]  # left over: the last parent takes it
    assert mask[11].nonzero().flatten().tolist() == [9, 10, 11]


def test_legendre_memory_recalls_a_constant():
    """After a window of ones the memory is the first Legendre coefficient alone."""
    response = impulse_response(8, 1 / 200, 4000)
    assert response.sum(0) == pytest.approx([1.0] + [0.0] * 7, abs=1e-2)
    A, B = legendre_memory(8, 1 / 200)
    assert A.shape == (8, 8)
    assert B.shape == (8,)


def test_an_unknown_forecaster_is_named():
    with pytest.raises(ValueError, match="the forecasters are"):
        build_forecaster("lstm", Shape(1, 4, 8, 2, 4))
