"""How do node agents reach the job machine? Their sessions, what they report, what they are sent, and their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from harch.base.errors import REGISTRY, HarchError
from harch.execution.protocol import (
    AGENT_LOST_AFTER_S,
    AgentHeartbeat,
    AgentHello,
    AgentMessage,
    AgentRefused,
    FilesAnswer,
    HubMessage,
    PlaceFiles,
    ReadTaskLog,
    SnapshotFiles,
    TaskEnded,
    TaskKey,
    TaskLogChunk,
    TaskPreparing,
    TaskStarted,
    decode_agent_frame,
    encode_frame,
)
from harch.hub.audit import drafts
from harch.hub.credentials import HubCredentials
from harch.hub.jobs import events as ev
from harch.hub.jobs.faults import REST_S_MAX
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.preparations import Preparations
from harch.hub.views import LogPage
from harch.workloads.lifecycle import Workload


class AgentSessions:
    """The agents on the line, by id: what is sent to them, and whom to cut off."""

    def __init__(self) -> None:
        self._by_agent: dict[str, Session] = {}

    def get(self, agent_id: str) -> Session | None:
        return self._by_agent.get(agent_id)

    def put(self, agent_id: str, session: Session) -> None:
        """An older connection of the same agent is closed."""
        older = self._by_agent.get(agent_id)
        if older is not None and older is not session:
            older.close("the agent has reconnected")
        self._by_agent[agent_id] = session

    def drop(self, session: Session) -> bool:
        """False: it is not on the line, or another connection of its agent has taken its place."""
        agent_id = session.hello.agent_id if session.hello is not None else ""
        if self._by_agent.get(agent_id) is not session:
            return False
        del self._by_agent[agent_id]
        return True

    def send(self, agent_id: str, message: HubMessage) -> None:
        session = self._by_agent.get(agent_id)
        if session is not None:  # otherwise the reconciliation at its return makes up for it
            session.send(message)

    def close_all(self, why: str) -> None:
        for session in self._by_agent.values():
            session.close(why)
        self._by_agent.clear()

    def close_key(self, key_id: str) -> None:
        """The sessions that were opened with a key that no longer holds."""
        for session in list(self._by_agent.values()):
            if session.key_id == key_id:
                session.close("its key is no longer valid")


class ArtifactPort:
    """Holds what an ended task left, before its end is booked. Made first; the hub's content connects to it."""

    def __init__(self) -> None:
        self._keep: Callable[[TaskEnded], Awaitable[TaskEnded]] | None = None

    def connect(self, keep: Callable[[TaskEnded], Awaitable[TaskEnded]]) -> None:
        self._keep = keep

    async def keep(self, end: TaskEnded) -> TaskEnded:
        """The end with those of its artifacts that are held now; why the others are not stands in it."""
        return end if self._keep is None else await self._keep(end)


