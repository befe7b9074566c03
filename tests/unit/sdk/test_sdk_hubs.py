"""`client.hubs` and the work of all hubs: both clients ask the same questions in the same words."""

from __future__ import annotations

import inspect
import json

import httpx

from harch.sdk import AsyncClient, Client
from harch.sdk.hubs import AsyncHubs, Hubs

KEY = "hsk_test_key_of_enough_length"
CLOSURE = {"hub_id": "dakar", "state": "draining", "remaining": {"running": 2}, "remaining_total": 2, "later": 1}
ANSWERS: dict[str, object] = {
    "GET /v1/hubs": {"items": [{"id": "dakar", "name": "Dakar", "standing": "suspected"}], "total": 1},
    "POST /v1/hubs/dakar/drain": CLOSURE,
    "GET /v1/hubs/dakar/closure": CLOSURE,
    "GET /v1/workloads": {"items": [], "silent_hubs": [{"hub_id": "dakar", "age_s": 3.0}], "complete": False},
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
        assert client.hubs.list()[0].standing == "suspected"
        assert client.hubs.drain("dakar", why="racks").remaining.running == 2
        assert client.hubs.closure("dakar").remaining_total == 2
        page = client.workloads.everywhere(status="running")
        assert (page.silent_hubs[0].age_s, page.complete) == (3.0, False)
    async with AsyncClient("http://hub", KEY, transport=httpx.MockTransport(other)) as aclient:
        await aclient.hubs.list()
        await aclient.hubs.drain("dakar", why="racks")
        await aclient.hubs.closure("dakar")
        await aclient.workloads.everywhere(status="running")
    assert one.asked == other.asked
    assert one.asked[1] == ("POST /v1/hubs/dakar/drain", {"why": "racks"})
    assert one.asked[3][1] == {"scope": "federation", "page": "1", "per_page": "100", "status": "running"}


def test_both_clients_have_the_same_methods() -> None:
    def signatures(kind: type) -> dict[str, object]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(method) for name, method in methods if not name.startswith("_")}

    assert signatures(Hubs) == signatures(AsyncHubs)
