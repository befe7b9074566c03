"""A question over hubs is answered as one, or fails with the hub and the reason; nothing is left out in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import orjson
import pytest

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.messages import (
    FederatedAnswer,
    InboundQuestion,
    MetricPart,
    PartResult,
    Question,
    Requester,
    SeriesResult,
)
from harch.sentinel.http.access import Caller
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.federated import fanout as module
from harch.sentinel.http.federated.fanout import HubCarrier, OverHubs
from harch.sentinel.http.federated.routes import FederatedMetrics
from harch.sentinel.http.permissions import CallerRole
from harch.sentinel.http.prometheus.queries import Queries
from harch.sentinel.http.routing import Routes
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.testing.clock import SimClock

HUBS = [
    {"hub_id": "dakhla", "country": "MA", "own": True, "reachable": True},
    {"hub_id": "tangier", "country": "MA", "own": False, "reachable": True},
    {"hub_id": "dakar", "country": "SN", "own": False, "reachable": True},
]
NO = Rejection("sum(up)", "selector", "single series stay in SN", "aggregate them")


def one(value: float) -> PartResult:
    return PartResult(series=(SeriesResult(labels=(), at=(0,), values=(value,)),))


class _Door:
    async def caller(self, headers: Mapping[str, str]) -> Caller:
        return Caller(CallerRole.USER, "acme", key_id="key_7")


class _Owner:
    def __init__(self, world: World) -> None:
        self._world = world

    def answer(self, asked: InboundQuestion, *, now_ms: int, is_gone: Callable[[], bool]) -> FederatedAnswer:
        raise AssertionError("nobody asks from outside")

    def own(self, asked: InboundQuestion, *, now_ms: int, is_gone: Callable[[], bool]) -> FederatedAnswer:
        assert asked.asker == Requester(hub_id="dakhla", country="MA")
        return self._world.said("dakhla", asked.question)


class World:
    """Three hubs: what each tells is in `tells`; an error instead, if there is one."""

    def __init__(self) -> None:
        self.tells: dict[str, PartResult | HarchError] = {"dakhla": one(1), "tangier": one(20), "dakar": one(300)}
        self.asked: list[tuple[str, Question]] = []
        self.on_ask: Callable[[], Any] = lambda: None
        clock = SimClock()
        carrier = HubCarrier("http://hub", "shared", httpx.MockTransport(self._handle))
        self.over = OverHubs(carrier, _Owner(self), clock)
        engine = QueryEngine()
        metrics = FederatedMetrics(self.over, engine)
        elsewhere = {"/api/v1/query": metrics.instant, "/api/v1/query_range": metrics.range}
        routes = Queries(None, engine).routes()  # type: ignore[arg-type]
        asking = [replace(route, over_hubs=elsewhere.get(route.path)) for route in routes]
        self.app = TelemetryApp(Routes(asking), _Door(), clock)

    def said(self, hub_id: str, question: Question) -> FederatedAnswer:
        self.asked.append((hub_id, question))
        tells = self.tells[hub_id]
        if isinstance(tells, HarchError):
            raise tells
        return FederatedAnswer(
            question_id=question.id, hub_id=hub_id, country="", results=(tells,) * len(question.parts)
        )

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/hubs"):
            return httpx.Response(200, json={"items": HUBS})
        told = orjson.loads(request.content)
        question = msgspec.convert(told["question"], Question)
        try:
            answer = self.said(told["hub_id"], question)
        except HarchError as error:
            return httpx.Response(error.kind.status, json={"error": {"code": error.code, "message": error.message}})
        return httpx.Response(200, content=msgspec.msgpack.encode(answer))

    async def get(self, path: str = "/api/v1/query", headers: dict[str, str] | None = None, **params: str) -> Any:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sentinel") as client:
            answer = await client.get(path, params={"query": "sum(up)", "time": "1200000", **params}, headers=headers)
        return answer.status_code, answer.json()


@pytest.fixture
def world() -> World:
    return World()


async def test_all_hubs_are_one_answer(world: World) -> None:
    status, told = await world.get(hubs="all")
    assert (status, told["data"]["result"][0]["value"]) == (200, [1200000, "321"])
    assert "warnings" not in told
    assert sorted(hub for hub, _ in world.asked) == ["dakar", "dakhla", "tangier"]
    question = world.asked[0][1]
    assert (question.tenant, question.requested_by) == ("acme", "key_7")
    assert len({asked.id for _, asked in world.asked}) == 1


async def test_hubs_can_be_named_by_header_and_singly(world: World) -> None:
    _, told = await world.get(headers={"X-Harch-Hubs": "all"})
    assert told["data"]["result"][0]["value"][1] == "321"
    _, told = await world.get(hubs="tangier,dakhla")
    assert told["data"]["result"][0]["value"][1] == "21"


async def test_a_range_is_asked_at_times_that_hubs_abroad_accept(world: World) -> None:
    times = {"start": "130", "end": "430", "step": "15"}
    _, told = await world.get("/api/v1/query_range", hubs="all", **times)
    part = world.asked[0][1].parts[0]
    assert isinstance(part, MetricPart)
    assert (part.start_ms, part.step_ms) == (120_000, 60_000)
    assert "multiples of 1 min" in told["infos"][0]
    world.asked.clear()
    await world.get("/api/v1/query_range", hubs="tangier", **times)
    part = world.asked[0][1].parts[0]
    assert isinstance(part, MetricPart)
    assert (part.start_ms, part.step_ms) == (130_000, 15_000)


@pytest.mark.parametrize(
    ("tells", "code", "words"),
    [
        (PartResult(refused=NO), "E0697", "hub dakar refused, rule `selector`: single series stay in SN"),
        (HarchError("E0698", "hub dakar does not answer: cut"), "E0698", "hub dakar does not answer: cut"),
    ],
)
async def test_a_hub_that_tells_nothing_fails_the_question_unless_a_part_is_enough(
    world: World, tells: PartResult | HarchError, code: str, words: str
) -> None:
    world.tells["dakar"] = tells
    status, told = await world.get(hubs="all")
    assert (status >= 400, told["code"]) == (True, code)
    assert words in told["error"]
    assert "partial_response=true" in told["hint"]
    status, told = await world.get(hubs="all", partial_response="true")
    assert (status, told["data"]["result"][0]["value"][1]) == (200, "21")
    assert any(words in warning for warning in told["warnings"])


async def test_suppressed_groups_are_always_told(world: World) -> None:
    world.tells["dakar"] = PartResult(suppressed=3)
    status, told = await world.get(hubs="all")
    assert (status, told["warnings"]) == (200, ["hub dakar withheld 3 groups with too few sources"])


async def test_a_refusal_is_named_before_a_silence(world: World) -> None:
    world.tells["tangier"], world.tells["dakar"] = HarchError("E0698", "hub tangier is silent"), PartResult(refused=NO)
    _, told = await world.get(hubs="all")
    assert told["code"] == "E0697"
    assert "and 1 more" in told["error"]


async def test_a_mistake_in_the_question_asks_nobody(world: World) -> None:
    status, _ = await world.get(hubs="all", query="sum(")
    assert (status, world.asked) == (400, [])
    status, told = await world.get(hubs="nador")
    assert (status, told["code"]) == (400, "E0699")


async def test_paths_that_know_one_hub_say_so(world: World) -> None:
    status, told = await world.get("/api/v1/format_query", hubs="all")
    assert (status, told["code"]) == (400, "E0699")
    assert (await world.get("/api/v1/format_query", headers={"X-Harch-Hubs": "all"}))[0] == 200


async def test_only_so_many_questions_are_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTIONS_AT_ONCE", 1)
    statuses = await asyncio.gather(*(world.get(hubs="all") for _ in range(3)))
    assert sorted(status for status, _ in statuses) == [200, 503, 503]
