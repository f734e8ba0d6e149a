"""The small pieces that papers share: optional packages, lazy exports, spreads, seeds of libraries."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from common import compiled, lazy, optional
from common.compiled import compiler
from common.errors import UserError, as_user_error, choose, did_you_mean, user_errors
from common.files import sha256_of_arrays
from common.metrics.summary import log_slope, spread
from common.rng import seeded


def test_compiled_functions_are_cached_by_their_sources_and_options(tmp_path, monkeypatch):
    module = tmp_path / "loops.py"

    def anew(factor: int) -> int:
        module.write_text(f"def times(x):\n    return {factor} * x\n")
        names: dict = {}
        exec(compile(module.read_text(), str(module), "exec"), names)
        return compiler(str(module), "loops")(names["times"])(3)

    assert [anew(2), anew(3)] == [6, 9]
    monkeypatch.setattr(compiled, "FAST", {"nsz"})
    assert anew(3) == 9
    assert len(list((tmp_path / "__pycache__").glob("numba-*"))) == 3


def test_too_little_memory_is_the_users_to_mend_and_other_talk_of_memory_is_not():
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
                  torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")):  # fmt: skip
        assert isinstance(as_user_error(error), UserError)
    bug = RuntimeError("The tensor has a non-zero number of elements, but its data is not allocated yet, memory")
    assert as_user_error(bug) is bug


def test_what_is_compiled_after_two_runs_finds_the_threads_it_began_with():
    code = (
        "from types import SimpleNamespace\n"
        "from common.machine import limit_threads, process_state\n"
        "for _ in range(2):\n"
        "    with process_state(SimpleNamespace(is_main=False)):\n"
        "        limit_threads(1)\n"
        "        import numba\n"
        "print(numba.njit(lambda x: x + 1)(1))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "2\n", done.stderr


def test_compiling_asks_for_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(UserError, match=r"\.\[compiled\]"):
        compiler(__file__, "test_small")


def test_what_is_not_installed_is_asked_for_by_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "hnswlib", None)  # as if it were not here
    with pytest.raises(UserError, match=r"pip install -e '\.\[bench\]'"):
        optional.need("hnswlib")
    monkeypatch.setitem(sys.modules, "usearch", None)
    with pytest.raises(UserError, match=r"\.\[bench\]"):
        optional.need("usearch.index")
    with pytest.raises(UserError, match="pip install nothing_like_it"):
        optional.need("nothing_like_it.part")
    assert optional.need("json").dumps({}) == "{}"
    assert optional.installed("json")
    assert optional.installed("dev")
    assert not optional.installed("nothing_like_it.part")


def test_exports_are_imported_on_first_use():
    names, get, directory = lazy.exports("common", {"spread": "metrics.summary", "rng": ""})
    assert names == ["spread", "rng"]
    assert get("spread") is spread
    assert get("rng").seeded is seeded
    assert {"spread", "rng"} <= set(directory())
    with pytest.raises(AttributeError, match="nothing"):
        get("nothing")


def test_a_librarys_refusal_is_said_to_the_user():
    with pytest.raises(UserError, match=r"^data\.csv: row 3$"), user_errors("data.csv"):
        raise ValueError("row 3")
    with pytest.raises(KeyError), user_errors("x"):
        raise KeyError  # a bug stays one


def test_a_wrong_choice_is_answered_with_what_is_near_and_all_there_is():
    assert choose("base", "vamana", ["vamana", "faiss"]) == "vamana"
    with pytest.raises(UserError, match=r"unknown base 'vamanna': did you mean vamana\? choose vamana, faiss"):
        choose("base", "vamanna", ["vamana", "faiss"])


def test_a_very_long_list_of_names_is_left_out_where_one_is_near():
    names = [f"key{i}" for i in range(41)]
    assert did_you_mean("the keys are", "kay7", names).startswith("did you mean key7")
    assert "key40" not in did_you_mean("the keys are", "kay7", names)
    assert "key40" in did_you_mean("the keys are", "zzz", names)


def test_spread_is_the_samples():
    assert spread([1.0, 3.0]) == {"n": 2, "mean": 2.0, "sd": math.sqrt(2)}
    assert spread([5.0])["sd"] is None
    with pytest.raises(ValueError, match="values"):
        spread([])


def test_log_slope_is_the_exponent_of_a_power():
    x = [1.0, 2.0, 5.0, 11.0]
    assert log_slope(x, [3 * value**-0.5 for value in x]) == pytest.approx(-0.5, abs=1e-12)
    with pytest.raises(ValueError, match="positive"):
        log_slope([1, 2], [0, 1])


def test_the_sum_of_arrays_depends_on_dtype_shape_and_content():
    a = np.arange(6.0)
    sums = {sha256_of_arrays(x) for x in (a, a.astype(np.float32), a.reshape(2, 3), a + 1, a[::-1])}
    assert len(sums) == 5
    assert sha256_of_arrays(torch.arange(6.0, dtype=torch.float64)) == sha256_of_arrays(a)
    assert sha256_of_arrays(a, a) != sha256_of_arrays(a)


def test_seeded_leaves_the_global_generator_as_it_was():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with seeded(7):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(7):
        assert torch.equal(torch.rand(2), inside)


@pytest.mark.parametrize("columns", ["20", "40", "80", "200"])
def test_a_narrow_table_stacks_its_columns_and_breaks_no_number(monkeypatch, capsys, columns):
    from common import report

    monkeypatch.setenv("COLUMNS", columns)
    rows = [{"K": k, **{f"a_long_name_{i}": 12345.678 * 10**i for i in range(9)}} for k in (30, 100)]
    report.show("wide", rows)
    out = capsys.readouterr().out
    for row in rows:
        for value in row.values():
            assert report.number(value) in out
    assert out.count("wide") == 1
