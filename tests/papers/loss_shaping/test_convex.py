"""Closed forms, and a general solver, against the duals with exact inner minimisation."""

import numpy as np
import pytest

from papers.loss_shaping.convex import Quadratic, dual_ascent, lowest_level, problem, solve


def two_targets() -> Quadratic:
    """l_1 = theta^2, l_2 = (theta - 2)^2."""
    return Quadratic(np.ones((2, 1, 1)), np.array([[0.0], [2.0]]), np.array([0.0, 4.0]))


def test_scalar_case_has_its_closed_form():
    s = dual_ascent(two_targets(), np.array([0.25, np.inf]), lr=0.05, steps=3000)
    assert s.theta == pytest.approx([0.5], abs=1e-6)
    assert s.losses == pytest.approx([0.25, 2.25], abs=1e-6)
    assert s.primal == pytest.approx(1.25, abs=1e-6)
    assert s.multipliers == pytest.approx([1.0, 0.0], abs=1e-6)


def test_the_price_is_the_sensitivity_of_the_value_to_the_level():
    below, above = (solve(two_targets(), np.array([eps, 100.0]))[0] for eps in (0.249, 0.251))
    assert (above - below) / 0.002 == pytest.approx(-1.0, abs=1e-3)


def test_a_resilient_level_slips_until_its_marginal_cost_is_its_price():
    """T = 1, l = (theta - a)^2 + c: zeta = c - eps, lambda = alpha zeta."""
    q = Quadratic(np.ones((1, 1, 1)), np.array([[3.0]]), np.array([9.0 + 0.7]))
    s = dual_ascent(q, np.array([0.3]), lr=0.1, steps=4000, slack_lr=0.1, alpha=2.0)
    assert s.losses == pytest.approx([0.7])
    assert s.slack == pytest.approx([0.4], abs=1e-9)
    assert s.multipliers == pytest.approx([0.8], abs=1e-9)


def test_duals_agree_with_a_general_solver_and_leave_no_gap():
    q = problem(np.random.default_rng(3), steps=6, d=2, samples=100, noise=0.1)
    erm = q.losses(q.minimise(np.full(6, 1 / 6)))
    eps = np.full(6, (lowest_level(q) + erm.max()) / 2)
    s = dual_ascent(q, eps, lr=0.05, steps=5000)
    value, theta, feasible = solve(q, eps)
    assert feasible
    assert s.primal == pytest.approx(value, abs=1e-6)
    assert s.theta == pytest.approx(theta, abs=1e-4)
    assert abs(s.primal - s.dual) < 1e-6
    assert s.kkt < 1e-6
    assert s.losses.std() < erm.std()


def test_prices_grow_for_ever_where_no_model_is_feasible_and_slacks_settle_them():
    q = problem(np.random.default_rng(3), steps=6, d=2, samples=100, noise=0.1)
    eps = np.full(6, 0.9 * lowest_level(q))
    assert not solve(q, eps)[2]
    short, long = (dual_ascent(q, eps, lr=0.05, steps=steps).multipliers.sum() for steps in (2000, 4000))
    assert long > 1.8 * short
    s = dual_ascent(q, eps, lr=0.05, steps=4000, slack_lr=0.1)
    assert np.abs(s.multipliers - 2 * s.slack).max() < 1e-8
    assert s.primal == pytest.approx(solve(q, eps, alpha=2.0)[0], abs=1e-6)


def test_a_lagrangian_library_finds_the_same_saddle_point():
    """cooper-optim, where it is installed, with gradient steps on theta too."""
    pytest.importorskip("cooper")
    from papers.loss_shaping.bench import by_cooper

    q = problem(np.random.default_rng(3), steps=6, d=2, samples=100, noise=0.1)
    erm = q.losses(q.minimise(np.full(6, 1 / 6)))
    eps = np.full(6, (lowest_level(q) + erm.max()) / 2)
    theta, prices = by_cooper(q, eps, lr=0.05, steps=3000)
    s = dual_ascent(q, eps, lr=0.05, steps=5000)
    assert theta == pytest.approx(s.theta, abs=1e-3)
    assert prices == pytest.approx(s.multipliers, abs=1e-2)


def test_the_reference_problem_has_its_printed_digits():
    q = problem(np.random.default_rng(0), steps=12, d=4, samples=400, noise=0.1)
    erm = q.losses(q.minimise(np.full(12, 1 / 12)))
    assert [round(v, 4) for v in (erm.mean(), erm.std(), erm.max())] == [1.7921, 1.9044, 6.0455]
    assert round(lowest_level(q), 4) == 4.3689
