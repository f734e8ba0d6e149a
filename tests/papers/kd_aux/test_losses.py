"""The probability model: every identity of eqs. (1) to (8), the traps that a wrong implementation falls into, and bad input."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from papers.kd_aux import identities, losses
from papers.kd_aux.baselines import dkd_terms
from papers.kd_aux.identities import Draw


@pytest.fixture
def d():
    return Draw(np.random.default_rng(3))


@pytest.mark.parametrize("seed", range(4))
def test_every_identity_holds_to_ten_digits(seed):
    found = identities.errors(np.random.default_rng(seed))
    assert max(found.values()) < 1e-10, found
    assert len(found) == 18


def test_averaging_log_probabilities_is_caught():
    found = identities.errors(np.random.default_rng(0), identities.log_of_means_swapped)
    assert found["total_probability"] > 0.01
    assert found["bayes"] > 0.01


def test_prediction_does_not_depend_on_the_order_of_the_queue(d):
    order = torch.randperm(len(d.queue_t))
    a = losses.predictive(d.s, d.queue_t, d.queue_logits)
    torch.testing.assert_close(a, losses.predictive(d.s, d.queue_t[order], d.queue_logits[order]))


def test_an_entry_that_stands_twice_weighs_twice(d):
    p = losses.instance_posterior(torch.cat([d.s]), torch.cat([d.queue_t, d.queue_t[:1]]), 0.3).exp()
    once = losses.instance_posterior(d.s, d.queue_t, 0.3).exp()
    odds = (p[:, 0] + p[:, -1]) / p[:, 1]
    torch.testing.assert_close(odds, 2 * once[:, 0] / once[:, 1])


def test_empty_slots_have_no_mass(d):
    """A queue filled with zeros would add exp(0) for each empty slot."""
    mask = torch.arange(len(d.queue_t)) < 9
    padded = torch.where(mask[:, None], d.queue_t, 0.0)
    for a, b in (
        (losses.feature(d.s, d.t, padded, mask=mask), losses.feature(d.s, d.t, d.queue_t[:9])),
        (losses.marginal(d.s, padded, d.queue_logits, d.logits_t, mask=mask), losses.marginal(d.s, d.queue_t[:9], d.queue_logits[:9], d.logits_t)),
        (losses.elbo(d.s, d.t, padded, d.queue_logits, d.logits_t, mask=mask), losses.elbo(d.s, d.t, d.queue_t[:9], d.queue_logits[:9], d.logits_t)),
    ):  # fmt: skip
        torch.testing.assert_close(a, b)
    assert bool((losses.instance_posterior(d.s, padded, mask=mask)[:, 9:] == -math.inf).all())


def test_the_teacher_is_the_reference_of_every_divergence(d):
    """KL(teacher || student), not the other way round, and a mean over the batch, not over its entries."""
    log_p, log_q = F.log_softmax(d.logits_s / 4, dim=1), F.log_softmax(d.logits_t / 4, dim=1)
    right = F.kl_div(log_p, log_q, log_target=True, reduction="batchmean")
    torch.testing.assert_close(losses.kd(d.logits_s, d.logits_t) / 16, right)
    assert not torch.isclose(F.kl_div(log_q, log_p, log_target=True, reduction="batchmean"), right)


def test_joint_has_no_factor_of_the_squared_temperature(d):
    feature = losses.feature(d.s, d.t, d.queue_t)
    gap = losses.joint(d.s, d.t, d.logits_s, d.logits_t, d.queue_t, T=4.0) - feature
    torch.testing.assert_close(gap * 16, losses.kd(d.logits_s, d.logits_t, 4.0))


def test_gradient_of_kd_at_high_temperature_is_the_difference_of_logits(d):
    s, t = (x - x.mean(dim=1, keepdim=True) for x in (d.logits_s, d.logits_t))
    s.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.kd(s, t, 1e4), s)
    torch.testing.assert_close(gradient, (s - t).detach() / (4 * len(s)), rtol=1e-3, atol=1e-6)


def test_no_gradient_reaches_the_teacher(d):
    given = [x.clone().requires_grad_() for x in (d.s, d.t, d.queue_t, d.queue_logits, d.logits_t)]
    s, t, queue_t, queue_logits, logits_t = given
    total = losses.elbo(s, t, queue_t, queue_logits, logits_t) + losses.marginal(s, queue_t, queue_logits, logits_t)
    (total + losses.joint(s, t, d.logits_s, logits_t, queue_t)).backward()
    assert s.grad is not None
    assert all(x.grad is None for x in given[1:])


def test_own_instance_takes_everything_as_beta_vanishes(d):
    """With x itself in the queue the teacher's posterior is its own index: the label part is gone, InfoNCE is left."""
    log_q = losses.instance_posterior(d.t, d.t, 1e-3)
    torch.testing.assert_close(log_q.exp(), torch.eye(len(d.t), dtype=torch.float64), atol=1e-9, rtol=0)


