"""Evaluators of Genius profiles, what is refused beside them, and round trips through files: our own, and those of negmas."""

import numpy as np
import pytest

from papers.neg_ucb import anac

HEAD = '<issue index="1" name="price" etype="integer" type="integer" vtype="integer" lowerbound="{low}" upperbound="{high}">'
REAL = '<issue index="1" name="price" etype="real" type="real" vtype="real"><range lowerbound="0.0" upperbound="2.0"/>'
WEIGHT = '<weight index="1" value="1.0"/>'


def folder_of(tmp_path, *evaluators, low=1, high=5, issue=None):
    """A domain of one issue of numbers, and a profile for each evaluator."""
    issue = issue or HEAD.format(low=low, high=high)

    def write(name, root, inner, weight):
        text = f'<objective index="0" name="root">{issue}{inner}</issue>{weight}</objective>'
        text = f"<utility_space>{text}</utility_space>" if root == "negotiation_template" else text
        (tmp_path / name).write_text(f"<{root}>{text}</{root}>")

    write("domain.xml", "negotiation_template", "", "")
    for i, evaluator in enumerate(evaluators):
        write(f"side{i}.xml", "utility_space", evaluator, WEIGHT)
    return tmp_path


def worth(tmp_path, *evaluators, **options):
    reading = options.pop("reading", None)
    domain = anac.load(folder_of(tmp_path, *evaluators, **options), reading=reading)
    return domain.utility(0, [[v] for v in range(domain.sizes[0])]), domain


def test_a_falling_evaluator_of_negmas_prefers_low_values(tmp_path):
    u, domain = worth(tmp_path, '<evaluator ftype="linear" offset="1.2" slope="-0.2"/>')
    assert u.tolist() == [1.0, 0.8, 0.6, 0.4, 0.2]
    assert domain.notes == ["linear evaluators of integer issues count values from 0, as in negmas"]


def test_genius_counts_from_the_lower_bound(tmp_path):
    """The example of the format's own files: charging speeds 1 to 17, offset .4 and slope .0375, worth .4 to 1."""
    u, domain = worth(tmp_path, '<evaluator ftype="linear" offset="0.4" slope="0.0375"/>', low=1, high=17)
    assert u == pytest.approx(np.linspace(0.4, 1, 17))
    assert "as in Genius" in domain.notes[0]
    forced, _ = worth(
        tmp_path, '<evaluator ftype="linear" offset="0.4" slope="0.03"/>', low=1, high=17, reading="negmas"
    )
    assert forced == pytest.approx(0.4 + 0.03 * np.arange(1, 18))


def test_all_profiles_of_a_folder_are_read_alike(tmp_path):
    """The second fits either reading, the first only one: both are read by that."""
    folder_of(
        tmp_path,
        '<evaluator ftype="linear" offset="1.2" slope="-0.2"/>',
        '<evaluator ftype="linear" offset="0.0" slope="0.2"/>',
    )
    domain = anac.load(tmp_path)
    assert domain.utility(1, [[0], [4]]).tolist() == [0.2, 1.0]


