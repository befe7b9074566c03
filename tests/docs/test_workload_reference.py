"""Is the documented workload file complete, and the committed schema current?"""

from __future__ import annotations

import re

import jsonschema
import msgspec
import yaml
from documents import DOCS

from harch.workloads.check import workload_schema, workload_schema_text
from harch.workloads.file import parse_workloads
from harch.workloads.spec import (
    Artifact,
    CarbonPreferences,
    Environment,
    Gang,
    Resources,
    Topology,
    WorkloadSpec,
)

PAGE = (DOCS / "reference" / "workload.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FIELDS = [field.encode_name for field in msgspec.structs.fields(WorkloadSpec)]
GROUPS = {
    name: [field.encode_name for field in msgspec.structs.fields(type_)]
    for name, type_ in (
        ("resources", Resources),
        ("topology", Topology),
        ("gang", Gang),
        ("carbon", CarbonPreferences),
        ("environment", Environment),
        ("artifacts", Artifact),
    )
}


def test_the_example_shows_every_field_with_a_value_of_its_own() -> None:
    specs = parse_workloads(EXAMPLE.encode(), "workload.md")
    documents = list(yaml.safe_load_all(EXAMPLE))
    assert set().union(*documents) - {"kind"} == set(FIELDS)
    for group, names in GROUPS.items():
        shown = [document.get(group, {}) for document in documents]
        tables = [table for one in shown for table in (one if isinstance(one, list) else [one])]
        assert set().union(*tables) == set(names)
    assert len(specs) == len(documents)


def test_the_table_has_every_field() -> None:
    listed = re.findall(r"`([a-z_.]+)`", "\n".join(re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)))
    expected = [name for field in FIELDS for name in _rows(field)]
    assert sorted(listed) == sorted(expected)


def _rows(field: str) -> list[str]:
    return [f"{field}.{name}" for name in GROUPS[field]] if field in GROUPS else [field]


def test_the_committed_schema_is_current() -> None:
    committed = (DOCS / "reference" / "workload.schema.json").read_text("utf-8")
    assert committed == workload_schema_text(), "run: harch schema > docs/reference/workload.schema.json"


def test_the_example_passes_the_schema_and_mistakes_do_not() -> None:
    schema = workload_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for document in yaml.safe_load_all(EXAMPLE):
        assert list(validator.iter_errors(document)) == []
    for wrong in ({}, {"name": "a", "gpuz": 1}, {"name": "a", "tasks": 0}, {"name": "a", "resources": {"gpus": -1}}):
        assert not validator.is_valid(wrong)


def test_the_example_tells_editors_where_the_schema_is() -> None:
    assert EXAMPLE.startswith("# yaml-language-server: $schema=workload.schema.json\n")
