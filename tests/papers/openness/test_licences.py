"""Rights, levels, expressions: exhaustive over the 32 rights, laws of the algebra, an independent parser, two other tables."""

import random

import pytest

from papers.openness import data, licences
from papers.openness.rating import EVERY_RIGHTS, NO_RIGHTS, Rights, level_of, rate, rated

IDS = [name for name in licences.table() if "+" not in name]
BASIC = ["MIT", "GPL-3.0-only", "CC-BY-NC-4.0", "CC-BY-SA-4.0", "CC-BY-NC-ND-4.0", "BUSL-1.1", "LicenseRef-llama2"]


def test_levels_follow_the_points_alone_and_rise_with_each_right():
    for rights in EVERY_RIGHTS:
        code, weights = level_of("code", rights), level_of("data", rights)
        assert code == {0: 2, 1: 2, 2: 3, 3: 3, 4: 4, 5: 5}[rights.points]
        assert weights == {0: 3, 1: 3, 2: 3, 3: 3, 4: 4, 5: 5}[rights.points]
        assert weights >= code
        assert weights == code or rights.points < 2
        for i in range(5):
            more = Rights(*(1 if j == i else bit for j, bit in enumerate(rights)))
            assert level_of("code", more) >= code
            assert level_of("data", more) >= weights


def test_level_two_of_data_means_an_api_and_never_a_licence():
    assert {level_of("data", rights) for rights in EVERY_RIGHTS} == {3, 4, 5}
    assert rate("data", "api").code == "D2"
    assert rate("code", "api").code == "C1"
    assert licences.level("CC-BY-NC-ND-4.0", "data") == 3
    assert licences.level("CC-BY-NC-ND-4.0", "code") == 2


@pytest.mark.parametrize(
    ("availability", "rights", "code", "ends"),
    [
        ("na", None, "N/A", (None, None)),
        ("unknown", None, "Unknown", (1, 5)),
        ("none", None, "D1", (1, 1)),
        ("public", None, "Unknown", (3, 5)),
        ("public", NO_RIGHTS, "D3", (3, 3)),
    ],
)
def test_rating_of_data(availability, rights, code, ends):
    found = rate("data", availability, rights)
    assert (found.code, found.low, found.high) == (code, *ends)


def test_public_code_without_a_licence_is_level_two():
    assert rate("code", "public", NO_RIGHTS).code == "C2"  # as the two DBRX cells
    assert (rate("code", "public").low, rate("code", "public").high) == (2, 5)


@pytest.mark.parametrize("level", [0, 6, True, 2.5])
def test_no_other_levels(level):
    with pytest.raises(ValueError, match="1 to 5"):
        rated("code", level)


@pytest.mark.parametrize(("call", "word"), [(("video", "none"), "kind"), (("code", "open"), "availability")])
def test_other_words_are_refused(call, word):
    with pytest.raises(ValueError, match=word):
        rate(*call)


def test_and_is_commutative_associative_idempotent_and_never_more_than_either():
    for a in BASIC:
        assert licences.rights(f"{a} AND {a}") == licences.rights(a)
        for b in BASIC:
            both = licences.rights(f"{a} AND {b}")
            assert both == licences.rights(f"{b} AND {a}")
            assert both.points <= min(licences.rights(a).points, licences.rights(b).points)
            assert licences.rights(f"{a} OR {b}").points >= max(licences.rights(a).points, licences.rights(b).points)
            for c in BASIC:
                assert licences.rights(f"({a} AND {b}) AND {c}") == licences.rights(f"{a} AND ({b} AND {c})")


