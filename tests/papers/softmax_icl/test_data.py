"""Prompts follow the law they are asked for, and wrong laws are named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.softmax_icl.data import (
    TASK_LAWS,
    check_orthonormal,
    draw_tasks,
    exact_tasks,
    load_prompts,
    make_features,
    sample_prompts,
    save_prompts,
)  # fmt: skip
from papers.softmax_icl.laws import check_frequencies, frequencies


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=50, deadline=None)
@given(kind=st.sampled_from(["balanced", "dominant", "two_level", "zipf"]), K=st.integers(2, 300), p1=st.floats(0.01, 0.99),
       s=st.floats(0, 3), n=st.integers(1, 5))  # fmt: skip
def test_every_law_is_a_law(kind, K, p1, s, n):
    p = frequencies(kind, K, p1=p1, s=s, n_dominant=min(n, K - 1))
    assert p.shape == (K,)
    assert (p > 0).all()
    assert p.sum() == pytest.approx(1)


def test_dominant_and_two_level_share_as_they_say():
    np.testing.assert_allclose(frequencies("dominant", 5, p1=0.6), [0.6, 0.1, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(frequencies("two_level", 5, p1=0.6, n_dominant=2), [0.3, 0.3, 0.4 / 3, 0.4 / 3, 0.4 / 3])
    np.testing.assert_allclose(frequencies("zipf", 3, s=1), np.array([6, 3, 2]) / 11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("given", 3, 0.5, 1, 1.0, [0.5, 0.5, 0.5]), "sums to 1.5"), (("given", 3, 0.5, 1, 1.0, [0.5, 0.5]), "2 entries"), (("given", 3), "0 entries"),
        (("dominant", 3, 1.0), "p1"), (("two_level", 3, 0.5, 3), "n_dominant"), (("balanced", 1), "K is 1"), (("uniform", 3), "kind"),
    ],
)  # fmt: skip
def test_wrong_laws_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        frequencies(*arguments)


def test_a_law_in_float32_is_a_law_to_its_own_digits():
    p = check_frequencies(np.full(7, 1 / 7, np.float32))
    assert p.dtype == np.float64
    assert p.sum() == pytest.approx(1, abs=1e-15)
    with pytest.raises(ValueError, match=r"p sums to 1\.000999"):
        check_frequencies(np.array([0.5, 0.501], np.float32))
    with pytest.raises(ValueError, match=r"p sums to 1\.0000001"):
        check_frequencies([0.5, 0.5000001])


@pytest.mark.parametrize("law", TASK_LAWS)
def test_tasks_have_mean_zero_and_unit_covariance(law):
    w = draw_tasks(law, 200_000, 4, generator())
    torch.testing.assert_close(w.mean(dim=0), torch.zeros(4).double(), atol=0.012, rtol=0)
    torch.testing.assert_close(w.mT @ w / len(w), torch.eye(4).double(), atol=0.02, rtol=0)


def test_exact_tasks_have_exact_unit_covariance():
    w = exact_tasks(7)
    torch.testing.assert_close(w.mT @ w / len(w), torch.eye(7).double(), atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize("kind", ["standard", "random_orthogonal"])
def test_features_are_orthonormal(kind):
    V = make_features(9, 4, kind, generator())
    torch.testing.assert_close(V.mT @ V, torch.eye(4).double())
    check_orthonormal(V)


def test_coherent_features_have_their_inner_products_and_are_refused_as_orthonormal():
    V = make_features(9, 4, "random_orthogonal", generator(), coherence=0.3)
    torch.testing.assert_close(V.mT @ V, torch.full((4, 4), 0.3).double().fill_diagonal_(1))
    with pytest.raises(ValueError, match=r"orthonormal .*0\.3"):
        check_orthonormal(V)
    check_orthonormal(make_features(200, 200, "random_orthogonal", generator()).float())  # to the digits of float32


def test_prompts_hang_together():
    V = make_features(6, 4, "random_orthogonal", generator())
    batch = sample_prompts(50, 20, [0.4, 0.3, 0.2, 0.1], V, generator())
    assert batch.x.shape == (50, 20, 6)
    torch.testing.assert_close(batch.x, V.mT[batch.feat])
    torch.testing.assert_close(batch.x_q, V.mT[batch.feat_q])
    w = torch.linalg.pinv(batch.x) @ batch.y[..., None]  # within the span of what is seen, y is linear in x
    torch.testing.assert_close((batch.x @ w)[..., 0], batch.y)


def test_features_occur_as_often_as_p_says():
    p = np.array([0.5, 0.3, 0.2])
    batch = sample_prompts(4000, 25, p, make_features(3, 3), generator())
    counts = torch.bincount(batch.feat.flatten(), minlength=3) / batch.feat.numel()
    np.testing.assert_allclose(counts, p, atol=0.006)
    np.testing.assert_allclose(torch.bincount(batch.feat_q, minlength=3) / 4000, p, atol=0.035)


def test_stratified_queries_are_those_asked_for():
    feat_q = torch.arange(3).repeat_interleave(5)
    assert torch.equal(
        sample_prompts(15, 4, [0.9, 0.05, 0.05], make_features(3, 3), generator(), feat_q=feat_q).feat_q, feat_q
    )


def test_finite_tasks_are_the_only_ones():
    tasks = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
    batch = sample_prompts(40, 30, [0.5, 0.5], make_features(2, 2), generator(), tasks=tasks)
    assert set(batch.y[batch.feat == 0].tolist()) == {1.0, 3.0}


def test_switches_do_what_they_say():
    V, p = make_features(3, 3), [0.4, 0.3, 0.3]
    plain = sample_prompts(500, 30, p, V, generator())
    noisy = sample_prompts(500, 30, p, V, generator(), label_noise=0.5)
    assert torch.equal(plain.y_q, noisy.y_q)
    assert (noisy.y - plain.y).std().item() == pytest.approx(0.5, rel=0.03)
    blurred = sample_prompts(500, 30, p, V, generator(), feature_noise=0.2)
    assert (blurred.x - V.mT[blurred.feat]).std().item() == pytest.approx(0.2, rel=0.03)
    free = sample_prompts(500, 30, p, V, generator(), gaussian_x=True)
    assert (free.feat == -1).all()
    assert free.x.std().item() == pytest.approx(1, rel=0.03)


def test_prompts_survive_the_file(tmp_path):
    batch = sample_prompts(3, 4, [0.5, 0.5], make_features(2, 2), generator())
    save_prompts(tmp_path / "p.npz", batch)
    assert all(torch.equal(a, b) for a, b in zip(load_prompts(tmp_path / "p.npz"), batch, strict=True))


def test_broken_files_are_named(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "lacks.npz", x=np.zeros((2, 3, 4)), y=np.zeros((2, 3)))
    np.savez(tmp_path / "shape.npz", x=np.zeros((2, 3, 4)), y=np.zeros((2, 5)), x_q=np.zeros((2, 4)), y_q=np.zeros(2))
    np.savez(tmp_path / "object.npz", x=np.array([{}]))
    for name, message in {
        "text": "cannot be read",
        "lacks": "lacks the array x_q",
        "shape": "y has shape",
        "object": "cannot be read",
        "none": "cannot",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_prompts(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(("d", "K"), [(3, 4), (3, 0)])
def test_more_features_than_dimensions_are_refused(d, K):
    with pytest.raises(ValueError, match=f"K is {K} and d is {d}"):
        make_features(d, K)


def test_features_may_be_an_array():
    found = sample_prompts(2, 4, [0.5, 0.5], np.eye(2, dtype=np.float32), generator())
    assert torch.equal(found.x, sample_prompts(2, 4, [0.5, 0.5], make_features(2, 2), generator()).x)


def test_a_prompt_needs_an_example():
    with pytest.raises(ValueError, match=r"N is 2\.5: a prompt has a whole number"):
        sample_prompts(2, 2.5, [0.5, 0.5], make_features(2, 2), generator())
    with pytest.raises(ValueError, match="N is 0"):
        sample_prompts(2, 0, [0.5, 0.5], make_features(2, 2), generator())


@pytest.mark.parametrize("s", [float("nan"), 2000, -2000, float("inf")])
def test_a_zipf_law_has_positive_frequencies(s):
    with pytest.raises(ValueError, match="s is "):
        frequencies("zipf", 4, s=s)


@pytest.mark.parametrize(
    ("feat_q", "message"), [([0, 3], "from 0 to 3"), ([-1, 0], "from -1"), ([0], "shape"), ([0.5, 1.0], "integers")]
)
def test_stratified_queries_must_be_features(feat_q, message):
    with pytest.raises(ValueError, match=message):
        sample_prompts(2, 4, [0.4, 0.3, 0.3], make_features(3, 3), generator(), feat_q=torch.tensor(feat_q))
