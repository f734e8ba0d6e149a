"""What senseless input meets at the doors of the library: an error that says what to give, never garbage."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from papers.quip_sharp import baselines, codebooks, e8p, hadamard, lookup, synthetic
from papers.quip_sharp.hessians import check_calibration, collect_hessians
from papers.quip_sharp.incoherence import as_generator
from papers.quip_sharp.ldlq import block_ldl, block_ldlq, factor
from papers.quip_sharp.quantize_weight import METHODS, quantize_linear

NAN, INF = float("nan"), float("inf")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def layer():
    return synthetic.layer(16, 32, gen(0), outliers=2)


# -------------------------------------------------------------------------------------------------- far from the ball


def directions(n: int, block: int) -> torch.Tensor:
    """Random ones, ones with a few large entries, and the axes, where many codewords have the same x.y."""
    x = torch.randn(n, block, generator=gen(), dtype=torch.float64)
    x[: n // 4] *= torch.rand(n // 4, block, generator=gen(1), dtype=torch.float64) ** 8
    x[-2 * block :] = torch.cat([torch.eye(block), -torch.eye(block)])
    return x / x.abs().amax(1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 100.0, 257.0, 1e4, 1e6, 1e9, 1e12, 1e15, 3e38])
@pytest.mark.parametrize("name", ["e8p", "e8_1bit", "d4"])
def test_nearest_codeword_at_every_distance(name, size, dtype):
    """|x - y|^2 = |x|^2 - (2 x.y - |y|^2). The bracket is compared, in float64, with that of every codeword there is."""
    codebook = codebooks.get(name)
    table = codebook.decode(torch.arange(2 ** codebook.widths[0])).double()
    x = (directions(64, codebook.block) * size).to(dtype)
    score = 2 * x.double() @ table.T - table.square().sum(1)
    found = score.gather(1, codebook.encode(x)[:, None])[:, 0]
    tolerance = 1e-6 if dtype == torch.float32 and size <= lookup.FAR else 1e-11
    assert (score.amax(1) - found <= tolerance * score.amax(1).abs().clamp(min=1)).all()


def test_on_an_axis_the_shortest_of_the_codewords_that_reach_furthest_is_nearest():
    """All of them have the same x.y: at any distance it is |y|^2 that decides."""
    table = e8p.decode(torch.arange(65536))
    furthest = table[:, 2] == table[:, 2].max()
    shortest = table[furthest].square().sum(1).min()
    for size in (1e3, 1e8, 1e20, 3e38):
        y = e8p.decode(e8p.encode(torch.eye(8)[2] * size))
        assert y[2] == table[:, 2].max()
        assert y.square().sum() == shortest


@pytest.mark.parametrize("name", codebooks.NAMES)
def test_a_far_vector_changes_no_other_vectors_word(name):
    codebook = codebooks.get(name)
    x = torch.randn(50, codebook.block, generator=gen())
    far = torch.cat([x, torch.full((1, codebook.block), 3e38), x])
    codes = codebook.encode(far)
    assert torch.equal(codes[:50], codebook.encode(x))
    assert torch.equal(codes[51:], codebook.encode(x))
    assert torch.isfinite(codebook.decode(codes)).all()
    assert torch.equal(codebook.encode(far[50]), codes[50])
    assert torch.isfinite(codebook.quantize(far.double() * 1e200)[0]).all()


@pytest.mark.parametrize("name", codebooks.NAMES)
def test_only_words_of_the_codebook_can_be_decoded(name):
    codebook = codebooks.get(name)
    count = 2 ** (codebook.bits * codebook.block)
    assert codebook.decode(torch.tensor([0, count - 1])).shape == (2, codebook.block)
    for bad in (torch.tensor([-1]), torch.tensor([0, count]), torch.tensor([1.0]), torch.tensor([True])):
        with pytest.raises(ValueError, match="words must"):
            codebook.decode(bad)
    if codebook.bits * codebook.block == 16:
        with pytest.raises(ValueError, match="int16"):
            codebook.decode(torch.tensor([1], dtype=torch.int16))


@pytest.mark.parametrize("name", codebooks.NAMES)
def test_only_real_vectors_of_a_block_can_be_encoded(name):
    codebook = codebooks.get(name)
    for bad in (torch.tensor(1.0), torch.zeros(2, codebook.block + 1)):
        with pytest.raises(ValueError, match=f"blocks of {codebook.block}"):
            codebook.encode(bad)
    for bad, words in [
        (torch.zeros(2, codebook.block, dtype=torch.complex64), "real"),
        (torch.full((codebook.block,), INF), "NaN"),
    ]:
        with pytest.raises(ValueError, match=words):
            codebook.encode(bad)
    assert codebook.encode(torch.zeros(0, codebook.block)).shape == (0,)


def test_residual_scale_must_be_a_positive_number():
    for bad in (0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="residual_scale must be positive"):
            codebooks.get("e8p_rvq3", bad)
    for wrong in (True, "2", torch.tensor(2.0)):
        with pytest.raises(TypeError, match="residual_scale must be a number"):
            codebooks.get("e8p_rvq3", wrong)
    assert codebooks.get("e8p_rvq3", np.float32(2)).residual_scale == 2.0


# ---------------------------------------------------------------------------------------------------------- transforms


def test_transforms_of_nothing_and_of_what_has_no_last_axis():
    for n in (16, 22, 24):
        assert hadamard.transform(torch.zeros(0, n)).shape == (0, n)
        assert hadamard.transform(torch.zeros(2, 0, n), inverse=True).shape == (2, 0, n)
    assert hadamard.rfft(torch.zeros(0, 22), torch.zeros(11)).shape == (0, 22)
    for bad in (torch.tensor(1.0), torch.zeros(2, 16, dtype=torch.complex64), torch.zeros(22, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="real numbers"):
            hadamard.transform(bad)
    with pytest.raises(ValueError, match="real numbers"):
        hadamard.rfft(torch.zeros(4, dtype=torch.complex64), torch.zeros(2))


@pytest.mark.parametrize("bad", ["12", None, 12.0, True])
def test_order_of_a_hadamard_matrix_is_an_integer(bad):
    with pytest.raises(TypeError, match="must be an integer"):
        hadamard.hadamard_matrix(bad)


# ------------------------------------------------------------------------------------------------------------ one layer


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bits": 2.0}, TypeError, "bits must be an int"),
        ({"bits": True}, TypeError, "bits must be an int"),
        ({"bits": torch.tensor(2)}, TypeError, "bits must be an int"),
        ({"tune": -1}, ValueError, "tune must be a number of passes"),
        ({"tune": 1.0}, TypeError, "tune must be an int"),
        ({"sigma": NAN}, ValueError, "sigma must be 0 or more"),
        ({"sigma": INF}, ValueError, "sigma must be 0 or more"),
        ({"sigma": -0.1}, ValueError, "sigma must be 0 or more"),
        ({"sigma": "1"}, TypeError, "sigma must be a number"),
        ({"rho": NAN}, ValueError, "rho must be positive"),
        ({"rho": [1.0, INF]}, ValueError, "rho must be positive"),
        ({"rho": 10**400}, ValueError, "rho must be positive"),
        ({"rho": torch.tensor(1.0)}, TypeError, "rho must be a number"),
        ({"bits": 4, "residual_scale": 0.0}, ValueError, "residual_scale must be positive"),
        ({"bits": 4, "residual_scale": NAN}, ValueError, "residual_scale must be positive"),
        ({"rng": True}, TypeError, "rng must be"),
        ({"rng": 2**64}, ValueError, "64 bits"),
    ],
)
def test_options_that_make_no_sense(layer, options, error, words):
    with pytest.raises(error, match=words):
        quantize_linear(*layer, **options)


def test_numpy_numbers_are_numbers(layer):
    plain = quantize_linear(*layer, rng=3, rho=0.5)
    assert torch.equal(quantize_linear(*layer, rng=np.int64(3), rho=np.float32(0.5)).words, plain.words)
    assert as_generator(-1).initial_seed() == as_generator(2**64 - 1).initial_seed()


@pytest.mark.parametrize("method", ["rtn", "gptq", "quip", "quip_sharp"])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda W: W[:0], ValueError, "does not fit"),
        (lambda W: W[:, :0], ValueError, "does not fit"),
        (lambda W: W[0], ValueError, "does not fit"),
        (lambda W: W[0, 0], ValueError, "does not fit"),
        (lambda W: W.to(torch.complex64), ValueError, "complex"),
        (lambda W: W > 0, ValueError, "torch.bool"),
        (lambda W: W.tolist(), TypeError, "W must be a tensor"),
        (lambda W: W.numpy(), TypeError, "W must be a tensor"),
        (lambda W: W.sign() * 3e38, ValueError, "3.0e[+]38, where float32 runs out"),
        (lambda W: W.double().sign() * 1e200, ValueError, "float32 runs out"),
        (lambda W: W.double().sign() * 1e-200, ValueError, "float32 runs out"),
    ],
)
def test_weights_that_cannot_be_quantised(layer, method, change, error, words):
    with pytest.raises(error, match=words):
        quantize_linear(change(layer[0]), layer[1], method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1.1e-38, 9e36])
def test_weights_as_small_and_large_as_they_may_be_are_quantised_like_any_other(layer, method, size):
    W, H = layer
    plain, extreme = quantize_linear(W, H, method), quantize_linear(W / W.abs().max() * size, H, method)
    assert torch.isfinite(extreme.weight).all()
    assert (
        extreme.proxy_error < 1.5 * plain.proxy_error
    )  # QuIP's rescale has an absolute floor: it does less for tiny W


def indefinite(n: int, eigenvalue: float) -> torch.Tensor:
    """Ones on the diagonal, and one negative eigenvalue."""
    H = torch.eye(n, dtype=torch.float64)
    H[0, 1] = H[1, 0] = 1 - eigenvalue
    return H


@pytest.mark.parametrize("method", METHODS)
def test_hessians_that_are_no_second_moment(layer, method):
    W, H = layer
    swap = torch.zeros(32, 32)
    swap[0, 1] = swap[1, 0] = 1
    negative = torch.eye(32)
    negative[3, 3] = -0.3
    hidden = (
        [] if method == "rtn" else [indefinite(32, -1.5)]
    )  # RTN factors nothing: it sees the diagonal, and its own error
    for bad in (-H, -torch.eye(32), swap, negative, *hidden):
        with pytest.raises(ValueError, match="not a second moment"):
            quantize_linear(W, bad, method)
    with pytest.raises(ValueError, match="not symmetric"):
        quantize_linear(W, H.triu(), method)
    with pytest.raises(TypeError, match="Hessian must be a tensor"):
        quantize_linear(W, H.numpy(), method)
    for bad in (H[0], H[:0, :0], H.to(torch.complex64)):
        with pytest.raises(ValueError, match="square matrix of real numbers"):
            quantize_linear(W, bad, method)
    assert 0 < quantize_linear(W, indefinite(32, -0.1), method).proxy_error < 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e300, 1e100, 1e-100, 1e-300])
def test_scale_of_the_hessian_does_not_matter(layer, method, scale):
    W, H = layer
    plain, scaled = quantize_linear(W, H, method), quantize_linear(W, H * scale, method)
    assert scaled.proxy_error == pytest.approx(plain.proxy_error, rel=1e-3)


def test_gptq_doubles_its_damping_where_it_must():
    W = torch.randn(8, 32, generator=gen())
    assert torch.isfinite(baselines.gptq(W, indefinite(32, -0.1), 3)).all()
    with pytest.raises(ValueError, match="not a second moment"):
        baselines.gptq(W, indefinite(32, -2.0), 3)


# ---------------------------------------------------------------------------------------------------------- BlockLDLQ


def test_block_ldl_refuses_what_it_would_misread(layer):
    _, H = layer
    H = H + H.diagonal().mean() * torch.eye(32)
    with pytest.raises(ValueError, match="not symmetric"):
        block_ldl(H.tril(), 8)
    for bad in (8.0, "8", True):
        with pytest.raises(TypeError, match="block must be an integer"):
            block_ldl(H, bad)
    for H in (torch.eye(8, dtype=torch.int64), torch.eye(8).half()):
        assert block_ldl(H, 4)[0].dtype == torch.float32
        assert factor(H, 4).L.dtype == torch.float32


def test_block_ldlq_says_which_argument_does_not_fit():
    W, H = torch.randn(3, 8, generator=gen()), torch.eye(8)
    for bad, words in [(W[:, :4], "does not fit"), (W[0], "does not fit"), (W[:, :0], "does not fit"), (W / 0, "NaN")]:
        with pytest.raises(ValueError, match=words):
            block_ldlq(bad, H, torch.round, 4)
    with pytest.raises(TypeError, match="weight must be a tensor"):
        block_ldlq(W.tolist(), H, torch.round, 4)
    for wrong in (lambda x: x[0], lambda x: (x, x), lambda x: None):
        with pytest.raises(ValueError, match="quantize must return one tensor"):
            block_ldlq(W, H, wrong, 4)
    assert torch.equal(block_ldlq(W, H.half(), torch.round, 4), W.round())


# ---------------------------------------------------------------------------------------------------------- calibration


def test_calibration_must_suit_the_model(llama):
    ids = torch.zeros(2, 8, dtype=torch.int64)
    for bad, error, words in [
        (ids.numpy(), TypeError, "ndarray"),
        (ids + 64, ValueError, "64 to 64.*below the 64"),
        (ids - 1, ValueError, "must be 0 or more"),
        (torch.zeros(2, 33, dtype=torch.int64), ValueError, "33 tokens: the model has 32 positions"),
    ]:
        with pytest.raises(error, match=words):
            collect_hessians(llama(), bad)
    check_calibration(ids + 64)  # no model to ask


class Siblings(nn.Module):
    """Calls q_proj, k_proj and v_proj in a given order, each with its own input."""

    def __init__(self, *order: str, shift: float = 0.0):
        super().__init__()
        self.embed, self.order, self.shift = nn.Embedding(64, 8), order, shift
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        return sum(getattr(self, name)(x + self.shift * i) for i, name in enumerate(self.order))


@pytest.mark.parametrize("order", ["qkv", "kqv", "vkq"])
def test_siblings_may_run_in_any_order(order, tokens):
    model = Siblings(*(f"{letter}_proj" for letter in order))
    found = collect_hessians(model, tokens, batch_size=5)
    x = model.embed(tokens).detach().double().flatten(0, 1)
    assert list(found) == ["q_proj"]
    assert torch.allclose(found["q_proj"], x.T @ x / len(x))
    with pytest.raises(ValueError, match=f"{order[1]}_proj does not read the same input as {order[0]}_proj"):
        collect_hessians(Siblings(*model.order, shift=1.0), tokens)


def test_complaints_about_a_linear_name_it(llama, tokens):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.a, self.b = nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, ids):
            return self.a(self.embed(ids))

    with pytest.raises(ValueError, match="b was not reached by the calibration data"):
        collect_hessians(Unused(), tokens)
    model = llama()
    model.model.layers[1].input_layernorm.weight.data.fill_(INF)
    with pytest.raises(ValueError, match=r"model.layers.1.self_attn.q_proj have NaN or infinite"):
        collect_hessians(model, tokens)


# -------------------------------------------------------------------------------------------------------------- tables


def run_alone(code: str) -> None:
    """In a process of its own, where no table has been built."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_layers_of_every_codebook_can_be_compiled():
    run_alone(
        """
import torch
from papers.quip_sharp.linear import QuantLinear
torch.set_num_threads(1)
for name in ("e8p", "e8p_rvq3", "d4", "scalar3"):
    for cores in (("hadamard", "hadamard"), ("rfft", "kron")):
        layer = QuantLinear(48, 32, name, cores=cores)
        layer.words.random_(0, 256)
        compiled = torch.compile(layer, backend="eager")
        for rows in (3, 40):  # uncompiled, the first go straight from the words
            x = torch.randn(rows, 48)
            for y in (compiled(x), layer(x)):  # what compiling looked up first must serve afterwards
                assert torch.allclose(y, x @ layer.dense_weight().T, atol=1e-4), (name, cores, rows)
"""
    )
