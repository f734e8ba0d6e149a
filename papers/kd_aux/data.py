"""Data of the experiments: registry names, a person's own files, and a made-up mixture where nothing is here."""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from common.data.registry import locate, own_file, read_bytes, real_or_synthetic
from common.errors import UserError, user_errors
from common.run import Run
from papers.kd_aux.losses import check_labels

VIEWS = ("fou", "fac", "kar", "pix", "zer", "mor")  # of mfeat; a student sees the first
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)  # of CIFAR-100's training images


@dataclass(frozen=True)
class Set:
    """Inputs x (N, ...) float32 and labels y (N,) int64. see: columns of x that the student is shown, None for all."""

    name: str
    x: Tensor
    y: Tensor
    classes: int
    see: tuple[int, int] | None = None


# ---- registry names --------------------------------------------------------------------------------------------------


def load(name: str, cfg: Any, run: Run) -> Set:
    """mixture | mfeat | mnist | cifar10 | fsdd | digits. mfeat has a made-up stand-in, the others are needed as they are."""
    if name == "mixture":
        run.use_data("mixture", "synthetic", "papers.kd_aux.data.mixture", None)
        return mixture(run.rng("mixture").numpy)
    if name == "mfeat":
        return real_or_synthetic("mfeat", read_mfeat, _stand_in(run), run=run, fallback=cfg.data.fallback)
    if name == "digits":
        return digits(run)
    reader = {"mnist": read_mnist, "cifar10": read_cifar10, "fsdd": read_fsdd}[name]
    path = locate({"mnist": "mnist10k", "cifar10": "cifar10_jpeg", "fsdd": "fsdd"}[name], run=run)
    with user_errors(str(path)):
        return reader(path)  # type: ignore[operator]


def _stand_in(run: Run) -> Any:
    from functools import partial

    return partial(mixture, run.rng("mixture").numpy)


def read_mfeat(path: Path) -> Set:
    """UCI Multiple Features: 2,000 numerals in six views (649 columns), of which a student sees the 76 Fourier coefficients."""
    arrays = arrays_of(path)
    views = [np.asarray(need_array(arrays, view, path), np.float32) for view in VIEWS]
    x, y = np.concatenate(views, axis=1), np.asarray(need_array(arrays, "label", path), np.int64)
    return checked(Set("mfeat", torch.from_numpy(x), torch.from_numpy(y), 10, (0, views[0].shape[1])))


def read_mnist(folder: Path) -> Set:
    """The 10,000 test images of MNIST (IDX files): (N, 1, 28, 28) in [0, 1], centred."""
    found = {kind: next((p for p in sorted(folder.glob(f"t10k-{kind}-*"))), None) for kind in ("images", "labels")}
    if not all(found.values()):
        raise ValueError("no t10k-images and t10k-labels: they are IDX files")
    x, y = idx(read_bytes(found["images"]), 3), idx(read_bytes(found["labels"]), 1)
    images = (torch.from_numpy(x.copy()).float()[:, None] / 255 - 0.1307) / 0.3081
    return checked(Set("mnist", images, torch.from_numpy(y.astype(np.int64)), 10))


def idx(content: bytes, dims: int) -> np.ndarray:
    """An IDX file of bytes. ValueError where its header and its length disagree."""
    if len(content) < 4 + 4 * dims or content[:4] != bytes([0, 0, 8, dims]):
        raise ValueError(f"no IDX header of {dims} dimensions")
    shape = np.frombuffer(content, ">u4", dims, 4).astype(int)
    body = np.frombuffer(content, np.uint8, offset=4 + 4 * dims)
    if body.size != int(np.prod(shape)):
        raise ValueError(f"{body.size:,} bytes for a shape of {tuple(shape)}: the file is damaged")
    return body.reshape(shape)


def read_cifar10(folder: Path) -> Set:
    """8,000 training and 2,000 test images of CIFAR-10 as JPEG: (N, 3, 32, 32), the training ones first."""
    from PIL import Image

    xs, ys = [], []
    for name in ("cifar10_jpeg_train8000.npz", "cifar10_jpeg_test2000.npz"):
        arrays = arrays_of(folder / name)
        jpeg, offset = need_array(arrays, "jpeg", name), need_array(arrays, "offset", name)
        images = [
            np.asarray(Image.open(io.BytesIO(jpeg[a:b].tobytes())).convert("RGB"))
            for a, b in zip(offset[:-1], offset[1:], strict=True)
        ]
        xs.append(np.stack(images))
        ys.append(np.asarray(need_array(arrays, "label", name), np.int64))
    return checked(Set("cifar10", normalised(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys)), 10))


