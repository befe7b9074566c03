"""How does what the job machine says about work reach another hub? In frames: what is too large goes in parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from harch.base.errors import HarchError
from harch.federation import offers as o
from harch.federation.links.frames import FrameTooLarge
from harch.federation.offers import DropBids, Grant, Granted, Grants, WorkLease
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.policy.service import HubPolicies
from harch.sovereignty.gates import AccessRequest

_log = logging.getLogger("harch.hub")


class PeerOutbox:
    """Made before there are links, and connected once: a hub on its own sends nothing."""

    def __init__(self) -> None:
        self._send: Callable[[str, o.LendingMessage], object] | None = None
        self._receive: Callable[[str, o.LendingMessage], None] | None = None

    def connect(
        self, send: Callable[[str, o.LendingMessage], object], receive: Callable[[str, o.LendingMessage], None]
    ) -> None:
        """`send` is the mesh's; `receive` hands the job machine a message as if that hub had sent it."""
        self._send, self._receive = send, receive

    def send(self, hub_id: str, message: o.LendingMessage) -> None:
        """If there is no link it is lost, and sent again when the link is back."""
        if self._send is None:
            return
        try:
            self._send(hub_id, message)
        except FrameTooLarge:
            parts = _halves(message)
            for part in parts:
                self.send(hub_id, part)
            if not parts:
                self._too_large(hub_id, message)

    def _too_large(self, hub_id: str, message: o.LendingMessage) -> None:
        """One piece of work whose description fits into no frame: it never left, so it is as good as refused."""
        _log.error("a message for %s is too large to be sent: %s", hub_id, type(message).__name__)
        if isinstance(message, o.Grants) and self._receive is not None:
            refused = tuple((grant.lease, "its description is too large to be sent") for grant in message.grants)
            self._receive(hub_id, o.Granted(refused=refused))


def _halves(message: o.LendingMessage) -> list[o.LendingMessage]:
    """The same said in two messages; nothing if it cannot be divided."""
    match message:
        case o.Grants(many) if len(many) > 1:
            middle = len(many) // 2
            return [o.Grants(many[:middle]), o.Grants(many[middle:])]
        case o.Reports(many) if len(many) > 1:
            middle = len(many) // 2
            return [o.Reports(many[:middle]), o.Reports(many[middle:])]
        case _:
            return []


# May the work of another hub run here, by this hub's own policy? Asked before a grant reaches the job machine.


IN_QUESTION_MAX = 10_000


class GrantReceiver:
    """`reply` sends to the owner."""

    def __init__(self, jobs: JobRuntime, policies: HubPolicies, reply: Callable[[str, Granted], object]) -> None:
        self._jobs, self._policies, self._reply = jobs, policies, reply
        self._in_question: set[WorkLease] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def came(self, owner: str, message: Grants) -> None:
        if not self._policies.status().active:
            self._take(owner, message.grants)
            return
        # What is known already is decided: to ask again could deny what runs here.
        known = tuple(grant for grant in message.grants if self._is_known(grant.lease))
        if known:
            self._take(owner, known)
        for grant in message.grants:
            if grant not in known and grant.lease not in self._in_question:
                self._judge_soon(owner, grant)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _judge_soon(self, owner: str, grant: Grant) -> None:
        if len(self._in_question) >= IN_QUESTION_MAX:
            return  # its owner repeats it
        self._in_question.add(grant.lease)
        task = asyncio.get_running_loop().create_task(self._judge(owner, grant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _judge(self, owner: str, grant: Grant) -> None:
        reads = AccessRequest(
            id=grant.lease.workload_id, countries_allowed=grant.spec.countries_allowed, reads=grant.data
        )
        try:
            await self._policies.admit(grant.spec, tenant=grant.tenant, reads=reads if grant.data else None)
        except HarchError as refusal:
            self._refuse(owner, grant, f"{refusal.code} {refusal.message}")
        else:
            self._take(owner, (grant,))
        finally:
            self._in_question.discard(grant.lease)

    def _take(self, owner: str, grants: tuple[Grant, ...]) -> None:
        self._jobs.post(ev.PeerMessageReceived(owner, Grants(grants)))
        self._jobs.plan_placement()

    def _refuse(self, owner: str, grant: Grant, why: str) -> None:
        if self._jobs.post(ev.PeerMessageReceived(owner, DropBids((grant.bid_id,)))):
            self._jobs.plan_placement()
            self._reply(owner, Granted(refused=((grant.lease, why),)))

    def _is_known(self, lease: WorkLease) -> bool:
        workload = self._jobs.machine.state.registry.workloads.get(lease.workload_id)
        return workload is not None and workload.epoch >= lease.epoch
