"""What can be asked of a hub about work? Submit, find, change, stop, explain; what is promised is on disk first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.base.tracing.tracer import Tracing, current_trace, span_in
from harch.fleet.model import Hub
from harch.hub import happenings as h
from harch.hub.audit import drafts
from harch.hub.credentials import HUB
from harch.hub.desk import Desk, may_leave
from harch.hub.driver import Driver
from harch.hub.explain import explain
from harch.hub.policy.service import HubPolicies
from harch.hub.routing.choices import preview
from harch.hub.routing.telling import sentences
from harch.hub.secretbox import SecretBox
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.views import PeerView, WorkloadPage, WorkloadQuery
from harch.placement.explanation import Explanation, Verdict
from harch.placement.request import Request
from harch.workloads.carbon import CarbonWishes
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

FULL_DISK_S_MAX = 5.0  # how long a stop waits for the hub to see that the disk is full


class HubWorkloads:
    """The part of a hub that answers for its work. `peers` tells how the other hubs are."""

    def __init__(
        self,
        *,
        hub: Hub,
        clock: Clock,
        database: Database,
        driver: Driver,
        policies: HubPolicies,
        secrets: SecretBox,
        peers: Callable[[], list[PeerView]],
        tracing: Tracing | None = None,
    ) -> None:
        self._name, self._country, self._clock = hub.name, hub.country, clock
        self._database, self._driver, self._policies, self._secrets = database, driver, policies, secrets
        self._peers, self._tracing = peers, tracing

    async def submit(
        self,
        spec: WorkloadSpec,
        *,
        tenant: str,
        annotations: dict[str, str],
        idempotency_key: str | None,
        actor: str = HUB,
    ) -> tuple[Workload, bool]:
        if spec.secrets:
            self._secrets.require(tenant, spec.secrets)
        now, trace = self._clock.now(), current_trace(self._tracing)
        event = h.Submitted(new_id("wl", now=now), tenant, spec, annotations, idempotency_key, actor, trace)
        try:
            with span_in(self._tracing, "workload.admit", trace):
                await self._ask_policy(spec, tenant)
                self._desk.policy_version = self._policies.version
                stored = self._driver.handle(event)
        except HarchError as error:
            await self._audit_refusal(error, spec.name, tenant=tenant, actor=actor)
            raise
        self._driver.plan_placement()
        registry = self._desk.registry
        workload = registry.workloads.get(event.workload_id)
        if workload is not None:
            with span_in(self._tracing, "workload.store", trace):
                await stored
            return workload, True
        earlier = registry.earlier_submission(event, now) or ""
        await stored  # a barrier: the first submission may still be on its way to the disk
        return await self.workload(earlier, tenant=tenant), False

    async def workload(self, ref: str, *, tenant: str | None) -> Workload:
        workload = self._desk.registry.workloads.get(ref)
        if workload is not None and tenant not in (None, workload.tenant):
            workload = None
        if workload is None:
            workload = await asyncio.to_thread(self._database.workload, ref, tenant=tenant)
        if workload is None:
            raise HarchError(
                "E0301", f"no workload `{ref}` at hub {self._name}", hint="`harch ps --all-states` lists them"
            )
        # The one in memory is newer than the one on disk by what is being written right now.
        return self._desk.registry.workloads.get(workload.id, workload)

    async def workloads(self, query: WorkloadQuery) -> WorkloadPage:
        return await asyncio.to_thread(self._database.workloads, query)

    def unheard_s(self, workload: Workload) -> float | None:
        """How long nothing was heard of work that another hub runs, if that is long; else None."""
        return self._desk.spill.unheard_s(workload, self._clock.boot_s())

    async def replace_spec(
        self, ref: str, spec: WorkloadSpec, *, tenant: str | None, annotations: dict[str, str], actor: str = HUB
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        self._secrets.require(workload.tenant, spec.secrets)
        try:
            await self._ask_policy(spec, workload.tenant)
            return await self._ask(workload, h.SpecReplaced(workload.id, spec, annotations, actor))
        except HarchError as error:
            await self._audit_refusal(error, workload.id, tenant=workload.tenant, actor=actor)
            raise

    async def relabel(self, ref: str, labels: dict[str, str], *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.id in self._desk.registry.workloads:
            return await self._ask(workload, h.Relabelled(workload.id, labels))
        workload.spec = replace(workload.spec, labels=labels)  # finished long ago: the machine has let go of it
        await self._driver.write([rows.save_workload(workload), *rows.save_labels(workload)], [])
        return workload

    async def wish_carbon(
        self, ref: str, wishes: CarbonWishes, *, tenant: str | None, annotations: dict[str, str]
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._ask(workload, h.CarbonWished(workload.id, wishes, annotations))

    async def pause(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._ask(workload, h.PauseAsked(workload.id))

    async def resume(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._ask(workload, h.ResumeAsked(workload.id))

    async def stop(self, ref: str, *, tenant: str | None, reason: str) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._end(workload, h.StopAsked(workload.id, reason))

    async def delete(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.id in self._desk.registry.workloads:
            return await self._end(workload, h.StopAsked(workload.id, "deleted", hide=True))
        workload.hidden = True
        await self._driver.write([rows.save_workload(workload)], [])
        return workload

    async def _ask_policy(self, spec: WorkloadSpec, tenant: str) -> None:
        """With the data that it names, as the catalog knows it now; the machine's own gate comes afterwards."""
        ask = self._desk.guard.ask("", spec, tenant=tenant) if spec.data else None
        await self._policies.admit(spec, tenant=tenant, ask=ask)

    async def _audit_refusal(self, error: HarchError, subject: str, *, tenant: str, actor: str) -> None:
        """The machine raises before anything changed, so a policy's no is written here, before anybody hears it."""
        if drafts.is_refusal(error):
            policy = self._desk.policy_version
            draft = drafts.refused(
                subject, error, country=self._country, tenant=tenant, actor=actor, policy_version=policy
            )
            await self._driver.write([], [draft])

    async def _end(self, workload: Workload, event: h.StopAsked) -> Workload:
        """Works on a full disk, too: whoever finds it full first tries again from the reserve."""
        try:
            return await self._ask(workload, event)
        except HarchError as error:
            if error.code != "E1002":
                raise
        await self._driver.until_ready(FULL_DISK_S_MAX)
        return await self._ask(workload, event)

    async def _ask(self, workload: Workload, event: h.Event) -> Workload:
        await self._driver.handle(event)
        self._driver.plan_placement()
        return self._desk.registry.workloads.get(workload.id, workload)

    def plan(self, spec: WorkloadSpec, *, tenant: str) -> Explanation:
        guard = self._desk.guard
        hubs = guard.hubs_allowed(guard.ask(spec.name, spec, tenant=tenant)) if spec.data else None
        self._desk.begin(self._clock.now(), self._clock.boot_s())
        request = Request.of(spec.name, spec, tenant=tenant, submitted_s=self._desk.now_s, hubs_allowed=hubs)
        found = explain(self._desk, request, self._peers(), None, may_leave=may_leave(spec))
        if found.verdict is Verdict.NEVER_FITS:
            return found
        try:
            data_ids = tuple(data.id for data in guard.ask(spec.name, spec, tenant=tenant).reads) if spec.data else ()
            choice = preview(self._desk, spec, tenant=tenant, data_ids=data_ids)
        except HarchError as error:
            return replace(found, verdict=Verdict.NEVER_FITS, sentence=f"{error.message}; {error.hint}")
        return found if choice is None else replace(found, power=sentences(choice, self._clock.now()))

    async def why(self, ref: str, *, tenant: str | None) -> Explanation:
        workload = await self.workload(ref, tenant=tenant)
        request = self._desk.request(workload)
        return explain(self._desk, request, self._peers(), workload, may_leave=may_leave(workload.spec))

    @property
    def _desk(self) -> Desk:
        return self._driver.machine.desk