def normalised(images: np.ndarray) -> Tensor:
    """(N, 32, 32, 3) bytes -> (N, 3, 32, 32), centred and scaled as the benchmark has it."""
    x = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def read_fsdd(path: Path, frames: int = 40, bands: int = 40) -> Set:
    """Spoken digits as log-spectra: (N, frames, bands), each recording stretched to the same number of frames."""
    arrays = arrays_of(path)
    pcm, offset = need_array(arrays, "pcm", path).astype(np.float32) / 32768, need_array(arrays, "offset", path)
    x = np.zeros((len(offset) - 1, frames, bands), np.float32)
    for i, (a, b) in enumerate(zip(offset[:-1], offset[1:], strict=True)):
        starts = np.linspace(0, max(0, b - a - 256), frames).astype(int)
        wave = np.pad(pcm[a:b], (0, max(0, 256 - (b - a))))
        window = np.stack([wave[s : s + 256] for s in starts]) * np.hanning(256)
        power = np.abs(np.fft.rfft(window, axis=1))[:, 1:129] ** 2  # (frames, 128)
        edges = np.geomspace(1, 128, bands + 1)
        for j in range(bands):
            low, high = int(edges[j]) - 1, max(int(edges[j]), int(np.ceil(edges[j + 1])) - 1)
            x[i, :, j] = np.log(power[:, low:high].mean(axis=1) + 1e-6)
    x = (x - x.mean()) / x.std()
    return checked(
        Set("fsdd", torch.from_numpy(x), torch.from_numpy(need_array(arrays, "label", path).astype(np.int64)), 10)
    )


def digits(run: Run) -> Set:
    """The 1,797 digits of scikit-learn: (N, 1, 8, 8), centred."""
    from common.optional import need

    found = need("sklearn.datasets").load_digits()
    run.use_data("digits", "package", "sklearn.datasets.load_digits", None)
    x = torch.from_numpy(found.images.astype(np.float32))[:, None] / 16
    return Set("digits", (x - 0.1307) / 0.3081, torch.from_numpy(found.target.astype(np.int64)), 10)


# ---- made up ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """A Gaussian mixture of `classes` with `inner` sub-clusters each: centres N(0, I), x = centre + noise. centres (C, K, d)."""

    centres: Tensor
    noise: float

    def sample(self, n: int, generator: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """x (n, d), classes (n,) in turn, sub-clusters (n,)."""
        C, K, d = self.centres.shape
        y, z = torch.arange(n) % C, torch.from_numpy(generator.integers(K, size=n))
        noise = torch.from_numpy(generator.normal(size=(n, d))).to(self.centres)
        return self.centres[y, z] + self.noise * noise, y, z

    def log_posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bayes: log p(class|x) (B, C) and log p(sub-cluster|x) (B, C K), classes and sub-clusters equally likely."""
        C, K, d = self.centres.shape
        distance = torch.cdist(x, self.centres.reshape(C * K, d)) ** 2
        log_z = torch.log_softmax(-distance / (2 * self.noise**2), dim=1)
        return torch.logsumexp(log_z.view(-1, C, K), dim=2), log_z


def make_mixture(
    generator: np.random.Generator, classes: int = 10, inner: int = 5, dim: int = 20, noise: float = 0.7
) -> Mixture:
    """The stand-in of the tests: ten classes, five sub-clusters each, in twenty dimensions."""
    return Mixture(torch.from_numpy(generator.normal(size=(classes, inner, dim))).float(), noise)


def mixture(generator: np.random.Generator, n: int = 2000) -> Set:
    """n points of a mixture in two views: 12 noisy projections for the student, the 20 coordinates as well for the teacher."""
    world = make_mixture(generator)
    x, y, _ = world.sample(n, generator)
    projection = torch.from_numpy(generator.normal(size=(20, 12))).float() / 20**0.5
    seen = x @ projection + 0.3 * torch.from_numpy(generator.normal(size=(n, 12))).float()
    order = torch.argsort(y, stable=True)  # sorted by class, as mfeat is
    return Set("mixture", torch.cat([seen, x], dim=1)[order], y[order], 10, (0, 12))


class BayesTeacher(torch.nn.Module):
    """The exact posterior of a mixture as a teacher: its features are the sub-clusters' square-root probabilities (unit rows)."""

    def __init__(self, world: Mixture):
        super().__init__()
        self.world, C, K = world, *world.centres.shape[:2]
        self.features = torch.nn.Identity()
        self.fc = torch.nn.Linear(C * K, C)  # says how wide the features are; the logits are Bayes' own

    def forward(self, x: Tensor) -> Tensor:
        log_y, log_z = self.world.log_posterior(x)
        self.fc(self.features((0.5 * log_z).exp()))
        return log_y


# ---- a person's own files --------------------------------------------------------------------------------------------


def own_path(path: str, key: str, run: Run, folder: bool | None = False) -> Path:
    """`own_file`, which would wait for ever for a pipe: that is refused. UserError."""
    found = Path(path).expanduser()
    if found.exists() and not found.is_file() and not found.is_dir():
        raise UserError(f"{key}: {path} is no plain file: give a file or a folder")
    return own_file(path, key, run, folder)


def own(path: str, key: str, run: Run, size: int | None = None) -> tuple[Any, Tensor, int]:
    """(x, y, classes) of a folder of class folders of images, or of an .npz with y and x (or input_ids, attention_mask)."""
    found = own_path(path, key, run, folder=None)
    with user_errors(str(found)):
        return image_folder(found, size) if found.is_dir() else table(found)


def table(path: Path) -> tuple[Any, Tensor, int]:
    """An .npz: y (N,) and x (N, ...), or a tokenised text set: input_ids and attention_mask (N, T) in place of x."""
    arrays = arrays_of(path)
    y = need_array(arrays, "y", path)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or len(y) < 2:
        raise ValueError(f"y is {y.dtype} of shape {y.shape}: give whole numbers from 0, one for each sample")
    if int(y.min()) < 0 or int(y.max()) >= len(y):
        raise ValueError(f"y goes from {y.min()} to {y.max()}: give classes from 0 without gaps")
    kinds = {"input_ids": np.integer, "attention_mask": np.integer} if "input_ids" in arrays else {"x": np.number}
    x: dict[str, Tensor] = {}
    for name, kind in kinds.items():
        array = need_array(arrays, name, path)
        if not np.issubdtype(array.dtype, kind) or np.iscomplexobj(array) or array.ndim < 2:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}: give numbers, a row for each sample")
        if len(array) != len(y):
            raise ValueError(f"{name} has {len(array)} rows for {len(y)} labels")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite everywhere")
        x[name] = torch.from_numpy(array.astype(np.int64 if kind is np.integer else np.float32))
    return x if len(x) > 1 else x["x"], torch.from_numpy(y.astype(np.int64)), int(y.max()) + 1


