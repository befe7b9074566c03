"""What a hub says of itself is true after every event, and costs nothing while nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.hub import service
from harch.hub.federation.peer_view import PeerDirectory
from harch.hub.jobs import events as ev
from harch.hub.jobs.state import Closed
from harch.hub.service import HubStatus
from harch.hub.summary import summarise
from unit.hub.test_job_runtime import Running


async def test_the_summary_is_counted_anew_after_an_event_and_dated_at_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()

    def counting(*args: object, **named: object) -> object:
        counts.append(1)
        return summarise(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(service, "summarise", counting)
    hub = Running(tmp_path)
    status = HubStatus(hub.runtime, PeerDirectory({}), hub.clock, version="1", url="http://hub")
    first = status.summary()
    hub.clock.jump(10.0)
    hub.runtime.post(ev.PeersSeen(()))
    second = status.summary()
    assert len(counts) == 1
    assert (second.at - first.at).total_seconds() == 10.0
    hub.runtime.post(ev.HubClosed(Closed.CORDONED, "for the test"))
    assert status.summary().status == "cordoned"
    hub.runtime.not_ready = "mending"
    assert (status.summary().status, status.summary().status_detail) == ("error", "mending")
    await hub.runtime.close()
