"""The runner's own policy: asked once, its no is final, and what runs is never denied afterwards."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.federation.offers import DropBids, Granted, Grants
from harch.hub.federation.outbox import GrantReceiver
from harch.hub.jobs import events as ev
from unit.hub_federation.samples import GRANT, LEASE


class Bench:
    """A driver and a policy that remember what was asked of them."""

    def __init__(self, *, active: bool = True, refuses: bool = False) -> None:
        self.events: list[Any] = []
        self.told: list[Granted] = []
        self.asked = 0
        self.refuses = refuses
        self.answer = asyncio.Event()
        self.known: dict[str, Any] = {}
        driver: Any = SimpleNamespace(
            not_ready="",
            post=self._post,
            plan_placement=lambda: None,
            machine=SimpleNamespace(state=SimpleNamespace(registry=SimpleNamespace(workloads=self.known))),
        )
        policies: Any = SimpleNamespace(status=lambda: SimpleNamespace(active=active), admit=self._admit)
        self.desk = GrantReceiver(driver, policies, lambda owner, granted: self.told.append(granted))

    def _post(self, event: object) -> bool:
        self.events.append(event)
        return True

    async def _admit(self, spec: object, *, tenant: str, reads: object) -> None:
        self.asked += 1
        await self.answer.wait()
        if self.refuses:
            raise HarchError("E0931", "not here")

    async def decide(self) -> None:
        self.answer.set()
        while self.desk._tasks:
            await asyncio.sleep(0)


async def test_without_a_bundle_a_grant_goes_straight_to_the_machine() -> None:
    bench = Bench(active=False)
    bench.desk.came("dakhla", Grants((GRANT,)))
    assert bench.events == [ev.PeerMessageReceived("dakhla", Grants((GRANT,)))]
    assert bench.asked == 0


async def test_repeated_grants_ask_once_and_a_yes_lets_one_in() -> None:
    bench = Bench()
    for _ in range(3):
        bench.desk.came("dakhla", Grants((GRANT,)))
    await asyncio.sleep(0)
    assert (bench.asked, bench.events) == (1, [])
    await bench.decide()
    assert bench.events == [ev.PeerMessageReceived("dakhla", Grants((GRANT,)))]


async def test_a_no_releases_the_bid_before_the_owner_hears_of_it() -> None:
    bench = Bench(refuses=True)
    bench.desk.came("dakhla", Grants((GRANT,)))
    assert bench.told == []
    await bench.decide()
    assert bench.events == [ev.PeerMessageReceived("dakhla", DropBids(("b",)))]
    assert bench.told == [Granted(refused=((LEASE, "E0931 not here"),))]


@pytest.mark.parametrize("epoch", [3, 4])
async def test_what_was_taken_already_is_not_asked_again(epoch: int) -> None:
    bench = Bench(refuses=True)
    bench.known["wl_1"] = SimpleNamespace(epoch=epoch)
    bench.desk.came("dakhla", Grants((GRANT,)))
    assert (bench.asked, bench.told) == (0, [])
    assert bench.events == [ev.PeerMessageReceived("dakhla", Grants((GRANT,)))]
