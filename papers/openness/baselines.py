"""Readers that a hurried person would write, to be held against the same truth."""

from __future__ import annotations

from pathlib import Path

from papers.openness import documents, folders, licences
from papers.openness.profile import Profile
from papers.openness.rating import Rating, rated
from papers.openness.taxonomy import BY_ID, IDS, WEIGHTS


def card_for_all(path: Path) -> dict[str, Rating]:
    """The card's licence for every component, and nothing public where there is no card licence: a hub's tag taken for a rating."""
    document, _ = documents.front_matter(path / "README.md")
    stated = documents.listed(document.value.get("license")) + documents.listed(document.value.get("license_name"))
    known = next((found for name in reversed(stated) if (found := licences.find(name))), None)
    return {
        name: rated(BY_ID[name].kind, licences.level(known.id, BY_ID[name].kind) or 1 if known else 1) for name in IDS
    }  # fmt: skip


def without_bases(path: Path) -> dict[str, Rating]:
    """Our reader with every base model's licence left out: a fine-tune under its own tag."""
    found = dict(folders.classify(path).ratings)
    own = folders.own_rating(path)
    return found | ({WEIGHTS: own} if own else {})


def absent_is_closed(path: Path) -> dict[str, Rating]:
    """Our reader with absence of evidence taken for evidence of absence."""
    return dict(folders.classify(path, absent="closed").ratings)


def one_table(profile: Profile) -> dict[str, Rating]:
    """Levels by the code table for both kinds, with 2 for a data set that a restrictive licence covers: one table is not enough."""
    found = {}
    for name, rating in profile.ratings.items():
        licence = profile.licences.get(name)
        level = licences.level(licence, "code") if licence else None
        found[name] = rated(rating.kind, level) if level else rating
    return found
