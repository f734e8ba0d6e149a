"""A small domain in Genius XML, for tests: two issues, three options and two; and one of hyper-rectangles."""

from pathlib import Path

DOMAIN = """<negotiation_template><utility_space number_of_issues="2"><objective index="0" name="root">
<issue index="2" name="colour" etype="discrete"><item index="1" value="red"/><item index="2" value="blue"/></issue>
<issue index="1" name="size" etype="discrete"><item index="1" value="s"/><item index="2" value="m"/><item index="3" value="l"/></issue>
</objective></utility_space></negotiation_template>"""
PROFILE = """<utility_space><reservation value="0.2"/><objective index="0" name="root">
<issue index="1" name="size" etype="discrete"><item index="1" value="s" evaluation="5"/><item index="2" value="m" evaluation="10"/>
<item index="3" value="l" evaluation="20"/><similarity_function><criteria_function>
<item index="1" value="s" evaluation="99"/></criteria_function></similarity_function></issue>
<issue index="2" name="colour" etype="discrete"><item index="1" value="red" evaluation="4"/><item index="2" value="blue" evaluation="1"/></issue>
<weight index="1" value="0.75"/><weight index="2" value="0.25"/></objective><discount_factor value="0.9"/></utility_space>"""
BOXES = """<utility_space type="nonlinear"><objective index="0" name="root">
<issue etype="integer" index="1" name="a" lowerbound="0" upperbound="9"/><issue etype="integer" index="2" name="b" lowerbound="0" upperbound="9"/>
<utility maxutility="100"><ufun type="PlainUfun" weight="1" aggregation="sum">
<hyperRectangle utility="60"><INCLUDES index="1" min="2" max="5"/></hyperRectangle>
<hyperRectangle utility="40"><INCLUDES index="1" min="5" max="9"/><INCLUDES index="2" min="0" max="0"/></hyperRectangle>
</ufun></utility></objective></utility_space>"""
BOX_DOMAIN = """<negotiation_template><utility_space><objective index="0">
<issue etype="integer" index="1" name="a" lowerbound="0" upperbound="9"/><issue etype="integer" index="2" name="b" lowerbound="0" upperbound="9"/>
</objective></utility_space></negotiation_template>"""


def write(folder: Path, domain=DOMAIN, *profiles: str) -> Path:
    (folder / "domain.xml").write_text(domain)
    for i, text in enumerate(profiles or (PROFILE, PROFILE)):
        (folder / f"profile{i}.xml").write_text(text)
    return folder
