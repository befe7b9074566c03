"""How do node agents reach the job machine? Their sessions, what they report, what they are sent, and their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harch.base.errors import HarchError
from harch.execution.protocol import (
    AgentMessage,
    Heartbeat,
    Hello,
    HubMessage,
    Refused,
    TaskEnded,
    TaskKey,
    TaskStarted,
)
from harch.hub import happenings as h
from harch.hub.audit import drafts
from harch.hub.credentials import HubCredentials
from harch.hub.driver import Driver
from harch.hub.faults import REST_S_MAX
from harch.hub.sessions import AgentLink, Session
from harch.hub.views import LogPage
from harch.workloads.lifecycle import Workload


class AgentDoor:
    """All agents on the line. `driver` comes as a question, because the driver itself sends through this door."""

    def __init__(self, driver: Callable[[], Driver], credentials: HubCredentials) -> None:
        self._driver = driver
        self._credentials = credentials
        credentials.on_revoked = self._key_revoked
        self._sessions: dict[str, Session] = {}
        self._opened = 0

    async def attach(self, link: AgentLink, *, key_id: str) -> None:
        """Runs until the connection ends. `key_id` is the key that it was opened with."""
        self._opened += 1
        session = Session(link, self._opened, key_id)
        why = "the connection failed"
        try:
            why = await session.run(self._joined, self._said)
        finally:  # whatever ended it: a session that is gone must not be sent to
            if session.hello is not None and self._sessions.get(session.hello.agent_id) is session:
                del self._sessions[session.hello.agent_id]
                self._driver().post(h.AgentLeft(session.hello.agent_id, session.number, why))

    def send(self, agent_id: str, message: HubMessage) -> None:
        session = self._sessions.get(agent_id)
        if session is not None:  # otherwise the reconciliation at its return makes up for it
            session.send(message)

    def close_all(self, why: str) -> None:
        for session in self._sessions.values():
            session.close(why)
        self._sessions.clear()

    async def read_log(
        self, workload: Workload, *, rank: int, attempt: int | None, offset: int, bytes_max: int
    ) -> LogPage:
        if not 0 <= rank < workload.spec.tasks:
            raise HarchError(
                "E0201", f"workload {workload.id} has no rank {rank}", hint=f"it has {workload.spec.tasks} tasks"
            )
        nodes = {task.rank: task.node_id for task in workload.placement}
        if rank not in nodes:  # not placed yet, or between two attempts
            start = max(offset, 0)
            return LogPage(offset=start, next_offset=start, data=b"", eof=workload.state.is_final)
        agent_id = self._driver().machine.desk.agents.agent_of_node.get(nodes[rank])
        session = self._sessions.get(agent_id) if agent_id is not None else None
        if session is None:
            raise HarchError("E0801", f"the agent of node {nodes[rank]} is not connected", hint="try again later")
        key = TaskKey(workload.id, attempt or workload.attempt, rank)
        chunk = await session.read_log(key, offset, bytes_max)
        return LogPage(offset=chunk.offset, next_offset=chunk.offset + len(chunk.data), data=chunk.data, eof=chunk.eof)

    def _joined(self, session: Session, hello: Hello) -> None:
        driver = self._driver()
        if driver.not_ready:
            session.close(f"the hub is not ready: {driver.not_ready}")
            return
        # First of all: who is not that agent must not take the place of the one that is.
        if error := self._credentials.agent_refusal(session.key_id, hello.agent_id, hello.node_ids):
            session.send(Refused(error.code, f"{error.message}; {error.hint}"))
            driver.post(h.AgentBarred(hello.agent_id, drafts.agent_refused(hello.agent_id, hello.country, error)))
            return
        older = self._sessions.get(hello.agent_id)
        if older is not None and older is not session:
            older.close("the agent has connected anew")
        self._sessions[hello.agent_id] = session
        if not driver.post(h.AgentJoined(hello, session.number)):
            session.close("the hub failed when it joined; it is welcome again in a moment")
        joined = driver.machine.desk.agents.agents.get(hello.agent_id)
        if joined is not None and joined.session == session.number:
            self._credentials.agent_came(session.key_id, hello.agent_id, hello.node_ids)
        driver.plan_placement()

    def _key_revoked(self, key_id: str) -> None:
        for session in list(self._sessions.values()):
            if session.key_id == key_id:
                session.close("its key is no longer valid")

    def _said(self, session: Session, messages: list[AgentMessage]) -> None:
        """What one frame reported goes to disk together."""
        driver = self._driver()
        if session.hello is None or driver.not_ready or self._sessions.get(session.hello.agent_id) is not session:
            return  # one that was refused, or whose place another connection of the same agent has taken
        events: list[h.Event] = []
        for message in messages:
            match message:
                case TaskStarted():
                    events.append(h.TaskStartSeen(message.key, session.hello.agent_id))
                case Heartbeat(boot_s):
                    driver.heard_clock(session.hello.agent_id, boot_s)
                case TaskEnded():
                    events.append(h.TaskEndSeen(session.hello.agent_id, message))
        if events:
            if not driver.post(*events) and not driver.not_ready:
                # What was not taken is told again when the agent connects anew.
                asyncio.get_running_loop().call_later(REST_S_MAX, session.close, "a report of it was not taken")
            driver.plan_placement()
