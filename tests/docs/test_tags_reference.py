"""Does the page about tags tell the truth, and all of it?"""

from __future__ import annotations

import json
import re

import msgspec
import yaml
from documents import DOCS

from harch.sovereignty.jurisdiction_file import parse_jurisdictions, shipped_jurisdictions
from harch.sovereignty.tags import Tag, parse_tag

PAGE = (DOCS / "reference" / "tags.md").read_text("utf-8")
REGISTRY = shipped_jurisdictions()
FIELDS = [field.name for field in msgspec.structs.fields(Tag)]


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if line[:3] == "| `"
    ]


def test_the_example_is_a_tag_with_every_field() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    raw = yaml.safe_load(example)
    assert list(raw) == FIELDS
    assert parse_tag(raw, REGISTRY).transit_in == ("MA", "MR", "SN")


def test_the_table_has_every_field() -> None:
    assert [row[0].strip("`") for row in rows("Fields")] == FIELDS


def test_what_is_left_out_is_read_as_the_page_says() -> None:
    tag = json.loads(msgspec.json.encode(parse_tag({"process_in": ["MA"], "rest_in": ["MA"]}, REGISTRY)))
    words = {"none": [], "false": False, "true": True, "as `rest_in`": ["MA"], "required": ["MA"]}
    for name, _, default, _ in rows("Fields"):
        expected = words.get(default, default.strip("`"))
        assert tag[name.strip("`")] == (["MA"] if name == "`transit_in`" else expected)


def test_every_shipped_framework_and_group_is_listed() -> None:
    listed = rows("Legal frameworks and groups")
    assert [row[0].strip("`") for row in listed] == [*REGISTRY.frameworks, *REGISTRY.groups]
    for name, *cells in listed:
        group = REGISTRY.groups.get(name.strip("`"))
        if group is not None:
            assert cells == [", ".join(f"`{alias}`" for alias in group.aliases), str(len(group.countries))]
        elif "`" not in cells[0]:
            assert cells[0] == ", ".join(REGISTRY.frameworks[name.strip("`")].in_force)


def test_the_example_of_a_jurisdiction_file_is_valid() -> None:
    examples = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    registry = parse_jurisdictions("\n".join(examples), "own.toml")
    assert registry.places.of_host("west.valves.souss.example") == "MA"
    assert registry.frameworks_in("TN") == ("customer-charter",)
    assert registry.framework("charter") == "customer-charter"
