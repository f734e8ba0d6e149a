"""The `papers` command."""

import json

import pytest

from common import cli
from common.experiment import launch


def call(capsys, *words):
    code = cli.main(list(words))
    output = capsys.readouterr()
    return code, output.out, output.err


def test_list_shows_every_paper_with_its_experiments(capsys):
    code, out, _ = call(capsys, "list", "--json")
    papers = {paper["name"]: paper for paper in json.loads(out)}
    assert code == 0
    assert papers["quip_sharp"]["title"].startswith("QuIP#")
    assert {"smoke", "ci"} <= set(papers["quip_sharp"]["experiments"])
    assert "quip_sharp" in call(capsys, "list")[1]


def test_run_is_the_module_s_command(toy_paper, capsys):
    code, out, _ = call(capsys, "run", "toy", "+exp=smoke")
    assert code == 0
    assert out.splitlines()[-1].startswith("result: ")
    assert call(capsys, "run", "toy", "train", "+exp=smoke")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nothing"], "quip_sharp"),
        (["run", "toy", "paint"], "train"),
        (["run"], "name of a paper"),
        (["compare", "a", "b"], "does not exist"),
    ],
)
def test_wrong_words_are_answered_in_one_line(toy_paper, capsys, words, message):
    code, _, err = call(capsys, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_compare_says_what_differs(toy_paper, capsys):
    a, b = launch("toy", ["+exp=smoke"]), launch("toy", ["+exp=smoke", "seed=1", "lr=0.2"])
    capsys.readouterr()
    code, out, _ = call(capsys, "compare", str(a.folder), str(b.folder))
    assert code == 0
    assert "lr" in out
    assert "metrics or tables differ" in out
    assert "identical" in call(capsys, "compare", str(a.folder), str(a.folder))[1]


def test_clean_shows_first_and_spares_what_is_done_or_in_use(toy_paper, capsys, tmp_path):
    from common.experiment import locked

    done, failed = launch("toy", ["+exp=smoke"]), launch("toy")
    record = json.loads((failed.folder / "result.json").read_text()) | {"status": "failed"}
    (failed.folder / "result.json").write_text(json.dumps(record))
    runs = ["--runs", str(tmp_path / "runs")]
    assert str(failed.folder) in call(capsys, "clean", *runs)[1].replace("\n", "")
    with locked(failed.folder):
        call(capsys, "clean", "--yes", *runs)
    assert failed.folder.exists()
    call(capsys, "clean", "--yes", *runs)
    assert not failed.folder.exists()
    stopped = launch("toy", ["seed=5"])
    (stopped.folder / "result.json").write_text(json.dumps(record | {"status": "interrupted"}))
    call(capsys, "clean", "--yes", *runs)
    assert stopped.folder.exists()
    call(capsys, "clean", "--yes", "--interrupted", *runs)
    assert not stopped.folder.exists()
    assert done.folder.exists()


def test_clean_deletes_only_what_a_run_has_made(toy_paper, capsys, tmp_path):
    runs, outside = tmp_path / "runs", tmp_path / "others" / "r1"
    mine = runs / "a" / "b" / "thesis"
    for folder in (mine, outside):
        folder.mkdir(parents=True)
        (folder / "result.json").write_text('{"schema": 1, "status": "failed"}')
        (folder / "precious.txt").write_text("precious")
    failed = launch("toy")
    record = json.loads((failed.folder / "result.json").read_text()) | {"status": "failed"}
    (failed.folder / "result.json").write_text(json.dumps(record))
    (runs / "toy" / "linked").symlink_to(outside.parent)
    assert call(capsys, "clean", "--yes", "--runs", str(runs))[0] == 0
    assert (mine / "precious.txt").exists()
    assert (outside / "precious.txt").exists()
    assert not failed.folder.exists()
    code, _, err = call(capsys, "clean", "--runs", "", "--yes")
    assert (code, err.count("\n")) == (2, 1)


def test_list_survives_a_damaged_experiment_file(toy_paper, capsys):
    from common.catalogue import folder_of

    path = folder_of("configs.toy") / "exp" / "zz_bad.yaml"
    path.write_bytes(b"\xff\xfe")
    try:
        code, out, _ = call(capsys, "list", "--json")
        assert code == 0
        assert "toy" in {paper["name"] for paper in json.loads(out)}
    finally:
        path.unlink()


def test_doctor_says_what_is_here(capsys):
    code, out, _ = call(capsys, "doctor")
    assert code == 0
    for word in ("torch", "cache", "wikitext2_test", "smollm"):
        assert word in out
