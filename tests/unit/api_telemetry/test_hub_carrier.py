"""SENTINEL asks other hubs through its own: each hub's answer, refusal or silence comes back under its name."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import FederatedAnswer, MetricPart, PartResult, Question, SeriesResult
from harch.sentinel.http.federated import fanout as module
from harch.sentinel.http.federated.fanout import HubCarrier, HubReply

PART = MetricPart(expression="sum(up)", start_ms=0, end_ms=0, step_ms=1000)
QUESTION = Question(id="q_1", tenant="acme", requested_by="key_1", parts=(PART,))
TOLD = PartResult(series=(SeriesResult(labels=(("hub", "dakar"),), at=(0,), values=(float("nan"),)),))
HUBS = {
    "items": [
        {"hub_id": "dakhla", "country": "MA", "own": True, "reachable": True},
        {"hub_id": "dakar", "country": "SN", "own": False, "reachable": True},
        {"hub_id": "abidjan", "country": "CI", "own": False, "reachable": False, "why": "suspected"},
    ]
}


def answer(
    hub_id: str = "dakar", question_id: str = "q_1", results: tuple[PartResult, ...] = (TOLD,)
) -> httpx.Response:
    return httpx.Response(
        200,
        content=msgspec.msgpack.encode(
            FederatedAnswer(question_id=question_id, hub_id=hub_id, country="SN", results=results)
        ),
    )


def carrier(said: httpx.Response | Exception) -> HubCarrier:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["x-api-key"] == "shared"
        if request.url.path == "/v1/sentinel/hubs":
            return httpx.Response(200, json=HUBS)
        asked = json.loads(request.content)
        assert (asked["question"]["id"], asked["within_s"]) == ("q_1", 2.0)
        if isinstance(said, Exception):
            raise said
        return said

    return HubCarrier("http://hub", "shared", httpx.MockTransport(handle))


async def asked(said: httpx.Response | Exception, hubs: str = "dakar") -> list[HubReply]:
    own = carrier(said)
    return await own.query_hubs((await own.hubs(hubs)).hubs, QUESTION, within_s=2.0)


async def test_an_answer_keeps_every_bit_and_the_name_of_its_hub() -> None:
    (said,) = await asked(answer())
    assert said.hub.country == "SN"
    assert said.answer is not None
    assert said.answer.results[0].series[0].values[0] != said.answer.results[0].series[0].values[0]  # a NaN
    assert said.answer.results[0].series[0].labels == (("hub", "dakar"),)


async def test_a_hub_that_cannot_be_reached_is_not_asked_and_named_with_the_reason() -> None:
    dakar, abidjan = await asked(answer(), "dakar,abidjan")
    assert dakar.error is None
    assert abidjan.error is not None
    assert (abidjan.error.code, abidjan.error.message) == ("E0698", "hub abidjan does not answer: suspected")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (answer(hub_id="abidjan"), "E0698"),
        (answer(question_id="q_2"), "E0698"),
        (answer(results=()), "E0698"),
        (httpx.Response(200, content=b"\xff"), "E0698"),
        (httpx.Response(502), "E0698"),
        (httpx.ConnectError("gone"), "E0698"),
        (httpx.Response(403, json={"error": {"code": "E0697", "message": "rule", "hint": ""}}), "E0697"),
        (httpx.Response(400, json={"error": {"code": "E9999", "message": "newer"}}), "E0698"),
    ],
)
async def test_anything_but_the_answer_is_an_error_of_that_hub(said: httpx.Response | Exception, code: str) -> None:
    (heard,) = await asked(said)
    assert heard.answer is None
    assert heard.error is not None
    assert heard.error.code == code
    assert "dakar" in heard.error.message


async def test_hubs_are_named_one_by_one_or_all_together() -> None:
    own = carrier(answer())
    everyone = await own.hubs("all")
    assert (len(everyone.hubs), everyone.own_country, everyone.is_cross_border) == (3, "MA", True)
    assert (await own.hubs("dakar")).is_cross_border
    assert not (await own.hubs("dakhla")).is_cross_border
    assert [hub.hub_id for hub in (await own.hubs(" dakar ,dakhla")).hubs] == ["dakhla", "dakar"]
    with pytest.raises(HarchError, match="no hub named `nador`") as unknown:
        await own.hubs("dakar,nador")
    assert unknown.value.code == "E0699"


async def test_without_the_own_hub_nobody_can_be_asked() -> None:
    own = HubCarrier("http://hub", "shared", httpx.MockTransport(lambda request: httpx.Response(500)))
    with pytest.raises(HarchError) as silent:
        await own.hubs("all")
    assert silent.value.code == "E0698"


async def test_answers_that_are_too_large_together_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    said = answer()
    monkeypatch.setattr(module, "TOGETHER_BYTES_MAX", len(said.content))
    own = carrier(said)
    hub = (await own.hubs("dakar")).hubs[0]
    first, second = await own.query_hubs([hub, hub], QUESTION, within_s=2.0)
    assert first.answer is not None
    assert second.error is not None
    assert (second.error.code, "dakar" in second.error.message) == ("E0661", True)


async def test_while_the_own_hub_is_away_its_telemetry_is_told_and_the_others_are_named() -> None:
    is_up = True

    def handle(request: httpx.Request) -> httpx.Response:
        if not is_up:
            raise httpx.ConnectError("gone")
        return httpx.Response(200, json=HUBS)

    own = HubCarrier("http://hub", "shared", httpx.MockTransport(handle))
    is_up = False
    with pytest.raises(HarchError, match="does not list the hubs"):
        await own.hubs("all")
    is_up = True
    assert [hub.reachable for hub in (await own.hubs("all")).hubs] == [True, True, False]
    is_up = False
    asked = await own.hubs("all")
    assert {hub.hub_id: hub.reachable for hub in asked.hubs} == {"dakhla": True, "dakar": False, "abidjan": False}
    said = await own.query_hubs([hub for hub in asked.hubs if not hub.own], QUESTION, within_s=2.0)
    assert all("the local hub, which relays to it, is down" in str(one.error) for one in said)
