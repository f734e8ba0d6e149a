"""Block LDL and BlockLDLQ: identities, equivalences, direction of feedback (oracles 5-9, traps iv, vii, xii)."""

import logging

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.quip_sharp import codebooks
from papers.quip_sharp.baselines import gptq_columns
from papers.quip_sharp.ldlq import block_ldl, block_ldlq, factor, ldlq, proxy_error, regularize, tune_pass


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def hessian(n: int, seed: int = 0, decay: float = 0.7) -> torch.Tensor:
    """A well-conditioned H with correlated inputs, (n, n) float64."""
    A = torch.randn(n, n, generator=gen(seed), dtype=torch.float64)
    Q, _ = torch.linalg.qr(A)
    spectrum = torch.arange(1, n + 1, dtype=torch.float64) ** -decay
    return regularize((Q * spectrum) @ Q.T)


def weight(m: int, n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(m, n, generator=gen(seed), dtype=torch.float64)


def e8p(x: torch.Tensor) -> torch.Tensor:
    return codebooks.get("e8p").quantize(x)[0]


def integers(x: torch.Tensor) -> torch.Tensor:
    return (x + 0.5).floor()


# -------------------------------------------------------------------------------------------------------- factors


@settings(max_examples=30, deadline=None)
@given(block=st.sampled_from([1, 2, 4, 8]), k=st.integers(1, 6), seed=st.integers(0, 99))
def test_block_ldl_reproduces_h_with_unit_diagonal_blocks(block, k, seed):
    n = block * k
    H = hessian(n, seed)
    L, D = block_ldl(H, block)
    assert D.shape == (k, block, block)
    assert torch.allclose(L @ torch.block_diag(*D) @ L.T, H, atol=1e-10)
    for i in range(k):
        rows = slice(i * block, (i + 1) * block)
        assert torch.equal(L[rows, rows], torch.eye(block, dtype=torch.float64))
        assert (L[rows, (i + 1) * block :] == 0).all()


def test_block_of_one_is_the_ordinary_ldl():
    H = hessian(12)
    L, D = block_ldl(H, 1)
    L_scipy, D_scipy, order = scipy.linalg.ldl(H.numpy(), lower=True)
    assert (order == np.arange(12)).all()
    assert np.allclose(L.numpy(), L_scipy, atol=1e-10)
    assert np.allclose(D.flatten().numpy(), np.diag(D_scipy), atol=1e-10)
    C = torch.linalg.cholesky(H)
    assert torch.allclose(L, C / C.diagonal(), atol=1e-10)


def test_one_block_of_everything_has_no_feedback():
    H, W = hessian(16), weight(5, 16)
    L, D = block_ldl(H, 16)
    assert torch.equal(L, torch.eye(16, dtype=torch.float64))
    assert torch.allclose(D[0], H)
    assert torch.equal(block_ldlq(W, H, integers, 16), integers(W))


def test_indefinite_hessian_is_a_linalg_error_and_bad_blocks_a_value_error():
    with pytest.raises(torch.linalg.LinAlgError):
        block_ldl(torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0])), 2)
    with pytest.raises(ValueError, match="multiple"):
        block_ldl(torch.eye(10), 8)
    with pytest.raises(ValueError, match="square"):
        block_ldl(torch.zeros(4, 5), 1)


# ------------------------------------------------------------------------------------------------ regularisation


def test_nan_hessian_is_a_value_error_that_says_what_to_do():
    H = hessian(8)
    H[2, 3] = float("nan")
    for call in (lambda: regularize(H), lambda: factor(H, 8), lambda: block_ldl(H, 8)):
        with pytest.raises(ValueError, match="NaN or infinite"):
            call()


@pytest.mark.parametrize("kind", ["zero", "rank one", "dead inputs"])
def test_singular_hessians_are_regularised_first(kind):
    """Trap xii: inputs that never fire make H singular."""
    x = torch.randn(16, generator=gen(), dtype=torch.float64)
    H = {"zero": torch.zeros(16, 16), "rank one": torch.outer(x, x), "dead inputs": torch.diag((x > 0).double())}[kind]
    with pytest.raises(torch.linalg.LinAlgError):
        block_ldl(H.double() - 1e-9 * torch.eye(16), 8)
    found = factor(H.double(), 8)
    assert found.retries == 0
    assert torch.isfinite(found.L).all()
    assert torch.isfinite(block_ldlq(weight(4, 16), found.H, e8p, 8)).all()


def test_regularize_scales_symmetrises_and_damps():
    A = torch.randn(6, 6, generator=gen(), dtype=torch.float64)
    H = A @ A.T
    H[0, 1] += 1e-3
    R = regularize(H, 0.05)
    assert torch.equal(R, R.T)
    assert R.diagonal().mean() == pytest.approx(1.05)
    assert torch.allclose(R, regularize(1000 * H, 0.05))


