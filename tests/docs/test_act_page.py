"""The page about ACT: its examples are valid, and every key of the settings is on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from harch.pipelines.act import settings as spec
from harch.pipelines.act.settings import read_act

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipelines" / "act.md").read_text("utf-8")
SINKS: dict[str, Any] = {
    name: {"kind": "modbus", "host": "10.0.0.5", "register": register}
    for register, name in enumerate(("valve", "gate", "pump"))
}
STRUCTS = (
    spec.ActSettings,
    spec.ActionSettings,
    spec.StepSettings,
    spec.Interlocks,
    spec.RateLimit,
    spec.RetrySettings,
    *get_args(spec.SinkSettings),
)


def test_the_examples_of_the_page_are_valid() -> None:
    first, steps = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert read_act(yaml.safe_load(first)["act"], outputs=["score", "moisture"]).actions[0].name == "irrigate"
    read = read_act({"sinks": SINKS, "actions": yaml.safe_load(steps)}, outputs=["score"])
    assert len(read.actions[0].steps) == 2


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_is_on_the_page(struct: Any) -> None:
    missing = [name for name in struct.__struct_fields__ if f"`{name}`" not in PAGE]
    assert missing == []


@pytest.mark.parametrize("mode", list(spec.Mode))
def test_every_mode_is_on_the_page(mode: spec.Mode) -> None:
    assert f"`{mode}`" in PAGE
