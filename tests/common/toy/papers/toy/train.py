"""A toy job: fit a line by gradient descent, in stages."""

import os
import time

from common.experiment import Run, main


def train(cfg, run: Run) -> None:
    from common.errors import UserError
    from common.training import resumable

    if cfg.fail == "bug":
        raise KeyError("a bug")
    if cfg.fail == "exit":
        raise SystemExit(0)
    if cfg.fail == "user":
        raise UserError("this cannot work: set fail=no")
    if cfg.fail == "disk":
        with open("/dev/full", "w") as file:
            file.write("x" * 10000)

    def data() -> dict:
        count(run, "data")
        rng = run.rng("data").numpy
        x = rng.normal(size=50)
        run.log({"data": {"mean": x.mean()}})
        run.table("ranges", [{"low": x.min(), "high": x.max()}])
        return {"x": x, "y": 3 * x + rng.normal(size=50)}

    points = run.stage("data", data, key={"n": 50}, shared=cfg.shared)
    slope = Slope()
    with run.time("fit"):
        for step in resumable(run, "fit", cfg.steps, {"slope": slope}, save_seconds=cfg.save_seconds):
            i = run.rng("point", step).numpy.integers(50, size=5)
            error = slope.value * points["x"][i] - points["y"][i]
            slope.value -= cfg.lr * float((error * points["x"][i]).mean())
            run.log({"fit.error": float((error**2).mean())}, step=step)
            count(run, "steps")
            time.sleep(cfg.sleep)
    final = run.stage("final", lambda: slope.value)
    run.log({"slope": final, "nothing": float("nan")})


class Slope:
    value = 0.0

    def state_dict(self) -> dict:
        return {"value": self.value}

    def load_state_dict(self, state: dict) -> None:
        self.value = state["value"]


def count(run: Run, what: str) -> None:
    """Leave a mark outside the record, so that tests can see what was really computed."""
    with open(run.dir / f"{what}.count", "a") as file:
        file.write(f"{os.getpid()}\n")


if __name__ == "__main__":
    main(train)
