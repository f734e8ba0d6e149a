"""Round to nearest, GPTQ and QuIP: grids, dead inputs, order of merit."""

import pytest
import torch

from papers.quip_sharp import synthetic
from papers.quip_sharp.baselines import gptq, gptq_columns, minmax_grid, quip, rescale, round_to_grid, rtn
from papers.quip_sharp.incoherence import draw, rotate
from papers.quip_sharp.ldlq import proxy_error


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rtn_uses_at_most_two_to_the_bits_levels_and_keeps_zero(bits):
    W = torch.randn(6, 300, generator=gen())
    W[:, 0] = 0
    W_hat = rtn(W, bits)
    assert all(len(row.unique()) <= 2**bits for row in W_hat)
    assert (W_hat[:, 0] == 0).all()
    step, _ = minmax_grid(W, bits)
    assert ((W - W_hat).abs() <= step).all()


def test_rtn_by_hand():
    W = torch.tensor([[-1.0, 0.1, 0.9, 2.0]])  # step 1, zero point 1: the grid is -1, 0, 1, 2
    assert rtn(W, 2).tolist() == [[-1.0, 0.0, 1.0, 2.0]]


def test_rows_of_zeros_and_of_one_sign_are_harmless():
    W = torch.stack([torch.zeros(8), torch.linspace(1, 2, 8), -torch.linspace(1, 2, 8)])
    W_hat = rtn(W, 4)
    assert torch.isfinite(W_hat).all()
    assert (W_hat[0] == 0).all()
    assert (W - W_hat).abs().max() < 0.08


def test_gptq_does_not_depend_on_its_block():
    W, H = synthetic.layer(8, 40, gen(0))
    step, zero = minmax_grid(W.double(), 3)
    quantize = lambda w: round_to_grid(w, step, zero, 3)  # noqa: E731
    results = [gptq_columns(W.double(), H, quantize, block) for block in (1, 7, 40, 128)]
    assert all(torch.allclose(r, results[0], atol=1e-9) for r in results)


def test_gptq_with_a_diagonal_hessian_is_rtn():
    W = torch.randn(5, 24, generator=gen())
    assert torch.allclose(gptq(W, torch.eye(24), 3), rtn(W, 3), atol=1e-6)


def test_gptq_survives_inputs_that_never_fire():
    W, H = synthetic.layer(8, 32, gen(0))
    H[:, 3] = H[3] = 0
    W_hat = gptq(W, H, 3)
    assert torch.isfinite(W_hat).all()
    assert (W_hat[:, 3] == 0).all()
    assert torch.isfinite(gptq(W, torch.zeros(32, 32), 2)).all()


# ---- each baseline again, written down a second time and as plainly as can be: what is compared with must not be weak


def rtn_by_rows(W, bits):
    W_hat = torch.empty_like(W)
    for i, row in enumerate(W):
        low, high = min(row.min().item(), 0), max(row.max().item(), 0)
        step = (high - low) / (2**bits - 1)
        zero = round(-low / step)
        W_hat[i] = torch.tensor(
            [step * (min(max(round(w / step) + zero, 0), 2**bits - 1) - zero) for w in row.tolist()]
        )
    return W_hat


def gptq_by_solving(W, H, bits):
    """Column after column; those still free answer each error by the minimum of the loss with all before them held."""
    step, zero = minmax_grid(W, bits)
    H = H + 0.01 * H.diagonal().mean() * torch.eye(len(H))
    W_hat, target = torch.empty_like(W), W.clone()
    for i in range(len(H)):
        W_hat[:, i] = round_to_grid(target[:, i : i + 1], step, zero, bits)[:, 0]
        free = slice(i + 1, None)
        error = (W - W_hat)[:, : i + 1]
        target[:, free] = W[:, free] + error @ torch.linalg.solve(H[free, free], H[free, : i + 1]).T
    return W_hat


def quip_in_dense_matrices(W, H, bits, generator):
    (m, n), H = W.shape, H / H.diagonal().mean()
    s = (H.diagonal() / W.square().mean(0)) ** 0.25
    U, V = (rotate(draw("kron", size, generator), torch.eye(size, dtype=torch.float64)).T for size in (m, n))
    W_tilde, H = U @ (W * s) @ V.T, V @ (H / torch.outer(s, s)) @ V.T
    H = H * n / H.trace() + 0.01 * torch.eye(n)
    grid = 2.4 * W_tilde.square().mean().sqrt() * torch.linspace(-1, 1, 2**bits, dtype=torch.float64)
    W_hat = W_tilde.clone()
    for k in reversed(range(n)):
        # the free columns left of k will answer the errors of k and of all to its right: S is the loss that is left then
        left, right = slice(None, k), slice(k, None)
        S = H[right, right] - H[right, left] @ torch.linalg.solve(H[left, left], H[left, right])
        target = W_tilde[:, k] + (W_tilde - W_hat)[:, k + 1 :] @ S[0, 1:] / S[0, 0]
        W_hat[:, k] = grid[(target[:, None] - grid).abs().argmin(1)]
    return U.T @ W_hat @ V / s


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_baselines_agree_with_their_plain_forms(bits, seed):
    W, H = synthetic.layer(12, 48, gen(seed))
    W = W.double()
    assert torch.allclose(rtn(W, bits), rtn_by_rows(W, bits), atol=1e-6)
    assert torch.allclose(gptq(W, H, bits), gptq_by_solving(W, H, bits), atol=1e-6)
    assert torch.allclose(quip(W, H, bits, gen(seed)), quip_in_dense_matrices(W, H, bits, gen(seed)), atol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_each_baseline_beats_the_one_before(bits):
    W, H = synthetic.layer(64, 128, gen(0))
    errors = [proxy_error(W, w, H) for w in (rtn(W, bits), gptq(W, H, bits), quip(W, H, bits, gen()))]
    assert errors[0] > 1.3 * errors[1] > 1.3 * 1.3 * errors[2]


def test_quips_greedy_passes_lower_its_loss():
    W, H = synthetic.layer(32, 64, gen(0))
    errors = [proxy_error(W, quip(W, H, 2, gen(), greedy_passes=k), H) for k in (0, 3)]
    assert errors[1] < errors[0]


def test_quip_of_zeros_is_zero_and_survives_dead_inputs():
    _, H = synthetic.layer(8, 32, gen(0))
    assert (quip(torch.zeros(8, 32), H, 2, gen()) == 0).all()
    H[:, 3] = H[3] = 0
    assert torch.isfinite(quip(torch.randn(8, 32, generator=gen()), H, 2, gen())).all()


def test_rescale_balances_weight_and_hessian():
    W, H = synthetic.layer(16, 32, gen(1))
    s = rescale(W, H)
    weight, inputs = (W.double() * s).square().sum(0), H.diagonal() / s**2
    ratio = weight / inputs
    assert ratio.max() / ratio.min() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("method", [lambda W, H: gptq(W, H, 2), lambda W, H: quip(W, H, 2, gen())])
def test_nan_hessian_is_a_value_error(method):
    with pytest.raises(ValueError, match="NaN"):
        method(torch.ones(4, 8), torch.full((8, 8), float("nan")))
