"""What do requests and answers look like? The structs of the API as OpenAPI schemas."""

from __future__ import annotations

from typing import Any

import msgspec

_REFERENCES = "#/components/schemas/{name}"


def answers(value: Any, description: str = "Done.", status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers `value` as JSON."""
    return {status: {"description": description, "content": _json(value)}}


def accepts(value: Any, *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is `value` as JSON."""
    return {"requestBody": {"required": required, "content": _json(value)}}


def components(values: tuple[Any, ...]) -> dict[str, Any]:
    """The schemas that the references of `answers` and `accepts` point at."""
    return _schemas(values)[1]


def _json(value: Any) -> dict[str, Any]:
    return {"application/json": {"schema": _schemas((value,))[0][0]}}


def _schemas(values: tuple[Any, ...]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    return msgspec.json.schema_components(values, schema_hook=_anything, ref_template=_REFERENCES)


def _anything(type_: type) -> dict[str, Any]:
    """`object` is whatever JSON can say; any other type without a schema is a mistake of ours."""
    if type_ is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError(type_)
