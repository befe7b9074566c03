from __future__ import annotations

import re
from collections.abc import Iterator

from harch.base.errors import REGISTRY
from unit.api.conftest import Client


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_every_reference_of_the_openapi_document_resolves(nobody: Client) -> None:
    document = (await nobody.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    found = set(references(document))
    assert found
    assert {reference.removeprefix("#/components/schemas/") for reference in found} <= set(schemas)


async def test_the_hot_route_is_documented_with_its_body(nobody: Client) -> None:
    document = (await nobody.get("/openapi.json")).json()
    post = document["paths"]["/v1/workloads"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/WorkloadBody")
    assert {"compute", "resources", "replicas"} <= set(document["components"]["schemas"]["WorkloadBody"]["properties"])
    assert all("422" not in call["responses"] for path in document["paths"].values() for call in path.values())


async def test_the_docs_page_lists_every_route_and_loads_nothing(nobody: Client) -> None:
    page = (await nobody.get("http://hub/docs")).text
    paths = (await nobody.get("/openapi.json")).json()["paths"]
    assert all(path in page for path in paths)
    assert not re.search(r"https?://|<script|<link", page)


async def test_every_error_has_the_page_that_errors_point_at(nobody: Client) -> None:
    listed = (await nobody.get("/docs/errors")).text
    for code, kind in REGISTRY.items():
        assert code in listed
        assert kind.title.split("`")[0][:10] in (await nobody.get(f"http://hub/docs/errors/{code}")).text