class AgentGateway:
    """How agents come in, what they report, and their logs and files."""

    def __init__(
        self,
        jobs: JobRuntime,
        credentials: HubCredentials,
        sessions: AgentSessions,
        preparations: Preparations,
        artifacts: ArtifactPort,
    ) -> None:
        self._jobs, self._credentials, self._sessions = jobs, credentials, sessions
        self._preparations, self._artifacts = preparations, artifacts
        self._booking: dict[TaskKey, asyncio.Task[None]] = {}
        self._opened = 0

    async def attach(self, link: AgentLink, *, key_id: str) -> None:
        """Runs until the connection ends. `key_id` is the key that it was opened with."""
        self._opened += 1
        session = Session(link, self._opened, key_id)
        why = "the connection failed"
        try:
            why = await session.run(self._joined, self._received)
        finally:  # whatever ended it: a session that is gone must not be sent to
            if self._sessions.drop(session) and session.hello is not None:
                self._jobs.post(ev.AgentLeft(session.hello.agent_id, session.number, why))

    async def read_log(
        self,
        workload: Workload,
        *,
        rank: int,
        attempt: int | None,
        offset: int,
        bytes_max: int,
        since_s: float | None = None,
        preparation: bool = False,
    ) -> LogPage:
        if not 0 <= rank < workload.spec.tasks:
            raise HarchError(
                "E0201", f"workload {workload.id} has no rank {rank}", hint=f"it has {workload.spec.tasks} tasks"
            )
        session = self._session_of(workload, rank)
        if session is None:  # not placed yet, or between two attempts
            start = max(offset, 0)
            return LogPage(offset=start, next_offset=start, data=b"", eof=workload.state.is_final)
        key = TaskKey(workload.id, attempt or workload.attempt, rank)
        chunk = await session.read_log(key, offset, bytes_max, since_s, preparation=preparation)
        return LogPage(offset=chunk.offset, next_offset=chunk.offset + len(chunk.data), data=chunk.data, eof=chunk.eof)

    async def snapshot_files(self, workload: Workload, *, rank: int, attempt: int | None, path: str) -> FilesAnswer:
        """The tree of what is at `path` in the working folder of a task, once its agent has uploaded it here."""
        session = self._session_with_files(workload, rank)
        key = TaskKey(workload.id, attempt or workload.attempt, rank)
        return await session.request_files(lambda number: SnapshotFiles(number, key, path))

    async def place_files(self, workload: Workload, *, rank: int, path: str, ref: str, digest: str) -> FilesAnswer:
        """Returns when the tree, which the agent fetches here by `ref`, is in the working folder."""
        session = self._session_with_files(workload, rank)
        key = TaskKey(workload.id, workload.attempt, rank)
        return await session.request_files(lambda number: PlaceFiles(number, key, path, ref, digest))

    def serves(self, key_id: str, workload: Workload) -> bool:
        """Whether the agent with this key has, or had, a task of this workload on one of its nodes.

        Raises E0801 while that cannot be known: after a restart of the hub, until the agents of these nodes are back.
        """
        agents = self._jobs.machine.state.agents.agent_of_node
        bound = self._credentials.agents_of(key_id)
        own, nodes = {agent.agent_id for agent in bound}, {task.node_id for task in workload.placement}
        if any(agents.get(node) in own for node in nodes):
            return True
        may_be = any(not agent.node_ids or nodes.intersection(agent.node_ids) for agent in bound)
        if may_be and any(node not in agents for node in nodes):
            raise HarchError("E0801", "no agent of this node is connected", hint="connect first", retry_after_s=1)
        return False

    def _session_with_files(self, workload: Workload, rank: int) -> Session:
        session = self._session_of(workload, rank)
        if session is None:
            raise HarchError(
                "E1111", f"{workload.spec.name} has no working folder yet", hint="wait until it runs: `harch wait`"
            )
        return session

    def _session_of(self, workload: Workload, rank: int) -> Session | None:
        """Of the agent that has this task; None if it is nowhere yet. Raises E0801 if that agent is not there."""
        nodes = {task.rank: task.node_id for task in workload.placement}
        if rank not in nodes:
            return None
        agent_id = self._jobs.machine.state.agents.agent_of_node.get(nodes[rank])
        session = self._sessions.get(agent_id) if agent_id is not None else None
        if session is None:
            raise HarchError("E0801", f"the agent of node {nodes[rank]} is not connected", hint="try again later")
        return session

    def _joined(self, session: Session, hello: AgentHello) -> None:
        jobs = self._jobs
        if jobs.not_ready:
            session.close(f"the hub is not ready: {jobs.not_ready}")
            return
        # First of all: who is not that agent must not take the place of the one that is.
        if error := self._credentials.agent_refusal(session.key_id, hello.agent_id, hello.node_ids):
            session.send(AgentRefused(error.code, f"{error.message}; {error.hint}"))
            jobs.post(ev.AgentBarred(hello.agent_id, drafts.agent_refused(hello.agent_id, hello.country, error)))
            return
        self._sessions.put(hello.agent_id, session)
        if not jobs.post(ev.AgentJoined(hello, session.number)):
            session.close("the hub failed when it joined; retry in a moment")
        joined = jobs.machine.state.agents.agents.get(hello.agent_id)
        if joined is not None and joined.session == session.number:
            self._credentials.agent_came(session.key_id, hello.agent_id, hello.node_ids)
        jobs.plan_placement()

    def _received(self, session: Session, messages: list[AgentMessage]) -> None:
        """What one frame reported goes to disk together."""
        jobs = self._jobs
        if session.hello is None or jobs.not_ready or self._sessions.get(session.hello.agent_id) is not session:
            return  # one that was refused, or whose place another connection of the same agent has taken
        events: list[ev.Event] = []
        for message in messages:
            match message:
                case TaskPreparing():
                    self._preparations.note(message)
                case TaskStarted():
                    self._preparations.drop(message.key)
                    events.append(ev.TaskStartSeen(message.key, session.hello.agent_id))
                case AgentHeartbeat(boot_s):
                    jobs.note_agent_clock(session.hello.agent_id, boot_s)
                case TaskEnded():
                    self._preparations.drop(message.key)
                    if message.artifacts:
                        self._book_later(session, session.hello.agent_id, message)
                    else:
                        events.append(ev.TaskEndSeen(session.hello.agent_id, message))
        if events:
            self._book(session, *events)

    def _book(self, session: Session, *events: ev.Event) -> None:
        jobs = self._jobs
        if not jobs.post(*events) and not jobs.not_ready:
            # What was not taken is sent again when the agent connects anew.
            asyncio.get_running_loop().call_later(REST_S_MAX, session.close, "a report of it was not accepted")
        jobs.plan_placement()

    def _book_later(self, session: Session, agent_id: str, end: TaskEnded) -> None:
        """Once what it left is held. If this fails on the way, the agent says it again when it connects anew."""
        if end.key in self._booking:
            return

        async def keep_and_book() -> None:
            with self._jobs.survived("keeping artifacts"):
                kept = await self._artifacts.keep(end)
                self._book(session, ev.TaskEndSeen(agent_id, kept))

        task = asyncio.get_running_loop().create_task(keep_and_book())
        self._booking[end.key] = task
        task.add_done_callback(lambda _: self._booking.pop(end.key, None))


# Which agents are on the line? One session per connection: frames in, batched frames out, log requests matched.


