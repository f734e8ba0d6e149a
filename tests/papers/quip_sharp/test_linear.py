"""QuantLinear: its forward pass is the dense product with W_hat, for every size, bias, dtype and split (oracle 10)."""

import copy

import pytest
import torch
from torch import nn

from papers.quip_sharp import linear, synthetic
from papers.quip_sharp.linear import FusedPart, QuantLinear
from papers.quip_sharp.quantize_weight import RECIPES, quantize_linear


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def quantized(m: int, n: int, method: str = "quip_sharp", bits: int = 2, parts: tuple[int, ...] = ()):
    W, H = synthetic.layer(m, n, gen(0), outliers=1)
    return quantize_linear(W.split(parts) if parts else W, H, method, bits, 0)


@pytest.fixture(params=["compiled", "decoded"])
def path(request, monkeypatch):
    """Both ways that a product is computed: from the words, and by decoding panels of rows."""
    if request.param == "decoded":
        monkeypatch.setattr(linear, "KERNELS", {})


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize(("m", "n"), [(32, 64), (40, 24), (22, 44), (12, 20), (9, 13), (1, 1), (33, 640)])
def test_forward_is_the_dense_product(m, n, bits):
    q = quantized(m, n, bits=bits)
    layer = QuantLinear.from_quantized(q)
    for shape in [(n,), (1, n), (5, n), (2, 3, n)]:
        x = torch.randn(*shape, generator=gen())
        y = layer(x)
        assert y.shape == (*shape[:-1], m)
        assert torch.allclose(y, x @ q.weight.T, atol=1e-4, rtol=1e-4)
    assert torch.allclose(layer.dense_weight(), q.weight, atol=1e-5)


@pytest.mark.parametrize("method", RECIPES)
def test_forward_of_every_recipe(method):
    q = quantized(24, 88, method)
    x = torch.randn(3, 88, generator=gen())
    assert torch.allclose(QuantLinear.from_quantized(q)(x), x @ q.weight.T, atol=1e-4, rtol=1e-4)


def test_fused_splits_and_biases():
    q = quantized(40, 64, parts=(20, 12, 8))
    bias = torch.randn(40, generator=gen())
    layer = QuantLinear.from_quantized(q, bias)
    x = torch.randn(2, 5, 64, generator=gen(1))
    whole = x @ q.weight.T + bias
    assert torch.allclose(layer(x), whole, atol=1e-4, rtol=1e-4)
    for part, expected in zip(layer.parts(x), whole.split((20, 12, 8), -1), strict=True):
        assert torch.allclose(part, expected, atol=1e-4, rtol=1e-4)


def test_decoding_in_panels_changes_nothing(monkeypatch):
    monkeypatch.setattr(linear, "KERNELS", {})
    layer = QuantLinear.from_quantized(quantized(37, 64, bits=3))
    x = torch.randn(4, 64, generator=gen())
    whole = layer(x)
    monkeypatch.setattr(linear, "CHUNK", 5 * 64)
    assert torch.allclose(layer(x), whole, atol=1e-5)


def test_whole_weight_is_never_decoded_at_once(monkeypatch):
    layer = QuantLinear.from_quantized(quantized(64, 64))
    monkeypatch.setattr(linear, "KERNELS", {})
    monkeypatch.setattr(linear, "CHUNK", 8 * 64)
    rows = []
    decode = layer._decode
    monkeypatch.setattr(layer, "_decode", lambda a, b: rows.append(b - a) or decode(a, b))
    layer(torch.randn(1, 64, generator=gen()))
    assert max(rows) == 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_has_the_inputs_dtype(dtype):
    q = quantized(24, 40)
    x = torch.randn(3, 40, generator=gen()).to(dtype)
    y = QuantLinear.from_quantized(q)(x)
    assert y.dtype == dtype
    reference = x.double() @ q.weight.double().T
    bound = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 1e-5)
    assert (y.double() - reference).abs().max() <= bound * reference.abs().max()


def test_autocast_leaves_the_rotations_in_float32(monkeypatch):
    layer = QuantLinear.from_quantized(quantized(64, 64)).set_tuning()
    x = torch.randn(8, 64, generator=gen())
    whole = layer(x)
    monkeypatch.setattr(layer, "_multiply", lambda y: y)  # the rotations alone
    rotated = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), rotated)
        monkeypatch.undo()
        y = layer(x)
    assert y.dtype == torch.float32
    assert (y - whole).norm() < 0.01 * whole.norm()


def test_moving_a_model_to_bfloat16_keeps_the_layers_own_dtypes():
    q = quantized(22, 44, "quip_sharp_rfft")
    layer = QuantLinear.from_quantized(q, torch.ones(22)).to(torch.bfloat16)
    assert layer.scale.dtype == torch.float32
    assert layer.U_phases.dtype == torch.float16
    assert layer.bias.dtype == torch.bfloat16
    x = torch.randn(3, 44, generator=gen())
    assert torch.allclose(layer(x), x @ q.weight.T + 1, atol=1e-4, rtol=1e-4)


def test_state_dict_and_spec_rebuild_the_layer():
    for method, bits in [("quip_sharp", 3), ("quip_sharp_rfft", 2), ("quip_sharp_no_e8", 3)]:
        layer = QuantLinear.from_quantized(quantized(22, 44, method, bits), torch.ones(22))
        again = QuantLinear(**layer.spec())
        again.load_state_dict(layer.state_dict())
        x = torch.randn(2, 44, generator=gen())
        assert torch.equal(again(x), layer(x))


