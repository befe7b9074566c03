"""How do editors know what a pipeline file may say? The JSON schema, made from the types."""

from __future__ import annotations

from typing import Any

import msgspec

from harch.pipelines.spec.settings import PipelineSpec


def pipeline_schema() -> dict[str, Any]:
    """A self-contained JSON schema (draft 2020-12) of one document of a pipeline file."""
    (top,), components = msgspec.json.schema_components([PipelineSpec], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = dict(components)
    spec = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    properties = {"kind": {"const": "pipeline", "description": "What this document is."}, **spec["properties"]}
    return {
        **spec,
        "title": "HarchOS pipeline",
        "properties": properties,
        "required": ["kind", *spec["required"]],
        "$defs": definitions,
    }


def pipeline_schema_text() -> str:
    """As it is printed and as it is kept in the documentation."""
    return msgspec.json.format(msgspec.json.encode(pipeline_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    print(pipeline_schema_text(), end="")
