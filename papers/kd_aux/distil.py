"""Distil your own pair: temperature and weights chosen on a held-out part, a student folder, and a report beside CE and tuned KD."""

from __future__ import annotations

from typing import Any

from common.experiment import Run, main


def distil(cfg: Any, run: Run) -> None:
    from papers.kd_aux import own_pair

    own_pair.distil(cfg, run)


if __name__ == "__main__":
    main(distil)