@pytest.mark.parametrize(
    ("evaluator", "expected"),
    [
        ('<evaluator ftype="constant" parameter0="0.5"/>', [0.5] * 6),
        ('<evaluator ftype="linear" parameter0="0.0" parameter1="0.2"/>', [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ('<evaluator ftype="Linear" offset="1" slope="-0.2"/>', [1, 0.8, 0.6, 0.4, 0.2, 0]),
        ('<evaluator ftype="triangular" parameter0="0" parameter1="5" parameter2="1"/>', [0, 1, 0.75, 0.5, 0.25, 0]),
        ('<evaluator ftype="triangular" parameter0="0" parameter1="5" parameter2="0"/>', [1, 0.8, 0.6, 0.4, 0.2, 0]),
        (
            '<evaluator ftype="quadratic" parameter0="0" parameter1="0" parameter2="0.04"/>',
            [0, 0.04, 0.16, 0.36, 0.64, 1],
        ),
        ('<evaluator ftype="linear" offset="0" slope="1"/>', [0, 0.2, 0.4, 0.6, 0.8, 1]),  # beyond 1: divided
    ],
)
def test_worth_of_each_value(tmp_path, evaluator, expected):
    u, domain = worth(tmp_path, evaluator, low=0, high=5)
    assert u == pytest.approx(expected)
    assert bool(domain.notes) == ('slope="1"' in evaluator)


def test_real_issues_are_read_at_even_points(tmp_path):
    folder_of(tmp_path, '<evaluator ftype="linear" parameter0="0.0" parameter1="0.5"/>', issue=REAL)
    domain = anac.load(tmp_path, points=5)
    assert domain.issues[0].values == ("0.0", "0.5", "1.0", "1.5", "2.0")
    assert domain.utility(0, [[v] for v in range(5)]) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert "read as 5 values" in domain.notes[0]


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        ('<evaluator ftype="faratin" parameter0="0"/>', "'faratin' is not read"),
        ('<evaluator ftype="linear" offset="1"/>', "no slope or parameter1"),
        ('<evaluator ftype="linear" offset="one" slope="0"/>', "offset='one', which is not a number"),
        ('<evaluator ftype="linear" offset="0" slope="inf"/>', "slope='inf'"),
        ('<evaluator ftype="constant" parameter0="-1"/>', "at least 0"),
        ('<evaluator ftype="triangular" parameter0="5" parameter1="1" parameter2="3"/>', "a triangle from 5 to 1"),
        ('<evaluator ftype="linear" offset="5" slope="3"/>', "Genius. or from 0 .negmas."),
        ("", "neither an evaluator nor evaluations"),
        ('<evaluator ftype="constant" parameter0="1"/><evaluator ftype="constant" parameter0="0"/>', "two evaluators"),
    ],
)
def test_evaluators_that_cannot_be_read_are_refused(tmp_path, evaluator, message):
    with pytest.raises(ValueError, match=message):
        worth(tmp_path, evaluator)


def discrete(names=("size", "colour"), weights='<weight index="1" value="0.5"/><weight index="2" value="0.5"/>'):
    issues = "".join(
        f'<issue index="{i}" name="{name}" etype="discrete"><item index="1" value="a" evaluation="1"/>'
        f'<item index="2" value="b" evaluation="2"/></issue>'
        for i, name in enumerate(names, 1)
    )
    return f'<utility_space><objective index="0">{issues}{weights}</objective></utility_space>'


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (discrete(("colour", "size")), "called 'colour' where the domain file says 'size'"),
        (discrete(("size", "Colour")), "called 'Colour' where the domain file says 'colour'"),
        (discrete(("size",), '<weight index="1" value="1"/>'), "1 issues, the domain file has 2"),
        (discrete(weights='<weight index="1" value="0.5"/>' * 2 + '<weight index="2" value="0.5"/>'), "two weights"),
    ],
)
def test_profiles_of_another_domain_and_double_weights_are_refused(tmp_path, profile, message):
    template = discrete().replace(' evaluation="1"', "").replace(' evaluation="2"', "")
    (tmp_path / "domain.xml").write_text(f"<negotiation_template>{template}</negotiation_template>")
    (tmp_path / "a.xml").write_text(discrete())
    anac.load(tmp_path)
    (tmp_path / "b.xml").write_text(profile)
    with pytest.raises(ValueError, match=message) as error:
        anac.load(tmp_path)
    assert "b.xml" in str(error.value)


# ---- round trips -----------------------------------------------------------------------------------------------------


def boxes(generator):
    low = generator.integers(0, 5, (6, 2))
    high = low + generator.integers(0, 5, (6, 2))
    return anac.HyperRectangles(low, np.minimum(high, 6), generator.uniform(1, 9, 6), 40.0)


def one_of_each_kind(generator):
    linear = anac.generate([3, 4, 2], generator)
    issues = tuple(anac.Issue(f'a "b" <{i}> & c', tuple(map(str, range(2, 9)))) for i in range(2))
    sides = tuple(anac.Profile(f"box {i}", boxes(generator), 0.1 * i, 0.9) for i in range(2))
    return linear, anac.Domain("boxes", issues, sides)


def test_a_saved_domain_is_read_as_it_was(tmp_path):
    for domain in one_of_each_kind(np.random.default_rng(0)):
        anac.save(domain, tmp_path / domain.name)
        found = anac.load(tmp_path / domain.name)
        assert found.issues == domain.issues
        assert found.notes == []
        bids = domain.block(0, domain.n_bids)
        for ours, theirs in zip(domain.profiles, found.profiles, strict=True):
            assert (ours.name, ours.reservation, ours.discount) == (theirs.name, theirs.reservation, theirs.discount)
            assert np.abs(ours.worth(bids) - theirs.worth(bids)).max() < 1e-12


