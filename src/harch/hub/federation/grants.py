"""May the work of another hub run here, by this hub's own policy? Asked before a grant reaches the job machine.

Without an active bundle nothing is asked. A no is final for that lease: the bid is released first, so that no copy of
the same grant can be taken later, and only then is the owner told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harch.base.errors import HarchError
from harch.federation.offers import Drop, Grant, Granted, Grants, Lease
from harch.hub import happenings as h
from harch.hub.driver import Driver
from harch.hub.policy.service import HubPolicies
from harch.sovereignty.gates import WorkAsk

IN_QUESTION_MAX = 10_000


class GrantDesk:
    """`tell` sends to the owner."""

    def __init__(self, driver: Driver, policies: HubPolicies, tell: Callable[[str, Granted], object]) -> None:
        self._driver, self._policies, self._tell = driver, policies, tell
        self._in_question: set[Lease] = set()
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
                self._ask_soon(owner, grant)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _ask_soon(self, owner: str, grant: Grant) -> None:
        if len(self._in_question) >= IN_QUESTION_MAX:
            return  # its owner repeats it
        self._in_question.add(grant.lease)
        task = asyncio.get_running_loop().create_task(self._ask(owner, grant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, owner: str, grant: Grant) -> None:
        ask = WorkAsk(id=grant.lease.workload_id, countries_allowed=grant.spec.countries_allowed, reads=grant.data)
        try:
            await self._policies.admit(grant.spec, tenant=grant.tenant, ask=ask if grant.data else None)
        except HarchError as refusal:
            self._refuse(owner, grant, f"{refusal.code} {refusal.message}")
        else:
            self._take(owner, (grant,))
        finally:
            self._in_question.discard(grant.lease)

    def _take(self, owner: str, grants: tuple[Grant, ...]) -> None:
        self._driver.post(h.PeerSaid(owner, Grants(grants)))
        self._driver.plan_placement()

    def _refuse(self, owner: str, grant: Grant, why: str) -> None:
        if self._driver.post(h.PeerSaid(owner, Drop((grant.bid_id,)))):
            self._driver.plan_placement()
            self._tell(owner, Granted(refused=((grant.lease, why),)))

    def _is_known(self, lease: Lease) -> bool:
        workload = self._driver.machine.desk.registry.workloads.get(lease.workload_id)
        return workload is not None and workload.epoch >= lease.epoch
