"""The compiled CPU product: it is the product with the decoded words, whatever the codebook, the shape and the threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.quip_sharp import codebooks, linear, lookup
from papers.quip_sharp.linear import QuantLinear

pytest.importorskip("numba")
from papers.quip_sharp import kernels

NAMES = ("e8p", "e8p_rvq3", "e8p_rvq4", "e8_1bit")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(name: str, rows: int, columns: int) -> QuantLinear:
    """A layer of random words: every byte is a valid one."""
    layer = QuantLinear(columns, rows, name)
    layer.words.copy_(torch.randint(256, layer.words.shape, dtype=torch.uint8, generator=gen()))
    return layer


def multiply(layer: QuantLinear, y: torch.Tensor) -> torch.Tensor | None:
    return kernels.multiply(layer.words, layer.codebook, layer.sizes[1], y)


def decoded(layer: QuantLinear) -> torch.Tensor:
    """W~ by `Codebook.unpack` and `decode`, not by tables of bytes. (rows, columns) float64."""
    codes = layer.codebook.unpack(layer.words, layer.sizes[1] // 8)
    return layer.codebook.decode(codes).flatten(1).double()


@pytest.mark.parametrize("name", ["e8p", "e8_1bit"])
def test_look_ups_give_every_entry(name):
    (table,) = codebooks.get(name).tables
    rows, flips = (torch.from_numpy(array) for array in kernels.look_ups(table))
    words = torch.arange(len(table()))
    entries = rows[words >> 8] ^ flips[words & 255] if len(flips) else rows[words]
    assert torch.equal(entries.view(torch.int8).view(-1, 8) / 4, lookup.tensor(table, dtype=torch.float32))
    assert len(rows) == 256 >= len(flips)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(NAMES), st.integers(1, 9), st.integers(1, 9), st.integers(1, kernels.VECTORS))
def test_it_is_the_product_with_the_decoded_words(name, rows, blocks, vectors):
    layer = filled(name, rows, 8 * blocks)
    y = torch.randn(vectors, 8 * blocks, generator=gen(1))
    out = multiply(layer, y)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), y.double() @ decoded(layer).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64)])
def test_leading_axes_are_kept(shape):
    layer = filled("e8p_rvq3", 5, 64)
    y = torch.randn(shape, generator=gen())
    out = multiply(layer, y)
    assert out.shape == (*shape[:-1], 5)
    torch.testing.assert_close(out.double(), y.double() @ decoded(layer).T, rtol=1e-5, atol=1e-4)
    strided = torch.randn(64, 3, generator=gen()).T
    torch.testing.assert_close(multiply(layer, strided), multiply(layer, strided.contiguous()))


def test_what_it_does_not_take_is_left_to_the_decoded_product():
    layer = filled("e8p", 16, 32)
    y = torch.randn(3, 32, generator=gen())
    assert multiply(layer, y.double()) is None
    assert multiply(layer, y.new_zeros(0, 32)) is None
    assert multiply(layer, y.new_zeros(kernels.VECTORS + 1, 32)) is None
    assert multiply(filled_scalar(), y) is None
    assert multiply(layer, y.requires_grad_()) is None  # or the gradient of y would be lost
    with torch.no_grad():
        assert multiply(layer, y) is not None


def filled_scalar() -> QuantLinear:
    return QuantLinear(32, 16, "scalar2")


def test_gradients_reach_the_inputs_of_a_layer():
    layer = filled("e8p", 16, 32)
    x = torch.randn(2, 32, generator=gen(), requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad.abs().min() > 0


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_rows(monkeypatch, threads):
    layer = filled("e8p_rvq4", 7, 64)
    y = torch.randn(2, 64, generator=gen())
    whole = multiply(layer, y)
    monkeypatch.setattr(kernels, "WEIGHTS_PER_THREAD", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(multiply(layer, y), whole)


def test_an_error_in_a_thread_is_raised(monkeypatch):
    def fails(*args):
        raise RuntimeError("in a thread")

    monkeypatch.setattr(kernels, "WEIGHTS_PER_THREAD", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(kernels, "product", fails)
    with pytest.raises(RuntimeError, match="in a thread"):
        multiply(filled("e8p", 8, 64), torch.zeros(1, 64))


def test_a_layer_can_be_exported():
    layer = filled("e8p", 16, 32)
    x = torch.randn(2, 32, generator=gen())
    exported = torch.export.export(layer, (x,), strict=False)
    torch.testing.assert_close(exported.module()(x), layer(x), rtol=1e-5, atol=1e-5)


def test_a_layer_works_without_numba(monkeypatch):
    layer = filled("e8p", 16, 32)
    x = torch.randn(2, 32, generator=gen())
    compiled = layer(x)
    monkeypatch.setattr(linear, "_compiled", lambda: None)
    torch.testing.assert_close(layer(x), compiled, rtol=1e-5, atol=1e-5)
