"""ConstrainedTraining as a Lightning module around anything that gives a vector of losses."""

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from papers.loss_shaping import baselines
from papers.loss_shaping.constraints import DualVariables, MonotoneVariables
from papers.loss_shaping.forecasters import Shape, build_forecaster
from papers.loss_shaping.shaping import ConstrainedTraining, Fixed, WindowLosses


class Targets(nn.Module):
    """l_i = (theta - i)^2 for i = 0, 2: no forecaster at all."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(5.0))

    def forward(self, batch):
        return (self.theta - torch.tensor([0.0, 2.0])).square()


def fit(module, steps):
    trainer = pl.Trainer(max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, barebones=False)  # fmt: skip
    trainer.fit(module, train_dataloaders=torch.utils.data.DataLoader(torch.zeros(steps, 1)))
    return module


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(0)
    return {
        "x": torch.randn(6, 12, 2),
        "y": torch.randn(6, 5, 2),
        "x_mark": torch.zeros(6, 12, 4),
        "y_mark": torch.zeros(6, 9, 4),
    }


def losses_of(seed=0):
    torch.manual_seed(seed)
    return WindowLosses(build_forecaster("bottleneck", Shape(2, 4, 12, 4, 5)))


def gradient(module, batch):
    module.losses.zero_grad()
    module.lagrangian(module.losses(batch)).backward()
    return torch.cat([p.grad.flatten() for p in module.losses.parameters()])


def test_losses_keep_time_and_average_the_rest(batch):
    losses = losses_of()
    error = (losses.forecaster(batch["x"]) - batch["y"]).square()
    torch.testing.assert_close(losses(batch), error.mean((0, 2)))
    grid = WindowLosses(losses.forecaster, cells="grid")(batch)
    torch.testing.assert_close(grid, error.mean(0).flatten())


def test_without_prices_constrained_training_is_erm(batch):
    shaped = ConstrainedTraining(losses_of(), DualVariables(torch.ones(5), lr=0.0), lr=0.1)
    erm = ConstrainedTraining(losses_of(), baselines.erm(5), lr=0.1)
    assert shaped.lagrangian(shaped.losses(batch)).item() == pytest.approx(erm.losses(batch).mean().item())
    torch.testing.assert_close(gradient(shaped, batch), gradient(erm, batch))


def test_equal_prices_only_scale_the_gradient(batch):
    shaped = ConstrainedTraining(losses_of(), DualVariables(torch.ones(5), lr=0.0, init=0.7), lr=0.1)
    erm = ConstrainedTraining(losses_of(), baselines.erm(5), lr=0.1)
    torch.testing.assert_close(gradient(shaped, batch), (1 + 0.7 * 5) * gradient(erm, batch))
    shaped.normalise = True
    torch.testing.assert_close(gradient(shaped, batch), gradient(erm, batch))


def test_one_price_changes_the_direction(batch):
    shaped = ConstrainedTraining(losses_of(), DualVariables(torch.ones(5), lr=0.0), lr=0.1)
    before = gradient(shaped, batch)
    shaped.weighting.multipliers[3] = 1.0
    assert torch.cosine_similarity(gradient(shaped, batch), before, dim=0) < 0.999


def test_the_optimiser_does_not_own_the_prices():
    module = ConstrainedTraining(Targets(), DualVariables([1.0, 1.0], lr=0.1), lr=0.1)
    owned = {id(p) for group in module.configure_optimizers()["optimizer"].param_groups for p in group["params"]}
    assert owned == {id(module.losses.theta)}


def test_adam_forgets_as_fast_as_it_is_told():
    module = ConstrainedTraining(Targets(), DualVariables([1.0, 1.0], lr=0.1), lr=0.1, beta2=0.9)
    assert module.configure_optimizers()["optimizer"].defaults["betas"] == (0.9, 0.9)


def test_training_reaches_the_saddle_point_of_the_closed_form():
    """eps = (1/4, inf): theta = 1/2, lambda = 1."""
    duals = DualVariables([0.25, float("inf")], lr=0.05)
    start = Targets()
    start.theta.data.fill_(1.0)
    module = fit(ConstrainedTraining(start, duals, lr=0.01), 1500)
    assert module.losses.theta.item() == pytest.approx(0.5, abs=0.02)
    assert duals.multipliers.tolist() == pytest.approx([1.0, 0.0], abs=0.05)


def test_the_model_steps_with_the_prices_from_before_the_batch():
    duals = DualVariables([0.0, 0.0], lr=1.0)
    module = ConstrainedTraining(Targets(), duals, lr=0.1)
    module.log = lambda *args: None
    loss = module.training_step(None, 0)
    assert loss.item() == pytest.approx((25 + 9) / 2)  # lambda was zero
    assert duals.multipliers.tolist() == [25.0, 9.0]


def test_the_prices_may_wait_for_the_model_s_step():
    duals = DualVariables([0.0, 0.0], lr=1.0)
    module = ConstrainedTraining(Targets(), duals, lr=0.1, dual_order="after_primal")
    module.log = lambda *args: None
    module.training_step(None, 0)
    assert duals.multipliers.tolist() == [0.0, 0.0]
    module.losses.theta.data.fill_(1.0)
    module.on_train_batch_end(None, None, 0)
    assert duals.multipliers.tolist() == [1.0, 1.0]


def test_a_dual_step_an_epoch_sees_the_epoch_s_mean():
    duals = DualVariables([0.0, 0.0], lr=1.0)
    module = ConstrainedTraining(Targets(), duals, lr=0.1, dual_every="epoch", steps_per_epoch=2)
    module.dual_update(torch.tensor([1.0, 2.0]))
    assert duals.multipliers.tolist() == [0.0, 0.0]
    module.dual_update(torch.tensor([3.0, 2.0]))
    assert duals.multipliers.tolist() == [2.0, 2.0]
    assert module.summed is None


def test_sampling_is_unbiased_for_the_normalised_weights():
    duals = DualVariables(torch.zeros(3), lr=0.0)
    duals.multipliers.copy_(torch.tensor([0.0, 1.0, 3.0]))
    module = ConstrainedTraining(Targets(), duals, lr=0.1, sampling=True)
    losses, w = torch.tensor([1.0, 10.0, 100.0]), duals.weights()
    torch.manual_seed(0)
    mean = torch.stack([module.lagrangian(losses) for _ in range(4000)]).mean()
    assert mean.item() == pytest.approx((w @ losses / w.sum()).item(), rel=0.02)


def test_sampling_refuses_negative_weights():
    duals = MonotoneVariables(2, lr=0.1, init=3.0)  # weights 3.5 and -2.5
    module = ConstrainedTraining(Targets(), duals, lr=0.1, sampling=True)
    with pytest.raises(ValueError, match="one is negative"):
        module.lagrangian(torch.ones(2))


def adam(module, batch, steps=30):
    optimizer = module.configure_optimizers()["optimizer"]
    for _ in range(steps):
        optimizer.zero_grad()
        module.lagrangian(module.losses(batch)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.losses.parameters()])


def test_equal_prices_leave_adam_s_path_as_it_is(batch):
    shaped = ConstrainedTraining(losses_of(), DualVariables(torch.ones(5), lr=0.0, init=1.0), lr=0.01)
    erm = ConstrainedTraining(losses_of(), baselines.erm(5), lr=0.01)
    torch.testing.assert_close(adam(shaped, batch), adam(erm, batch), atol=1e-4, rtol=0.0)


def test_held_weights_cannot_shape_steps_that_share_no_parameter(batch):
    """E4: with a row of weights for each step they only rescale that row's gradient, which Adam divides by; shared steps move."""
    w = torch.tensor([0.2, 5.0, 0.2, 9.0, 0.2])
    gap = {}
    for name in ("linear", "bottleneck"):
        paths = []
        for weights in (w, torch.full((5,), 0.2)):
            torch.manual_seed(0)
            losses = WindowLosses(build_forecaster(name, Shape(2, 4, 12, 4, 5)))
            paths.append(adam(ConstrainedTraining(losses, Fixed(weights), lr=0.01), batch))
        gap[name] = (paths[0] - paths[1]).abs().max().item()
    assert gap["linear"] < 1e-4
    assert gap["bottleneck"] > 1e-2


