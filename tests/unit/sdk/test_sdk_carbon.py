"""`client.carbon`: both clients ask the same questions in the same words."""

from __future__ import annotations

import inspect

import httpx

from harch.sdk import AsyncClient, Client
from harch.sdk.carbon import AsyncCarbon, Carbon

AT = "2026-01-01T00:00:00Z"
KEY = "hsk_test_key_of_enough_length"
ANSWERS: dict[str, object] = {
    "/v1/carbon/now": {"items": [{"hub_id": "dakhla", "power": {"hub_id": "dakhla", "at": AT}}], "total": 1},
    "/v1/carbon/forecast": {"hub_id": "dakar", "made_at": AT, "model": "level"},
    "/v1/carbon/report": {"hub_id": "dakhla", "at": AT, "not_booked_kwh": 0.5},
    "/v1/carbon/why/wl_1": {"workload_id": "wl_1", "pieces_total": 3},
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
        (view,) = client.carbon.now()
        assert view.power is not None
        assert view.power.figure("price").quality == "missing"
        assert client.carbon.forecast("dakar", hours=5).evidence == "estimated"
        assert client.carbon.report(by="job", month="2026-03").not_booked_kwh == 0.5
        assert client.carbon.why("wl_1").pieces_total == 3
    async with AsyncClient("http://hub", KEY, transport=httpx.MockTransport(other)) as aclient:
        await aclient.carbon.now()
        await aclient.carbon.forecast("dakar", hours=5)
        await aclient.carbon.report(by="job", month="2026-03")
        await aclient.carbon.why("wl_1")
    assert one.asked == other.asked
    assert one.asked[1] == ("/v1/carbon/forecast", {"hours": "5", "hub": "dakar"})
    assert one.asked[2] == ("/v1/carbon/report", {"by": "job", "month": "2026-03"})


def test_both_clients_have_the_same_methods() -> None:
    methods, async_methods = (
        {name: inspect.signature(value).parameters for name, value in vars(kind).items() if not name.startswith("_")}
        for kind in (Carbon, AsyncCarbon)
    )
    assert methods == async_methods
