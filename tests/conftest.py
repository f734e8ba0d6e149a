"""What all tests share: folders of their own, no network, one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("MPLBACKEND", "Agg")

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAPERS = {path.parent.name for path in (ROOT / "papers").glob("*/train.py")}


def pytest_collection_modifyitems(config, items):
    """`PAPERS_TESTED="quip_sharp neg_ucb"` (make test PAPER=...) leaves out the tests of other papers; "all", "none"."""
    chosen = os.environ.get("PAPERS_TESTED", "all").replace(",", " ").split()
    if "all" in chosen or not chosen:
        return
    if unknown := set(chosen) - PAPERS - {"none"}:
        raise pytest.UsageError(f"there is no paper {sorted(unknown)[0]}: choose from {', '.join(sorted(PAPERS))}")
    left_out = [item for item in items if (paper := paper_of(item)) and paper not in chosen]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def paper_of(item):
    """The paper that a test is about: by its folder, or by a parameter that is its name or a path of it."""
    parts = item.path.relative_to(ROOT).parts
    if parts[:2] == ("tests", "papers"):
        return parts[2]
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        if isinstance(value, str) and value in PAPERS:
            return value
        if isinstance(value, Path) and value.is_relative_to(ROOT):
            folder, *rest = value.relative_to(ROOT).parts
            if folder in ("papers", "configs") and rest and rest[0] in PAPERS:
                return rest[0]
    return None


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