@pytest.mark.parametrize(
    ("expression", "bits"),
    [
        ("MIT OR GPL-3.0-only", "11111"),
        ("Apache-2.0 AND CC-BY-NC-4.0", "10111"),
        ("CC-BY-SA-4.0 AND CC-BY-NC-4.0", "10110"),
        ("CC-BY-NC-4.0 AND (CC-BY-SA-4.0 OR CC-BY-NC-3.0)", "10111"),  # choosing inside the bracket first gives 10110
        ("GPL-3.0", "11110"),
        ("GPL-3.0+", "11110"),
        ("gpl-2.0-or-later WITH Classpath-exception-2.0", "11110"),
        ("bsl-1.0", "11111"),  # Boost
        ("BUSL-1.1", "10110"),  # not Boost
        ("CC-BY-NC-4.0", "10111"),  # four points, surprising as it is
        ("openrail++", "11110"),
        ("OpenMDW-1.0", "11111"),
        ("LicenseRef-OpenMDW-1.0", "11111"),
        ("Apache 2.0", "11111"),
        ("odc-by", "11111"),
        ("MIT OR Unheard-Of-1.0", "11111"),  # nothing can be better than MIT
        ("LicenseRef-no-licence AND Unheard-Of-1.0", "00000"),
    ],
)
def test_rights_of_expressions(expression, bits):
    assert licences.rights(expression).bits == bits


@pytest.mark.parametrize(
    "expression",
    ["Unheard-Of-1.0", "GPL-3.0-only OR Unheard-Of-1.0", "MIT AND Unheard-Of-1.0", "gpl", "cc", "other", "unknown"],
)
def test_what_is_not_known_has_no_rights_and_no_level(expression):
    assert licences.rights(expression) is None
    assert licences.level(expression, "code") is None


def test_a_family_has_bounds_and_never_a_level_though_its_members_agree():
    found = licences.rating("code", licences.span("gpl"))
    assert (found.code, found.low, found.high) == ("Unknown", 4, 4)


@pytest.mark.parametrize(
    "expression",
    [
        "MIT/Apache-2.0",
        "",
        "MIT AND",
        "(MIT",
        "MIT)",
        "MIT GPL-3.0",
        "OR MIT",
        "MIT OR OR X",
        "MIT WITH",
        "(" * 60 + "MIT" + ")" * 60,
    ],
)
def test_what_does_not_parse_is_said(expression):
    with pytest.raises(ValueError, match="expression"):
        licences.rights(expression)


def test_many_choices_stay_few():
    text = " AND ".join(f"({a} OR {b})" for a, b in zip(IDS[:80], IDS[20:100], strict=True))
    assert licences.rights(text) is not None  # 2^80 choices, at most 32 distinct


def test_rights_agree_with_the_conditions_of_choosealicense_in_all_42():
    rows = [row for row in data.rows("licences") if row["choosealicense"]]
    assert len(rows) == 42
    for row in rows:
        rights = Rights.of(row["rights"])
        assert row["choosealicense"] == "".join(
            letter if bit else "-"
            for letter, bit in zip("CML", (rights.commercial, rights.modify, rights.relicense_derivative), strict=True)
        )


def test_categories_of_scancode_go_with_points():
    found = [(e.id, e.scancode, e.rights.points) for e in licences.table().values() if e.scancode]
    assert len(found) == 64
    five = [(name, category) for name, category, points in found if points == 5]
    assert sum(category == "Permissive" for _, category in five) == 28
    assert sum(category == "Public Domain" for _, category in five) == 4
    assert {name for name, category in five if category not in ("Permissive", "Public Domain")} == {
        "LPPL-1.3c",
        "Artistic-2.0",
    }
    for name, category, points in found:
        if category in ("Copyleft", "Copyleft Limited") and name not in ("LPPL-1.3c", "Artistic-2.0"):
            assert points == 4, name
        if category in ("Source-available", "Free Restricted"):
            assert points <= 4, name


def test_hub_ids_lead_to_licences_of_the_table():
    for row in data.rows("hub"):
        assert not row["licence"] or licences.find(row["hub"]).id == row["licence"], row["hub"]


