"""Figures of a profile, against numpy by hand."""

import numpy as np
import pytest

from papers.loss_shaping import metrics

E = np.array([1.0, 2.0, 3.0, 6.0])


def test_window_std_is_the_population_deviation_over_steps():
    assert metrics.window_std([1.0, 3.0]) == 1.0  # ddof 1 would give 1.414
    assert metrics.window_std(E) == pytest.approx(np.sqrt(3.5))


def test_levels_are_met_or_not_step_by_step():
    assert metrics.infeasible_rate(E, [1.0, 1.0, 4.0, 5.0]) == 0.5
    assert metrics.mean_violation(E, [1.0, 1.0, 4.0, 5.0]) == 0.5


def test_tail_means_and_line():
    assert metrics.cvar(E, 0.25) == 6.0
    assert metrics.linearity([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert metrics.linearity([2.0, 2.0]) == 0.0


def test_a_matrix_is_not_a_profile():
    with pytest.raises(ValueError, match="profile"):
        metrics.window_std(np.ones((3, 2)))


def test_the_block_interval_of_a_mean_covers_it_and_shrinks_with_more_windows():
    rng = np.random.default_rng(0)
    width = []
    for N in (200, 3200):
        low, high = metrics.block_bootstrap(rng.normal(1.0, 1.0, (N, 3)), np.mean, rng, block=10)
        assert low < 1.1
        assert high > 0.9
        width.append(high - low)
    assert width[1] < width[0] / 2
