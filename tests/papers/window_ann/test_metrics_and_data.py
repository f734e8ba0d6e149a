"""Recall, Pareto fronts, generators and readers."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from papers.window_ann import metrics, synthetic
from papers.window_ann.data import embed, hacker_news, read_hdf5, read_npy, read_vecs
from papers.window_ann.windows import rank_interval


def test_recall_divides_by_the_smaller_of_k_and_the_window():
    truth = np.array([[1, 2, 3], [4, -1, -1], [-1, -1, -1]])
    assert metrics.recall(np.array([[3, 2, 9], [4, -1, -1], [-1, -1, -1]]), truth) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.recall(np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0]]), truth) == 0.0  # no credit for padding with row 0
    assert metrics.recall(np.full((1, 3), -1), np.full((1, 3), -1)) == 1.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20))
def test_the_front_is_exactly_the_points_nobody_beats(points):
    front = metrics.pareto(points)
    beaten = lambda p: any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in points)  # noqa: E731
    assert sorted(front) == sorted({p for p in points if not beaten(p)})


def test_the_cost_at_a_level_is_the_cheapest_that_reaches_it():
    assert metrics.cost_at([(0.9, 5), (0.96, 9), (0.99, 7)], 0.95) == 7
    assert np.isnan(metrics.cost_at([(0.9, 5)], 0.95))


@pytest.mark.parametrize("p", [0, -1, -3, -6])
def test_windows_of_a_share_hold_that_many_points_plus_one(p):
    rng = np.random.default_rng(0)
    labels = np.sort(rng.random(1000))
    lo, hi = synthetic.windows(labels, 2.0**p, 200, rng)
    s, e = rank_interval(labels, lo, hi)
    assert set((e - s).tolist()) == ({1000} if p == 0 else {int(1000 * 2.0**p) + 1})
    assert s.min() < 20 or p == 0


def test_windows_of_more_than_everything_are_refused():
    with pytest.raises(ValueError, match="fraction"):
        synthetic.windows(np.arange(5), 1.5, 3, np.random.default_rng(0))


def test_adversarial_windows_hold_one_whole_cluster_that_is_not_the_querys():
    work = synthetic.adversarial(np.random.default_rng(0), 5, 40, 20)
    assert len(work.X) == 200
    assert len(work.queries) == 5 * 4
    assert np.allclose(np.linalg.norm(work.X, axis=1), 1, atol=1e-5)
    s, e = rank_interval(np.sort(work.labels), work.lo, work.hi)
    assert ((e - s) == 40).all()
    nearest = np.argmax(work.queries @ work.X.T, axis=1) // 40  # the query's own cluster
    assert (nearest != (work.lo + 0.5).astype(int)).all()


def test_truth_is_the_definition_with_ties_and_small_windows():
    rng = np.random.default_rng(1)
    X, labels = rng.standard_normal((120, 4)).astype(np.float32), rng.integers(0, 10, 120)
    ids = synthetic.truth(X, labels, X[:5], np.array([0, 3, 5, 20, 2]), np.array([9, 3, 6, 30, 4]), 10)
    for i, (lo, hi) in enumerate([(0, 9), (3, 3), (5, 6), (20, 30), (2, 4)]):
        inside = np.flatnonzero((labels >= lo) & (labels <= hi))
        best = inside[np.argsort(np.linalg.norm(X[inside] - X[i], axis=1))][:10]
        assert ids[i][: len(best)].tolist() == best.tolist()
        assert (ids[i][len(best) :] == -1).all()


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.booleans(), st.booleans())
def test_vector_files_come_back_as_written(tmp_path_factory, n, d, floats, zipped):
    rng = np.random.default_rng(n * 10 + d)
    X = rng.standard_normal((n, d)).astype(np.float32) if floats else rng.integers(0, 256, (n, d)).astype(np.uint8)
    raw = b"".join(np.int32(d).tobytes() + row.tobytes() for row in X)
    path = tmp_path_factory.mktemp("vecs") / (("x.fvecs" if floats else "x.bvecs") + (".gz" if zipped else ""))
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    assert np.array_equal(read_vecs(path), X)


@pytest.mark.parametrize(
    "raw", [b"", b"\x00\x00\x00\x00", b"\x02\x00\x00\x00" + b"\x00" * 7, np.array([1, 0, 2, 0], np.int32).tobytes()]
)
def test_a_damaged_vector_file_is_a_value_error(tmp_path, raw):
    (tmp_path / "x.fvecs").write_bytes(raw)
    with pytest.raises(ValueError, match=r"x\.fvecs"):
        read_vecs(tmp_path / "x.fvecs")


def test_the_ann_benchmarks_layout_is_read_as_h5py_wrote_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    train, test = (
        rng.random((30, 4)).astype(np.float32),
        rng.random((5, 4)),
    )  # as the published files: float32, or float64
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("train", data=train, chunks=(8, 4), compression="gzip")
        file["test"], file["neighbors"] = test, np.zeros((5, 10), np.int32)
        file.attrs["distance"] = "angular"
    X, Q = read_hdf5(tmp_path / "x.hdf5")
    assert X.dtype == Q.dtype == np.float32
    np.testing.assert_array_equal(X, train)
    np.testing.assert_array_equal(Q, test.astype(np.float32))
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["train"] = train
    with pytest.raises(UserError, match="no train and test"):
        read_hdf5(tmp_path / "other.hdf5")
    (tmp_path / "cut.hdf5").write_bytes((tmp_path / "x.hdf5").read_bytes()[:200])
    with pytest.raises(UserError, match=r"cut\.hdf5 cannot be read"):
        read_hdf5(tmp_path / "cut.hdf5")


def test_the_npy_layout_with_its_windows(tmp_path):
    rng = np.random.default_rng(0)
    for ending, array in {
        "": rng.random((9, 3)),
        "_queries": rng.random((4, 3)),
        "_filter-values": np.arange(9),
        "_queries_2pow-2_ranges": np.array([[1, 2]] * 4),
    }.items():
        np.save(tmp_path / f"set{ending}.npy", array)
    work, powers = read_npy(tmp_path, "set")
    assert work.X.shape == (9, 3)
    assert work.lo is None
    assert list(powers) == [-2]
    assert powers[-2][1].tolist() == [2] * 4
    with pytest.raises(UserError, match=r"other\.npy is missing"):
        read_npy(tmp_path, "other")
    np.save(tmp_path / "set_filter-values.npy", np.arange(9).astype("M8[D]"))
    assert read_npy(tmp_path, "set")[0].labels.tolist() == list(range(9))


@pytest.mark.parametrize(
    ("ending", "content", "word"),
    [
        ("_queries", np.zeros((4, 2)), r"shape \(9, 3\) and set_queries\.npy \(4, 2\)"),
        ("", np.zeros(9), r"set\.npy has shape \(9,\)"),
        ("_queries_2pow-2_ranges", np.zeros((3, 2)), r"give lo and hi for each query, \(4, 2\)"),
        ("_queries_ranges", np.zeros(4), r"give lo and hi"),
        ("_filter-values", b"\x93NUMPY", r"set_filter-values\.npy cannot be read"),
    ],
)
def test_an_npy_layout_that_does_not_fit_together_is_named(tmp_path, ending, content, word):
    for name, array in {"": np.ones((9, 3)), "_queries": np.ones((4, 3)), "_filter-values": np.arange(9)}.items():
        np.save(tmp_path / f"set{name}.npy", array)
    if isinstance(content, bytes):
        (tmp_path / f"set{ending}.npy").write_bytes(content)
    else:
        np.save(tmp_path / f"set{ending}.npy", content)
    with pytest.raises(UserError, match=word):
        read_npy(tmp_path, "set")


@pytest.mark.realdata
def test_deep_vectors_are_unit_vectors_of_96():
    from common.data.registry import locate

    X = read_vecs(locate("deep_10k") / "deep_10k.fvecs")
    assert X.shape == (10000, 96)
    assert np.allclose(np.linalg.norm(X, axis=1), 1, atol=1e-3)


class _Run:
    """As much of a run as the readers use."""

    def progress(self, iterable, description):
        return iterable

    def use_data(self, *what):
        self.recorded = what


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT of a few weights in the Hugging Face layout."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "show", "a", "fast", "graph", "of", "cats"]
    BertTokenizer(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(folder)
    return folder


def test_titles_keep_their_order_and_do_not_see_the_padding_of_longer_ones(encoder):
    titles = ["a fast graph of cats", "cats", "show a graph", "fast"]
    together = embed(titles, encoder, _Run(), batch_size=4)
    assert together.shape == (4, 8)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([embed([title], encoder, _Run()) for title in titles])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_folder_without_weights_is_no_encoder(tmp_path, monkeypatch):
    (tmp_path / "hacker_news_titles.tsv").write_text("timestamp\tpoints\tcomments\ttitle\n1\t2\t3\tcats\n")
    monkeypatch.setattr("papers.window_ann.data.locate", lambda name, run=None: tmp_path / f"{name}.tsv")
    with pytest.raises(UserError, match="has no weights"):
        hacker_news(_Run(), str(tmp_path), "timestamp")