def image_folder(folder: Path, size: int | None = None) -> tuple[Tensor, Tensor, int]:
    """A folder with a folder for each class: (N, 3, size, size) in [0, 1], classes in the order of their names."""
    from PIL import Image, UnidentifiedImageError

    classes = sorted(p for p in folder.iterdir() if p.is_dir())
    if len(classes) < 2:
        raise ValueError("a folder for each class is expected, at least two")
    xs, ys = [], []
    for label, inner in enumerate(classes):
        for path in sorted(
            p for p in inner.iterdir() if p.suffix.lower() in (".png", ".jpg", ".jpeg", ".bmp", ".webp")
        ):
            try:
                image = Image.open(path).convert("RGB")
            except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
                raise ValueError(f"{path.name} is no image that can be read") from None
            side = size or image.width
            xs.append(np.asarray(image.resize((side, side), Image.Resampling.BILINEAR), np.float32) / 255)
            ys.append(label)
    if not xs:
        raise ValueError("no image (.png, .jpg, .bmp, .webp) in its class folders")
    if len({x.shape for x in xs}) > 1:
        raise ValueError("the images have different sizes: give data.size")
    return torch.from_numpy(np.stack(xs)).permute(0, 3, 1, 2).contiguous(), torch.tensor(ys), len(classes)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz. ValueError where it is none, is damaged, or holds objects."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        AttributeError,
        TypeError,
        zipfile.BadZipFile,
        NotImplementedError,
    ) as error:
        raise ValueError(f"it is no .npz of plain arrays ({shorten_error(error)})") from None
    except Exception as error:  # zlib.error, struct.error: a damaged archive has many ways to say so
        raise ValueError(f"it is damaged ({shorten_error(error)})") from None


def shorten_error(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:80]


def need_array(arrays: Mapping[str, np.ndarray], name: str, path: Any) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"there is no array {name!r}: it has {', '.join(arrays) or 'none'}")
    return arrays[name]


def checked(found: Set) -> Set:
    """Raise ValueError unless inputs are finite and labels lie in the classes, one for each."""
    if len(found.x) != len(found.y):
        raise ValueError(f"{len(found.x)} inputs for {len(found.y)} labels")
    if not bool(torch.isfinite(found.x).all()):
        raise ValueError("an input is not finite")
    check_labels(found.y, found.classes)
    return found


# ---- CIFAR-100 as it is distributed ----------------------------------------------------------------------------------