def test_what_the_format_cannot_say_is_not_written(tmp_path):
    domain = anac.generate([2, 2], np.random.default_rng(0))
    half = anac.Profile("half", anac.LinearAdditive(domain.profiles[0].worth.table / 2))
    with pytest.raises(ValueError, match=r"best bid is worth 0\.5"):
        anac.save(anac.Domain("d", domain.issues, (half,)), tmp_path)


def outcomes(domain, kind=str):
    for bid in domain.bids():
        yield bid, tuple(kind(issue.values[v]) for issue, v in zip(domain.issues, bid, strict=True))


def negmas_sides(folder):
    """Utility functions by profile name, as negmas reads them."""
    negmas = pytest.importorskip("negmas")
    ufuns = negmas.Scenario.from_genius_folder(folder, ignore_discount=True).ufuns
    return {str(ufun.name).split("/")[-1].removesuffix(".xml"): ufun for ufun in ufuns}


def test_negmas_reads_what_we_write(tmp_path):
    """Every outcome's utility; of boxes their bounds and worth, as negmas takes bounds as open where Genius includes them."""
    linear, boxed = one_of_each_kind(np.random.default_rng(1))
    anac.save(linear, tmp_path / "linear")
    theirs = negmas_sides(tmp_path / "linear")
    for bid, outcome in outcomes(linear):
        for profile in linear.profiles:
            assert linear.utility(profile, bid) == pytest.approx(float(theirs[profile.name](outcome)), abs=1e-9)
    anac.save(boxed, tmp_path / "boxed")
    theirs = negmas_sides(tmp_path / "boxed")
    for profile in boxed.profiles:
        own, found = profile.worth, theirs[profile.name]
        assert list(found.mappings) == pytest.approx(own.worth.tolist())
        for low, high, ranges in zip(own.low + 2, own.high + 2, found.outcome_ranges, strict=True):
            whole = dict.fromkeys(range(2), (2, 8)) | dict(ranges)
            assert [whole[i] for i in range(2)] == list(zip(low, high, strict=True))


def test_we_read_what_negmas_writes(tmp_path):
    """Integer, text and falling issues, made and written by negmas; both sides, every outcome."""
    pytest.importorskip("negmas")
    from negmas import LinearAdditiveUtilityFunction, Scenario, make_issue, make_os
    from negmas.preferences.value_fun import AffineFun, TableFun

    issues = [make_issue((1, 5), "price"), make_issue(["red", "blue", "green"], "colour"), make_issue((0, 3), "days")]
    space = make_os(issues, name="Round")
    sides = [
        LinearAdditiveUtilityFunction(
            values=[
                AffineFun(slope, bias),
                TableFun(dict(zip(["red", "blue", "green"], table, strict=True))),
                AffineFun(1 / 3),
            ],
            weights=[0.5, 0.3, 0.2],
            outcome_space=space,
            name=name,
        )
        for name, slope, bias, table in (("buyer", -0.2, 1.2, (1, 0.5, 0.2)), ("seller", 0.2, 0.0, (0.1, 0.4, 1)))
    ]
    Scenario(outcome_space=space, ufuns=sides).to_genius_folder(tmp_path / "d")
    domain = anac.load(tmp_path / "d")
    assert domain.n_bids == 60
    for bid, (price, colour, days) in outcomes(domain):
        theirs = sorted(float(side((int(price), colour, int(days)))) for side in sides)
        assert sorted(domain.utility(side, bid) for side in (0, 1)) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(
    "evaluator",
    [
        'ftype="linear" offset="1.2" slope="-0.2"',
        'ftype="triangular" parameter0="1" parameter1="5" parameter2="2"',
        'ftype="quadratic" parameter0="0" parameter1="0" parameter2="0.04"',
    ],
)
def test_negmas_reads_an_evaluator_alike(tmp_path, evaluator):
    folder_of(tmp_path, f"<evaluator {evaluator}/>", '<evaluator ftype="linear" offset="0" slope="0.2"/>')
    domain = anac.load(tmp_path, reading="negmas")
    for side, ufun in negmas_sides(tmp_path).items():
        for v in range(5):
            assert domain.utility(side, (v,)) == pytest.approx(float(ufun((v + 1,))), abs=1e-6)
