"""Two SENTINELs with hubs between them end up with the same silences."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import httpx

from harch.sentinel.alerts.config import default_config
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.shared_state import Match, Silence
from harch.sentinel.alerts.store import AlertStore
from harch.sentinel.http.alerting import ALL_AGAIN_S, EVERY_S, PIECE_BYTES_MAX, AlertPeers
from harch.testing.clock import SimClock


class _Nobody:
    async def send(self, delivery: Delivery) -> None:
        raise AssertionError(f"nobody is to be told: {delivery}")


class Hubs:
    """Two hubs that hand everything on at once; `asked` counts exchanges."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[str]] = {"a": [], "b": []}
        self.publish_all = {"a": False, "b": False}
        self.largest = 0

    def transport(self, own: str, other: str) -> httpx.MockTransport:
        def handle(request: httpx.Request) -> httpx.Response:
            assert request.headers["x-api-key"] == "token"
            told = json.loads(request.content).get("records", "")
            self.largest = max(self.largest, len(base64.b64decode(told)))
            if told:
                self.waiting[other].append(told)
            heard, self.waiting[own] = self.waiting[own], []
            wanted, self.publish_all[own] = self.publish_all[own], False
            position = 0 if own == "a" else 1
            return httpx.Response(200, json={"records": heard, "position": position, "tell_all": wanted})

        return httpx.MockTransport(handle)


def silence(number: int, clock: SimClock, comment: str = "") -> Silence:
    now_ms = round(clock.now().timestamp() * 1000)
    return Silence(
        id=f"s{number}",
        matches=(Match("alertname", f"A{number}"),),
        starts_at_ms=now_ms,
        ends_at_ms=now_ms + 3_600_000,
        updated_at_ms=now_ms,
        created_by="x",
        comment=comment,
    )


async def test_a_silence_reaches_the_other_hub_and_large_states_arrive_in_pieces(tmp_path: Path) -> None:
    clock, hubs = SimClock(), Hubs()
    one = AlertService(default_config(), AlertStore(tmp_path / "a"), _Nobody(), clock)
    two = AlertService(default_config(), AlertStore(tmp_path / "b"), _Nobody(), clock)
    first = AlertPeers("http://a", "token", clock, hubs.transport("a", "b"))
    second = AlertPeers("http://b", "token", clock, hubs.transport("b", "a"))
    one.machine.shared.put(silence(0, clock), now_ms=one.now_ms())
    await first.publish(one)
    await second.receive(two)
    assert two.machine.shared.silence("s0") is not None
    assert (first.position, second.position) == (0, 1)
    for number in range(1, 200):
        one.machine.shared.put(silence(number, clock, "x" * 4_000), now_ms=one.now_ms())
    for _ in range(20):
        await first.publish(one)
        await second.receive(two)
    assert {record.id for record in two.machine.shared.silences()} == {f"s{number}" for number in range(200)}
    assert hubs.largest <= PIECE_BYTES_MAX
    hubs.publish_all["a"] = True
    await first.receive(one)
    hubs.waiting["b"].clear()
    await first.publish(one)
    assert hubs.waiting["b"], "everything is told again to a hub that was away"
    for _ in range(20):
        await first.publish(one)
    hubs.waiting["b"].clear()
    await clock.advance(ALL_AGAIN_S + 1)
    await first.publish(one)
    await first.publish(one)
    assert hubs.waiting["b"], "and from time to time to all, whatever got lost"


async def test_own_news_is_sent_within_a_second_and_a_hub_that_does_not_wait_or_fails_is_asked_once_a_second(
    tmp_path: Path,
) -> None:
    clock, calls = SimClock(), list[dict[str, object]]()
    answers = iter([503, *[200] * 100])

    def handle(request: httpx.Request) -> httpx.Response:
        calls.append(json.loads(request.content))
        return httpx.Response(next(answers), json={"records": [], "position": 3, "tell_all": False, "revoked": 7})

    service = AlertService(default_config(), AlertStore(tmp_path / "a"), _Nobody(), clock)
    peers = AlertPeers("http://a", "token", clock, httpx.MockTransport(handle))
    running = asyncio.create_task(peers.run(service))
    await clock.advance(EVERY_S * 2.5)
    assert [call.get("position") for call in calls] == [0, 0, 3]
    assert [call.get("revoked") for call in calls] == [0, 0, 7]
    service.machine.shared.put(silence(0, clock), now_ms=service.now_ms())
    await clock.advance(EVERY_S)
    assert sum("records" in call for call in calls) == 1
    await clock.advance(EVERY_S * 3)
    assert sum("records" in call for call in calls) == 1, "what was sent is not sent again"
    assert len(calls) == 8
    running.cancel()