OUTBOX_MAX = 200_000  # messages; an agent that far behind is cut off and reconciles when it returns
FRAME_MESSAGES_MAX = 500
HELLO_WITHIN_S = 10.0
LOG_WITHIN_S = 10.0
FILES_OPEN_MAX = 64
FILES_WITHIN_S = 3600.0


class AgentLink(Protocol):
    """A connection to an agent. `receive` raises `ConnectionError` when it is closed."""

    @property
    def peer(self) -> str: ...

    async def receive(self) -> bytes: ...

    async def send(self, frame: bytes) -> None: ...


class Session:
    """One connection of one agent."""

    def __init__(self, link: AgentLink, number: int, key_id: str) -> None:
        self.link = link
        self.key_id = key_id
        self.number = number
        self.hello: AgentHello | None = None
        self._outbox: list[HubMessage] = []
        self._something_to_send = asyncio.Event()
        self._logs: dict[int, asyncio.Future[TaskLogChunk]] = {}
        self._files: dict[int, asyncio.Future[FilesAnswer]] = {}
        self._requests = 0
        self._closing = ""

    async def run(
        self, joined: Callable[[Session, AgentHello], None], received: Callable[[Session, list[AgentMessage]], None]
    ) -> str:
        """Until the connection ends; returns why it ended."""
        why = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                group.create_task(self._read(joined, received))
        except* ConnectionError as errors:
            why = str(errors.exceptions[0])
        except* TimeoutError:
            why = f"no message for {AGENT_LOST_AFTER_S:g} s"
        except* msgspec.DecodeError as errors:
            why = f"sent what the hub cannot read: {errors.exceptions[0]}"
        finally:
            waiting: list[asyncio.Future[Any]] = [*self._logs.values(), *self._files.values()]
            for future in waiting:
                if not future.done():
                    future.set_exception(_no_log())
        return self._closing or why or "connection closed"

    def send(self, message: HubMessage) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self.close("too far behind")
            return
        self._outbox.append(message)
        self._something_to_send.set()

    def close(self, why: str) -> None:
        self._closing = why
        self._outbox.clear()
        self._something_to_send.set()

    async def read_log(
        self, key: TaskKey, offset: int, bytes_max: int, since_s: float | None = None, *, preparation: bool = False
    ) -> TaskLogChunk:
        self._requests += 1
        request_id = self._requests
        future: asyncio.Future[TaskLogChunk] = asyncio.get_running_loop().create_future()
        self._logs[request_id] = future
        self.send(ReadTaskLog(request_id, key, offset, bytes_max, since_s, preparation))
        try:
            async with asyncio.timeout(LOG_WITHIN_S):
                return await future
        except TimeoutError as error:
            raise _no_log() from error
        finally:
            del self._logs[request_id]

    async def request_files(self, message: Callable[[int], SnapshotFiles | PlaceFiles]) -> FilesAnswer:
        """The agent's answer, whatever it is made of: packing and moving files takes as long as they are large."""
        if len(self._files) >= FILES_OPEN_MAX:
            raise HarchError(
                "E0401", f"{FILES_OPEN_MAX} requests for files are open", hint="try again", retry_after_s=5
            )
        self._requests += 1
        request_id = self._requests
        future: asyncio.Future[FilesAnswer] = asyncio.get_running_loop().create_future()
        self._files[request_id] = future
        self.send(message(request_id))
        try:
            async with asyncio.timeout(FILES_WITHIN_S):
                answer = await future
        except TimeoutError as error:
            raise _no_log() from error
        finally:
            del self._files[request_id]
        if answer.code:
            code = answer.code if answer.code in REGISTRY else "E1113"
            raise HarchError(code, answer.message, hint=answer.hint)
        return answer

    async def _write(self) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            while self._outbox:
                batch, self._outbox = self._outbox[:FRAME_MESSAGES_MAX], self._outbox[FRAME_MESSAGES_MAX:]
                await self.link.send(encode_frame(batch))
                if any(isinstance(message, AgentRefused) for message in batch):
                    self._closing = "refused"
            if self._closing:
                raise ConnectionError(self._closing)

    async def _read(
        self, joined: Callable[[Session, AgentHello], None], received: Callable[[Session, list[AgentMessage]], None]
    ) -> None:
        while True:
            async with asyncio.timeout(AGENT_LOST_AFTER_S if self.hello else HELLO_WITHIN_S):
                frame = await self.link.receive()
            reports: list[AgentMessage] = []
            for message in decode_agent_frame(frame):
                if isinstance(message, TaskLogChunk):
                    future = self._logs.get(message.request_id)
                    if future is not None and not future.done():
                        future.set_result(message)
                elif isinstance(message, FilesAnswer):
                    waiting = self._files.get(message.request_id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message)
                elif isinstance(message, AgentHello):
                    if self.hello is not None:
                        raise ConnectionError("sent a second greeting")
                    self.hello = message
                    joined(self, message)
                else:
                    reports.append(message)
            if self.hello is not None and reports:
                received(self, reports)


def _no_log() -> HarchError:
    return HarchError(
        "E0801", "the agent that has the task does not answer", hint="try again; `harch events` shows agents"
    )
