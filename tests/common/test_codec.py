"""What is stored comes back equal, and what is damaged is never read as whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common import codec

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(), st.text(max_size=12),
    st.lists(st.floats(width=32), max_size=4).map(lambda v: np.array(v, dtype=np.float32)),
    st.lists(st.integers(-100, 100), max_size=4).map(lambda v: torch.tensor(v, dtype=torch.int64)),
)  # fmt: skip
keys = st.one_of(st.text(max_size=5), st.integers())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def equal(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)
    return a == b or (a != a and b != b)


@settings(max_examples=60, deadline=None)
@given(values)
def test_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("codec") / "x.stage"
    codec.save(path, value)
    assert equal(codec.load(path), value)


@pytest.mark.parametrize("value", [{"a": np.arange(100.0)}, {"a": [1, 2, 3], "b": "text" * 20}])
def test_a_truncated_file_raises(tmp_path, value):
    path = tmp_path / "x.stage"
    codec.save(path, value)
    whole = path.read_bytes()
    for n in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="damaged"):
            codec.load(path)


def test_optimiser_state_and_tied_weights_round_trip(tmp_path):
    layer = torch.nn.Linear(3, 3)
    optimiser = torch.optim.AdamW(layer.parameters(), betas=(0.8, 0.9))
    layer(torch.ones(3)).sum().backward()
    optimiser.step()
    codec.save(tmp_path / "x", {"o": optimiser.state_dict(), "tied": [layer.weight, layer.weight]})
    kept = codec.load(tmp_path / "x")
    fresh = torch.optim.AdamW(layer.parameters())
    fresh.load_state_dict(kept["o"])
    assert equal(fresh.state_dict(), optimiser.state_dict())


def test_objects_are_refused(tmp_path):
    with pytest.raises(TypeError, match="cannot store"):
        codec.save(tmp_path / "x", {"a": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path):
    codec.save(tmp_path / "x", [1])
    with pytest.raises(TypeError):
        codec.save(tmp_path / "x", [object()])
    assert codec.load(tmp_path / "x") == [1]
