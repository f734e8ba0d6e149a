"""The races run, their contestants agree where they should, and the traps of cards are read as written."""

from papers.openness import bench


def test_races_run_and_agree():
    tables = bench.bench(quick=True)
    assert all(row["same"] == row["expressions"] for row in tables["expressions"])
    ours = next(row for row in tables["folders"] if row["contestant"] == "ours")
    assert ours["contradicted"] == 0
    assert all(row["ours"] is True for row in tables["traps"])
    assert len(tables["front_matter"]) >= 1
