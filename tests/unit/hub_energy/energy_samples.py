"""What do the tests of a hub's energy share? A spot contract, a market that obeys, and a hub that is driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from harch.energy.market.adapter import Fill
from harch.energy.market.bids import Bid
from harch.energy.plugins import MarketContext
from harch.hub.energy.prices import FILE_NAME
from harch.hub.service import HubService, build_hub
from harch.testing.clock import SimClock
from harch.testing.samples import tiny_fleet

SPOT = """
[hubs.dakhla.tariff]
name = "day-ahead"
currency = "EUR"
[hubs.dakhla.tariff.energy]
kind = "spot"
zone = "ES"
time_zone = "UTC"
published_at = "13:00"
[hubs.dakhla.battery]
energy_kwh = 100
power_kw = 50
[hubs.dakhla.market]
"""
PAPER = f'{SPOT}prices = "modelled"\n'
OBEYING = f'{SPOT}prices = "prices.csv"\nadapter = "unit.hub_energy.energy_samples:TestMarket.open"\n'


class TestMarket:
    """A market outside the hub: it outlives one, counts what it is sent, and does as it is told."""

    __test__ = False
    taken: ClassVar[dict[str, Bid]] = {}
    calls: ClassVar[list[tuple[str, ...]]] = []
    on_submit: ClassVar[Callable[[], None] | None] = None
    answer: ClassVar[Callable[[Bid], Fill | None]] = staticmethod(lambda bid: None)
    name = "test-market"

    @classmethod
    def open(cls, context: MarketContext) -> TestMarket:
        return cls()

    @classmethod
    def reset(cls) -> None:
        cls.taken, cls.calls, cls.on_submit = {}, [], None
        cls.answer = staticmethod(lambda bid: None)

    async def submit(self, bids: Sequence[Bid], *, now: datetime) -> None:
        TestMarket.calls.append(tuple(bid.id for bid in bids))
        if TestMarket.on_submit is not None:
            TestMarket.on_submit()
        for bid in bids:
            TestMarket.taken.setdefault(bid.id, bid)

    async def fills(self, bids: Sequence[Bid], *, now: datetime) -> Sequence[Fill]:
        answers = (TestMarket.answer(bid) for bid in bids)
        return [fill for fill in answers if fill is not None]


async def settled(done: Callable[[], bool]) -> None:
    """Threads and the disk take real time, though the clock stands still."""
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.005)


async def until(clock: SimClock, done: Callable[[], bool]) -> None:
    """Rounds of the hub go by until it is so."""
    async with asyncio.timeout(30):
        while not done():
            await clock.advance(30)
            for _ in range(5):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running_hub(
    folder: Path, clock: SimClock, energy: str = "", *, carbon: str = ""
) -> AsyncIterator[HubService]:
    """`energy` and `carbon` are the texts of its files. The hub is closed at the end, its folder is kept."""
    for name, text in ((FILE_NAME, energy), ("carbon.toml", carbon)):
        if text:
            (folder / name).write_text(text)
    fleet = tiny_fleet()
    hub = build_hub(
        fleet=fleet,
        hub=fleet.hubs[0],
        state_dir=folder,
        clock=clock,
        version="1",
        url="http://hub",
        peer_urls={},
        on_broken=lambda broken: None,
    )
    tasks = [asyncio.create_task(hub.carbon.run()), asyncio.create_task(hub.energy.run())]
    try:
        yield hub
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await hub.close()


def planned(hub: HubService) -> bool:
    return hub.energy.gauges() != {}
