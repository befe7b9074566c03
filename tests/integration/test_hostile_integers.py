"""Does any route stumble over a number? Every integer of every route, far out of range, negative, in other digits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.api.app import create_app
from harch.api.openapi import describe
from harch.base.clock import SystemClock
from harch.hub.service import HubService, build_hub
from harch.hub.views import Role
from harch.testing.samples import tiny_fleet

INT64_MAX = 2**63 - 1
KEY = "hsk_" + "a" * 32
BIG = "9" * 5000  # more digits than Python turns into an integer
HOSTILE_TEXTS = ("99999999999999999999", "-99999999999999999999", str(2**63), str(-(2**63) - 1), BIG, "-" + BIG)
ODD_TEXTS = ("-1", "0", "٣", "²", "１", "1e999", "nan", "1_000", " 1", "+1", "0x10", "1.5", "true", "%00", "")
HOSTILE_JSON = ("99999999999999999999", "-99999999999999999999", str(2**63), str(2**64), BIG, "-" + BIG, "-1", "1e999")


@pytest.fixture(scope="module")
def fleet() -> Any:
    return tiny_fleet()


@pytest.fixture
async def service(fleet: Any, tmp_path: Path) -> AsyncIterator[HubService]:
    hub = build_hub(
        fleet=fleet,
        hub=fleet.hubs[0],
        state_dir=tmp_path,
        clock=SystemClock(),
        version="test",
        url="http://test",
        peer_urls={},
        on_broken=lambda error: None,
    )
    await hub.credentials.adopt_key(KEY, name="admin", tenant="default", role=Role.ADMIN)
    yield hub
    await hub.close()


@pytest.fixture
async def client(service: HubService) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(service)
    headers = {"x-api-key": KEY, "accept": "application/json"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hub", headers=headers) as client:
        yield client


def document(service: HubService) -> dict[str, Any]:
    return describe(create_app(service)._inner)  # type: ignore[arg-type]


def resolved(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def integers(schema: dict[str, Any], whole: dict[str, Any], seen: tuple[str, ...] = ()) -> Iterator[tuple[Any, dict]]:
    """Every integer of a schema, as a path to it."""
    if "$ref" in schema:
        if schema["$ref"] in seen:
            return
        seen = (*seen, schema["$ref"])
        schema = resolved(schema, whole)
    if schema.get("type") == "integer" and "enum" not in schema and "const" not in schema:
        yield (), schema
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from integers(choice, whole, seen)
    for name, inner in schema.get("properties", {}).items():
        yield from (((name, *path), found) for path, found in integers(inner, whole, seen))
    if isinstance(schema.get("items"), dict):
        yield from (((0, *path), found) for path, found in integers(schema["items"], whole, seen))
    for inner in schema.get("prefixItems", ()):
        yield from (((0, *path), found) for path, found in integers(inner, whole, seen))
    if isinstance(schema.get("additionalProperties"), dict):
        for path, found in integers(schema["additionalProperties"], whole, seen):
            yield ("x", *path), found


def example(schema: dict[str, Any], whole: dict[str, Any], depth: int = 0) -> Any:
    """A small value that the schema allows, as far as a schema can tell."""
    schema = resolved(schema, whole)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    choices = [one for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())) if one.get("type") != "null"]
    if choices:
        return example(choices[0], whole, depth)
    match schema.get("type"):
        case "integer" | "number":
            return max(schema.get("minimum", 1), 1)
        case "boolean":
            return False
        case "array":
            return [example(schema.get("items") or {}, whole, depth + 1)] * schema.get("minItems", 0)
        case "object":
            names = schema.get("required", []) if depth < 8 else []
            return {name: example(schema["properties"][name], whole, depth + 1) for name in names}
        case "string":
            return {"date-time": "2026-01-01T00:00:00Z"}.get(schema.get("format", ""), "x" * schema.get("minLength", 1))
    return "x"


def placed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The body with this value at that place; what is missing on the way there is made."""
    if not path:
        return value
    if path[0] == 0:
        rest = list(body) if isinstance(body, list) and body else [None]
        return [placed(rest[0], path[1:], value), *rest[1:]]
    rest = dict(body) if isinstance(body, dict) else {}
    return {**rest, path[0]: placed(rest.get(path[0]), path[1:], value)}