def read_cifar_python(path: Path) -> dict[str, Any]:
    """A batch of CIFAR's python version, read without unpickling: a small machine for its opcodes, which knows numpy arrays alone.

    Names what it refuses. Returns the dictionary with text keys: data (N, 3072) uint8, fine_labels or labels lists.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    try:
        for opcode, found_arg, _ in pickletools.genops(read_bytes(path)):
            name, arg = opcode.name, cast(Any, found_arg)
            if name in ("PROTO", "FRAME", "STOP"):
                continue
            if name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[int(arg)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                stack.append(memo[int(arg)])
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
                stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
            elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            elif name in ("BININT", "BININT1", "BININT2", "INT", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"):
                stack.append(arg)
            elif name in ("SHORT_BINSTRING", "BINSTRING", "STRING", "BINBYTES", "SHORT_BINBYTES"):
                stack.append(arg.encode("latin-1") if isinstance(arg, str) else arg)
            elif name in ("GLOBAL", "STACK_GLOBAL"):
                where = arg if name == "GLOBAL" else " ".join(_text(v) for v in (stack.pop(-2), stack.pop()))
                known = {"numpy.core.multiarray _reconstruct": "array", "numpy._core.multiarray _reconstruct": "array",
                         "numpy ndarray": "ndarray", "numpy dtype": "dtype", "_codecs encode": "encode"}  # fmt: skip
                if where not in known:
                    raise ValueError(f"it asks for {where.replace(' ', '.')}: only numpy arrays are read")
                stack.append(_Name(known[where]))
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
                n = int(name[-1])
                stack[-n:] = [tuple(stack[-n:])]
            elif name == "TUPLE":
                stack.append(tuple(since_mark()))
            elif name == "REDUCE":
                args, what = stack.pop(), stack.pop()
                if not isinstance(what, _Name):
                    raise ValueError("it calls what is no array")
                stack.append(args[0].encode("latin-1") if what.kind == "encode" else _Array(what.kind, args))
            elif name == "BUILD":
                state = stack.pop()
                stack[-1].state = state
            elif name == "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            elif name == "APPENDS":
                items = since_mark()
                stack[-1].extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                pairs = since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                    stack[-1][key] = value
            else:
                raise ValueError(f"it uses the instruction {name}: only numpy arrays, lists and texts are read")
        (found,) = stack
        return {_text(key): _plain(value) for key, value in found.items()}
    except (IndexError, KeyError, TypeError, AttributeError, EOFError, OSError) as error:
        raise ValueError(f"{path.name} is no batch of CIFAR's python version ({shorten_error(error)})") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


class _Name:
    def __init__(self, kind: str):
        self.kind = kind


class _Array:
    """An array or a dtype on its way: what made it, and its state."""

    def __init__(self, kind: str, args: Any):
        self.kind, self.args, self.state = kind, args, None


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        _, shape, dtype, fortran, content = cast(Any, value.state)
        code = _text(dtype.args[0])
        if code not in ("u1", "i8", "i4", "f4", "f8"):
            raise ValueError(f"an array of type {code}: only numbers are read")
        array = np.frombuffer(content, np.dtype(code)).reshape(shape, order="F" if fortran else "C")
        return array.copy()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _text(value) if isinstance(value, bytes) else value


def cifar100(folder: str, run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Training and test images (N, 32, 32, 3) bytes and fine labels, of `cifar-100-python` or of an .npz of each split."""
    root = own_path(folder, "benchmark.data", run, folder=True)
    found = {}
    for split in ("train", "test"):
        path = next(
            (p for p in (root / split, root / f"{split}.npz", root / "cifar-100-python" / split) if p.is_file()), None
        )
        if path is None:
            raise UserError(
                f"benchmark.data: {folder} has no file {split}: give the folder cifar-100-python of CIFAR-100's archive"
            )
        with user_errors(str(path)):
            raw: Any = arrays_of(path) if path.suffix == ".npz" else read_cifar_python(path)
            images = np.asarray(need_array(raw, "data", path))
            labels = np.asarray(need_array(raw, "fine_labels", path), np.int64)
            if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072 or len(images) != len(labels):
                raise ValueError(
                    f"data is {images.dtype} of shape {images.shape} for {len(labels)} labels: (N, 3072) bytes are expected"
                )
            check_labels(torch.from_numpy(labels), 100)
        found[split] = (images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)
    return found


def augmented(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Random crops of padded images and random flips, one draw for each: a function of the generator alone. (B, C, H, W)."""
    B, _, H, W = images.shape
    padded = torch.nn.functional.pad(images, (pad,) * 4)
    top = torch.randint(0, 2 * pad + 1, (B,), generator=generator)
    left = torch.randint(0, 2 * pad + 1, (B,), generator=generator)
    rows = (top[:, None] + torch.arange(H))[:, None, :, None]
    columns = left[:, None] + torch.arange(W)
    flip = torch.rand(B, generator=generator) < 0.5
    columns = torch.where(flip[:, None], columns.flip(1), columns)[:, None, None, :]
    return padded[
        torch.arange(B)[:, None, None, None], torch.arange(images.shape[1])[None, :, None, None], rows, columns
    ]
