"""Does the page on THINK name every field of its settings, with the right default?"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml
from documents import DOCS
from msgspec import NODEFAULT

from harch.pipelines.think.settings import (
    BatchingSettings,
    ModelSettings,
    PromoteRules,
    RollbackRules,
    VersionSettings,
    parse_think,
)

PAGE = (DOCS / "pipelines" / "think.md").read_text("utf-8")
SECTIONS: dict[str, Any] = {
    "think.models[]": ModelSettings,
    "think.models[].versions[]": VersionSettings,
    "think.models[].batching": BatchingSettings,
    "think.models[].rollback": RollbackRules,
    "think.models[].promote": PromoteRules,
}
FIELDS = [(section, field) for section, kind in SECTIONS.items() for field in msgspec.structs.fields(kind)]


def rows(section: str) -> dict[str, tuple[str, str]]:
    table = PAGE.split(f"\n### `{section}`\n")[1].split("\n#")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table.splitlines() if line[:1] == "|"]
    return {row[0].strip("`"): (row[1].strip("`"), row[2]) for row in cells[2:]}


@pytest.mark.parametrize(("section", "field"), FIELDS, ids=[f"{section}.{field.name}" for section, field in FIELDS])
def test_every_field_is_there_with_its_default(section: str, field: Any) -> None:
    default, meaning = rows(section)[field.name]
    assert meaning
    value = field.default
    if value is NODEFAULT or isinstance(value, msgspec.Struct):
        assert default == ""
    elif value is None:
        assert default in ("", "none") or default.startswith("that of")
    else:
        assert default == (
            f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)
        )


@pytest.mark.parametrize("section", SECTIONS)
def test_no_field_is_there_that_does_not_exist(section: str) -> None:
    assert set(rows(section)) == {field.name for field in msgspec.structs.fields(SECTIONS[section])}


def test_the_first_example_is_valid() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert parse_think(yaml.safe_load(example)["think"]).models[0].name == "soil-water"
