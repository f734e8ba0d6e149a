"""Readers: made-up mixtures, the formats of the mirror, CIFAR's python version without unpickling, and files that are damaged."""

import numpy as np
import pytest
import torch
from PIL import Image

from common.experiment import Run
from papers.kd_aux import data, models
from tests import damaged

# ---- CIFAR's python version, written byte by byte as Python 2 wrote it --------------------------------------------------


def short(text):
    return b"U" + bytes([len(text)]) + text


def number(n):
    return b"J" + n.to_bytes(4, "little", signed=True)


def array(values):
    """A numpy array as its protocol-2 form: _reconstruct, then its state."""
    head = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + short(b"b") + b"\x87R"
    dtype = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R"
        + b"(K\x03"
        + short(b"|")
        + b"NNN"
        + number(-1)
        + number(-1)
        + b"K\x00tb"
    )
    shape = number(values.shape[0]) + number(values.shape[1]) + b"\x86"
    content = b"T" + values.nbytes.to_bytes(4, "little") + values.tobytes()
    return head + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"


def cifar(values, labels, extra=b""):
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array(values) + short(b"fine_labels") + listed + extra + b"u."


IMAGES = np.random.default_rng(0).integers(0, 256, size=(6, 3072), dtype=np.uint8)


def write_cifar(path, content=None):
    path.write_bytes(cifar(IMAGES, range(6)) if content is None else content)


def test_cifar_is_read_without_unpickling(tmp_path):
    write_cifar(tmp_path / "train")
    found = data.read_cifar_python(tmp_path / "train")
    np.testing.assert_array_equal(found["data"], IMAGES)
    assert found["fine_labels"] == list(range(6))


def test_a_file_that_would_run_code_is_refused(tmp_path):
    harmful = short(b"x") + b"cos\nsystem\n" + short(b"true") + b"\x85R"
    write_cifar(tmp_path / "train", cifar(IMAGES, range(6), harmful))
    with pytest.raises(ValueError, match=r"train: it asks for os\.system: only numpy arrays are read"):
        data.read_cifar_python(tmp_path / "train")


def read_cifar(path):
    from common.errors import UserError

    if path.is_dir() or not path.exists():
        raise UserError(f"{path} is no file")  # what looks for it in the folder says so
    run = Run(path.parent / "run", paper="kd_aux")
    folder = path.parent / "folder"
    folder.mkdir(exist_ok=True)
    if not (folder / path.name).exists():
        path.rename(folder / path.name)
    write_cifar(folder / "test")
    data.cifar100(str(folder), run)


CIFAR = damaged.Input("train", write_cifar, read_cifar, {
    "wrong_type": lambda path: write_cifar(path, cifar(IMAGES, range(6)).replace(b"u1", b"O8")),
    "wrong_shape": lambda path: write_cifar(path, cifar(IMAGES[:, :100].copy(), range(6))),
    "labels_outside": lambda path: write_cifar(path, cifar(IMAGES, [0, 1, 2, 3, 4, 200])),
    "fewer_labels": lambda path: write_cifar(path, cifar(IMAGES, range(3))),
}, accepted={"not_finite": "bytes are always finite", "flipped": "a byte of an image is another byte"})  # fmt: skip

# ---- a person's own table ----------------------------------------------------------------------------------------------

GOOD = {"x": np.random.default_rng(0).normal(size=(9, 4)).astype("f4"), "y": np.arange(9) % 3}


def save(**changes):
    return lambda path: np.savez(path.open("wb"), **{k: v for k, v in (GOOD | changes).items() if v is not None})


TABLE = damaged.Input("mine.npz", save(), lambda path: data.own(str(path), "data.path", Run(path.parent / "run", paper="kd_aux")), {
    "not_finite": save(x=np.full((9, 4), np.nan)),
    "wrong_shape": save(x=np.ones((7, 4))),
    "wrong_type": save(x=np.full((9, 4), "a")),
    "complex": save(x=np.ones((9, 4)) * 1j),
    "fractional_labels": save(y=np.linspace(0, 1, 9)),
    "labels_below_zero": save(y=np.arange(9) - 1),
    "no_labels": save(y=None),
    "objects": lambda path: np.savez(path.open("wb"), allow_pickle=True, x=GOOD["x"], y=np.array([object()] * 9)),
    "array_alone": lambda path: np.save(path.open("wb"), GOOD["x"]),
})  # fmt: skip


