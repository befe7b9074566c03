"""How agents come and go at a hub that may fail: a session that is gone is never sent to, and nothing said is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from harch.execution.protocol import AgentMessage, HubMessage, StopTask, TaskEnded, TaskKey, encode_frame
from harch.hub import agent_gateway
from harch.hub.agent_gateway import AgentGateway, AgentSessions, ArtifactPort
from harch.hub.jobs import events as ev
from harch.hub.preparations import Preparations
from harch.testing.agents import SimAgent
from harch.testing.clock import START
from harch.workloads.lifecycle import ExitReason

HELLO = SimAgent("one", "MA").hello()
KEY = TaskKey("wl_1", 1, 0)
END = TaskEnded(key=KEY, reason=ExitReason.EXITED, at=START)


class Link:
    """What an agent says, frame by frame; then it is silent, or an error comes."""

    peer = "there"

    def __init__(self, *frames: list[AgentMessage], error: Exception | None = None) -> None:
        self._frames, self._error = list(frames), error
        self.sent: list[bytes] = []

    async def receive(self) -> bytes:
        if self._frames:
            return encode_frame(self._frames.pop(0))
        if self._error is not None:
            raise self._error
        return await asyncio.Event().wait() and b""

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)


class FakeDriver:
    not_ready = ""
    machine = SimpleNamespace(state=SimpleNamespace(agents=SimpleNamespace(agents={})))

    def __init__(self, *refuses: type) -> None:
        self.events: list[Any] = []
        self._refuses = refuses

    def post(self, *events: Any) -> bool:
        self.events += events
        return not any(isinstance(event, self._refuses) for event in events)

    def plan_placement(self) -> None:
        return


class AnyKey:
    """Every key is right, for every agent."""

    def agent_refusal(self, *_: object) -> None:
        return None

    def agent_came(self, *_: object) -> None:
        return None


def gateway(driver: Any, sessions: AgentSessions | None = None) -> AgentGateway:
    return AgentGateway(driver, AnyKey(), sessions or AgentSessions(), Preparations(), ArtifactPort())  # type: ignore[arg-type]


async def test_an_agent_whose_connection_ends_by_an_error_of_ours_has_left() -> None:
    driver = FakeDriver()
    sessions = AgentSessions()
    made = gateway(driver, sessions)
    with pytest.raises(ExceptionGroup):
        await made.attach(Link([HELLO], error=KeyError("nobody foresaw it")), key_id="k")
    assert [type(event) for event in driver.events] == [ev.AgentJoined, ev.AgentLeft]
    message: HubMessage = StopTask(KEY, 1.0)
    sessions.send("one", message)
    assert sessions.get("one") is None


async def test_an_agent_that_the_hub_fails_at_is_sent_away_and_comes_back_later() -> None:
    driver = FakeDriver(ev.AgentJoined)
    await asyncio.wait_for(gateway(driver).attach(Link([HELLO]), key_id="k"), 5)
    assert [type(event) for event in driver.events] == [ev.AgentJoined, ev.AgentLeft]


async def test_an_agent_whose_report_was_not_taken_is_asked_to_say_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_gateway, "REST_S_MAX", 0.0)
    driver = FakeDriver(ev.TaskEndSeen)
    await asyncio.wait_for(gateway(driver).attach(Link([HELLO], [END]), key_id="k"), 5)
    assert [type(event) for event in driver.events] == [ev.AgentJoined, ev.TaskEndSeen, ev.AgentLeft]
