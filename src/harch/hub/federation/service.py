"""What can be asked of the other hubs? How they are, what runs there, and what this hub's work has written there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.mesh import LinkStatus
from harch.hub.audit.service import HubAudit
from harch.hub.federation.alerts import AlertExchange
from harch.hub.federation.answers import FederationWork, PeerAnswers, gather_work
from harch.hub.federation.messages import (
    LOG_BYTES_MAX,
    ROWS_MAX,
    Answer,
    LogReply,
    LogRequest,
    Question,
    SignalRegistry,
)
from harch.hub.federation.outbox import PeerOutbox
from harch.hub.federation.peer_view import ALONE, PeerDirectory
from harch.hub.federation.questions import FEATURE, Questions, fetch_answer
from harch.hub.federation.runtime import FederationRuntime
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.policy.service import HubPolicies
from harch.hub.views import LogPage, PeerView
from harch.wire.hubs import HubSummary
from harch.workloads.lifecycle import Workload

A = TypeVar("A", bound=Answer)


class HubFederation:
    """Behind the API. Without an identity the hub is on its own, and says so of every other hub of its fleet.

    `listen` is where it accepts links, the address of its member record if absent. `outbox` and `directory` are those
    that the rest of the hub uses; a federation connects them to its links.
    """

    def __init__(
        self,
        *,
        identity: HubIdentity | None,
        listen: tuple[str, int] | None,
        clock: Clock,
        jobs: JobRuntime,
        policies: HubPolicies,
        audit: HubAudit,
        summary: Callable[[], HubSummary],
        signals: SignalRegistry,
        answers: PeerAnswers,
        outbox: PeerOutbox,
        directory: PeerDirectory,
        on_copies_changed: Callable[[], None],
        gate: ConnectionGate | None = None,
    ) -> None:
        self._directory, self._answers = directory, answers
        self._runtime: FederationRuntime | None = None
        if identity is not None:
            self._runtime = FederationRuntime(
                identity=identity,
                listen=listen or identity.member.address,
                clock=clock,
                jobs=jobs,
                policies=policies,
                audit=audit,
                summary=summary,
                signals=signals,
                answers=answers,
                outbox=outbox,
                directory=directory,
                on_copies_changed=on_copies_changed,
                gate=gate,
            )

    async def run(self) -> None:
        """Until cancelled; alone, there is nothing to do. Raises E1004 if the port for peers is taken."""
        if self._runtime is not None:
            await self._runtime.run()

    def views(self) -> list[PeerView]:
        return self._directory.views()

    def received(self, key: str) -> dict[str, bytes]:
        """What other hubs last said of themselves under this key."""
        return self._runtime.received(key) if self._runtime is not None else {}

    def exchange_alerts(self, records: bytes) -> AlertExchange:
        """What this hub's SENTINEL has to tell, against what it has to know. Alone, there is nobody to tell."""
        return self._runtime.alerts.exchange(records) if self._runtime is not None else AlertExchange()

    def has_alert_news(self, position: int) -> bool:
        """Whether an exchange would tell this hub's SENTINEL, at this position, anything new."""
        return self._runtime is not None and self._runtime.alerts.has_news(position)

    def links(self) -> list[LinkStatus]:
        return self._runtime.links() if self._runtime is not None else []

    def check_may_leave(self) -> None:
        """Raises E0304 at the hub that holds the authority."""
        if self._runtime is not None and self._runtime.holds_authority:
            raise HarchError(
                "E0304",
                "this hub holds the federation's authority",
                hint="copy its `authority` folder to another hub first, and remove it here",
            )

    def note_retired(self) -> None:
        """This hub is about to say of itself that it has left."""
        if self._runtime is not None:
            self._runtime.note_retired()

    async def work(self, *, tenant: str | None) -> FederationWork:
        """The unfinished work of all hubs that answer within two seconds; those that do not are named."""
        own = await self._answers.own_work(tenant=tenant, limit=ROWS_MAX)
        borrowed = await self._answers.borrowed(tenant=tenant, limit=ROWS_MAX)
        questions = self._runtime.questions if self._runtime is not None else Questions(lambda hub_id, message: False)
        return await gather_work(own, borrowed, self.views(), questions, tenant=tenant)

    async def query_telemetry(self, hub_id: str, question: bytes, *, within_s: float) -> bytes:
        """Another hub's answer about its telemetry, as it came. Raises E0697 or E0698 with that hub's reason."""
        if self._runtime is None:
            raise HarchError("E0699", ALONE)
        link = next((link for link in self._runtime.links() if link.hub_id == hub_id), None)
        if link is None:
            raise HarchError("E0699", f"`{hub_id[:64]}` is not another hub of this federation", hint="see `harch hubs`")
        if link.up and FEATURE not in link.features:
            raise HarchError("E0698", f"hub {hub_id} runs a version that answers no telemetry queries")
        return await fetch_answer(self._runtime.questions, hub_id, question, within_s=within_s)

    async def request(
        self, hub_id: str, question: Callable[[int], Question], answer: type[A], *, within_s: float | None = None
    ) -> A:
        """Puts a question to another hub. Raises E0802 if it does not answer, and whatever error it answers."""
        if self._runtime is None:
            raise HarchError("E0802", f"hub {hub_id} cannot be asked: {ALONE}", hint="query that hub")
        return await self._runtime.questions.request(hub_id, question, answer, within_s=within_s)

    def notify_copies_changed(self, hub_id: str) -> None:
        """That hub should ask what has become of data of which it has copies."""
        if self._runtime is not None:
            self._runtime.notify_copies_changed(hub_id)

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
        """Of own work that another hub runs, or ran last. Raises E0802 if that hub does not answer."""
        runner = workload.runner_hub
        if workload.leased and not workload.runner_placement:  # no report yet that it is placed there
            start = max(offset, 0)
            return LogPage(offset=start, next_offset=start, data=b"", eof=False)
        if self._runtime is None:
            raise HarchError("E0802", f"the output is at hub {runner}; {ALONE}", hint="query that hub")
        reply = await self._runtime.questions.request(
            runner,
            lambda number: LogRequest(
                number=number,
                workload_id=workload.id,
                attempt=attempt or workload.attempt,
                rank=rank,
                offset=offset,
                bytes_max=min(bytes_max, LOG_BYTES_MAX),
                since_s=since_s,
                preparation=preparation,
            ),
            LogReply,
        )
        return LogPage(offset=reply.offset, next_offset=reply.offset + len(reply.data), data=reply.data, eof=reply.eof)
