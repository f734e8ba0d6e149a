"""A toy Lightning job."""

import time

from common.experiment import Run, main


def fit(cfg, run: Run) -> None:
    import pytorch_lightning as pl
    import torch

    from common.training import lightning_fit

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1, dtype=torch.float64)

        def training_step(self, batch, index):
            loss = (self.layer(batch["x"]) - batch["y"]).square().mean()
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    def batch(step):
        time.sleep(cfg.sleep)
        x = torch.randn(8, 3, generator=run.rng("batch", step).torch, dtype=torch.float64)
        return {"x": x, "y": x.sum(1, keepdim=True)}

    net = Net()
    lightning_fit(net, batch, cfg.steps, cfg, run)
    run.log({f"weight{i}": w for i, w in enumerate(net.layer.weight[0].tolist())})


if __name__ == "__main__":
    main(fit)
