"""The infinite-prompt flow against exact solutions, discrete descent and published asymptotics; phases by events."""

import math

import numpy as np
import pytest

from papers.softmax_icl import Trajectory, closed_form, integrate_flow, phases
from papers.softmax_icl.flow import column, learning_time
from papers.softmax_icl.population import count_law, descent_direction, population_loss
from papers.softmax_icl.trajectory import crossing

BALANCED = [(10, 0.1, 165.42599), (10, 0.01, 493.09566), (10, 0.001, 2810.50549), (100, 0.01, 15190.11043), (100, 0.001, 40858.48536),
            (1000, 0.01, 1059517.013)]  # fmt: skip


@pytest.mark.parametrize(("K", "eps", "t"), BALANCED)
def test_balanced_time_is_its_closed_form(K, eps, t):
    assert closed_form.time_to_loss(K, eps) == pytest.approx(t, rel=5e-8)
    assert integrate_flow(K, None, eps).t[-1] == pytest.approx(t, rel=1e-6)


def test_balanced_time_has_the_leading_terms():
    K, eps = 10**6, 1e-3
    assert closed_form.time_to_loss(K, eps) == pytest.approx(K**2 + 3 * K * math.log(K) + K / (4 * eps), rel=1e-3)


def test_balanced_flow_follows_its_curve():
    path = integrate_flow(50, None, 1e-4)
    a = closed_form.balanced_attention(path.A, 50)
    np.testing.assert_allclose(path.loss, 50 / 98 * (1 - a) ** 2, rtol=1e-6)
    np.testing.assert_allclose(path.t[1:], closed_form.balanced_time(a[1:], 50), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("lr", [1.0, 20.0])
def test_discrete_descent_takes_the_time_of_the_flow(lr):
    K, p, Q, steps = 20, np.full(20, 0.05), np.zeros((20, 20)), 0
    law = count_law(p, 1, "infinite_prompt")
    while True:
        direction, L_k = descent_direction(Q, p, *law)
        if L_k[0] <= 1e-3:
            break
        Q, steps = Q + lr * direction, steps + 1
    assert closed_form.time_to_loss(K, 1e-3) == pytest.approx(6198.995, abs=1e-3)
    assert steps * lr == pytest.approx({1.0: 6198, 20.0: 6180}[lr], abs=lr)


@pytest.mark.parametrize("query", ["rare", "dominant"])
def test_scores_of_a_query_sum_to_zero_along_the_flow(query):
    K = 40
    path = integrate_flow(K, 0.5, 1e-3, query)
    others = path.B1 + (K - 2) * path.Bo if query == "rare" else (K - 1) * path.Bo
    np.testing.assert_allclose(path.A + others, 0, atol=1e-6)


def test_descent_with_infinite_prompts_is_the_grouped_flow():
    """The three unknowns of a rare query are the K x K gradient, restricted to what symmetry leaves."""
    K, scores = 7, np.array([0.8, -0.5, 0.1])
    rare = 0.5 / (K - 1)
    Q = np.zeros((K, K))
    Q[:, 3], Q[0, 3], Q[3, 3] = scores[2], scores[1], scores[0]
    direction, L_k = descent_direction(
        Q,
        np.array([0.5, *np.full(K - 1, rare)]),
        *count_law(np.array([0.5, *np.full(K - 1, rare)]), 1, "infinite_prompt"),
    )
    state = column(scores, np.array([rare, 0.5, rare]), np.array([1.0, 1, K - 2]))
    np.testing.assert_allclose(direction[[3, 0, 1], 3], state.velocity, rtol=1e-12)
    assert L_k[3] == pytest.approx(float(state.loss), rel=1e-12)


@pytest.mark.parametrize(
    ("K", "p1", "B1"),
    [(30, 0.5, -0.36), (100, 0.5, -0.42), (1000, 0.5, -0.463), (10**5, 0.5, -0.482), (10**5, 0.25, -0.387)],
)
def test_the_switch_comes_before_the_papers_constant(K, p1, B1):
    path = integrate_flow(K, p1, 1e-3)
    first = phases(path, 1e-3)[0]
    assert path.at(first.end, "B1") / math.log(K) == pytest.approx(B1, abs=0.0025)
    assert first.paper is None or first.paper > first.end  # B_1 = -0.49 ln K is reached later, if at all


def test_the_flow_tends_to_its_asymptotes():
    K = 10**5
    path, asymptote = integrate_flow(K, 0.5, 1e-3), closed_form.switch_asymptote(K, 0.5)
    switch, _, growth, _ = phases(path, 1e-3)
    assert switch.end == pytest.approx(6.76e9, rel=1e-3)
    assert asymptote.t == pytest.approx(6.667e9, rel=1e-4)
    assert growth.end == pytest.approx(2.01e10, rel=1e-3)
    assert asymptote.t_log_K == pytest.approx(2.0e10, rel=1e-4)
    assert asymptote.B1 / math.log(K) == pytest.approx(-0.4824, abs=1e-4)
    assert path.at(switch.end, "A") == pytest.approx(asymptote.A, abs=5e-3)


@pytest.mark.parametrize(("K", "times"), [(30, (3.88, 75.8, 576)), (1000, (3.61, 78.7, 597))])
def test_dominant_queries_take_the_printed_times(K, times):
    for eps, t in zip((0.1, 0.01, 0.001), times, strict=True):
        assert integrate_flow(K, 0.5, eps, "dominant").t[-1] == pytest.approx(t, rel=2e-3)


def test_four_phases_follow_each_other_at_large_k():
    found = phases(integrate_flow(10**4, 0.5, 1e-3), 1e-3)
    assert len(found) == 4
    assert [phase.start for phase in found[1:]] == [phase.end for phase in found[:-1]]
    assert all(phase.length > 0 for phase in found)
    assert found[1].paper < found[0].end  # A = 0.01 ln K is passed long before the switch


def test_no_dominance_means_no_unlearning():
    K = 50
    found = phases(integrate_flow(K, 1 / K, 1e-3), 1e-3)
    assert [phase.length for phase in found[:2]] == [0, 0]
    assert found[-1].end == pytest.approx(closed_form.time_to_loss(K, 1e-3), rel=1e-5)


@pytest.mark.parametrize("K", [3, 10, 1000])
def test_unlearning_begins_at_one_over_the_root_of_k(K):
    """At p_1 = K^(-1/2) the first velocities of a rare query are equal: alpha_k = |beta_{k,1}|."""
    for factor, sign in ((0.9, 1), (1.0, 0), (1.1, -1)):
        p1 = factor * closed_form.unlearning_threshold(K)
        rare = (1 - p1) / (K - 1)
        velocity = column(np.zeros(3), np.array([rare, p1, rare]), np.array([1.0, 1, K - 2])).velocity / rare**2
        assert velocity[1] < 0
        lead = velocity[0] + velocity[1]
        assert abs(lead) < 1e-10 if sign == 0 else lead * sign > 0


def test_a_phase_that_never_ends_is_reported_and_the_next_ones_are_still_found():
    """At K = 30, |beta_{k,1}| stays above a tenth of alpha_k until the loss is 1e-3."""
    found = phases(integrate_flow(30, 0.5, 1e-3), 1e-3)
    assert found[1].end is None
    assert found[2].start == found[0].end
    assert found[2].end == pytest.approx(2681.57, abs=0.1)
    assert phases(integrate_flow(30, 0.5, 1e-2), 1e-4)[-1].end is None


def test_events_are_found_between_samples():
    t = np.array([0.0, 1.0, 2.0])
    assert crossing(t, np.array([-1.0, -1.0, 3.0])) == pytest.approx(1.25)
    assert crossing(t, np.array([1.0, 1.0, 1.0])) == 0
    assert crossing(t, np.array([-1.0, -1.0, -1.0])) is None
    assert crossing(t, np.array([1.0, 1.0, 1.0]), start=1.5) == 1.5


def test_phases_take_a_handmade_trajectory():
    t = np.arange(5.0)
    one = np.ones(5)
    path = Trajectory("balanced", 3, t, A=t, B1=-t / 2, Bo=-t / 2, alpha=one, beta1=one, loss=np.exp(-t))
    growth, convergence = phases(path, math.exp(-3.5))
    assert growth.end == pytest.approx(math.log(3))
    assert convergence.end == pytest.approx(3.5)


def test_learning_time_of_a_balanced_law_is_the_closed_form():
    assert learning_time(np.full(12, 1 / 12), 5, 0.01) == pytest.approx(closed_form.time_to_loss(12, 0.01), rel=1e-6)


def test_learning_time_of_a_rare_query_is_that_of_the_grouped_flow():
    p = np.array([0.5, *np.full(8, 0.5 / 8)])
    assert learning_time(p, 4, 0.01) == pytest.approx(integrate_flow(9, 0.5, 0.01).t[-1], rel=1e-6)


def test_zipf_times_are_the_measured_ones():
    p = np.arange(1, 65) ** -1.0
    p /= p.sum()
    assert learning_time(p, 0, 0.05) == pytest.approx(78, abs=0.5)
    assert learning_time(p, 63, 0.05) == pytest.approx(78_836, rel=1e-4)


def test_the_flow_stops_at_once_where_the_loss_is_small_already():
    path = integrate_flow(10, None, 0.6)
    assert path.t.tolist() == [0]
    assert population_loss(np.zeros((10, 10)), np.full(10, 0.1), 1, "infinite_prompt")[1][0] == pytest.approx(
        path.loss[0]
    )
    assert closed_form.time_to_loss(10, 0.6) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, None, 0.1), "K is 1"),
        ((2, 0.5, 0.1), "at least 3"),
        ((10, None, 0.0), "eps"),
        ((10, 1.5, 0.1), "p1"),
        ((10, 0.5, 0.1, "middle"), "query"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        integrate_flow(*arguments)


def test_wrong_eps_is_named():
    with pytest.raises(ValueError, match="eps"):
        phases(integrate_flow(10, None, 0.1), 0)
    with pytest.raises(ValueError, match="eps"):
        closed_form.time_to_loss(10, -1)
    with pytest.raises(ValueError, match="p1"):
        closed_form.switch_asymptote(10, 1.0)


@pytest.mark.parametrize(
    "call", [lambda: integrate_flow(2.5), lambda: closed_form.time_to_loss(2.5, 0.01), lambda: closed_form.switch_asymptote(3.5, 0.5)]
)  # fmt: skip
def test_features_are_counted_in_whole_numbers(call):
    with pytest.raises(ValueError, match=r"K is .\.5: it must be a whole number"):
        call()
