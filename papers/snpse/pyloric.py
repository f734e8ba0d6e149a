"""A circuit of three neurons (pyloric rhythm of the crab), batched: 31 parameters, 18 statistics, most draws of the prior invalid.

Exponential-Euler steps of the membrane model of Prinz and others; statistics of bursts from the voltage traces. Traces may be
short and steps coarse: `milliseconds` and `dt` (the study's own: 11,000 and 0.025).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Uniform

from papers.snpse.tasks import Task

C = 0.6283e-3  # of a membrane
SCALE = 0.628e-3  # conductances: from mS / cm^2 to mS
E = np.array(
    [50.0, np.nan, np.nan, -80.0, -80.0, -80.0, -20.0, -50.0]
)  # Na, CaT, CaS, A, KCa, Kd, H, leak; calcium's moves
GAS, FARADAY, TEMPERATURE = 8.31451e3, 96485.3415, 283.0
TAU_CA, CA_FACTOR, CA_OUT, CA_REST = 200.0, 14961.0, 3000.0, 0.05
# synapses: (postsynaptic, presynaptic, reversal, k); neurons AB/PD, LP, PY
SYNAPSES = (
    (1, 0, -70.0, 40.0),
    (1, 0, -80.0, 100.0),
    (2, 0, -70.0, 40.0),
    (2, 0, -80.0, 100.0),
    (0, 1, -70.0, 40.0),
    (2, 1, -70.0, 40.0),
    (1, 2, -70.0, 40.0),
)
POWERS = np.array([3, 3, 3, 3, 4, 4, 1])
LOW = np.array([[100, 2.5, 2, 10, 5, 50, 0.01, 0], [100, 0, 4, 20, 0, 25, 0, 0.02], [100, 2.5, 0, 40, 0, 75, 0, 0]])
HIGH = np.array(
    [[400, 5, 6, 50, 10, 125, 0.01, 0], [100, 0, 10, 50, 5, 100, 0.05, 0.03], [500, 10, 2, 50, 0, 125, 0.05, 0.03]]
)
PAD = np.array([100, 2.5, 2, 10, 5, 25, 0.01, 0.01])
REFERENCE = np.array(
    [[300, 2.5, 2, 10, 5, 125, 0.01, 0], [100, 0, 4, 20, 0, 25, 0.05, 0.03], [500, 2.5, 2, 40, 0, 125, 0.01, 0.03]]
)
NAMES = ("period", "burst AB/PD", "burst LP", "burst PY", "duty AB/PD", "duty LP", "duty PY", "phase LP", "phase PY", "start to start LP",
         "start to start PY", "end to start LP", "end to start PY", "gap LP", "gap PY", "plateau AB/PD", "plateau LP", "plateau PY")  # fmt: skip


def prior() -> Independent:
    """Uniform on 24 conductances (mS / cm^2) and 7 logarithms of synaptic conductances (mS)."""
    low, high = np.clip(LOW - PAD, 0, None).ravel(), (HIGH + PAD).ravel()
    synapse = np.log(np.array([1e-2] + [1e-3] * 6))
    return Independent(
        Uniform(torch.tensor(np.r_[low, np.full(7, np.log(1e-8))]).float(), torch.tensor(np.r_[high, synapse]).float()),
        1,
    )


def _s(V: np.ndarray, a: float, b: float) -> np.ndarray:
    return 1 / (1 + np.exp(np.clip((V + a) / b, -500, 500)))


def _s2(V: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
    return 1 / (np.exp((V + a) / b) + np.exp((V + c) / d))


def gates(V: np.ndarray, Ca: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steady states and time constants (ms) of activation (..., 7) and of inactivation (..., 4) at V (mV), Ca."""
    m = [
        _s(V, 25.5, -5.29),
        _s(V, 27.1, -7.2),
        _s(V, 33, -8.1),
        _s(V, 27.2, -8.7),
        Ca / (Ca + 3) * _s(V, 28.3, -12.6),
        _s(V, 12.3, -11.8),
        _s(V, 75, 5.5),
    ]
    tau_m = [2.64 - 2.52 * _s(V, 120, -25), 43.4 - 42.6 * _s(V, 68.1, -20.5), 2.8 + 14 * _s2(V, 27, 10, 70, -13), 23.2 - 20.8 * _s(V, 32.9, -15.2),
             180.6 - 150.2 * _s(V, 46, -22.7), 14.4 - 12.8 * _s(V, 28.3, -19.2), 2 / (np.exp(-14.59 - 0.086 * V) + np.exp(-1.87 + 0.0701 * V))]  # fmt: skip
    h = [_s(V, 48.9, 5.18), _s(V, 32.1, 5.5), _s(V, 60, 6.2), _s(V, 56.9, 4.9)]
    tau_h = [
        1.34 * _s(V, 62.9, -10) * (1.5 + _s(V, 34.9, 3.6)),
        210 - 179.6 * _s(V, 55, -16.9),
        120 + 300 * _s2(V, 55, 9, 65, -16),
        77.2 - 58.4 * _s(V, 38.9, -26.5),
    ]
    return np.stack(m, -1), np.stack(tau_m, -1), np.stack(h, -1), np.stack(tau_h, -1)


