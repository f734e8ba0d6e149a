"""The circuit: its prior, steady states, and what counts as a burst."""

import numpy as np
import pytest
import torch

from papers.snpse import pyloric


def test_prior_has_31_parameters_and_fixed_reference_circuits_lie_in_it():
    law = pyloric.prior()
    assert law.event_shape == (31,)
    theta = torch.cat([torch.as_tensor(pyloric.REFERENCE.ravel()).float(), torch.full((7,), -10.0)])
    assert bool(law.support.check(theta))


def test_gates_open_with_voltage_and_inactivate_with_it():
    low, _, h_low, _ = pyloric.gates(np.array([-80.0]), np.array([0.05]))
    high, tau, h_high, tau_h = pyloric.gates(np.array([20.0]), np.array([0.05]))
    assert (high[0, :6] > low[0, :6]).all()
    assert high[0, 6] < low[0, 6]  # the H current opens with hyperpolarisation
    assert (h_high < h_low).all()
    assert (tau > 0).all()
    assert (tau_h > 0).all()
    assert pyloric.gates(np.array([-25.5]), np.array([0.05]))[0][0, 0] == pytest.approx(0.5)


def test_bursts_are_spikes_less_than_150_ms_apart_and_longer_than_40():
    trace = np.full(2000, -50.0)
    for t in (100, 130, 160, 500, 900, 930, 1000):  # at 500 a lone spike
        trace[t] = 20.0
    assert pyloric.bursts(trace, 1.0).tolist() == [[100.0, 160.0], [900.0, 1000.0]]
    assert pyloric.bursts(np.full(50, -50.0), 1.0).shape == (0, 2)


def test_statistics_of_a_regular_rhythm():
    three = np.full((3, 6000), -50.0)
    for start in range(100, 6000, 1000):
        for j, lag in enumerate((0, 400, 700)):
            for spike in range(0, 200, 50):
                if start + lag + spike < 6000:
                    three[j, start + lag + spike] = 20.0
    found = dict(zip(pyloric.NAMES, pyloric.statistics(three[None], 1.0)[0], strict=True))
    assert found["period"] == pytest.approx(1000)
    assert found["burst AB/PD"] == pytest.approx(150)
    assert found["phase LP"] == pytest.approx(0.4)
    assert found["start to start PY"] == pytest.approx(700)
    assert found["end to start LP"] == pytest.approx(250)


def test_traces_are_finite_and_silent_circuits_are_invalid():
    theta = pyloric.prior().sample((2,))
    theta[0, :24] = 0.02  # a membrane with next to no channels
    x = pyloric.task(100, 0.1).simulate(theta, torch.Generator().manual_seed(0))
    assert x.shape == (2, 18)
    assert bool(torch.isnan(x[0]).any())
