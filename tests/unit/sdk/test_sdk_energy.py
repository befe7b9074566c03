"""`client.energy`: both clients ask the same questions in the same words."""

from __future__ import annotations

import inspect

import httpx

from harch.sdk import AsyncClient, Client
from harch.sdk.energy import AsyncEnergy, Energy

KEY = "hsk_test_key_of_enough_length"
AT = "2026-01-01T00:00:00Z"
ANSWERS: dict[str, object] = {
    "/v1/energy/plan": {"hub_id": "dakhla", "made_at": AT, "steps": [{"at": AT, "grid_kw": 3, "new_field": 1}]},
    "/v1/energy/prices": {"hub_id": "dakhla", "made_at": AT, "carbon_per_t": 80},
    "/v1/energy/bids": {"hub_id": "dakhla", "paper": True},
    "/v1/energy/book": {"hub_id": "dakhla", "total": 7},
}


class Hub:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.url.path, dict(request.url.params)))
        return httpx.Response(200, json=ANSWERS[request.url.path])


async def test_both_clients_ask_the_same() -> None:
    one, other = Hub(), Hub()
    with Client("http://hub", KEY, transport=httpx.MockTransport(one)) as client:
        assert client.energy.plan().steps[0].grid_kw == 3
        assert client.energy.prices().carbon_per_t == 80
        assert client.energy.bids().paper
        assert client.energy.book(days=7).total == 7
    async with AsyncClient("http://hub", KEY, transport=httpx.MockTransport(other)) as aclient:
        await aclient.energy.plan()
        await aclient.energy.prices()
        await aclient.energy.bids()
        await aclient.energy.book(days=7)
    assert one.asked == other.asked
    assert one.asked[3] == ("/v1/energy/book", {"days": "7"})


def test_both_clients_have_the_same_methods() -> None:
    methods, async_methods = (
        {name: inspect.signature(value) for name, value in vars(kind).items() if not name.startswith("_")}
        for kind in (Energy, AsyncEnergy)
    )
    assert methods == async_methods