def test_wrong_width_is_a_value_error():
    with pytest.raises(ValueError, match="64 features"):
        QuantLinear.from_quantized(quantized(8, 64))(torch.zeros(1, 63))
    with pytest.raises(ValueError, match="add up"):
        QuantLinear(64, 8, "e8p", splits=(4, 5))
    with pytest.raises(ValueError, match="multiple"):
        QuantLinear(65, 8, "e8p")
    W, H = synthetic.layer(8, 16, gen(0))
    with pytest.raises(ValueError, match="dense"):
        QuantLinear.from_quantized(quantize_linear(W, H, "rtn", 2))


# --------------------------------------------------------------------------------------------------------- tuning


def test_tuning_mode_makes_parameters_and_keeps_the_function():
    q = quantized(24, 40)
    layer = QuantLinear.from_quantized(q)
    assert list(layer.parameters()) == []
    x = torch.randn(5, 40, generator=gen())
    before, words = layer(x), layer.words.clone()
    layer.set_tuning(True)
    assert {name for name, _ in layer.named_parameters()} == {"SU", "SV"}
    assert layer.SU.dtype == torch.float32
    assert torch.allclose(layer(x), before, atol=1e-5)
    layer(x).square().sum().backward()
    assert layer.SU.grad.abs().min() > 0
    assert layer.SV.grad.abs().min() > 0
    layer.set_tuning(False)
    assert list(layer.parameters()) == []
    assert layer.SU.dtype == torch.float16
    assert torch.equal(layer.words, words)
    assert torch.allclose(layer(x), before, atol=1e-5)


def test_gradients_are_those_of_the_dense_expression():
    layer = QuantLinear.from_quantized(quantized(8, 16)).set_tuning()
    x = torch.randn(3, 16, generator=gen(), dtype=torch.float64, requires_grad=True)
    layer(x).sin().sum().backward()
    W = (layer.dense_weight().double()).requires_grad_()
    x2 = x.detach().clone().requires_grad_()
    (x2 @ W.T).sin().sum().backward()
    assert torch.allclose(x.grad, x2.grad, atol=1e-5)
    assert torch.allclose(layer.SU.grad.double(), (W.grad * W).sum(1).detach() / layer.SU.detach().double(), atol=1e-4)
    assert torch.allclose(layer.SV.grad.double(), (W.grad * W).sum(0).detach() / layer.SV.detach().double(), atol=1e-4)


# ---------------------------------------------------------------------------------------------------- fused parts


class Attention(nn.Module):
    def __init__(self, fused: QuantLinear):
        super().__init__()
        self.q, self.k, self.v = (FusedPart(fused, i) for i in range(3))

    def forward(self, x):
        return self.q(x), self.k(x), self.v(x)


def attention():
    q = quantized(40, 64, parts=(20, 12, 8))
    return Attention(QuantLinear.from_quantized(q)), q


def test_fused_parts_compute_once_and_give_the_right_rows(monkeypatch):
    model, q = attention()
    x = torch.randn(2, 3, 64, generator=gen())
    calls = []
    forward = QuantLinear.forward
    monkeypatch.setattr(QuantLinear, "forward", lambda self, x: calls.append(1) or forward(self, x))
    for part, W in zip(model(x), q.weight.split((20, 12, 8)), strict=True):
        assert torch.allclose(part, x @ W.T, atol=1e-4, rtol=1e-4)
    assert len(calls) == 1
    assert model.q.fused._pending is None  # nothing is kept once all parts are fetched


def test_fused_parts_are_never_stale():
    model, q = attention()
    x, y = torch.randn(3, 64, generator=gen()), torch.randn(3, 64, generator=gen(1))
    rows = q.weight.split((20, 12, 8))
    model.q(x)
    assert torch.allclose(model.k(y), y @ rows[1].T, atol=1e-4)
    model.q(x)
    assert torch.allclose(model.q(x), x @ rows[0].T, atol=1e-4)
    x.add_(1)  # the same tensor, another content
    assert torch.allclose(model.k(x), x @ rows[1].T, atol=1e-4)
    with torch.no_grad():
        model.q(x)
    model.q.fused.set_tuning()
    model.k(x)
    assert model.v(x).requires_grad


def test_fused_parts_work_in_inference_mode():
    model, q = attention()
    with torch.inference_mode():
        x = torch.randn(3, 64, generator=gen())
        assert torch.allclose(torch.cat(model(x), -1), x @ q.weight.T, atol=1e-4)


def test_copies_of_fused_parts_share_one_layer_of_their_own():
    model, _ = attention()
    x = torch.randn(3, 64, generator=gen())
    model.q.fused.set_tuning()
    model.q(x)  # leaves outputs with a graph behind, which must not enter the copy
    clone = copy.deepcopy(model)
    assert clone.k._shared[0] is clone.q.fused is not model.q.fused
    assert set(clone.state_dict()) == {"q.fused.words", "q.fused.SU", "q.fused.SV", "q.fused.scale"}


def test_a_faster_kernel_takes_the_place_of_the_products_for_its_device(monkeypatch):
    layer = QuantLinear.from_quantized(quantized(16, 32))
    x = torch.randn(2, 32, generator=gen())
    seen = []

    def kernel(words, codebook, columns, y):
        seen.append(tuple(y.shape))
        return y @ codebook.decode_packed(words, columns // 8).T

    expected = layer(x)
    monkeypatch.setitem(linear.KERNELS, "cpu", kernel)
    assert torch.allclose(layer(x), expected, atol=1e-5)
    assert seen == [(2, 32)]
