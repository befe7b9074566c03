"""What can be asked of a hub about work? Submit, find, change, stop, explain; what is promised is on disk first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.base.tracing.tracer import Tracing, current_trace, span_in
from harch.fleet.model import Hub
from harch.hub.audit import drafts
from harch.hub.credentials import HUB
from harch.hub.explain import explain, pending_reason
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_routing.choices import preview
from harch.hub.jobs.carbon_routing.explanations import sentences
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.jobs.state import JobState, may_leave, wrong_state
from harch.hub.keys import SecretBox
from harch.hub.policy.service import HubPolicies
from harch.hub.preparations import Preparations
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.views import LiveStatus, PeerView, WorkloadPage, WorkloadQuery
from harch.placement.explanation import Explanation, Verdict
from harch.placement.request import PlacementRequest
from harch.wire.quotas import TenantQuota
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import CarbonPreferences, WorkloadSpec

FULL_DISK_S_MAX = 5.0  # how long a stop waits for the hub to see that the disk is full


class HubWorkloads:
    """The part of a hub that answers for its work. `peers` tells how the other hubs are."""

    def __init__(
        self,
        *,
        hub: Hub,
        clock: Clock,
        database: Database,
        jobs: JobRuntime,
        policies: HubPolicies,
        secrets: SecretBox,
        peers: Callable[[], list[PeerView]],
        preparations: Preparations,
        tracing: Tracing | None = None,
    ) -> None:
        self._name, self._country, self._clock = hub.name, hub.country, clock
        self._database, self._jobs, self._policies, self._secrets = database, jobs, policies, secrets
        self._peers, self._preparations, self._tracing = peers, preparations, tracing

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
        event = ev.Submitted(new_id("wl", now=now), tenant, spec, annotations, idempotency_key, actor, trace)
        try:
            with span_in(self._tracing, "workload.admit", trace):
                await self._check_policy(spec, tenant, now)
                stored = self._jobs.handle(event)
        except HarchError as error:
            await self._audit_refusal(error, spec.name, tenant=tenant, actor=actor)
            raise
        self._jobs.plan_placement()
        registry = self._state.registry
        workload = registry.workloads.get(event.workload_id)
        if workload is not None:
            with span_in(self._tracing, "workload.store", trace):
                await stored
            return workload, True
        earlier = registry.earlier_submission(event, self._jobs.context()) or ""
        await stored  # a barrier: the first submission may still be on its way to the disk
        return await self.workload(earlier, tenant=tenant), False

    async def workload(self, ref: str, *, tenant: str | None) -> Workload:
        workload = self._state.registry.workloads.get(ref)
        if workload is not None and tenant not in (None, workload.tenant):
            workload = None
        if workload is None:
            workload = await asyncio.to_thread(self._database.workload, ref, tenant=tenant)
        if workload is None:
            raise HarchError(
                "E0301", f"no workload `{ref}` at hub {self._name}", hint="`harch ps --all-states` lists them"
            )
        # The one in memory is newer than the one on disk by what is being written right now.
        return self._state.registry.workloads.get(workload.id, workload)

    async def find(self, ref: str) -> Workload:
        """Of any tenant."""
        return await self.workload(ref, tenant=None)

    async def workloads(self, query: WorkloadQuery) -> WorkloadPage:
        return await asyncio.to_thread(self._database.workloads, query)

    def live_status(self, workload: Workload) -> LiveStatus:
        state = self._state
        return LiveStatus(
            pending_reason=pending_reason(state, workload, self._clock.now().timestamp()),
            unheard_s=state.lending.unheard_s(workload, self._clock.boot_s()),
            preparing=self._preparations.of(workload),
        )

    def quotas(self, *, tenant: str | None) -> list[TenantQuota]:
        uses = self._state.scheduler.queue.quota_uses()
        return [
            TenantQuota(
                tenant=use.tenant,
                scheduling_class=use.turn_class or "",
                weight=use.weight,
                gpus_held=use.gpus_held,
                gpus_held_max=use.quota.gpus_held_max,
                tasks_held=use.tasks_held,
                tasks_held_max=use.quota.tasks_held_max,
                workloads_pending=use.pending,
                workloads_pending_max=use.quota.workloads_waiting_max,
            )
            for use in uses
            if tenant in (None, use.tenant)
        ]

    async def replace_spec(
        self, ref: str, spec: WorkloadSpec, *, tenant: str | None, annotations: dict[str, str], actor: str = HUB
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        self._secrets.require(workload.tenant, spec.secrets)
        try:
            await self._check_policy(spec, workload.tenant, self._clock.now())
            return await self._apply(workload, ev.SpecReplaced(workload.id, spec, annotations, actor))
        except HarchError as error:
            await self._audit_refusal(error, workload.id, tenant=workload.tenant, actor=actor)
            raise

    async def relabel(self, ref: str, labels: dict[str, str], *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.id in self._state.registry.workloads:
            return await self._apply(workload, ev.Relabelled(workload.id, labels))
        workload.spec = replace(workload.spec, labels=labels)  # finished long ago: the machine has let go of it
        await self._jobs.write([rows.save_workload(workload), *rows.save_labels(workload)], [])
        return workload

    async def set_carbon_preferences(
        self, ref: str, preferences: CarbonPreferences, *, tenant: str | None, annotations: dict[str, str]
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._apply(workload, ev.CarbonPreferencesChanged(workload.id, preferences, annotations))

    async def pause(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._apply(workload, ev.PauseRequested(workload.id))

    async def resume(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._apply(workload, ev.ResumeRequested(workload.id))

    async def restart(
        self, ref: str, *, tenant: str | None, reason: str, idempotency_key: str | None, actor: str = HUB
    ) -> Workload:
        """What has ended is submitted once more, as it was."""
        workload = await self.workload(ref, tenant=tenant)
        if workload.state.is_final:
            if workload.borrowed:
                raise wrong_state(workload, f"it belongs to {workload.owner_hub}, where it can be restarted")
            # Without a key this would pass for the first submission, repeated.
            key = idempotency_key or new_id("restart", now=self._clock.now())
            again, _ = await self.submit(
                workload.spec,
                tenant=workload.tenant,
                annotations=workload.annotations,
                idempotency_key=key,
                actor=actor,
            )
            return again
        return await self._apply(workload, ev.RestartRequested(workload.id, reason))

    async def stop(self, ref: str, *, tenant: str | None, reason: str) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._end(workload, ev.StopRequested(workload.id, reason))

    async def delete(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.id in self._state.registry.workloads:
            return await self._end(workload, ev.StopRequested(workload.id, "deleted", hide=True))
        workload.hidden = True
        await self._jobs.write([rows.save_workload(workload)], [])
        return workload

    def _check_policy(self, spec: WorkloadSpec, tenant: str, now: datetime) -> Awaitable[None]:
        """With the data that it names, as the catalog knows it now; the machine's own gate comes afterwards."""
        reads = self._state.guard.reads_request("", spec, tenant=tenant) if spec.reads else None
        return self._policies.admit(spec, tenant=tenant, reads=reads, now=now)

    async def _audit_refusal(self, error: HarchError, subject: str, *, tenant: str, actor: str) -> None:
        """The machine raises before anything changed, so a policy's no is written here, before anybody hears it."""
        if drafts.is_refusal(error):
            policy = self._policies.version
            draft = drafts.refused(
                subject, error, country=self._country, tenant=tenant, actor=actor, policy_version=policy
            )
            await self._jobs.write([], [draft])

    async def _end(self, workload: Workload, event: ev.StopRequested) -> Workload:
        """Works on a full disk, too: whoever finds it full first tries again from the reserve."""
        try:
            return await self._apply(workload, event)
        except HarchError as error:
            if error.code != "E1002":
                raise
        await self._jobs.until_ready(FULL_DISK_S_MAX)
        return await self._apply(workload, event)

    async def _apply(self, workload: Workload, event: ev.Event) -> Workload:
        await self._jobs.handle(event)
        self._jobs.plan_placement()
        return self._state.registry.workloads.get(workload.id, workload)

    def plan(self, spec: WorkloadSpec, *, tenant: str) -> Explanation:
        guard = self._state.guard
        hubs = guard.hubs_allowed(guard.reads_request(spec.name, spec, tenant=tenant)) if spec.reads else None
        machine, context = self._jobs.machine, self._jobs.context()
        request = PlacementRequest.of(spec.name, spec, tenant=tenant, submitted_s=context.now_s, hubs_allowed=hubs)
        found = explain(machine, context, request, self._peers(), None, may_leave=may_leave(spec))
        if found.verdict is Verdict.NEVER_FITS:
            return found
        try:
            data_ids = (
                tuple(data.id for data in guard.reads_request(spec.name, spec, tenant=tenant).reads)
                if spec.reads
                else ()
            )
            choice = preview(self._state, context, spec, tenant=tenant, data_ids=data_ids)
        except HarchError as error:
            return replace(found, verdict=Verdict.NEVER_FITS, sentence=f"{error.message}; {error.hint}")
        return found if choice is None else replace(found, power=sentences(choice, self._clock.now()))

    async def why(self, ref: str, *, tenant: str | None) -> Explanation:
        workload = await self.workload(ref, tenant=tenant)
        request = self._state.request(workload)
        machine, context = self._jobs.machine, self._jobs.context()
        return explain(machine, context, request, self._peers(), workload, may_leave=may_leave(workload.spec))

    @property
    def _state(self) -> JobState:
        return self._jobs.machine.state
