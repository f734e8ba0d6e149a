"""Adam's memory under prices that move: what it would hold had the weights never been others."""

import pytest
import torch
from torch import nn

from papers.loss_shaping import moments
from papers.loss_shaping.constraints import DualVariables
from papers.loss_shaping.data import Windows
from papers.loss_shaping.forecasters import Shape, build_forecaster
from papers.loss_shaping.shaping import ConstrainedTraining, Fixed, WindowLosses

T, C = 5, 2


def windows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(400, C, generator=generator).cumsum(0) / 10
    return Windows(values, torch.zeros(400, 4), torch.arange(380), 12, 4, T)


def forecaster(name):
    torch.manual_seed(0)
    return build_forecaster(name, Shape(C, 4, 12, 4, T), d_model=8, heads=2, d_ff=16, dropout=0.0)


def prices_at(step):
    """Prices that jump about, the same for every contestant."""
    return torch.rand(T, generator=torch.Generator().manual_seed(step)) * 3


def trained(name, state, steps=40, lr=0.01, moving=True):
    """Parameters after some steps of Adam under moving prices (or all equal to the last, held), and the optimiser."""
    data, duals = windows(), DualVariables(torch.ones(T), lr=0.0)
    module = ConstrainedTraining(WindowLosses(forecaster(name)), duals, lr=lr, optimiser_state=state)
    adam = module.configure_optimizers()["optimizer"]
    for step in range(steps):
        duals.multipliers.copy_(prices_at(step if moving else steps - 1))
        losses = module.losses(data.batch(torch.arange(step * 8, step * 8 + 8)))
        loss = module.lagrangian(losses)
        module.look_at(losses)
        adam.zero_grad()
        loss.backward()
        module.follow(adam)
        adam.step()
    return torch.cat([p.detach().flatten() for p in module.losses.parameters()]), module, adam


@pytest.mark.parametrize("state", ["rescaled", "exact"])
def test_rows_of_their_own_move_as_if_no_price_had_ever_moved(state):
    """E4: where each step has its own weights, what prices do to Adam is all that they do, and it is taken away."""
    still, _, _ = trained("linear", "as_is", moving=False)
    followed, _, _ = trained("linear", state)
    left, _, _ = trained("linear", "as_is")
    assert (followed - still).abs().max() < 2e-5
    assert (left - still).abs().max() > 1e-3


def test_the_exact_memory_is_that_of_the_history_computed_again():
    """Moments from all past gradients of every loss under the last weights, summed one by one, at a fixed point of parameters."""
    _, module, adam = trained("bottleneck", "exact", steps=15, lr=1e-12)
    data = windows()
    parameters = list(module.losses.parameters())
    histories = [[torch.autograd.grad(module.losses(data.batch(torch.arange(s * 8, s * 8 + 8)))[i], parameters, retain_graph=True)
                  for i in range(T)] for s in range(15)]  # fmt: skip
    w = prices_at(14) + 1 / T
    for number, p in enumerate(parameters):
        weighted = [sum(w[i] * step[i][number] for i in range(T)) for step in histories]
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for g in weighted:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        torch.testing.assert_close(adam.state[p]["exp_avg"], m, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(adam.state[p]["exp_avg_sq"], v, rtol=1e-3, atol=1e-9)


def test_shared_parameters_come_near_the_exact_memory():
    exact, *_ = trained("bottleneck", "exact")
    gap = {state: (trained("bottleneck", state)[0] - exact).abs().mean().item() for state in ("as_is", "rescaled")}
    assert gap["rescaled"] < 0.8 * gap["as_is"]  # prices that jump at random at every step: the worst case


def test_owners_are_found_where_there_are_any():
    data = windows().batch(torch.arange(64))
    owners = {}
    for name in ("linear", "bottleneck", "dlinear", "itransformer", "transformer"):
        losses = WindowLosses(forecaster(name))
        named = dict(losses.named_parameters())
        found = moments.owners(losses(data), list(named.values()))
        owners[name] = {
            key.removeprefix("forecaster."): owner.tolist() for key, owner in zip(named, found, strict=True)
        }
    steps = list(range(T))
    assert owners["linear"] == {"map.weight": steps, "map.bias": steps}
    assert owners["bottleneck"] == {
        "squeeze.weight": [-1] * 3,
        "squeeze.bias": [-1] * 3,
        "expand.weight": steps,
        "expand.bias": steps,
    }
    assert all(owner == steps for owner in owners["dlinear"].values())
    assert sum(owner == steps for owner in owners["itransformer"].values()) == 2  # the last map, weight and bias
    assert all(set(owner) == {-1} for owner in owners["transformer"].values())


def test_a_parameter_that_nothing_depends_on_is_nobody_s():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))
    found = moments.owners(used**2, [used, unused])
    assert [owner.tolist() for owner in found] == [[0, 1, 2], [-1, -1]]


def test_ratios_come_back_from_zero_and_change_sign_with_the_weight():
    owner, losses = torch.tensor([0, 1, -1]), torch.tensor([1.0, 4.0])
    down = moments.ratios(owner, torch.tensor([1.0, 1.0]), torch.tensor([0.0, -2.0]), losses)
    up = moments.ratios(owner, torch.tensor([0.0, -2.0]), torch.tensor([1.0, 1.0]), losses)
    torch.testing.assert_close(down * up, torch.ones(3))
    assert down[1] == -2
    same = moments.ratios(owner, torch.tensor([0.2, 0.6]), torch.tensor([0.4, 1.2]), losses)
    torch.testing.assert_close(same, torch.full((3,), 2.0))


def test_a_momentum_and_a_largest_square_follow_too():
    p = nn.Parameter(torch.ones(2, 3))
    sgd = torch.optim.SGD([p], lr=0.0, momentum=0.9)
    amsgrad = torch.optim.Adam([p], lr=0.0, amsgrad=True)
    for optimizer in (sgd, amsgrad):
        p.grad = torch.ones(2, 3)
        optimizer.step()
        moments.rescale(optimizer, [p], [torch.tensor([2.0, 1.0])])
    assert sgd.state[p]["momentum_buffer"].tolist() == [[2.0] * 3, [1.0] * 3]
    torch.testing.assert_close(amsgrad.state[p]["max_exp_avg_sq"], torch.tensor([[4e-3] * 3, [1e-3] * 3]))


def test_weights_that_no_price_moves_leave_adam_alone():
    module = ConstrainedTraining(WindowLosses(forecaster("linear")), Fixed(torch.ones(T) / T), lr=0.1)
    assert module.optimiser_state == "as_is"


def test_the_memory_travels_in_the_checkpoint():
    for state in ("rescaled", "exact"):
        _, module, _ = trained("bottleneck", state, steps=3)
        other = ConstrainedTraining(
            WindowLosses(forecaster("bottleneck")), DualVariables(torch.ones(T), lr=0.0), lr=0.1, optimiser_state=state
        )
        other.load_state_dict(module.state_dict())
        assert (
            torch.equal(other.remembered, module.remembered)
            if state == "rescaled"
            else torch.equal(other.exact.second, module.exact.second)
        )


def test_what_cannot_be_kept_is_refused_at_once():
    with pytest.raises(ValueError, match="use as_is, rescaled, exact"):
        ConstrainedTraining(WindowLosses(forecaster("linear")), Fixed(torch.ones(T)), lr=0.1, optimiser_state="fresh")
    large = nn.Linear(2000, 2000)
    with pytest.raises(ValueError, match="use rescaled for a model of this size"):
        ConstrainedTraining(large, DualVariables(torch.ones(96), lr=0.1), lr=0.1, optimiser_state="exact")
