"""The posterior of a user's simulator: `papers run snpse infer simulator=module:function prior=prior.yaml x=observed.npy`."""

from __future__ import annotations

from common.experiment import Run, main


def infer(cfg, run: Run) -> None:
    from common.errors import user_errors
    from papers.snpse import own

    simulator, prior, x = own.inputs(cfg, run)
    with user_errors():
        inference = own.estimator(cfg, run, simulator, prior)
        posterior = inference.infer(x, cfg.budget, cfg.rounds, run=run)
        path = own.out_of(cfg, run)
        posterior.save(path)
        own.report(cfg, run, inference, posterior)
    run.say(f"posterior: {path}")


if __name__ == "__main__":
    main(infer)
