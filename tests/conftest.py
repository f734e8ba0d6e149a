"""What all tests share: folders of their own, no network, one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Runs and caches go below the test's own folder; a mirror named by PAPERS_DATA stays visible to `realdata` alone."""
    monkeypatch.setenv("PAPERS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PAPERS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def mirror(request, monkeypatch):
    """Skip `realdata` tests where there is no mirror, and hide the mirror from all others."""
    folder = os.environ.get("PAPERS_DATA")
    if request.node.get_closest_marker("realdata"):
        if not folder:
            pytest.skip("PAPERS_DATA is not set: no mirror of the real data")
    else:
        monkeypatch.delenv("PAPERS_DATA", raising=False)
    return folder
