"""Contexts that a cache must survive: every cached constructor of a package is first called in one, then used normally.

    reference = contexts.calls("papers.quip_sharp", work)     # {cached function: {arguments: value}}, from a clean start
    contexts.check(reference, "torch.export")                 # AssertionError where a cache was poisoned

`work` exercises the package; the arguments that its caches have seen are called again, on empty caches, within the
context. Tensors that a cache holds must be what they are without the context: no fake, inference, traced or batched
ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from common.errors import UserError

Key = tuple[tuple, tuple[tuple[str, Any], ...]]  # positional arguments, keyword arguments


# ---- finding caches --------------------------------------------------------------------------------------------------


def modules(package: str) -> list[ModuleType]:
    """The modules of a package that can be imported here (what is left needs a library that is not installed)."""
    root = importlib.import_module(package)
    found = [root]
    for info in pkgutil.walk_packages(getattr(root, "__path__", []), f"{package}."):
        if info.name.rpartition(".")[2] != "__main__":
            with contextlib.suppress(ImportError, UserError):
                found.append(importlib.import_module(info.name))
    return found


def cached_functions(package: str) -> dict[str, Any]:
    """By full name, every function and method of a package that functools keeps the values of."""
    found = {}
    for module in modules(package):
        for owner, prefix in [(module, module.__name__), *_classes(module)]:
            for name, value in vars(owner).items():
                value = getattr(value, "__func__", value)  # of a static or class method
                if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
                    found[f"{prefix}.{name}"] = value
    return found


def _classes(module: ModuleType) -> list[tuple[type, str]]:
    return [
        (value, f"{module.__name__}.{name}")
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


def clear(package: str) -> None:
    """Empty all of them."""
    for function in cached_functions(package).values():
        function.cache_clear()


def contents(function: Any) -> dict[Key, Any]:
    """What a functools cache holds, by arguments. (Its dictionary is found as the garbage collector finds it.)"""
    size = function.cache_info().currsize
    stores = [d for d in gc.get_referents(function) if type(d) is dict and d is not vars(function) and len(d) == size]
    known = [_arguments(key) for key in stores[0]] if size else []
    return {(args, keywords): function(*args, **dict(keywords)) for args, keywords in known}  # all of them hits


def _arguments(key: Any) -> Key:
    """Arguments of a functools key: a lone int or str as it is, else a tuple with a mark before keywords."""
    parts = tuple(key) if isinstance(key, tuple) else (key,)
    marks = [i for i, part in enumerate(parts) if type(part) is object]
    if not marks:
        return parts, ()
    named = parts[marks[0] + 1 :]
    return parts[: marks[0]], tuple(zip(named[::2], named[1::2], strict=True))


def calls(package: str, work: Callable[[], Any]) -> dict[Any, dict[Key, Any]]:
    """{cached function: {arguments: value}} of what `work` asks of a package's caches, from a clean start."""
    functions = cached_functions(package)
    clear(package)
    work()
    return {function: contents(function) for function in functions.values()}


# ---- contexts --------------------------------------------------------------------------------------------------------


def _within(*contexts: Callable[[], Any]) -> Callable[[Callable[[], None]], None]:
    def run(work: Callable[[], None]) -> None:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            work()

    return run


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def _export(work: Callable[[], None]) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            work()
            return x + 1

    torch.export.export(Model(), (torch.zeros(2),), strict=False)


def _batched(work: Callable[[], None]) -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        work()
        return x + 1

    torch.func.vmap(one)(torch.zeros(2))


def _differentiated(work: Callable[[], None]) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        work()
        return x * x

    torch.func.grad(loss)(torch.tensor(1.0))


# name -> runs a function within it
CONTEXTS: Mapping[str, Callable[[Callable[[], None]], None]] = {
    "torch.export": _export,
    "fake tensors": _within(_fake),
    "inference mode": _within(torch.inference_mode),
    "no gradients": _within(torch.no_grad),
    "device meta": _within(lambda: torch.device("meta")),
    "default device meta": _within(lambda: _default_device("meta")),
    "default dtype float64": _within(lambda: _default_dtype(torch.float64)),
    "default dtype bfloat16": _within(lambda: _default_dtype(torch.bfloat16)),
    "autocast": _within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "meta and inference": _within(lambda: torch.device("meta"), torch.inference_mode),
    "torch.func.vmap": _batched,
    "torch.func.grad": _differentiated,
}


def check(reference: Mapping[Any, Mapping[Key, Any]], context: str) -> None:
    """Make every cached value first within a context, and hold what the caches then give against the reference.

    AssertionError names the function and what differs. What cannot be made within the context (a value that depends on
    data that a fake tensor has not) may raise there: afterwards it must be made as ever.
    """
    for function in reference:
        function.cache_clear()

    def make_all() -> None:
        for function, known in reference.items():
            for args, keywords in known:
                with contextlib.suppress(Exception):
                    function(*args, **dict(keywords))

    CONTEXTS[context](make_all)
    for function, known in reference.items():
        where = f"{function.__module__}.{function.__qualname__}, first called under {context}"
        for key, value in contents(function).items():
            if key not in known:  # what other functions of the package have asked it for within the context
                same(value, value, f"{where}: {key}")
        for (args, keywords), value in known.items():
            same(function(*args, **dict(keywords)), value, f"{where}: {args}")


def same(found: Any, expected: Any, where: str) -> None:
    """AssertionError unless two cached values are equal, tensors in all that they are besides their values too."""
    assert type(found) is type(expected), f"{where}: {type(found).__name__} in place of {type(expected).__name__}"
    if isinstance(found, torch.Tensor):
        for name, tensor in (("it", found), ("the reference", expected)):
            assert type(tensor) in (torch.Tensor, torch.nn.Parameter), f"{where}: {name} is a {type(tensor).__name__}"
            assert not torch._C._functorch.is_functorch_wrapped_tensor(tensor), f"{where}: {name} is batched"
            assert not tensor.is_inference(), f"{where}: {name} is an inference tensor"
        kind, wanted = ((t.device, t.dtype, t.shape, t.requires_grad) for t in (found, expected))
        assert kind == wanted, f"{where}: {kind} in place of {wanted}"
        assert found.is_meta or torch.equal(found, expected), f"{where}: other values"
    elif isinstance(found, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), f"{where}: {found.dtype} {found.shape}"
        assert np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc"), f"{where}: other values"
    elif isinstance(found, dict):
        assert found.keys() == expected.keys(), f"{where}: other keys"
        for key in found:
            same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), f"{where}: another length"
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            same(a, b, f"{where}[{i}]")
    elif dataclasses.is_dataclass(found) and not isinstance(found, type):
        for field in dataclasses.fields(found):
            same(getattr(found, field.name), getattr(expected, field.name), f"{where}.{field.name}")
    elif not callable(found):
        assert found == expected, f"{where}: {found!r} in place of {expected!r}"
