"""`client.nodes`: both clients ask the same questions in the same words."""

from __future__ import annotations

import inspect
import json

import httpx

from harch.sdk import AsyncClient, Client
from harch.sdk.nodes import AsyncNodes, Nodes

KEY = "hsk_test_key_of_enough_length"
ANSWERS: dict[str, object] = {
    "GET /v1/nodes": {"items": [{"id": "n1", "cordoned": True}], "total": 1},
    "PATCH /v1/nodes/n1": {"id": "n1", "nvlink_factor": 0.5},
    "POST /v1/workloads/large/defragment": {"workload_id": "wl_1", "possible": True, "a_field_of_the_future": 1},
}


class Hub:
    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        question = f"{request.method} {request.url.path}"
        self.asked.append((question, json.loads(request.content) if request.content else dict(request.url.params)))
        return httpx.Response(200, json=ANSWERS[question])


async def test_both_clients_ask_the_same() -> None:
    one, other = Hub(), Hub()
    with Client("http://hub", KEY, transport=httpx.MockTransport(one)) as client:
        assert client.nodes.list(cordoned=True)[0].cordoned
        assert client.nodes.set_nvlink("n1", 0.5, why="dust").nvlink_factor == 0.5
        assert client.nodes.defragment("large", apply=True).possible
    async with AsyncClient("http://hub", KEY, transport=httpx.MockTransport(other)) as aclient:
        await aclient.nodes.list(cordoned=True)
        await aclient.nodes.set_nvlink("n1", 0.5, why="dust")
        await aclient.nodes.defragment("large", apply=True)
    assert one.asked == other.asked
    assert one.asked[0] == ("GET /v1/nodes", {"cordoned": "true", "page": "1", "per_page": "100"})
    assert one.asked[1][1] == {"nvlink_factor": 0.5, "why": "dust"}


def test_both_clients_have_the_same_methods() -> None:
    def signatures(kind: type) -> dict[str, object]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(method) for name, method in methods if not name.startswith("_")}

    assert signatures(Nodes) == signatures(AsyncNodes)
