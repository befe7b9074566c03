"""Where features go: several windows at a time, and no delivery that goes on behind the partition's back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from harch.pipelines.client.errors import ConnectionLost
from harch.pipelines.workers.lanes import DurableLane, HotLane
from harch.pipelines.workers.names import names_of
from harch.pipelines.workers.partition import OutboxMessage, Undelivered

SOME = tuple(OutboxMessage(seq, b"window %d" % seq) for seq in (1, 2, 3))


class FakeClient:
    """Keeps what is published; message ids in `fails` are refused at once, all others take a few turns."""

    def __init__(self, fails: set[str]) -> None:
        self.fails = fails
        self.under_way = self.most_under_way = 0
        self.stored: dict[str, bytes] = {}
        self.published: list[bytes] = []

    async def publish_stored(self, subject: str, payload: bytes, *, msg_id: str) -> None:
        if msg_id in self.fails:
            raise ConnectionLost("not connected")
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        self.stored[msg_id] = payload

    def publish(self, subject: str, payload: bytes) -> None:
        self.published.append(payload)

    async def drain(self) -> None: ...


def shell_of(client: FakeClient) -> Any:
    config = SimpleNamespace(pipeline="fields", state_version=1, into="think")
    return SimpleNamespace(client=client, names=names_of("MA", "fields"), config=config)


async def test_windows_that_wait_are_stored_together_each_under_its_own_id() -> None:
    client = FakeClient(set())
    await DurableLane(shell_of(client)).deliver(4, SOME)
    assert client.stored == {f"1/fields/4/{told.seq}": told.message for told in SOME}
    assert client.most_under_way == len(SOME)


async def test_a_failure_is_told_only_when_nothing_is_under_way_any_more() -> None:
    client = FakeClient({"1/fields/4/1"})
    with pytest.raises(Undelivered):
        await DurableLane(shell_of(client)).deliver(4, SOME)
    assert client.under_way == 0
    assert set(client.stored) == {"1/fields/4/2", "1/fields/4/3"}  # they are known by their ids when all come again
    client.fails.clear()
    await DurableLane(shell_of(client)).deliver(4, SOME)
    assert len(client.stored) == len(SOME)


async def test_the_hot_lane_keeps_the_order_of_windows() -> None:
    client = FakeClient(set())
    await HotLane(shell_of(client)).deliver(0, SOME)
    assert client.published == [told.message for told in SOME]