def test_damping_doubles_until_positive_definite_and_is_reported(caplog):
    H = hessian(16)
    H = H - 1.05 * torch.linalg.eigvalsh(H)[0] * torch.eye(16) - 0.05 * torch.eye(16)  # smallest eigenvalue about -0.05
    with caplog.at_level(logging.WARNING, logger="papers.quip_sharp.ldlq"):
        found = factor(H, 8, sigma=1e-2)
    assert found.retries > 0
    assert found.sigma == pytest.approx(1e-2 * 2**found.retries)
    assert "damping" in caplog.text
    assert torch.allclose(found.L @ torch.block_diag(*found.D) @ found.L.T, found.H, atol=1e-10)


def test_hopeless_hessian_is_a_value_error():
    with pytest.raises(ValueError, match="second moment"):
        factor(torch.diag(torch.tensor([1.0, -0.9])).double(), 1)
    with pytest.raises(ValueError, match="negative trace"):
        factor(torch.diag(torch.tensor([1.0, -9.0])).double(), 1)


def test_factor_works_with_no_damping_asked_for():
    assert factor(torch.zeros(8, 8, dtype=torch.float64), 8, sigma=0.0).retries > 0


# ------------------------------------------------------------------------------------------------------ identities


@pytest.mark.parametrize("block", [1, 2, 8])
@pytest.mark.parametrize("quantize", [integers, lambda x: x.round() * 0.5, lambda x: torch.zeros_like(x)])
def test_proxy_loss_is_the_trace_of_eta_d_eta(block, quantize):
    """l = tr(eta D eta^T) with eta = (W - W_hat) L, for any quantiser whatever; and eta_k = T_k - Q(T_k)."""
    W, H = weight(6, 24), hessian(24)
    targets = []

    def record(x):
        targets.append((x.clone(), quantize(x)))
        return targets[-1][1]

    W_hat = block_ldlq(W, H, record, block)
    L, D = block_ldl(H, block)
    eta = (W - W_hat) @ L
    E = W - W_hat
    assert ((E @ H) * E).sum() == pytest.approx(((eta @ torch.block_diag(*D)) * eta).sum().item(), rel=1e-9)
    blockwise = torch.cat([T - Q for T, Q in reversed(targets)], 1)  # quantised right to left
    assert torch.allclose(eta, blockwise, atol=1e-10)


def test_expected_loss_is_m_sigma2_trace_d():
    """With eta of isotropic covariance sigma^2 I the loss is m sigma^2 tr(D), where plain rounding gives tr(H)."""
    W, H = 30 * weight(400, 32), hessian(32)
    _, D = block_ldl(H, 8)
    L, sigma2 = block_ldl(H, 8)[0], 1 / 12  # rounding to integers of weights that spread over many of them
    E = W - block_ldlq(W, H, integers, 8)
    trace_d = sum(d.trace() for d in D).item()
    assert ((E @ H) * E).sum().item() == pytest.approx(400 * sigma2 * trace_d, rel=0.03)
    N = W - integers(W)
    assert ((N @ H) * N).sum().item() == pytest.approx(400 * sigma2 * H.trace().item(), rel=0.03)
    assert trace_d < H.trace()
    assert torch.allclose(L.diagonal(), torch.ones(32, dtype=torch.float64))


def test_identity_hessian_makes_it_plain_rounding():
    W = weight(6, 32)
    H = torch.eye(32, dtype=torch.float64)
    W_hat = block_ldlq(W, H, e8p, 8)
    assert torch.equal(W_hat, e8p(W.reshape(-1, 8)).reshape(6, 32))
    frobenius = (W - W_hat).square().sum() / W.square().sum()
    assert proxy_error(W, W_hat, H) == pytest.approx(frobenius.item())


def test_feedback_goes_the_right_way():
    """Trap iv: with the factor transposed or fed back from the wrong side, the loss is above nearest rounding's."""
    W, H = weight(32, 64), hessian(64, decay=1.5)
    L, _ = block_ldl(H, 8)
    quantize = lambda x: (e8p(x), x.new_empty(len(x), 0))  # noqa: E731
    right = proxy_error(W, ldlq(W, L, quantize, 8)[0], H)
    nearest = proxy_error(W, e8p(W.reshape(-1, 8)).reshape(W.shape), H)
    wrong_way = torch.linalg.inv(L)
    wrong = proxy_error(W, ldlq(W, wrong_way, quantize, 8)[0], H)
    assert right < 0.7 * nearest
    assert wrong > nearest


