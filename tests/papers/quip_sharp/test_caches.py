"""Tables that are cached serve whoever comes next, whatever was going on when they were first asked for."""

import subprocess
import sys

import pytest
import torch

from papers.quip_sharp import codebooks, hadamard, lookup, synthetic
from papers.quip_sharp.linear import QuantLinear
from papers.quip_sharp.quantize_weight import quantize_linear
from tests import contexts

PACKAGE = "papers.quip_sharp"


def work() -> list[torch.Tensor]:
    """Every table there is: all codebooks encode and decode, layers compute both ways, a table goes to a device."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for name in codebooks.NAMES:
        codebook = codebooks.get(name)
        x = torch.randn(40, codebook.block, generator=generator) * 2
        for dtype in (torch.float32, torch.float64):
            found.append(codebook.quantize(x.to(dtype))[0])
        layer = QuantLinear(48, 32, name)
        layer.words.copy_(torch.randint(0, 256, layer.words.shape, generator=generator))
        found += [layer(torch.randn(rows, 48, generator=generator)) for rows in (1, 40)]
    found.append(lookup.tensor(codebooks.d4_ball, dtype=torch.float32, device="meta").new_zeros(1, device="cpu"))
    found += [hadamard.transform(torch.randn(2, 24, generator=generator), inverse) for inverse in (False, True)]
    return found


@pytest.fixture(scope="module")
def reference():
    return contexts.calls(PACKAGE, work)


def test_the_work_asks_every_cached_function(reference):
    """A cached function that it does not reach would not be checked: let `work` use it."""
    unused = {f"{f.__module__}.{f.__qualname__}" for f, known in reference.items() if not known}
    assert unused == {"papers.quip_sharp.e8p.packed_table"}  # for readers and kernels to come: asked below
    assert len(reference) >= 18


@pytest.mark.parametrize("context", contexts.CONTEXTS)
def test_caches_filled_under_a_context_serve_without_it(reference, context):
    contexts.check(reference, context)


@pytest.mark.parametrize("context", contexts.CONTEXTS)
def test_what_is_computed_after_the_whole_work_was_done_under_a_context(context):
    contexts.clear(PACKAGE)
    expected = work()
    contexts.clear(PACKAGE)

    def attempt() -> None:
        try:
            work()
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
            pass  # encoders look at values, which fake and meta tensors have not

    contexts.CONTEXTS[context](attempt)
    for a, b in zip(work(), expected, strict=True):
        assert torch.equal(a, b)
    W, H = synthetic.layer(16, 32, torch.Generator().manual_seed(0))
    again = quantize_linear(W, H)
    contexts.clear(PACKAGE)
    assert torch.equal(again.words, quantize_linear(W, H).words)


@pytest.mark.parametrize("context", contexts.CONTEXTS)
def test_a_poisoned_cache_is_found(context):
    """The check itself: tensors made carelessly are caught under every context that changes what a tensor is."""
    harmless = ("no gradients", "autocast", "torch.func.vmap")
    from functools import cache

    @cache
    def careless() -> torch.Tensor:
        return torch.arange(3) * 1.5

    reference = {careless: {((), ()): torch.arange(3) * 1.5}}
    if context in harmless:
        contexts.check(reference, context)
    else:
        with pytest.raises(AssertionError, match=f"careless, first called under {context}"):
            contexts.check(reference, context)


def test_contents_of_a_cache_are_read_by_their_arguments():
    from functools import cache, lru_cache

    for decorate in (cache, lru_cache(maxsize=8)):

        @decorate
        def add(a, b=0, *, c=0):
            return [a, b, c]

        assert contexts.contents(add) == {}
        expected = {}
        for args, keywords in (((1,), {}), ((1, 2), {}), (("x",), {"c": 3}), (((1, 2),), {"b": 1, "c": 2})):
            expected[args, tuple(keywords.items())] = add(*args, **keywords)
            assert contexts.contents(add) == expected
        assert add.cache_info().currsize == 4


def test_tables_are_read_only_and_tensors_of_them_are_shared():
    table = codebooks.e8_ball()
    assert not table.flags.writeable
    first, again = (lookup.tensor(codebooks.e8_ball, dtype=torch.float32) for _ in range(2))
    assert first.data_ptr() == again.data_ptr()
    on_meta = [lookup.tensor(codebooks.e8_ball, dtype=torch.float32, device="meta") for _ in range(2)]
    assert on_meta[0] is on_meta[1]  # a device's copy is made once
    assert on_meta[0].is_meta


def run_alone(code: str) -> None:
    """In a process of its own, where nothing has been built."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_exporting_a_layer_first_thing_gives_its_function_and_spoils_nothing():
    run_alone(
        """
import torch
from papers.quip_sharp.linear import QuantLinear
torch.set_num_threads(1)
torch.manual_seed(0)
for name in ("e8p", "e8p_rvq3", "d4", "scalar3"):
    layer = QuantLinear(48, 32, name)
    layer.words.random_(0, 256)
    x = torch.randn(3, 48)
    exported = torch.export.export(layer, (x,), strict=False)
    expected = x @ layer.dense_weight().T
    for y in (exported.module()(x), layer(x), layer(torch.cat([x] * 9))[:3]):
        assert torch.allclose(y, expected, atol=1e-4), name

from papers.quip_sharp import quantize_linear, synthetic
assert quantize_linear(*synthetic.layer(16, 32, torch.Generator().manual_seed(0))).proxy_error < 0.2
"""
    )


def test_layers_work_under_function_transforms():
    layer = QuantLinear(48, 32, "e8p")
    layer.words.random_(0, 256, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(1))
    expected = x @ layer.dense_weight().T
    assert torch.allclose(torch.func.vmap(layer)(x), expected, atol=1e-4)
    gradient = torch.func.grad(lambda v: layer(v).sum())(x[0])
    assert torch.allclose(gradient, layer.dense_weight().sum(0), atol=1e-4)
