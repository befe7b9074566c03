"""How do editors know what a workload file may say? The JSON schema, made from the types."""

from __future__ import annotations

from typing import Any

import msgspec

from harch.workloads.spec import WorkloadSpec

# Where a field holds text, a workload file takes numbers and booleans as they are written: `command: [sleep, 60]`.
_TEXT: dict[str, Any] = {"type": ["string", "number", "boolean"]}


def workload_schema() -> dict[str, Any]:
    """A self-contained JSON schema (draft 2020-12) of one document of a workload file."""
    (top,), components = msgspec.json.schema_components([WorkloadSpec], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = dict(components)
    spec = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    properties: dict[str, Any] = {
        "kind": {"const": "workload", "description": "What this document is; may be left out."}
    }
    properties |= spec["properties"]
    properties["command"] |= {"items": _TEXT}
    for name in ("env", "labels"):
        properties[name] |= {"additionalProperties": _TEXT}
    return {
        **spec,
        "title": "HarchOS workload",
        "properties": properties,
        "$defs": definitions,
    }


def workload_schema_text() -> str:
    """As it is printed and as it is kept in the documentation."""
    return msgspec.json.format(msgspec.json.encode(workload_schema()), indent=2).decode() + "\n"