def test_predictions_that_underflow_are_summed_in_logs():
    """An instance far away is the only one of its class: exp would be 0 and its log -inf."""
    s, queue = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    log_p = losses.predictive(s, queue, torch.tensor([[200.0, 0.0], [0.0, 200.0]]), tau=0.01)
    torch.testing.assert_close(log_p, torch.tensor([[0.0, -200.0 + math.log(2)]]), atol=1e-3, rtol=1e-4)
    t = s.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        losses.predictive(t, queue, torch.tensor([[200.0, 0.0], [0.0, 200.0]]), tau=0.01)[0, 1], t
    )
    assert bool(torch.isfinite(gradient).all())
    value = losses.elbo(s, s, queue, torch.tensor([[200.0, 0.0], [0.0, 200.0]]), torch.zeros(1, 2), tau=0.01, beta=0.01)
    assert math.isfinite(float(value))


def test_class_that_the_queue_lacks_is_improbable_not_impossible(d):
    logits = losses.one_hot_logits(torch.zeros(len(d.queue_t), dtype=torch.int64), 4).double()
    log_p = losses.predictive(d.s, d.queue_t, logits)
    assert bool(torch.isfinite(log_p).all())
    torch.testing.assert_close(log_p[:, 1], torch.full_like(log_p[:, 1], math.log(1e-8)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(d, dtype):
    s, t, queue = d.s.to(dtype), d.t.to(dtype), d.queue_t.to(dtype)
    half = losses.joint(s, t, d.logits_s.to(dtype), d.logits_t.to(dtype), queue, tau=0.02)
    wide = losses.joint(
        s.double(), t.double(), d.logits_s.to(dtype).double(), d.logits_t.to(dtype).double(), queue.double(), tau=0.02
    )
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(wide), rel=1e-4)


def test_mutual_information_bound_is_below_the_truth_and_below_log_n():
    for seed in range(5):
        for rho in (0.3, 0.6, 0.9):
            found = identities.mutual_information(np.random.default_rng(seed), rho=rho)
            assert found["estimate"] <= found["truth"] + 0.05
            assert found["estimate"] <= found["limit"]
    uniform = F.normalize(torch.ones(8, 3), dim=1)
    assert float(losses.info_nce(uniform, uniform)) == pytest.approx(math.log(8))


def test_two_classes_leave_no_non_target_part():
    tckd, nckd, _ = dkd_terms(torch.randn(5, 2), torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1]))
    assert bool((nckd == 0).all())
    assert bool(torch.isfinite(tckd).all())


def test_dkd_does_not_overflow_where_the_teacher_is_certain():
    logits = torch.tensor([[300.0, 0.0, -300.0]])
    parts = dkd_terms(torch.zeros(1, 3), logits, torch.tensor([0]), T=1.0)
    assert all(bool(torch.isfinite(part).all()) for part in parts)


BAD = {
    "classes differ": (lambda d: losses.kd(d.logits_s[:, :3], d.logits_t), "4 classes, the student 3"),
    "classes differ, marginal": (lambda d: losses.marginal(d.s, d.queue_t, d.queue_logits[:, :3], d.logits_t), "4 classes, the student 3"),
    "all False": (lambda d: losses.feature(d.s, d.t, d.queue_t, mask=torch.zeros(15, dtype=torch.bool)), "mask is False everywhere"),
    "mask of another length": (lambda d: losses.feature(d.s, d.t, d.queue_t, mask=torch.ones(3, dtype=torch.bool)), "mask is torch.bool of shape"),
    "width": (lambda d: losses.feature(d.s[:, :2], d.t, d.queue_t), "both need one width"),
    "norm zero": (lambda d: losses.feature(d.s * 0, d.t, d.queue_t), "norm zero"),
    "tau": (lambda d: losses.feature(d.s, d.t, d.queue_t, tau=0.0), "tau is 0.0: give a number above 0"),
    "beta": (lambda d: losses.feature(d.s, d.t, d.queue_t, beta=-1.0), "beta is -1.0"),
    "alpha": (lambda d: losses.predictive(d.s, d.queue_t, d.queue_logits, alpha=0.0), "alpha is 0.0"),
    "T": (lambda d: losses.kd(d.logits_s, d.logits_t, T=math.nan), "T is nan"),
    "labels": (lambda d: losses.one_hot_logits(torch.tensor([0, 4]), 4), "labels go from 0 to 4"),
    "half precision": (lambda d: losses.kd((d.logits_s * 1e6).half(), d.logits_t), "not finite"),
    "rows differ": (lambda d: losses.kd(d.logits_s, d.logits_t[:2]), "give the same batch"),
    "queue rows differ": (lambda d: losses.predictive(d.s, d.queue_t, d.queue_logits[:3]), "they must be the same"),
    "empty queue": (lambda d: losses.feature(d.s, d.t, d.queue_t[:0]), "queue_t is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(d, case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message) as told:
        call(d)
    assert "\n" not in str(told.value)
