"""Window search: nearest neighbours among points whose label lies in a window (Engels et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, experiment


@experiment("window_ann", dry=True)
def train(cfg, run: Run) -> None:
    from papers.window_ann import checks

    checks.config(cfg)
    if cfg.run.dry:
        run.log(checks.estimate(cfg, run))
        return
    from papers.window_ann.studies import STUDIES

    for name in cfg.studies:
        STUDIES[name](
            cfg, run
        )  # curves: sec. 6, E1 and E2; adversarial: E3; structure: sec. 3 and 5, E4; branching: E5


if __name__ == "__main__":
    train()
