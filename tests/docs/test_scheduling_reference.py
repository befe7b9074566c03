"""Does the reference of the scheduling file tell the truth, and all of it?"""

from __future__ import annotations

import re
import tomllib

import pytest
from documents import DOCS

from harch.base.errors import HarchError
from harch.placement.queueing.settings import FORMAT, QueueSettings, Quota, SettingKey, parse_settings
from harch.workloads.spec import SchedulingClass

PAGE = (DOCS / "reference" / "scheduling.md").read_text("utf-8")
EXAMPLE = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
HEADINGS = {"tenants": "tenants.NAME", "tenants.classes": "tenants.NAME.classes.CLASS"}
KEYS = [(form, key) for form, keys in FORMAT.items() for key in keys]


def rows(form: str) -> dict[str, list[str]]:
    section = PAGE.split(f"\n### `[{HEADINGS.get(form, form)}]`\n")[1].split("\n#")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if "|" in line]
    return {row[0].strip("`"): row[1:] for row in cells[2:]}


def default_of(form: str, key: SettingKey) -> object:
    settings = QueueSettings()
    if form == "class_weights":
        return settings.class_weights[SchedulingClass(key.name)]
    if key.field == "tenant_weights":
        return settings.tenant_weight("anybody")
    return getattr(Quota() if hasattr(Quota(), key.field) else settings, key.field)


@pytest.mark.parametrize(("form", "key"), KEYS, ids=[f"{form}.{key.name}" for form, key in KEYS])
def test_every_key_is_documented_with_its_limits_and_default(form: str, key: SettingKey) -> None:
    value, default, meaning = rows(form)[key.name]
    assert meaning
    assert value == f"{key.low:,.12g} to {key.high:,.12g}"
    expected = default_of(form, key)
    assert default == ("" if expected is None else f"{expected:g}")


@pytest.mark.parametrize("form", FORMAT)
def test_no_key_is_documented_that_does_not_exist(form: str) -> None:
    assert list(rows(form)) == [key.name for key in FORMAT[form]]


def test_the_example_is_valid_and_uses_every_key() -> None:
    assert parse_settings(EXAMPLE).defragment_after_s == 1800
    raw = tomllib.loads(EXAMPLE)
    tenant = raw["tenants"]["university"]
    tables = {**raw, "tenants": tenant, "tenants.classes": tenant["classes"]["training"]}
    for form, key in KEYS:
        assert key.name in tables[form], (form, key.name)


def test_the_error_shown_is_the_error_that_comes() -> None:
    with pytest.raises(HarchError) as refused:
        parse_settings("[fairness]\naged_share = 2\n[class_weights]\ntrainng = 3")
    assert str(refused.value) in PAGE
