"""Nested results on disk without pickle: a JSON skeleton, and safetensors for the arrays in it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from common.files import atomic_path

MAX_HEADER = 1 << 20  # characters


def _is_torch(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "data_ptr")


def _split(value: Any, arrays: dict[str, Any]) -> Any:
    """The JSON skeleton of `value`; every array goes to `arrays` and leaves its number behind."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {"dict": [[_split(k, arrays), _split(v, arrays)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_split(v, arrays) for v in value]}
    if _is_torch(value) or (type(value).__module__ == "numpy" and value.dtype.kind in "biuf"):
        key = str(len(arrays))
        arrays[key] = value
        return {"torch" if _is_torch(value) else "numpy": key}
    raise TypeError(f"cannot store a {type(value).__name__}: return dicts, lists, numbers, text, numpy or torch arrays")


def _join(skeleton: Any, arrays: dict[str, Any]) -> Any:
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, content),) = skeleton.items()
    if kind == "dict":
        return {_join(k, arrays): _join(v, arrays) for k, v in content}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_join(v, arrays) for v in content)
    return arrays[content] if kind == "torch" else _as_numpy(arrays[content])


def _as_numpy(array: Any) -> Any:
    array = array.numpy() if _is_torch(array) else array
    return array[()] if array.ndim == 0 else array  # numpy scalars come back as scalars


def save(path: Path, value: Any) -> None:
    """Write `value` (dicts, lists, tuples, numbers, text, numpy or torch arrays, nested) atomically to `path`.

    The file is JSON where there is no array, else safetensors with the skeleton in its header.
    Raises TypeError for anything else, OSError where it cannot be written.
    """
    arrays: dict[str, Any] = {}
    skeleton = json.dumps(_split(value, arrays))
    if arrays and len(skeleton) > MAX_HEADER:  # safetensors bounds its header: a long skeleton is one more array
        import numpy as np

        arrays["skeleton"] = np.frombuffer(skeleton.encode(), dtype=np.uint8)
        skeleton = ""
    try:
        with atomic_path(path) as scratch:
            if not arrays:
                scratch.write_text(skeleton)
            elif any(map(_is_torch, arrays.values())):
                import torch
                from safetensors.torch import save_file

                # a copy each: safetensors refuses tensors that share memory (tied weights)
                tensors = {
                    k: v.detach().cpu().clone().contiguous() if _is_torch(v) else torch.as_tensor(v)
                    for k, v in arrays.items()
                }
                save_file(tensors, scratch, metadata={"skeleton": skeleton})
            else:
                import numpy as np
                from safetensors.numpy import save_file as save_numpy

                save_numpy(
                    {k: np.asarray(v, order="C") for k, v in arrays.items()}, scratch, metadata={"skeleton": skeleton}
                )
    except Exception as error:
        if number := re.search(r"os error (\d+)", str(error)):  # safetensors wraps what the system said
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise


def load(path: Path) -> Any:
    """What `save` wrote. Raises ValueError where the file is damaged."""
    try:
        with open(path, "rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
        if header_length > path.stat().st_size:  # text, read as a number, is far larger than any file
            return _join(json.loads(path.read_text()), {})
        from safetensors import safe_open

        with safe_open(path, "np") as file:
            text = file.metadata()["skeleton"]
            skeleton = json.loads(text or file.get_tensor("skeleton").tobytes())
        framework = "pt" if '"torch"' in json.dumps(skeleton) else "np"
        with safe_open(path, framework) as file:
            names = file.keys()  # a safetensors handle is not itself iterable
            return _join(skeleton, {key: file.get_tensor(key) for key in names if key != "skeleton"})
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged ({error})") from error
