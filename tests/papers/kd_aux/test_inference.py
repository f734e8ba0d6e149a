"""Densities and classifiers on the sphere, against SciPy, scikit-learn and each other."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from papers.kd_aux.inference import knn_classifier, prototype_classifier, unit, vmf_log_normaliser


@pytest.mark.parametrize("kappa", [0.1, 1.0, 7.5, 300.0])
def test_normaliser_of_circle_and_sphere(kappa):
    scaled = np.i0(kappa) if kappa < 100 else None
    if scaled is not None:
        assert vmf_log_normaliser(2, kappa) == pytest.approx(-math.log(2 * math.pi * scaled), abs=1e-12)
    log_sinh = kappa + math.log1p(-math.exp(-2 * kappa)) - math.log(2)
    assert vmf_log_normaliser(3, kappa) == pytest.approx(math.log(kappa / (4 * math.pi)) - log_sinh, abs=1e-11)


@pytest.mark.parametrize(("D", "kappa"), [(2, 0.5), (3, 4.0), (5, 20.0), (16, 3.0), (64, 50.0)])
def test_density_is_scipys(D, kappa):
    stats = pytest.importorskip("scipy.stats")
    mu = np.eye(D)[0]
    x = F.normalize(torch.randn(4, D, dtype=torch.float64), dim=1).numpy()
    theirs = stats.vonmises_fisher(mu, kappa).logpdf(x)
    np.testing.assert_allclose(vmf_log_normaliser(D, kappa) + kappa * x @ mu, theirs, atol=1e-10)


def test_normaliser_in_many_dimensions_where_bessel_functions_underflow():
    """A series in logs takes over; the two agree where both are there, and kappa 0 is the uniform density."""
    from scipy.special import gammaln

    D = 2048
    assert vmf_log_normaliser(D, 1e-9) == pytest.approx(vmf_log_normaliser(D, 0.0), rel=1e-12)
    small = gammaln(D / 2) - math.log(2) - D / 2 * math.log(math.pi) - 1 / (2 * D)  # to first order in kappa^2 / D
    assert vmf_log_normaliser(D, 1.0) == pytest.approx(small, rel=1e-9)
    assert math.isfinite(vmf_log_normaliser(D, 1000.0))


def test_prototypes_are_kappa_cosine_plus_prior():
    t, y = F.normalize(torch.randn(30, 6), dim=1), torch.arange(30) % 3
    prior = torch.tensor([0.2, 0.3, 0.5]).log()
    mu = torch.stack([F.normalize(t[y == c].sum(0), dim=0) for c in range(3)])
    s = F.normalize(torch.randn(5, 6), dim=1)
    torch.testing.assert_close(prototype_classifier(t, y, 3, 8.0, prior)(s), 8.0 * s @ mu.T + prior)
    torch.testing.assert_close(prototype_classifier(t, y, 3, 8.0)(s), 8.0 * s @ mu.T)


def test_class_without_rows_is_noted_and_never_chosen():
    t = F.normalize(torch.randn(30, 6), dim=1)
    with pytest.warns(UserWarning, match="no row has class 3"):
        classify = prototype_classifier(t, torch.arange(30) % 3, 4, 50.0)
    logits = classify(F.normalize(torch.randn(200, 6), dim=1))
    assert bool((logits.argmax(1) < 3).all())
    assert bool(torch.isfinite(logits).all())


def test_neighbours_tend_to_one_nearest_neighbour():
    neighbours = pytest.importorskip("sklearn.neighbors")
    t, y = F.normalize(torch.randn(80, 5, dtype=torch.float64), dim=1), torch.arange(80) % 4
    s = F.normalize(torch.randn(40, 5, dtype=torch.float64), dim=1)
    theirs = neighbours.KNeighborsClassifier(1, metric="cosine").fit(t.numpy(), y.numpy()).predict(s.numpy())
    ours = knn_classifier(t, 50.0 * F.one_hot(y, 4).double(), tau=1e-5)(s).argmax(1)
    assert ours.tolist() == theirs.tolist()


def test_rows_without_a_direction_are_told_apart_and_carry_no_gradient():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    rows, alive = unit(x)
    assert alive.tolist() == [True, False]
    rows.sum().backward()
    assert bool(torch.isfinite(x.grad).all())
    assert x.grad[1].abs().sum() == 0


@pytest.mark.parametrize(("call", "message"), [
    (lambda: vmf_log_normaliser(1, 1.0), "D is 1"), (lambda: vmf_log_normaliser(3, -1.0), "kappa is -1.0"),
    (lambda: prototype_classifier(torch.eye(2), torch.tensor([0, 2]), 2, 1.0), "labels go from 0 to 2"),
    (lambda: prototype_classifier(torch.eye(2), torch.tensor([0, 1]), 2, 0.0), "kappa is 0.0"),
    (lambda: prototype_classifier(torch.eye(2), torch.tensor([0]), 2, 1.0), "for 1 labels"),
    (lambda: prototype_classifier(torch.eye(2), torch.tensor([0, 1]), 2, 1.0)(torch.ones(1, 3)), "prototypes have width 2"),
])  # fmt: skip
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