def test_two_processes_move_the_prices_on_the_mean_of_both_shares(monkeypatch):
    from torch import distributed

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_reduce", lambda losses: losses.add_(torch.tensor([3.0, 0.0])))
    duals = DualVariables([0.0, 0.0], lr=1.0)
    ConstrainedTraining(Targets(), duals, lr=0.1).dual_update(torch.tensor([1.0, 2.0]))
    assert duals.multipliers.tolist() == [2.0, 1.0]


def test_a_plain_trainer_keeps_the_best_epoch_and_weighs_a_short_last_batch_by_its_windows():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.tensor(0.0))

        def forward(self, batch):
            return (self.theta - batch).square().mean(0)

    module = ConstrainedTraining(Mean(), Fixed(torch.ones(1)), lr=1.0)
    val = torch.tensor([[0.9], [0.9], [0.9], [-3.0]])  # batches of three and of one
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)  # fmt: skip
    trainer.fit(
        module, torch.utils.data.DataLoader(torch.full((2, 1), 100.0)), torch.utils.data.DataLoader(val, batch_size=3)
    )
    assert module.best["epoch"] == 1
    theta = module.best["state"]["theta"]
    assert module.best["val_loss"] == pytest.approx((theta - val).square().mean().item())
    assert theta < module.losses.theta
    module.restore_best()
    assert module.losses.theta == theta


