"""Genius XML: utilities against hand-computed ones, real domains against their known sizes, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.neg_ucb import anac
from tests.papers.neg_ucb.genius import BOX_DOMAIN, BOXES, DOMAIN, PROFILE, write


def test_issues_stand_in_the_order_of_their_index(tmp_path):
    domain = anac.load(write(tmp_path))
    assert [issue.name for issue in domain.issues] == ["size", "colour"]
    assert domain.n_bids == 6
    assert len(list(domain.bids())) == 6
    assert domain.sizes == (3, 2)


def test_linear_utility_is_weight_times_evaluation_over_the_largest(tmp_path):
    domain = anac.load(write(tmp_path))
    assert domain.utility(0, domain.bid("l", "red")) == pytest.approx(1.0)
    assert domain.utility("profile0", domain.bid("s", "blue")) == pytest.approx(0.75 * 5 / 20 + 0.25 / 4)
    assert domain.profiles[0].reservation == 0.2
    assert domain.profiles[0].discount == 0.9


def test_boxes_add_up_and_bounds_are_inclusive(tmp_path):
    domain = anac.load(write(tmp_path, BOX_DOMAIN, BOXES, BOXES))
    bids = np.array([[2, 7], [5, 0], [5, 1], [9, 0], [1, 0]])
    assert domain.utility(0, bids) == pytest.approx([0.6, 1.0, 0.6, 0.4, 0.0])


def test_small_error_of_the_weights_is_renormalised_with_a_note(tmp_path):
    domain = anac.load(write(tmp_path, DOMAIN, PROFILE.replace('"0.75"', '"0.755"')))
    assert domain.utility(0, (2, 0)) == pytest.approx(1.0)
    assert domain.notes == ["profile0.xml: weights sum to 1.005, renormalised"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('value="0.75"', 'value="0.8"', "weights sum to 1.05"),
        ('evaluation="20"', 'evaluation="nan"', "not a number"),
        ('evaluation="20"', 'evaluation="much"', "not a number"),
        ('evaluation="20"', 'evaluation="-1"', "at least 0"),
        ('<weight index="2" value="0.25"/>', "", "a weight of at least 0 for each"),
        (
            '<item index="1" value="red" evaluation="4"/><item index="2" value="blue" evaluation="1"/>',
            "",
            "'colour' has no values",
        ),
        ("</objective>", "", "not well-formed XML"),
        ('index="2" name="colour"', 'index="0" name="colour"', "numbered"),
        ("<utility_space>", '<!DOCTYPE u [<!ENTITY e SYSTEM "file:///etc/passwd">]><utility_space>', "refused"),
        ("<utility_space>", "<!doctype u><utility_space>", "refused"),
        ("utility_space", "space", "the root is <space>"),
        ('value="red"', 'value="pink"', "each of its options"),
    ],
)
def test_bad_profile_is_refused_by_file_and_reason(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message) as error:
        anac.load(write(tmp_path, DOMAIN, PROFILE.replace(old, new)))
    assert "profile0.xml" in str(error.value)


def test_no_declared_encoding_hides_a_doctype(tmp_path):
    write(tmp_path)
    (tmp_path / "profile0.xml").write_bytes(
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a><utility_space/>'.encode("utf-16")
    )
    with pytest.raises(ValueError, match="refused"):
        anac.load(tmp_path)


def test_a_folder_without_a_domain_or_a_profile_is_refused(tmp_path):
    (tmp_path / "a.xml").write_text(DOMAIN)
    with pytest.raises(ValueError, match="at least one profile"):
        anac.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        anac.load(tmp_path / "absent")


@pytest.mark.parametrize("bid", [(3, 0), (0, -1), (0,), (0, 0, 0)])
def test_bids_outside_the_domain_are_refused(tmp_path, bid):
    with pytest.raises(ValueError, match="bid"):
        anac.load(write(tmp_path)).utility(0, bid)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_generated_domains_have_best_utility_one_and_blocks_in_order(sizes, seed):
    domain = anac.generate(sizes, np.random.default_rng(seed))
    bids = np.array(list(domain.bids()))
    assert np.array_equal(domain.block(0, domain.n_bids), bids)
    assert len(bids) == domain.n_bids
    for side in (0, 1):
        u = domain.utility(side, bids)
        assert u.min() >= 0
        assert u.max() == pytest.approx(1.0)


# ---- the collection --------------------------------------------------------------------------------------------------

SIZES = {
    "y2010/EnglandZimbabwe": 576, "y2010/ItexvsCypress": 180, "y2010/Travel": 188_160, "y2011/Camera": 3_600, "y2011/Car": 15_625,
    "y2011/Energy": 390_625, "y2011/Grocery": 1_600, "y2011/Laptop": 27, "y2011/NiceOrDie": 3, "y2012/BarterA": 80,
    "y2012/FlightBookingA": 36, "y2012/SupermarketA": 112_896, "y2014/10issues": 10**10, "y2014/30issues": 10**30, "y2014/50issues": 10**40,
}  # fmt: skip


@pytest.fixture
def collection(mirror):
    return Path(mirror.split(os.pathsep)[0]) / "negotiation" / "anac"


@pytest.mark.realdata
@pytest.mark.parametrize("name", SIZES)
def test_real_domain_has_its_published_size_and_profiles_that_reach_one(collection, name):
    domain = anac.load(collection / name)
    assert domain.n_bids == SIZES[name]
    assert len(domain.profiles) == 2
    if domain.n_bids < 2e5:
        bids = domain.block(0, domain.n_bids)
        for side in (0, 1):
            assert domain.utility(side, bids).max() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.realdata
def test_laptop_buyer_likes_one_bid_fully(collection):
    domain = anac.load(collection / "y2011/Laptop")
    assert domain.utility("laptop_buyer_utility", domain.bid("HP", "60 Gb", "19'' LCD")) == pytest.approx(1.0)
    assert len(domain.notes) == 2  # weights sum to 1.00005


@pytest.mark.realdata
def test_pareto_frontier_of_2014_is_reached_by_no_random_bid(collection):
    domain = anac.load(collection / "y2014/10issues")
    bids = np.random.default_rng(0).integers(0, 10, (20_000, 10))
    u = np.stack([domain.utility(side, bids) for side in (0, 1)], 1)
    assert domain.pareto.shape == (10, 2)
    assert domain.pareto.max() == 1.0
    assert not any((u > corner + 1e-6).all(1).any() for corner in domain.pareto)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["y2011/Laptop", "y2010/ItexvsCypress", "y2012/BarterA", "y2012/FlightBookingA"])
def test_negmas_reads_the_same_weights_and_evaluations(collection, name):
    """negmas keeps evaluations as they are written; divided by each issue's largest, as in Genius, they are ours."""
    negmas = pytest.importorskip("negmas")
    domain = anac.load(collection / name)
    for ufun in negmas.Scenario.from_genius_folder(collection / name).ufuns:
        worth = np.zeros_like(domain.profiles[0].worth.table)
        for i, issue in enumerate(domain.issues):
            scores = np.array([float(ufun.values[i](value)) for value in issue.values])
            worth[i, : len(scores)] = ufun.weights[i] / sum(ufun.weights) * scores / scores.max()
        profile = next(p for p in domain.profiles if p.name == str(ufun.name).split("/")[-1].removesuffix(".xml"))
        assert np.abs(profile.worth.table - worth).max() < 1e-9
