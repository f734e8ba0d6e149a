"""Hadamard matrices, the fast transform, and the sizes that the fallback chain covers (oracle 3, traps i and ii)."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.quip_sharp import hadamard
from papers.quip_sharp.hadamard import BASES, hadamard_matrix, padded_size, rfft, transform
from tests import contexts


def dense(n: int) -> torch.Tensor:
    K, length = hadamard.factor(n)
    return torch.kron(hadamard_matrix(K), hadamard_matrix(length)).double() / n**0.5


@pytest.mark.parametrize("K", [1, 2, 4, 64, *BASES])
def test_matrix_is_hadamard(K):
    H = hadamard_matrix(K)
    assert H.shape == (K, K)
    assert set(H.unique().tolist()) <= {-1.0, 1.0}
    assert torch.equal(H @ H.T, K * torch.eye(K))


def test_the_twelve_base_orders():
    assert BASES == (12, 20, 28, 36, 52, 60, 108, 116, 124, 140, 156, 172)


@pytest.mark.parametrize("K", [0, 3, 22, 44, 100, -4])
def test_unknown_order_is_a_value_error(K):
    with pytest.raises(ValueError, match="order"):
        hadamard_matrix(K)


@pytest.mark.parametrize("n", [1, 2, 32, 256])
def test_power_of_two_equals_scipy(n):
    x = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x.numpy() @ scipy.linalg.hadamard(n).T / np.sqrt(n)
    assert np.allclose(transform(x).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    "n", [12, 24, 20, 40, 80, 28 * 8, 36 * 2, 52, 60 * 4, 108, 116 * 2, 124, 140 * 2, 156, 172 * 2, 640]
)
def test_mixed_size_equals_dense_kronecker_product(n):
    x = torch.randn(2, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    assert torch.allclose(transform(x), x @ dense(n).T, atol=1e-12)
    # Trap ii: the inverse is the transpose, which is another matrix for the base orders that are not symmetric.
    assert torch.allclose(transform(x, inverse=True), x @ dense(n), atol=1e-12)


def test_base_matrices_known_to_be_asymmetric():
    asymmetric = {K for K in BASES if not torch.equal(hadamard_matrix(K), hadamard_matrix(K).T)}
    assert asymmetric >= {12, 20, 52, 60, 108, 116, 140, 156, 172}


@settings(max_examples=40, deadline=None)
@given(q=st.integers(0, 5), base=st.sampled_from([1, *BASES]), batch=st.integers(1, 4), seed=st.integers(0, 99))
def test_inverse_undoes_and_norm_is_kept(q, base, batch, seed):
    n = base * 2**q
    x = torch.randn(batch, n, generator=torch.Generator().manual_seed(seed))
    y = transform(x)
    assert torch.allclose(transform(y, inverse=True), x, atol=5e-6)
    assert torch.allclose(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-5)  # trap i: 1/sqrt(n), not 1/sqrt(n/K)


def test_transform_of_a_batch_is_the_batch_of_transforms():
    x = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(1))
    rows = torch.stack([torch.stack([transform(v) for v in block]) for block in x])
    assert torch.allclose(transform(x), rows, atol=1e-6)


def test_size_one_is_the_identity():
    x = torch.tensor([[2.5], [-1.0]])
    assert torch.equal(transform(x), x)


@pytest.mark.parametrize("n", [2 * 11, 44, 68, 17 * 16, 10920])
def test_even_sizes_without_a_hadamard_matrix_take_the_fft(n):
    assert not hadamard.is_supported(n)
    x = torch.randn(2, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    y = transform(x)
    assert torch.allclose(y, rfft(x, torch.zeros(n // 2)), atol=1e-12)
    assert torch.allclose(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-12)
    assert torch.allclose(transform(y, inverse=True), x, atol=1e-12)
    a, b = x[0], x[1]  # the inverse is the transpose: <V a, b> = <a, V^T b>
    assert torch.allclose((transform(a) * b).sum(-1), (a * transform(b, inverse=True)).sum(-1), atol=1e-10)


@pytest.mark.parametrize("n", [0, 3, 11, 255])
def test_odd_sizes_are_a_value_error_that_names_them(n):
    with pytest.raises(ValueError, match=str(n)):
        transform(torch.zeros(2, n))


def test_half_precision_is_computed_in_float32_and_returned_in_kind():
    x = torch.randn(4, 640, generator=torch.Generator().manual_seed(2))
    y = transform(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, transform(x.bfloat16().float()).bfloat16())


def test_gradient_flows_even_after_use_in_inference_mode():
    contexts.clear("papers.quip_sharp")
    with torch.inference_mode():
        transform(torch.ones(1, 24))
    x = torch.ones(1, 24, requires_grad=True)
    transform(x)[0, 3].backward()
    assert torch.allclose(x.grad[0], dense(24)[3].float(), atol=1e-6)


@pytest.mark.parametrize("n", [2, 22, 34, 100, 64])
def test_rfft_is_orthogonal_and_its_inverse_undoes_it(n):
    phases = 2 * torch.pi * torch.rand(n // 2, generator=torch.Generator().manual_seed(n))
    V = rfft(torch.eye(n), phases).T
    assert (V @ V.T - torch.eye(n)).abs().max() < 1e-6
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(rfft(rfft(x, phases), phases, inverse=True), x, atol=1e-6)


def test_rfft_needs_an_even_size_and_half_as_many_phases():
    with pytest.raises(ValueError, match="even"):
        rfft(torch.zeros(3), torch.zeros(1))
    with pytest.raises(ValueError, match="phases"):
        rfft(torch.zeros(4), torch.zeros(3))


@pytest.mark.parametrize(
    ("n", "size", "kind"),
    [
        (4096, 4096, "hadamard"),
        (11008, 11008, "hadamard"),
        (10920, 10920, "rfft"),
        (22, 22, "rfft"),
        (257, 258, "rfft"),
        (11, 12, "hadamard"),
        (1, 1, "hadamard"),
    ],
)
def test_fallback_chain(n, size, kind):
    assert padded_size(n) == (size, kind)


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 30000), multiple=st.sampled_from([1, 4, 8]))
def test_every_size_has_a_transform_and_pads_little(n, multiple):
    size, kind = padded_size(n, multiple)
    assert n <= size <= n + multiple
    assert size % multiple == 0
    assert hadamard.is_supported(size) if kind == "hadamard" else size % 2 == 0


@pytest.mark.parametrize(
    ("n", "K"),
    [
        (5120, 20),
        (11008, 172),
        (13824, 108),
        (28672, 28),
        (14336, 28),
        (6656, 52),
        (17920, 140),
        (22016, 172),
        (12288, 12),
        (15360, 60),
        (27648, 108),
        (10240, 20),
        (57344, 28),
        (19968, 156),
        (35840, 140),
    ],
)
def test_sizes_of_real_models_factor_as_in_the_brief(n, K):
    assert hadamard.factor(n) == (K, n // K)


def test_integers_are_transformed_as_numbers():
    x = torch.arange(8)
    assert hadamard.transform(x).dtype == torch.float32
    assert torch.equal(hadamard.transform(x), hadamard.transform(x.float()))