@pytest.mark.parametrize("seed", range(3))
def test_column_ldlq_equals_gptq_entry_for_entry(seed):
    """On an unbounded integer grid. GPTQ runs left to right, so both axes of H and the columns of W are flipped."""
    W, H = 3 * weight(8, 40, seed), hessian(40, seed)
    ours = block_ldlq(W, H, integers, 1)
    theirs = gptq_columns(W.flip(1), H.flip(0, 1), integers, block=16).flip(1)
    assert torch.equal(ours, theirs)


def test_on_a_finite_grid_ldlq_can_lose_to_nearest_rounding():
    """The documented counterexample: clamping cuts the feedback off, and what is left can be worse than none."""
    n = 8
    H = torch.ones(n, n, dtype=torch.float64) + 0.01 * torch.eye(n, dtype=torch.float64)
    clamped = lambda x: x.round().clamp(0, 1)  # noqa: E731
    lost = 0
    for seed in range(40):
        W = torch.rand(1, n, generator=gen(seed), dtype=torch.float64)
        W[:, 0] = 1.0 if seed % 2 else 0.0  # the last column to be rounded cannot move towards its target
        loss = [((W - Q) @ H * (W - Q)).sum().item() for Q in (block_ldlq(W, H, clamped, 1), clamped(W))]
        lost += loss[0] > loss[1]
    assert lost > 0


# --------------------------------------------------------------------------------------------- buffers and tuning


@settings(max_examples=20, deadline=None)
@given(k=st.integers(1, 9), buffer=st.sampled_from([1, 8, 16, 24, 128]), seed=st.integers(0, 50))
def test_buffered_and_plain_loops_agree(k, buffer, seed):
    W, H = weight(4, 8 * k, seed), hessian(8 * k, seed)
    plain = block_ldlq(W, H, e8p, 8, buffer=None)
    assert torch.allclose(block_ldlq(W, H, e8p, 8, buffer=buffer), plain, atol=1e-12)


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("name", ["e8p", "e8p_rvq3"])
def test_guarded_tuning_never_raises_the_proxy_loss(outliers, name):
    codebook = codebooks.get(name)
    W, H = weight(24, 48), outlier_hessian(48) if outliers else hessian(48)
    L, _ = block_ldl(H, 8)
    W_hat, codes = ldlq(W, L, codebook.quantize, 8)
    losses = [proxy_error(W, W_hat, H)]
    for _ in range(4):
        W_hat, codes = tune_pass(W, W_hat, codes, H, codebook.quantize, 8, guard=True)
        losses.append(proxy_error(W, W_hat, H))
        assert torch.allclose(codebook.decode(codes).flatten(1).double(), W_hat)
    assert all(after <= before + 1e-12 for before, after in zip(losses, losses[1:], strict=False))
    assert losses[-1] < losses[0]


def outlier_hessian(n: int) -> torch.Tensor:
    gain = torch.ones(n, dtype=torch.float64)
    gain[torch.randperm(n, generator=gen(5))[: n // 8]] = 20
    return regularize(gain[:, None] * hessian(n) * gain, 1e-4)


def test_unguarded_tuning_can_raise_it():
    """Trap vii: the nearest point in the Euclidean norm need not lower the loss, which is in the norm of H_kk."""
    W, H = weight(64, 64), outlier_hessian(64)
    repo = [proxy_error(W, block_ldlq(W, H, e8p, 8, tune=t, guard=False), H) for t in range(4)]
    guarded = [proxy_error(W, block_ldlq(W, H, e8p, 8, tune=t, guard=True), H) for t in range(4)]
    assert max(repo[1:]) > repo[0]
    assert guarded[3] <= guarded[2] <= guarded[1] <= guarded[0]


def test_column_tuning_is_monotone_without_a_guard():
    W, H = 2 * weight(16, 32), hessian(32)
    losses = [proxy_error(W, block_ldlq(W, H, integers, 1, tune=t, guard=False), H) for t in range(4)]
    assert all(after <= before + 1e-12 for before, after in zip(losses, losses[1:], strict=False))


def test_proxy_error_does_not_depend_on_its_panels(monkeypatch):
    W, W_hat, H = weight(13, 8), weight(13, 8, 2), hessian(8)
    whole = proxy_error(W, W_hat, H)
    monkeypatch.setattr("papers.quip_sharp.ldlq.ROWS", 5)
    assert proxy_error(W, W_hat, H) == pytest.approx(whole, rel=1e-12)


def test_relative_proxy_error_of_nothing():
    W, H = torch.zeros(3, 8), torch.eye(8)
    assert proxy_error(W, W, H) == 0
    assert proxy_error(W, W + 1, H) == float("inf")
    assert proxy_error(weight(3, 8), torch.zeros(3, 8), hessian(8)) == pytest.approx(1)
