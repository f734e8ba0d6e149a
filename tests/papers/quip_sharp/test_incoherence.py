"""Rotations: what they keep, what they even out, how they are drawn (oracle 4, traps xiii and xiv, experiment E1)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.quip_sharp import hadamard, synthetic
from papers.quip_sharp import incoherence as inc
from papers.quip_sharp.incoherence import draw, rotate_hessian, rotate_weight, unrotate_weight


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layer(m: int, n: int, seed: int = 0):
    g = gen(seed)
    W = torch.randn(m, n, generator=g, dtype=torch.float64)
    X = torch.randn(3 * n, n, generator=g, dtype=torch.float64) * torch.linspace(0.1, 3, n, dtype=torch.float64)
    return W, X.T @ X / len(X)


@pytest.mark.parametrize("kind", inc.KINDS)
@pytest.mark.parametrize(("m", "n"), [(16, 32), (24, 40), (22, 88), (12, 20), (8, 8)])
def test_rotation_keeps_the_proxy_loss_and_the_spectrum(kind, m, n):
    W, H = layer(m, n)
    U, V = draw(kind, m, gen(1)), draw(kind, n, gen(2))
    W_tilde, H_tilde = rotate_weight(W, U, V), rotate_hessian(H, V)
    assert ((W_tilde @ H_tilde) * W_tilde).sum() == pytest.approx(((W @ H) * W).sum().item(), rel=1e-6)
    assert torch.allclose(torch.linalg.eigvalsh(H_tilde), torch.linalg.eigvalsh(H), rtol=1e-6, atol=1e-6)
    assert torch.allclose(unrotate_weight(W_tilde, U, V), W, atol=1e-6)
    assert W_tilde.norm() == pytest.approx(W.norm().item(), rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(kind=st.sampled_from(inc.KINDS), m=st.integers(1, 40), n=st.integers(1, 60), block=st.sampled_from([1, 4, 8]))
def test_every_size_can_be_rotated_and_undone(kind, m, n, block):
    W, H = layer(m, n)
    U, V = draw(kind, m, gen(3)), draw(kind, n, gen(4), block)
    assert V.size % block == 0
    W_tilde, H_tilde = rotate_weight(W, U, V), rotate_hessian(H, V)
    assert W_tilde.shape == (U.size, V.size)
    assert torch.allclose(unrotate_weight(W_tilde, U, V), W, atol=1e-5)
    assert ((W_tilde @ H_tilde) * W_tilde).sum() == pytest.approx(((W @ H) * W).sum().item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["rht", "rfft", "kron"])
def test_rotated_hessian_is_exactly_symmetric(kind):
    """Trap xiii: rounding breaks the symmetry, and Cholesky would silently use one triangle."""
    _, H = layer(8, 96)
    H_tilde = rotate_hessian(H.float(), draw(kind, 96, gen()))
    assert torch.equal(H_tilde, H_tilde.T)


def test_signs_are_exactly_plus_or_minus_one():
    """Trap xiv: sign() of a normal draw may be 0, and a sign of 0 wipes out an input."""
    signs = inc.draw_signs(100_000, gen())
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(signs.mean().item()) < 0.02


def test_signs_survive_a_generator_that_gives_zeros(monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *size, **_: torch.zeros(*size))
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.zeros(*size))
    assert inc.draw_signs(64, gen()).abs().min() == 1


@pytest.mark.parametrize("seed", range(3))
def test_rht_makes_weight_and_hessian_incoherent(seed):
    """E1: mu_W 28-46 and mu_H 19-22 before, at most 6 after, under the bounds of Lemma 3.1 with delta = 0.01."""
    m, n = 64, 128
    W, H = synthetic.layer(m, n, gen(seed))
    U, V = draw("rht", m, gen(seed)), draw("rht", n, gen(seed + 1))
    W_tilde, H_tilde = rotate_weight(W, U, V), rotate_hessian(H, V)
    assert inc.mu_weight(W) > 10
    assert inc.mu_hessian(H) > 8
    assert 1 <= inc.mu_weight(W_tilde) < min(6, inc.mu_weight_bound(m, n))
    assert 1 <= inc.mu_hessian(H_tilde) < min(6, inc.mu_hessian_bound(n))


def test_lemma_bounds_at_the_size_of_experiment_e1():
    assert inc.mu_weight_bound(256, 512) == pytest.approx(35.6, abs=0.1)
    assert inc.mu_hessian_bound(512) == pytest.approx(6.0, abs=0.1)


def test_without_signs_a_weight_that_lines_up_with_the_transform_breaks_the_bound():
    """One entry after the transform: mu_W = sqrt(mn). With random signs the lemma holds for this weight as for any."""
    m, n = 256, 512
    spike = torch.zeros(m, n)
    spike[3, 5] = 1
    W = hadamard.transform(hadamard.transform(spike, inverse=True).T, inverse=True).T
    plain = hadamard.transform(hadamard.transform(W).T).T
    assert inc.mu_weight(plain) == pytest.approx((m * n) ** 0.5, rel=1e-3)
    assert inc.mu_weight(plain) > inc.mu_weight_bound(m, n)
    for seed in range(5):
        U, V = draw("rht", m, gen(seed)), draw("rht", n, gen(seed + 100))
        assert inc.mu_weight(rotate_weight(W, U, V)) < inc.mu_weight_bound(m, n)


def test_mu_of_a_flat_matrix_is_one():
    assert inc.mu_weight(torch.ones(4, 6)) == pytest.approx(1)
    assert inc.mu_hessian(torch.diag(torch.arange(1.0, 5.0))) == pytest.approx(2)  # eigenvectors e_i: the worst case


@pytest.mark.parametrize(("n", "factors"), [(4096, (64, 64)), (1, (1, 1)), (7, (7, 1)), (640, (16, 40)), (12, (6, 2))])
def test_kronecker_factors_multiply_to_n(n, factors):
    p, q = inc.kron_factors(n)
    assert p * q == n
    assert {p, q} == set(factors)


def test_random_orthogonal_is_a_rotation():
    for n in (1, 2, 5):
        Q = inc.random_orthogonal(n, gen(n))
        assert torch.allclose(Q @ Q.T, torch.eye(n, dtype=torch.float64), atol=1e-12)
        assert n == 1 or torch.linalg.det(Q).item() == pytest.approx(1)


def test_same_generator_same_rotation():
    for kind in inc.KINDS:
        a, b, c = draw(kind, 24, gen(5)), draw(kind, 24, gen(5)), draw(kind, 24, gen(6))
        x = torch.randn(2, 24, generator=gen())
        assert torch.equal(inc.rotate(a, x), inc.rotate(b, x))
        assert kind == "none" or not torch.equal(inc.rotate(a, x), inc.rotate(c, x))


def test_generators_are_taken_from_seeds_generators_and_runs():
    class Rng:
        torch = gen(3)

    expected = torch.rand(2, generator=gen(3))
    for rng in (3, gen(3), Rng()):
        assert torch.equal(torch.rand(2, generator=inc.as_generator(rng)), expected)
    with pytest.raises(TypeError, match="rng"):
        inc.as_generator("seed")


def test_unknown_kind_is_a_value_error():
    with pytest.raises(ValueError, match="rht"):
        draw("dct", 8, gen())