def voltages(
    theta: np.ndarray, milliseconds: float, dt: float, generator: np.random.Generator, every: int = 10
) -> np.ndarray:
    """Voltage traces (n, 3, steps / every) for theta (n, 31): each neuron's highest value in every window of `every` steps."""
    n = len(theta)
    g_bar = theta[:, :24].reshape(n, 3, 8) * SCALE
    g_syn = np.exp(theta[:, 24:])
    V, Ca = np.full((n, 3), -50.0), np.full((n, 3), CA_REST)
    m, h, s = np.zeros((n, 3, 7)), np.zeros((n, 3, 4)), np.zeros((n, 7))
    post, pre = np.array([q[0] for q in SYNAPSES]), np.array([q[1] for q in SYNAPSES])
    rest, k = np.array([q[2] for q in SYNAPSES]), np.array([q[3] for q in SYNAPSES])
    onto = np.zeros((7, 3))
    onto[np.arange(7), post] = 1
    steps = int(milliseconds / dt)
    out = np.empty((n, 3, steps // every))
    window = np.full((n, 3), -np.inf)
    decay_ca = np.exp(-dt / TAU_CA)
    reversal = np.broadcast_to(E, (n, 3, 8)).copy()
    for i in range(steps):
        reversal[..., 1] = reversal[..., 2] = GAS * TEMPERATURE / (2 * FARADAY) * np.log(CA_OUT / np.maximum(Ca, 1e-12))
        g = g_bar.copy()
        g[..., :7] *= m**POWERS
        g[..., :4] *= h
        current_ca = (g[..., 1] + g[..., 2]) * (V - reversal[..., 1])
        Ca_inf = CA_REST - CA_FACTOR * current_ca
        m_inf, tau_m, h_inf, tau_h = gates(V, Ca)
        s_inf = 1 / (1 + np.exp((-35 - V[:, pre]) / 5))
        tau_s = k * (1 - s_inf)
        open_ = g_syn * s
        total = g.sum(-1) + open_ @ onto
        noise = 0.001 * generator.standard_normal((n, 3))
        V_inf = ((g * reversal).sum(-1) + (open_ * rest) @ onto + noise) / total
        V = V_inf + (V - V_inf) * np.exp(-dt * total / C)
        Ca = Ca_inf + (Ca - Ca_inf) * decay_ca
        m = m_inf + (m - m_inf) * np.exp(-dt / tau_m)
        h = h_inf + (h - h_inf) * np.exp(-dt / tau_h)
        s = np.where(dt > tau_s, s_inf, s + dt * (s_inf - s) / np.maximum(tau_s, 1e-12))
        window = np.maximum(window, V)
        if (i + 1) % every == 0 and (i + 1) // every <= out.shape[2]:
            out[:, :, (i + 1) // every - 1] = window
            window = np.full((n, 3), -np.inf)
    return out


def bursts(trace: np.ndarray, dt: float) -> np.ndarray:
    """(k, 2) starts and ends (ms) of bursts: spikes above -10 mV less than 150 ms apart, longer than 40 ms in all."""
    peak = (trace[1:-1] > trace[:-2]) & (trace[1:-1] >= trace[2:]) & (trace[1:-1] > -10)
    spikes = (np.flatnonzero(peak) + 1) * dt
    if not len(spikes):
        return np.zeros((0, 2))
    groups = np.split(spikes, np.flatnonzero(np.diff(spikes) >= 150) + 1)
    return np.array([[g[0], g[-1]] for g in groups if g[-1] - g[0] > 40]).reshape(-1, 2)


def plateau(trace: np.ndarray, dt: float) -> float:
    """The longest stay above -30 mV (ms); NaN where there is none."""
    above = np.flatnonzero(np.diff(np.r_[0, (trace > -30).astype(int), 0]))
    return float((above[1::2] - above[::2]).max() * dt) if len(above) else np.nan


def statistics(traces: np.ndarray, dt: float) -> np.ndarray:
    """(n, 18) of traces (n, 3, steps), in NAMES' order; NaN where a neuron does not burst often enough."""
    out = np.full((len(traces), 18), np.nan)
    for row, three in zip(out, traces, strict=True):
        found = [bursts(trace, dt) for trace in three]
        row[15:] = [plateau(trace, dt) for trace in three]
        for j, b in enumerate(found):
            if len(b):
                row[1 + j] = (b[:, 1] - b[:, 0]).mean()
        if len(found[0]) < 3:
            continue
        starts, ends = found[0][:, 0], found[0][:, 1]
        period = np.diff(starts).mean()
        row[0] = period
        row[4:7] = row[1:4] / period
        for j, column in ((1, 0), (2, 1)):
            if not len(found[j]):
                continue
            own = found[j][:, 0]
            lag = [own[own >= a][0] - a for a in starts if (own >= a).any() and own[own >= a][0] - a < 2 * period]
            gap = [
                own[own >= a][0] - b
                for a, b in zip(starts, ends, strict=True)
                if (own >= a).any() and own[own >= a][0] - a < 2 * period
            ]
            if lag:
                row[9 + column], row[11 + column] = np.mean(lag), np.mean(gap)
                row[7 + column], row[13 + column] = row[9 + column] / period, row[11 + column] / period
    return out


def task(milliseconds: float, dt: float) -> Task:
    """The circuit as a task; the first third of a trace, at most a second, is left out."""

    def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        burn = min(1000.0, milliseconds / 3)
        with np.errstate(all="ignore"):
            traces = voltages(theta.double().numpy(), milliseconds, dt, rng)
        kept = traces[:, :, int(burn / (10 * dt)) :]
        return torch.as_tensor(statistics(kept, 10 * dt)).float()

    return Task("pyloric", prior(), simulate, 31, 18)


def reference_statistics(milliseconds: float, dt: float, generator: torch.Generator, tries: int = 64) -> Tensor:
    """Statistics (18,) of the reference circuit, with the first of some random synapses for which all are defined.

    Raises ValueError where none is.
    """
    law, own = prior(), torch.as_tensor(REFERENCE.ravel()).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        theta = law.sample((tries,))
    theta[:, :24] = own
    x = task(milliseconds, dt).simulate(theta, generator)
    whole = torch.isfinite(x).all(1).nonzero()[:, 0]
    if not len(whole):
        raise ValueError("no circuit tried has all 18 statistics: give pyloric.milliseconds more")
    return x[whole[0]]