def operations(whole: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            if isinstance(operation, dict) and "responses" in operation:
                yield method.upper(), path, operation


def parameters(operation: dict[str, Any], whole: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for one in operation.get("parameters", ()):
        for _, found in integers(one["schema"], whole):
            yield one["in"], one["name"], found


def body_schema(operation: dict[str, Any]) -> dict[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("schema")


async def test_every_integer_that_a_route_takes_has_declared_bounds(service: HubService) -> None:
    whole = document(service)
    unbounded = []
    for method, path, operation in operations(whole):
        for where, name, found in parameters(operation, whole):
            if not within_64_bits(found):
                unbounded.append(f"{method} {path}: {where} {name}")
        schema = body_schema(operation)
        for place, found in integers(schema, whole) if schema else ():
            if not within_64_bits(found):
                unbounded.append(f"{method} {path}: body {'.'.join(map(str, place))}")
    assert not unbounded, "\n".join(unbounded)


def within_64_bits(schema: dict[str, Any]) -> bool:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    return least is not None and most is not None and least >= -(2**63) and most <= INT64_MAX


async def test_no_parameter_makes_the_hub_stumble(service: HubService, client: httpx.AsyncClient) -> None:
    whole, tried, broken = document(service), 0, []
    for method, path, operation in operations(whole):
        for where, name, _ in parameters(operation, whole):
            for text in (*HOSTILE_TEXTS, *ODD_TEXTS):
                tried += 1
                broken += await attempt(client, method, path, operation, whole, {(where, name): text})
    assert tried > 500
    assert broken == []


async def test_no_header_with_a_number_makes_the_hub_stumble(client: httpx.AsyncClient) -> None:
    for text in (*HOSTILE_TEXTS, *ODD_TEXTS):
        raw = [(b"last-event-id", text.encode()), (b"accept", b"application/json"), (b"x-api-key", KEY.encode())]
        for path in ("/v1/events", "/v1/carbon/metrics"):
            answer = await client.get(path, headers=raw)
            assert answer.status_code < 500, (path, text[:40])


async def test_no_number_in_a_body_makes_the_hub_stumble(service: HubService, client: httpx.AsyncClient) -> None:
    whole, tried, broken = document(service), 0, []
    for method, path, operation in operations(whole):
        schema = body_schema(operation)
        for place, _ in integers(schema, whole) if schema else ():
            for text in HOSTILE_JSON:
                tried += 1
                body = json.dumps(placed(example(schema, whole), place, "@hostile@")).replace('"@hostile@"', text)
                broken += await attempt(client, method, path, operation, whole, {}, body)
    assert tried > 100
    assert broken == []


async def attempt(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    operation: dict[str, Any],
    whole: dict[str, Any],
    chosen: dict[tuple[str, str], str],
    body: str | None = None,
) -> list[str]:
    """Nothing, or what went wrong."""
    query: dict[str, str] = {}
    headers: dict[str, bytes] = {}
    for one in operation.get("parameters", ()):
        where, name = one["in"], one["name"]
        value = chosen.get((where, name))
        if value is None and where != "path" and not one.get("required"):
            continue
        value = str(example(one["schema"], whole)) if value is None else value
        if where == "path":
            path = path.replace(f"{{{name}}}", httpx.QueryParams({"v": value})["v"] or "x")
        elif where == "query":
            query[name] = value
        else:
            headers[name] = value.encode()
    content = body
    if content is None and (schema := body_schema(operation)) is not None:
        content = json.dumps(example(schema, whole))
    answer = await client.request(method, path, params=query, headers=headers, content=content)
    what = f"{method} {path} {sorted((name, text[:40]) for name, text in chosen.items())} {(body or '')[:200]}"
    return [f"{answer.status_code} {what}: {answer.text[:200]}"] if answer.status_code == 500 else []
