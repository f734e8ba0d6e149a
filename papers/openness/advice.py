"""What would open a model further: component by component, and the cheapest single change that raises a label or class."""

from __future__ import annotations

from typing import Any

from papers.openness import licences, scales
from papers.openness.profile import Evidence, Profile
from papers.openness.rating import rated
from papers.openness.taxonomy import BY_ID, IDS, MEANING, WEIGHTS

LABELS = ("fully closed", "semi-open", "fully open")
SUGGESTED = {"code": "Apache-2.0", "data": "CC-BY-4.0"}
# how much a change asks of whoever releases the model, least first: an order, not a price
COST = ("say what is public", "choose another licence", "open what an API serves", "release code", "release data")


def raises(profile: Profile, name: str) -> str:
    """A sentence: what would raise one component."""
    rating, kind = profile.ratings[name], BY_ID[name].kind
    if rating.status == "na":
        return "does not apply: nothing to raise"
    if rating.status == "unknown":
        licence = profile.licences.get(name)
        if licence:
            return f"find out what {licence} allows: it lies between {rating.low} and {rating.high}"
        if (rating.low or 1) >= (3 if kind == "data" else 2):
            return "name its licence: it is public under none that was found"
        return "say in openness.yaml whether it is public, and under which licence"
    if rating.level == 5:
        return "nothing: all five rights"
    if rating.level == 1 or (rating.level == 2 and kind == "data"):
        return f"release it: under {SUGGESTED[kind]} it has level 5, under no licence {3 if kind == 'data' else 2}"
    rights = licences.rights(profile.licences[name], profile.mode) if name in profile.licences else None
    if rights is None:
        return f"a licence with all five rights, {SUGGESTED[kind]} say"
    missing = [field.replace("_", " ") for field, bit in zip(rights._fields, rights, strict=True) if not bit]
    return f"a licence that also gives: {', '.join(missing)} ({SUGGESTED[kind]}, say)"


def cost(profile: Profile, name: str) -> int:
    """The place in COST of bringing a component to level 5."""
    rating, kind = profile.ratings[name], BY_ID[name].kind
    public = (rating.low or 1) >= (3 if kind == "data" else 2)
    if rating.status == "unknown":
        return 0 if public else 3 + (kind == "data")
    if public:
        return 1
    return 2 if name == WEIGHTS and rating.level == 2 else 3 + (kind == "data")


def opened(profile: Profile, name: str) -> Profile:
    """The profile with one component released under all five rights."""
    kind = BY_ID[name].kind
    return profile.with_rating(name, rated(kind, 5), SUGGESTED[kind], Evidence("what-if", "advice", note="opened"))


def changes(profile: Profile) -> list[dict[str, Any]]:
    """Every single change to level 5, the best first: those that raise label or MOF class, then by cost, then by gain."""
    before = scales.mof(profile)
    rows = []
    for name in IDS:
        rating = profile.ratings[name]
        if rating.status == "na" or rating.level == 5:
            continue
        after = opened(profile, name)
        tool = scales.mof(after)
        rows.append({
            "component": name, "from": rating.span, "change": COST[cost(profile, name)],
            "label": after.label, "raises_label": LABELS.index(after.label) > LABELS.index(profile.label),
            "mof_class": tool["class"], "raises_mof": _better(tool["class"], before["class"]),
            "score": after.score, "mof_progress_1": tool["progress"][1],
        })  # fmt: skip
    rows.sort(
        key=lambda r: (
            not (r["raises_label"] or r["raises_mof"]),
            COST.index(r["change"]),
            -(r["score"] or 0),
            r["component"],
        )
    )
    return rows


def _better(new: int, old: int) -> bool:
    return new != 0 and (old == 0 or new < old)


def next_step(profile: Profile) -> str:
    """One sentence: the cheapest single change that raises label or MOF class, or why there is none."""
    rows = changes(profile)
    if not rows:
        return "nothing is left to open"
    best = rows[0]
    if best["raises_label"] or best["raises_mof"]:
        what = " and ".join(
            part
            for part, yes in (
                (f"the label to {best['label']}", best["raises_label"]),
                (f"the MOF class to {best['mof_class']}", best["raises_mof"]),
            )
            if yes
        )
        return f"{best['component']} ({best['from']}): {best['change']}; it raises {what}"
    cheapest = f"{best['component']} ({best['from']}): {best['change']}"
    return (
        f"no single change raises label or MOF class ({len(rows)} components are below 5); the cheapest is {cheapest}"
    )


def explain(profile: Profile, name: str) -> list[dict[str, Any]]:
    """Everything that is known of one component, as rows of key and value."""
    from papers.openness.taxonomy import component

    part, rating = component(name), profile.ratings[name]
    rows = [("component", f"{part.id} ({part.label}, {part.kind})"), ("rating", rating.span),
            ("means", MEANING[part.kind][rating.level] if rating.level else rating.status)]  # fmt: skip
    if licence := profile.licences.get(name):
        rows.append(("licence", licence))
        for mode in licences.MODES:
            try:
                found = licences.rating(part.kind, licences.span(licence, mode))
                bits = licences.rights(licence, mode)
            except ValueError as error:
                rows.append((mode, str(error)))
                continue
            rows.append((mode, f"{found.span}, rights {bits.bits if bits else 'not known'}"))
        rows += [
            ("basis", f"{known.id}: {known.basis} (confidence {known.confidence})")
            for atom in licences.ids_or_none(licence)
            if (known := licences.find(atom))
        ]
    rows += [("evidence", str(item)) for item in profile.evidence.get(name, [])]
    rows.append(("would raise it", raises(profile, name)))
    return [{"what": key, "says": value} for key, value in rows]


def compare(ours: Profile, theirs: Profile) -> list[dict[str, Any]]:
    """Two profiles component by component: which is more open, where both are known."""
    rows = []
    for name in IDS:
        a, b = ours.ratings[name], theirs.ratings[name]
        if a.low is None or b.low is None or a.high is None or b.high is None:
            verdict = "does not apply to both"
        elif a.low > b.high:
            verdict = "more open"
        elif a.high < b.low:
            verdict = "less open"
        else:
            verdict = "equal" if a.level == b.level and a.level is not None else "not known"
        rows.append({"component": name, ours.name: a.span, theirs.name: b.span, "first_is": verdict})
    return rows