def test_every_expression_of_an_independent_parser_is_accepted():
    library = pytest.importorskip("license_expression")
    licensing = library.Licensing()
    draw = random.Random(0)

    def expression(depth):
        if depth == 0 or draw.random() < 0.3:
            name = draw.choice(IDS)
            return f"{name} WITH Classpath-exception-2.0" if draw.random() < 0.1 else name
        joined = f" {draw.choice(['AND', 'OR', 'and', 'or'])} ".join(
            expression(depth - 1) for _ in range(draw.randint(2, 3))
        )
        return f"({joined})" if draw.random() < 0.5 else joined

    for _ in range(300):
        text = expression(3)
        theirs = list(licensing.license_keys(text, unique=False))
        ours = [atom.name for atom in licences.atoms(licences.parse(text))]
        assert [name for name in theirs if name != "Classpath-exception-2.0"] == ours, text
    for broken in ("MIT AND", "(MIT", "MIT OR OR GPL-2.0-only", "AND MIT", "MIT)"):
        with pytest.raises(library.ExpressionError):
            licensing.parse(broken)
        with pytest.raises(ValueError):
            licences.parse(broken)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        (
            "                                 Apache License\n                           Version 2.0, January 2004\n",
            "Apache-2.0",
        ),
        ("MIT License\n\nCopyright (c) 2024 A\n", "MIT"),
        ("Copyright (c) 2024 A\n\nPermission is hereby granted, free of charge, to any person", "MIT"),
        (
            "                    GNU GENERAL PUBLIC LICENSE\n                       Version 3, 29 June 2007",
            "GPL-3.0-only",
        ),
        ("GNU GENERAL PUBLIC LICENSE\nVersion 2, June 1991", "GPL-2.0-only"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3, 19 November 2007", "AGPL-3.0-only"),
        ("GNU LESSER GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007", "LGPL-3.0-only"),
        ("Attribution-NonCommercial 4.0 International\n", "CC-BY-NC-4.0"),
        ("Attribution-NonCommercial-NoDerivatives 4.0 International", "CC-BY-NC-ND-4.0"),
        ("Creative Commons Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("Attribution 4.0 International", "CC-BY-4.0"),
        ("CC0 1.0 Universal", "CC0-1.0"),
        ("LLAMA 2 COMMUNITY LICENSE AGREEMENT\t\nLlama 2 Version Release Date: July 18, 2023", "LicenseRef-llama2"),
        ("META LLAMA 3 COMMUNITY LICENSE AGREEMENT\n", "LicenseRef-llama3"),
        ("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT", "LicenseRef-llama3.1"),
        ("LLAMA 4 COMMUNITY LICENSE AGREEMENT", "LicenseRef-llama4"),
        ("Databricks Open Model License", "LicenseRef-databricks-open-model"),
        ("FALCON 180B TII LICENSE VERSION 1.0", "LicenseRef-falcon-180b-tii"),
        ("TII Falcon LLM License Version 1.0", "LicenseRef-falcon-llm-tii-1.0"),
        ("Tongyi Qianwen LICENSE AGREEMENT", "LicenseRef-tongyi-qianwen"),
        ("DEEPSEEK LICENSE AGREEMENT\nVersion 1.0", "LicenseRef-deepseek-model"),
        ("BigScience BLOOM RAIL License v1.0", "LicenseRef-bigscience-bloom-rail-1.0"),
        ("CreativeML Open RAIL-M\ndated August 22, 2022", "LicenseRef-creativeml-openrail-m"),
        ("BigCode Open RAIL-M v1 License Agreement", "LicenseRef-bigcode-openrail-m"),
        ("Gemma Terms of Use", "LicenseRef-gemma"),
        ("OpenMDW License Agreement, version 1.0", "LicenseRef-OpenMDW-1.0"),
        ("\ufeffMIT License\r\n", "MIT"),
        ("Dear reader, this is a letter.", None),
        ("", None),
    ],
)
def test_texts_are_known_by_their_titles(title, name):
    assert licences.identify(title) == name
