"""Duals, slacks, levels and operators, against steps done by hand and closed forms."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.loss_shaping.constraints import (
    DualVariables,
    MonotoneVariables,
    exponential_levels,
    group_operator,
    levels_from_profile,
    linear_levels,
    monotone_operator,
    resilient_step,
    smooth_operator,
)


def test_one_dual_step_by_hand():
    duals = DualVariables([0.5, 0.5, 0.5], lr=0.01, init=1.0)
    torch.testing.assert_close(duals.step(torch.tensor([0.2, 0.5, 0.9])), torch.tensor([0.997, 1.0, 1.004]))


def test_slacks_move_by_the_new_multipliers():
    duals = DualVariables([0.5, 0.5, 0.5], lr=0.01, init=1.0, slack_lr=0.1, slack_alpha=2.0)
    duals.step(torch.tensor([0.2, 0.5, 0.9]))
    torch.testing.assert_close(duals.slack, torch.tensor([0.0997, 0.1, 0.1004]))
    torch.testing.assert_close(resilient_step(torch.zeros(3), torch.tensor([0.997, 1.0, 1.004]), 0.1, 2.0), duals.slack)


def test_the_price_of_a_slack_level_falls_to_exactly_zero_in_the_predicted_number_of_steps():
    duals = DualVariables([0.5], lr=0.1, init=1.0, dtype=torch.float64)
    steps = math.ceil(1.0 / (0.1 * (0.5 - 0.13)))
    prices = [duals.step(torch.tensor([0.13], dtype=torch.float64)).item() for _ in range(steps)]
    assert prices[-1] == 0.0
    assert prices[-2] > 0.0
    assert all(a > b for a, b in zip(prices, prices[1:], strict=False))


@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.floats(0, 3), st.floats(0.1, 5))
@settings(max_examples=50, deadline=None)
def test_prices_stay_between_zero_and_the_clip(losses, level, clip):
    duals = DualVariables([level] * len(losses), lr=1.0, init=1.0, clip=clip)
    for _ in range(3):
        prices = duals.step(torch.tensor(losses))
        assert ((prices >= 0) & (prices <= clip)).all()


def test_without_prices_the_weights_are_those_of_the_mean():
    assert DualVariables(np.ones(8), lr=0.0).weights().tolist() == [1 / 8] * 8


def test_duals_hold_no_graph_and_are_no_parameters():
    duals = DualVariables([0.5, 0.5], lr=0.1)
    losses = torch.tensor([1.0, 2.0], requires_grad=True) * 2
    assert not duals.step(losses).requires_grad
    assert not list(duals.parameters())
    assert {"levels", "multipliers", "slack"} <= set(duals.state_dict())


def test_duals_go_on_from_a_saved_state():
    one, other = (DualVariables([0.5, 0.1], lr=0.1, slack_lr=0.2) for _ in range(2))
    one.step(torch.tensor([1.0, 2.0]))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.step(torch.tensor([0.3, 0.2])), other.step(torch.tensor([0.3, 0.2])))
    assert torch.equal(one.slack, other.slack)


def test_an_infinite_level_leaves_its_step_free():
    duals = DualVariables([0.1, math.inf], lr=0.1, init=1.0)
    assert duals.multipliers.tolist() == [1.0, 0.0]
    assert duals.step(torch.tensor([5.0, 5.0]))[1] == 0.0


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_monotone_weights_sum_to_one_and_the_official_ones_do_not(prices):
    duals = MonotoneVariables(len(prices) + 1, lr=0.1)
    duals.multipliers.copy_(torch.tensor(prices))
    assert duals.weights().sum().item() == pytest.approx(1.0, abs=1e-4)


def test_monotone_weights_have_the_derived_signs():
    duals = MonotoneVariables(4, lr=0.1)
    duals.multipliers.copy_(torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(duals.weights(), torch.tensor([1.25, 1.25, 2.25, -3.75]))
    official = MonotoneVariables(4, lr=0.1, official_sign_error=True)
    official.multipliers.copy_(torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(official.weights(), torch.tensor([1.25, 2.75, 5.75, -3.75]))
    assert official.weights().sum() != pytest.approx(1.0)


def test_monotone_prices_rise_where_a_step_is_worse_than_the_next():
    duals = MonotoneVariables(3, lr=0.1)
    torch.testing.assert_close(duals.step(torch.tensor([3.0, 1.0, 2.0])), torch.tensor([0.2, 0.0]))


def test_weights_are_the_gradient_of_the_lagrangian():
    A = np.random.default_rng(0).normal(size=(3, 5))
    duals = DualVariables(np.ones(3), lr=0.1, operator=A, dtype=torch.float64)
    duals.multipliers.copy_(torch.tensor([0.5, 0.0, 2.0]))
    losses = torch.rand(5, dtype=torch.float64, requires_grad=True)
    (losses.mean() + duals.multipliers @ (duals.constrained(losses) - duals.levels)).backward()
    torch.testing.assert_close(losses.grad, duals.weights())


def test_levels_are_quantiles_as_pandas_describes_them():
    profile = np.random.default_rng(1).gamma(2.0, size=97)
    described = pd.Series(profile).describe()
    for q in (25, 50, 75):
        assert levels_from_profile(profile, q / 100) == pytest.approx(np.full(97, described[f"{q}%"]))
    assert levels_from_profile(profile, 0.5, decimals=3)[0] == round(described["50%"], 3)


def test_level_families_count_steps_from_zero():
    assert linear_levels(3, 0.5, 0.1) == pytest.approx([0.5, 0.6, 0.7])
    assert exponential_levels(3, 2.0, 0.1) == pytest.approx([2.0, 2 * math.exp(0.1), 2 * math.exp(0.2)])


def test_operators_say_what_they_constrain():
    l = np.array([3.0, 1.0, 2.0])
    assert monotone_operator(3) @ l == pytest.approx([2.0, -1.0])
    assert smooth_operator(3) @ l == pytest.approx([2.0, -1.0, -2.0, 1.0])
    grid = np.arange(6.0)  # 3 steps x 2 channels
    groups = [
        {"steps": [1, 3], "level": 1},
        {"channels": ["b"], "level": 1},
        {"steps": [2], "channels": ["a"], "level": 1},
    ]
    assert group_operator(groups, 3, ["a", "b"]) @ grid == pytest.approx([2.5, 3.0, 2.0])
    assert group_operator([{"level": 1}], 3, ["a", "b"]) @ grid == pytest.approx(grid.mean())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DualVariables([-0.1, 0.2], lr=0.1), "levels must not be negative"),
        (lambda: DualVariables([math.nan], lr=0.1), "NaN"),
        (lambda: DualVariables([[0.1]], lr=0.1), "vector"),
        (lambda: DualVariables([], lr=0.1), "vector"),
        (lambda: DualVariables([0.1], lr=-1.0), "lr"),
        (lambda: DualVariables([0.1], lr=0.1, operator=np.eye(2)), "operator"),
        (lambda: DualVariables([0.1, 0.1], lr=0.1).step(torch.ones(3)), r"losses are \(3,\), expected \(2,\)"),
        (lambda: levels_from_profile([1.0, math.nan], 0.5), "profile"),
        (lambda: levels_from_profile([1.0], 1.5), "quantile"),
        (lambda: group_operator([{"steps": [4]}], 3, ["a"]), "step 4"),
        (lambda: group_operator([{"channels": ["z"]}], 3, ["a"]), "'z'"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_step_s_prices_are_kept_by_those_who_keep_them():
    duals = DualVariables([0.0], lr=1.0)
    kept = [duals.step(torch.ones(1)) for _ in range(3)]
    assert [price.item() for price in kept] == [1.0, 2.0, 3.0]


def test_a_dual_step_takes_arrays_as_well_as_tensors():
    prices = [
        DualVariables(levels=np.ones(3), lr=0.1).step(losses)
        for losses in (np.array([2.0, 1.0, 0.0]), torch.tensor([2.0, 1.0, 0.0]))
    ]
    assert torch.equal(*prices)


# ---- other ways to move the prices -----------------------------------------------------------------------------------


def test_prices_on_averaged_losses_by_hand():
    """xi = 1, then 0.8 x 1 + 0.2 x 3 = 1.4."""
    duals = DualVariables([0.5], lr=0.1, averaged=0.8, dtype=torch.float64)
    assert duals.step(torch.tensor([1.0])).item() == pytest.approx(0.05)
    assert duals.step(torch.tensor([3.0])).item() == pytest.approx(0.05 + 0.1 * 0.9)


def test_a_pi_controller_by_hand():
    """e = 0.5, 0.1: lambda = 0.1 x 0.5, then + 0.1 x 0.1 + 2 x (0.1 - 0.5), which is below zero."""
    duals = DualVariables([0.5, 0.5], lr=0.1, init=1.0, proportional=2.0, dtype=torch.float64)
    assert duals.step(torch.tensor([1.0, 0.5])).tolist() == pytest.approx([1.05, 1.0])
    assert duals.step(torch.tensor([0.6, 0.8])).tolist() == pytest.approx([1.05 + 0.01 - 0.8, 1.0 + 0.03 + 0.6])


def test_an_augmented_lagrangian_weighs_by_its_own_gradient():
    """Autograd of mean l + 1/(2 rho) sum ([lambda + rho (l - eps)]_+^2 - lambda^2) against the weights."""
    rho, eps = 3.0, torch.tensor([0.5, 1.0, 0.1, 2.0], dtype=torch.float64)
    duals = DualVariables(eps, lr=0.1, penalty=rho, dtype=torch.float64)
    duals.multipliers.copy_(torch.tensor([0.2, 0.0, 1.0, 0.4]))
    losses = torch.tensor([0.7, 1.5, 0.05, 1.0], dtype=torch.float64, requires_grad=True)
    pushed = (duals.multipliers + rho * (losses - eps)).clamp(min=0)
    (losses.mean() + ((pushed**2 - duals.multipliers**2) / (2 * rho)).sum()).backward()
    torch.testing.assert_close(duals.weights(losses), losses.grad)
    with pytest.raises(ValueError, match="depend on the batch's losses"):
        duals.weights()


@pytest.mark.parametrize(
    "way", [{}, {"averaged": 0.5}, {"proportional": 1.0}, {"penalty": 0.5}, {"averaged": 0.5, "proportional": 1.0}]
)
def test_every_way_to_move_prices_reaches_the_same_saddle_point(way):
    """eps = (1/4, free): theta = 1/2, lambda = 1, by gradient steps on theta."""
    duals = DualVariables([0.25, math.inf], lr=0.05, dtype=torch.float64, **way)
    theta = torch.tensor(1.0, dtype=torch.float64)
    for _ in range(4000):
        losses = torch.stack([theta**2, (theta - 2) ** 2])
        w = duals.weights(losses)
        duals.step(losses)
        theta = theta - 0.05 * (w[0] * 2 * theta + w[1] * 2 * (theta - 2))
    assert theta.item() == pytest.approx(0.5, abs=1e-4)
    assert duals.multipliers.tolist() == pytest.approx([1.0, 0.0], abs=1e-3)


def test_a_controlled_price_overshoots_less():
    def highest(**way):
        duals = DualVariables([0.25, math.inf], lr=1.0, dtype=torch.float64, **way)
        theta, seen = torch.tensor(1.0, dtype=torch.float64), []
        for _ in range(1500):
            losses = torch.stack([theta**2, (theta - 2) ** 2])
            w = duals.weights(losses)
            seen.append(duals.step(losses)[0].item())
            theta = theta - 0.02 * (w[0] * 2 * theta + w[1] * 2 * (theta - 2))
        return max(seen)

    assert highest(proportional=2.0) < highest() - 0.05


def test_controlled_duals_go_on_from_a_saved_state():
    one, other = (DualVariables([0.5, 0.1], lr=0.1, averaged=0.9, proportional=0.5) for _ in range(2))
    one.step(torch.tensor([1.0, 2.0]))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.step(torch.tensor([0.3, 0.2])), other.step(torch.tensor([0.3, 0.2])))


@pytest.mark.parametrize("way", [{"averaged": 1.0}, {"averaged": -0.1}, {"proportional": -1.0}, {"penalty": -1.0}])
def test_ways_that_cannot_be_meant_are_refused(way):
    with pytest.raises(ValueError, match="averaged must be in"):
        DualVariables([0.5], lr=0.1, **way)