@damaged.every_form([CIFAR, TABLE])
def test_a_damaged_file_is_one_sentence(tmp_path, given, form):
    if form in given.accepted and form in ("flipped",):
        pytest.skip(given.accepted[form])
    damaged.refused(tmp_path, given, form)


@pytest.mark.parametrize("given", [CIFAR, TABLE], ids=lambda given: given.name)
def test_a_good_file_is_read(tmp_path, given):
    damaged.accepted(tmp_path, given)


def test_tokenised_text_and_image_folders_are_read(tmp_path):
    np.savez(
        tmp_path / "text.npz", input_ids=np.ones((4, 5), int), attention_mask=np.ones((4, 5), int), y=np.arange(4) % 2
    )
    x, y, classes = data.table(tmp_path / "text.npz")
    assert x["input_ids"].shape == (4, 5)
    assert classes == 2
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (8, 6), (i, 0, 0)).save(tmp_path / "images" / name / f"{i}.png")
    x, y, classes = data.image_folder(tmp_path / "images", 4)
    assert x.shape == (4, 3, 4, 4)
    assert y.tolist() == [0, 0, 1, 1]
    (tmp_path / "images" / "cat" / "0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"0\.png is no image"):
        data.image_folder(tmp_path / "images", 4)


# ---- made up -----------------------------------------------------------------------------------------------------------


def test_mixture_posterior_is_bayes_and_its_sub_clusters_sum_to_classes():
    world = data.make_mixture(np.random.default_rng(0), classes=3, inner=2, dim=4)
    x, y, _ = world.sample(4000, np.random.default_rng(1))
    log_y, log_z = world.log_posterior(x)
    torch.testing.assert_close(log_z.exp().view(-1, 3, 2).sum(2), log_y.exp())
    confidence, guess = log_y.exp().max(dim=1)
    assert float((guess == y).float().mean()) == pytest.approx(
        float(confidence.mean()), abs=0.02
    )  # calibrated, as Bayes is


def test_student_sees_its_view_alone():
    found = data.mixture(np.random.default_rng(0), 200)
    assert found.see == (0, 12)
    assert found.x.shape == (200, 32)


def test_augmentation_is_a_function_of_its_generator_and_keeps_the_pixels():
    x = torch.randn(16, 3, 32, 32)
    a, b = (data.augmented(x, torch.Generator().manual_seed(s)) for s in (0, 0))
    assert torch.equal(a, b)
    whole = data.augmented(x, torch.Generator().manual_seed(1), pad=0)
    same = (whole == x).flatten(1).all(1)
    flipped = (whole == x.flip(3)).flatten(1).all(1)
    assert bool((same | flipped).all())
    assert 0 < int(same.sum()) < 16


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "no IDX header"), (bytes([0, 0, 8, 1, 0, 0, 0, 3, 1]), "1 bytes for a shape of")]
)
def test_idx_files_are_checked(content, message):
    with pytest.raises(ValueError, match=message):
        data.idx(content, 1)


@pytest.mark.realdata
def test_real_sets_have_their_shapes(mirror, tmp_path):
    from common.settings import compose

    cfg, run = compose("kd_aux", "train"), Run(tmp_path, paper="kd_aux")
    shapes = {"mfeat": (2000, 649), "mnist": (10000, 1, 28, 28), "cifar10": (10000, 3, 32, 32), "fsdd": (3000, 40, 40)}
    for name, shape in shapes.items():
        assert tuple(data.load(name, cfg, run).x.shape) == shape


# ---- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "message"), [
    (None, "no transformers folder"), ("{}", "no transformers folder"), ('{"architectures": ["BertModel"]}', "classification head"),
    ('{"architectures": ["ViTForImageClassification"], "hidden_size": "wide"}', "cannot be loaded"),
])  # fmt: skip
def test_a_folder_that_is_no_model_is_one_sentence(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        models.of_folder(tmp_path, 0)
