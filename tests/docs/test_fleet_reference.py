"""Does the reference of the fleet file tell the truth, and all of it?"""

from __future__ import annotations

import re
import tomllib

import pytest
from documents import DOCS

from harch.base.errors import HarchError
from harch.fleet.file import parse_fleet, shipped_fleet_names
from harch.fleet.format import FORMAT, GPUS_MAX, HUBS_MAX, FormatKey

PAGE = (DOCS / "reference" / "fleet.md").read_text("utf-8")
EXAMPLE = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
HEADINGS = {
    "": "Top level",
    "gpu_models": "`[gpu_models.NAME]`",
    "node_kinds": "`[node_kinds.NAME]`",
    "hubs": "`[[hubs]]`",
    "hubs.safeguards": "`[hubs.safeguards]`",
    "hubs.cooling_zones": "`[[hubs.cooling_zones]]`",
    "hubs.racks": "`[[hubs.racks]]`",
    "hubs.racks.nodes": "`nodes` of a rack",
    "links": "`[[links]]`",
}
KEYS = [(form, key) for form, keys in FORMAT.items() for key in keys]


def rows(form: str) -> dict[str, list[str]]:
    """The rows of a table's section: key -> value, default, meaning."""
    section = PAGE.split(f"\n### {HEADINGS[form]}\n")[1].split("\n#")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if "|" in line]
    return {row[0].strip("`"): row[1:] for row in cells[2:]}


def inner_tables(value: object) -> list[dict[str, object]]:
    """Of an array of tables, of named tables, or of one table."""
    if isinstance(value, list):
        return value
    assert isinstance(value, dict)
    return list(value.values()) if all(isinstance(item, dict) for item in value.values()) else [value]


def test_the_example_is_a_valid_fleet_of_the_size_it_says() -> None:
    fleet = parse_fleet(EXAMPLE, "example.toml")
    assert len(fleet.hubs) == len({hub.country for hub in fleet.hubs}) == 2
    assert f"Two hubs, two countries, {fleet.gpu_count} GPUs." in PAGE


@pytest.mark.parametrize(("form", "key"), KEYS, ids=[f"{form}.{key.name}" for form, key in KEYS])
def test_every_key_is_documented_with_its_limits_and_default(form: str, key: FormatKey) -> None:
    value, default, meaning = rows(form)[key.name]
    assert meaning
    if key.type in ("integer", "number"):
        assert value == f"{key.low:,.12g} to {key.high:,.12g}"
        assert default == ("" if key.default is None else str(key.default))
    elif key.type == "boolean":
        assert (value, default) == ("true or false", "true" if key.default else "false")
    elif key.type == "text" and not value.startswith("name of"):
        assert key.shape is not None
        assert value.split(",")[0] == key.shape.words.split(",")[0]


@pytest.mark.parametrize("form", FORMAT)
def test_no_key_is_documented_that_does_not_exist(form: str) -> None:
    assert list(rows(form)) == [key.name for key in FORMAT[form]]


@pytest.mark.parametrize(("form", "key"), KEYS, ids=[f"{form}.{key.name}" for form, key in KEYS])
def test_the_example_uses_every_key(form: str, key: FormatKey) -> None:
    tables: list[dict[str, object]] = [tomllib.loads(EXAMPLE)]
    for part in form.split(".") if form else ():
        inner = [table[part] for table in tables if part in table]
        tables = [table for value in inner for table in inner_tables(value)]
    assert any(key.name in table for table in tables)


def test_the_limits_of_a_fleet_are_told() -> None:
    assert f"1 to {HUBS_MAX} hubs, at most {GPUS_MAX:,} GPUs in all" in PAGE


def test_the_error_shown_is_the_error_that_comes() -> None:
    broken = EXAMPLE.replace("pue = 1.2 ", "pue = 0.9 ").replace('["MA", "MR", "SN"]', '["MA", "MR"]')
    broken = broken.replace('kind = "inference-6", count = 1', 'kind = "inference-9", count = 1')
    with pytest.raises(HarchError) as caught:
        parse_fleet(broken, "fleet.toml")
    assert f"```text\n{caught.value}\n```" in PAGE


def test_every_shipped_fleet_is_listed() -> None:
    assert re.findall(r"^\| `([a-z-]+-hubs)` \|", PAGE, re.MULTILINE) == list(shipped_fleet_names())