def test_best_validation_state_comes_back_and_travels_in_the_checkpoint():
    module = ConstrainedTraining(Targets(), DualVariables([1.0, 1.0], lr=0.1), lr=0.1)
    module.consider(0.4, epoch=1)
    module.losses.theta.data.fill_(9.0)
    module.consider(0.5, epoch=2)
    other = ConstrainedTraining(Targets(), DualVariables([1.0, 1.0], lr=0.1), lr=0.1)
    other.load_state_dict(module.state_dict())
    other.restore_best()
    assert (other.losses.theta.item(), other.best["epoch"]) == (5.0, 1)


def test_baselines_weigh_steps_as_they_say():
    losses = torch.tensor([0.1, 0.6, 0.9, 0.4])
    assert baselines.erm(4).weights(losses).tolist() == [0.25] * 4
    assert baselines.Penalty([0.5] * 4, rho=3.0).weights(losses).tolist() == [0.25, 1.0, 1.0, 0.25]
    assert baselines.Minimax(4, 0.5).weights(losses).tolist() == [0.0, 0.5, 0.5, 0.0]
    assert baselines.reweight([1.0, 1.0, 2.0, 4.0]).weights(losses).tolist() == [0.125, 0.125, 0.25, 0.5]


def test_monotone_training_makes_the_first_step_no_worse_than_the_second():
    """l = (theta^2, (theta - 2)^2), l_1 <= l_2: theta = 1 is where they meet, and the mean's minimum too; start above."""
    module = fit(ConstrainedTraining(Targets(), MonotoneVariables(2, lr=0.05), lr=0.05), 400)
    assert module.losses.theta.item() <= 1.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dual_order": "both"}, "use"),
        ({"dual_every": "hour"}, "use"),
        ({"dual_every": "epoch"}, "steps_per_epoch"),
        ({"lr_factor": lambda epoch: 0.5**epoch}, "steps_per_epoch"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ConstrainedTraining(Targets(), Fixed(torch.ones(2)), lr=0.1, **options)
