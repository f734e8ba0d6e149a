"""In-context prompts: labelled examples of a linear task on a finite set of features (the paper's data model).

A prompt is N examples (x_i, y_i = <w, x_i>) and a query x_q. Every x is one of K orthonormal features v_1 .. v_K, drawn with
frequencies p; w is drawn afresh for each prompt with E[w] = 0, E[w w'] = I. Switches leave the paper's model: Gaussian x,
label and feature noise, coherent features, a finite set of tasks.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from papers.softmax_icl.laws import check_frequencies, check_length, whole

# what numpy and zipfile raise for a file that is no .npz, or no whole one
UNREADABLE = (OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)
TASK_LAWS = ("gaussian", "rademacher", "sphere")


class Prompts(NamedTuple):
    """A batch of prompts. feat and feat_q are -1 where x is not drawn from a finite set."""

    x: Tensor  # (B, N, d)
    y: Tensor  # (B, N)
    x_q: Tensor  # (B, d)
    y_q: Tensor  # (B,)
    feat: Tensor  # (B, N) int64
    feat_q: Tensor  # (B,) int64


# ---- features V and tasks w ------------------------------------------------------------------------------------------


def check_orthonormal(V: Tensor, name: str = "features") -> None:
    """Raise ValueError unless the columns of V (d, K) are orthonormal, to the digits of its type."""
    if V.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(V.shape)}, expected (d, K)")
    V = V if V.is_floating_point() else V.double()
    gap = (V.mT @ V - torch.eye(V.shape[1], dtype=V.dtype, device=V.device)).abs().max()
    if not gap < max(1e-6, 100 * torch.finfo(V.dtype).eps):
        raise ValueError(
            f"{name} must be orthonormal (largest |<v_i, v_j> - 1[i = j]| is {gap:.3g}): orthogonalise them, with torch.linalg.qr say"
        )


def make_features(
    d: int, K: int, kind: str = "standard", generator: torch.Generator | None = None, coherence: float = 0.0
) -> Tensor:
    """V (d, K) float64 with unit columns. kind: standard (first K unit vectors) | random_orthogonal.

    coherence mu in [0, 1): the inner product of every two features; only mu = 0 is the paper's model.
    Raises ValueError where K > d or an argument is out of range.
    """
    if not 1 <= K <= d:
        raise ValueError(f"K is {K} and d is {d}: orthonormal features need 1 <= K <= d")
    if not 0 <= coherence < 1:
        raise ValueError(f"coherence is {coherence}: it must lie in [0, 1)")
    if kind == "standard":
        V = torch.eye(d, K, dtype=torch.float64)
    elif kind == "random_orthogonal":
        normal = torch.randn(d, K, dtype=torch.float64, generator=generator)
        V, R = torch.linalg.qr(normal)
        V = V * R.diagonal().sign()  # without it the law is not uniform
    else:
        raise ValueError(f"kind is {kind!r}: use standard or random_orthogonal")
    if coherence:
        gram = torch.full((K, K), coherence, dtype=torch.float64).fill_diagonal_(1.0)
        values, vectors = torch.linalg.eigh(gram)
        V = V @ (vectors * values.sqrt()) @ vectors.mT  # V G^{1/2}: its Gram matrix is G
    return V


def draw_tasks(law: str, B: int, d: int, generator: torch.Generator) -> Tensor:
    """w (B, d) float64 with E[w] = 0 and E[w w'] = I. law: gaussian | rademacher | sphere (of radius sqrt d)."""
    if law == "rademacher":
        return torch.randint(0, 2, (B, d), generator=generator).double() * 2 - 1
    w = torch.randn(B, d, dtype=torch.float64, generator=generator)
    if law == "gaussian":
        return w
    if law == "sphere":
        return w * (d**0.5 / w.norm(dim=1, keepdim=True))
    raise ValueError(f"law is {law!r}: use {', '.join(TASK_LAWS)}")


def exact_tasks(d: int) -> Tensor:
    """The d vectors sqrt(d) e_j: a mean over them is exact for anything quadratic in w, since mean w w' = I. (d, d)."""
    return d**0.5 * torch.eye(d, dtype=torch.float64)


# ---- prompts ---------------------------------------------------------------------------------------------------------


def sample_prompts(B: int, N: int, p: ArrayLike, V: Tensor, generator: torch.Generator, *, law: str = "gaussian", tasks: Tensor | None = None,
                   feat_q: Tensor | None = None, label_noise: float = 0.0, feature_noise: float = 0.0, gaussian_x: bool = False) -> Prompts:  # fmt: skip
    """B prompts of N examples. p (K,), V (d, K), tensors or arrays.

    tasks: (M, d), w is one of these rows in place of a draw from `law`. feat_q: (B,) the queries' features where they are
    not to be drawn (stratified queries). label_noise, feature_noise: standard deviations. gaussian_x: x ~ N(0, I_d) in
    place of features. The queries' labels carry no noise. Raises ValueError for arguments that do not fit.
    """
    p, V = check_frequencies(p), torch.as_tensor(V, dtype=torch.float64)
    d, K = V.shape
    check_length(N)
    B, N = whole("B", B), whole("N", N)
    if len(p) != K:
        raise ValueError(f"p has {len(p)} entries for K = {K} features")
    if feat_q is not None:
        feat_q = torch.as_tensor(feat_q)
        if feat_q.shape != (B,):
            raise ValueError(f"feat_q has shape {tuple(feat_q.shape)}, expected {(B,)}: one feature for each query")
        if feat_q.is_floating_point() or (B and not 0 <= int(feat_q.min()) <= int(feat_q.max()) < K):
            raise ValueError(
                f"feat_q holds features from {feat_q.min()} to {feat_q.max()}: they must be integers from 0 to K - 1 = {K - 1}"
            )
    if gaussian_x:
        x = torch.randn(B, N + 1, d, dtype=torch.float64, generator=generator)
        feat = torch.full((B, N + 1), -1)
    else:
        edges = torch.as_tensor(np.cumsum(p)[:-1])
        feat = torch.searchsorted(
            edges, torch.rand(B, N + 1, dtype=torch.float64, generator=generator), right=True
        )  # multinomial, at any size
        if feat_q is not None:
            feat = torch.cat([feat[:, :N], feat_q[:, None]], dim=1)
        x = V.mT[feat]  # (B, N + 1, d)
    if feature_noise:
        x = x + feature_noise * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    if tasks is None:
        w = draw_tasks(law, B, d, generator)
    else:
        w = tasks[torch.randint(len(tasks), (B,), generator=generator)]
    y = torch.einsum("bnd,bd->bn", x, w)  # (B, N + 1)
    examples = (
        y[:, :N] + label_noise * torch.randn(B, N, dtype=torch.float64, generator=generator)
        if label_noise
        else y[:, :N]
    )
    return Prompts(x[:, :N], examples, x[:, N], y[:, N], feat[:, :N], feat[:, N])


def save_prompts(path: str | Path, prompts: Prompts) -> None:
    """Write prompts as .npz with the arrays x, y, x_q, y_q, feat, feat_q."""
    np.savez_compressed(path, **{name: value.numpy() for name, value in prompts._asdict().items()})


def load_prompts(path: str | Path) -> Prompts:
    """Read what `save_prompts` wrote, or any .npz with x (B, N, d), y (B, N), x_q (B, d), y_q (B,); feat and feat_q may lack.

    Raises ValueError where the file is not such an archive: cut short, empty, of another kind, with other shapes, with text,
    complex numbers, NaN or infinities.
    """
    if Path(path).exists() and not Path(path).is_file():  # a fifo would be waited for
        raise ValueError(f"{path} is no file: give an .npz")
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, as .npy does")
        with loaded as archive:
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except UNREADABLE as error:
        what = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(f"{path} cannot be read as .npz ({what}): save x, y, x_q and y_q with np.savez") from None
    if missing := [name for name in ("x", "y", "x_q", "y_q") if name not in arrays]:
        raise ValueError(f"{path} lacks the array {missing[0]}: x, y, x_q and y_q are needed")
    x = arrays["x"]
    if x.ndim != 3 or x.shape[1] < 1:
        raise ValueError(f"{path}: x has shape {x.shape}, expected (B, N, d) with N >= 1")
    B, N, d = x.shape
    arrays.setdefault("feat", np.full((B, N), -1))
    arrays.setdefault("feat_q", np.full(B, -1))
    for name, shape in {"y": (B, N), "x_q": (B, d), "y_q": (B,), "feat": (B, N), "feat_q": (B,)}.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {name} has shape {arrays[name].shape}, expected {shape} to go with x")
    for name, array in arrays.items():
        if name in ("x", "y", "x_q", "y_q", "feat", "feat_q") and array.dtype.kind not in (
            "iu" if name.startswith("feat") else "iuf"
        ):
            kind = "whole numbers" if name.startswith("feat") else "numbers"
            raise ValueError(f"{path}: {name} is of type {array.dtype}: give {kind}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                f"{path}: {name} has {int((~np.isfinite(array)).sum())} entries that are NaN or infinite: leave such prompts out"
            )
    if not B:
        raise ValueError(f"{path} has no prompt: give at least one")
    floats = [torch.as_tensor(arrays[name], dtype=torch.float64) for name in ("x", "y", "x_q", "y_q")]
    return Prompts(*floats, *(torch.as_tensor(arrays[name], dtype=torch.int64) for name in ("feat", "feat_q")))
