"""Does docs/pipelines/spec.md know every field of a pipeline file, and is what it shows true?"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from documents import DOCS

from harch.pipelines.engine.audit import audit_streams
from harch.pipelines.spec import settings as spec
from harch.pipelines.spec.file import parse_pipelines
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions

PAGE = (DOCS / "pipelines" / "spec.md").read_text("utf-8")
ENGINE = (DOCS / "pipelines" / "engine.md").read_text("utf-8")
EXAMPLE = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
ROWS = set(re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE, re.MULTILINE))
STRUCTS = (
    spec.PipelineSpec,
    spec.ScalingSettings,
    spec.LatencySettings,
    spec.DurabilitySettings,
    spec.ExportSettings,
    spec.ImportSettings,
)


def test_the_example_is_valid() -> None:
    (found,) = parse_pipelines(EXAMPLE.encode(), "spec.md", shipped_jurisdictions())
    assert found.stages == tuple(spec.PipelineStageName)


def test_every_other_pipeline_of_the_page_is_valid() -> None:
    blocks = re.findall(r"^```yaml\n(kind: pipeline.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found = [parse_pipelines(block.encode(), "spec.md", shipped_jurisdictions())[0] for block in blocks[1:]]
    assert [one.stages for one in found] == [(spec.PipelineStageName.SENSE, spec.PipelineStageName.ACT)]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_has_a_row_and_the_example_uses_it(struct: Any) -> None:
    assert set(struct.__struct_fields__) <= ROWS
    written = yaml.safe_load(EXAMPLE)
    tables = {
        spec.PipelineSpec: written,
        spec.ScalingSettings: written["scaling"]["sense"],
        spec.LatencySettings: written["latency"],
        spec.DurabilitySettings: written["durability"],
        spec.ExportSettings: written["exports"][0],
        spec.ImportSettings: written["imports"][0],
    }
    assert set(struct.__struct_fields__) <= set(tables[struct])


def test_no_field_has_a_row_that_does_not_exist() -> None:
    assert ROWS - {"kind"} == {name for struct in STRUCTS for name in struct.__struct_fields__}


def test_every_lane_is_explained() -> None:
    for lane in spec.Durability:
        assert f"`{lane}`" in PAGE


def test_every_rule_of_the_audit_is_on_the_page_of_the_engine() -> None:
    source = (DOCS.parent / "src" / "harch" / "pipelines" / "engine" / "audit.py").read_text("utf-8")
    assert audit_streams.__module__ == "harch.pipelines.engine.audit"
    rules = set(re.findall(r'Rejection\(\s*(?:stream(?:\.name)?|name),\s*"([a-z_]+)"', source))
    assert {"consumer", "delivery", "unknown", "missing", "disk"} <= rules
    for rule in rules | {"mirror", "sources", "republish", "subject_transform", "placement", "leader", "replica"}:
        assert f"`{rule}`" in ENGINE, rule
