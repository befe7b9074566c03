"""Questions over three hubs in two countries: what crosses a border is aggregates, and every answer is written down."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harch.hub.audit.table import AuditQuery
from harch.hub.views import Role
from integration.federated_world import FederatedWorld, planted

VALUES = {
    "dakhla": [1000.0625 + number for number in range(6)],
    "tangier": [2000.0625 + number for number in range(6)],
    "dakar": [3000.0625 + number for number in range(6)],
}
TOTAL = {hub: sum(values) for hub, values in VALUES.items()}
COUNTRY = {"dakhla": "MA", "tangier": "MA", "dakar": "SN"}
TRACE = {hub: f"{number:02d}aaaaaaaaaaaaaaaaaaaaaaaaaaaa{number:02d}" for number, hub in enumerate(VALUES, 11)}


@pytest.fixture(scope="module")
def minute() -> int:
    """A whole minute, long enough ago to be told abroad."""
    return int(time.time()) // 900 * 900 - 1800


def raw_marks(hub: str) -> list[bytes]:
    """What must not leave the country of this hub, in every form in which it might."""
    values = [form for value in VALUES[hub] for form in (struct.pack(">d", value), struct.pack("<d", value))]
    texts = [str(value).encode() for value in VALUES[hub]]
    return [*values, *texts, f"secret-gpu-{hub}".encode(), f"secret-line-{hub}".encode(), TRACE[hub].encode()]


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minute: int) -> AsyncIterator[FederatedWorld]:
    monkeypatch.setenv("HARCH_SENTINEL", "on")
    made = FederatedWorld(tmp_path)
    try:
        await made.start()
        for hub, values in VALUES.items():
            times = range((minute - 60) * 1000, (minute + 61) * 1000, 15_000)
            await made.write(hub, planted(hub, "planted_watts", values), times)
        yield made
    finally:
        await made.stop()


async def test_aggregates_cross_borders_and_nothing_else_does(world: FederatedWorld, minute: int) -> None:
    query = {"query": "sum by (hub) (planted_watts)", "time": str(minute), "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/v1/query", **query)
    assert status == 200, told
    assert {one["metric"]["hub"]: float(one["value"][1]) for one in told["data"]["result"]} == TOTAL

    # Single series stay in their country; with `partial_response` those of the own country are shown.
    raw = {"query": "planted_watts", "time": str(minute), "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/v1/query", **raw)
    assert (status, told["code"]) == (403, "E0697")
    assert "hub dakar refuses by its rule" in told["error"]
    status, told = await world.ask("dakhla", "/api/v1/query", **raw, partial_response="true")
    assert status == 200
    assert {one["metric"]["hub"] for one in told["data"]["result"]} == {"dakhla", "tangier"}
    assert len(told["data"]["result"]) == 12
    assert any("dakar refuses" in warning for warning in told["warnings"])

    # The bytes of the links say the same: what stands in one country was seen there alone.
    for hub, marks in ((hub, raw_marks(hub)) for hub in VALUES):
        for other in VALUES:
            if COUNTRY[other] != COUNTRY[hub]:
                crossed = [mark for mark in marks if mark in world.tap.to[other]]
                assert crossed == [], f"of {hub}, at the link to {other}"
    assert struct.pack(">d", VALUES["tangier"][0]) in world.tap.to["dakhla"]  # inside a country it may move
    assert struct.pack(">d", TOTAL["dakar"]) in world.tap.to["dakhla"]  # and the tap sees what passes

    # Each hub that was asked has one entry for each question, before its answer left.
    entries = await world.hubs["dakar"].entries()
    assert [(entry.kind, entry.countries) for entry in entries] == [
        ("telemetry.told", ("SN", "MA")),
        ("telemetry.refused", ("SN", "MA")),
        ("telemetry.refused", ("SN", "MA")),
    ]
    assert entries[0].details["groups"] == 1
    assert entries[0].actor.startswith("dakhla:key_")
    assert [entry.kind for entry in await world.hubs["tangier"].entries()] == ["telemetry.told"] * 3
    assert await world.hubs["dakhla"].entries() == []
    _ = AuditQuery, Role
