"""Two SENTINELs with hubs between them end up with the same silences."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import httpx

from harch.sentinel.alerts.config import default_config
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.shared_state import Match, Silence
from harch.sentinel.alerts.store import AlertStore
from harch.sentinel.http.alerting import ALL_AGAIN_S, PIECE_BYTES_MAX, AlertPeers
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
            told = json.loads(request.content)["records"]
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
    await first.exchange(one)
    await second.exchange(two)
    assert two.machine.shared.silence("s0") is not None
    assert (first.position, second.position) == (0, 1)
    for number in range(1, 200):
        one.machine.shared.put(silence(number, clock, "x" * 4_000), now_ms=one.now_ms())
    for _ in range(20):
        await first.exchange(one)
        await second.exchange(two)
    assert {record.id for record in two.machine.shared.silences()} == {f"s{number}" for number in range(200)}
    assert hubs.largest <= PIECE_BYTES_MAX
    hubs.publish_all["a"] = True
    await first.exchange(one)
    hubs.waiting["b"].clear()
    await first.exchange(one)
    assert hubs.waiting["b"], "everything is told again to a hub that was away"
    for _ in range(20):
        await first.exchange(one)
    hubs.waiting["b"].clear()
    await clock.advance(ALL_AGAIN_S + 1)
    await first.exchange(one)
    await first.exchange(one)
    assert hubs.waiting["b"], "and from time to time to all, whatever got lost"
