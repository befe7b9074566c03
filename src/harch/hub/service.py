"""What can be asked of a hub? The control plane behind the API: one event loop, all decisions in-process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError, InvariantBroken
from harch.base.ids import new_id
from harch.federation.identity.identity import HubIdentity
from harch.federation.leases import LeaseTerms
from harch.fleet.model import Fleet, Hub
from harch.hub import happenings as h
from harch.hub.agent_door import AgentDoor
from harch.hub.audit import drafts
from harch.hub.audit.keyfile import KeyFile
from harch.hub.audit.service import HubAudit, open_signing_key
from harch.hub.audit.trail import AuditTrail
from harch.hub.credentials import HUB, HubCredentials
from harch.hub.data import HubData
from harch.hub.desk import Desk, may_leave
from harch.hub.driver import Driver
from harch.hub.explain import explain
from harch.hub.federation.answers import AnswerDesk
from harch.hub.federation.service import HubFederation
from harch.hub.learning import Learner
from harch.hub.metrics import HubMetrics
from harch.hub.operations import HubOperations
from harch.hub.policy.service import HubPolicies
from harch.hub.sessions import AgentLink
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.summary import list_gpus, summarise
from harch.hub.views import (
    EventRecord,
    GpuView,
    HubSummary,
    LogPage,
    PeerView,
    WorkloadPage,
    WorkloadQuery,
)
from harch.placement.explanation import Explanation
from harch.placement.request import Request
from harch.placement.turns.settings import TurnSettings
from harch.sovereignty.compiled import Rules
from harch.sovereignty.in_force import jurisdictions_in_force
from harch.sovereignty.terrain import terrain_of
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec


class HubService:
    """One hub. Create it inside a running event loop; `close` writes what is left and lets go of the files.

    `identity` makes it part of a federation, with links to its peers at `listen` (the address of its member record if
    absent); without one it is on its own. `peer_urls`: where the APIs of the fleet's other hubs are believed to be.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        state_dir: Path,
        clock: Clock,
        version: str,
        url: str,
        peer_urls: dict[str, str],
        on_broken: Callable[[InvariantBroken], None],
        settings: TurnSettings | None = None,
        identity: HubIdentity | None = None,
        listen: tuple[str, int] | None = None,
        leases: LeaseTerms | None = None,
    ) -> None:
        self.hub_id, self.country, self.version, self.url = hub.id, hub.country, version, url
        self.started_at: datetime = clock.now()
        self._hub, self._clock = hub, clock
        self._database = Database(state_dir / "hub.db")
        self.credentials = HubCredentials(state_dir, self._database, clock, lambda: self._driver)
        self.authenticate = self.credentials.authenticate
        trail, key_file = AuditTrail(hub.id, self._database, clock), KeyFile(state_dir / "audit.key")
        audit_key = open_signing_key(key_file, trail, self._database)
        self._agents = AgentDoor(lambda: self._driver)
        self._metrics = HubMetrics(self.summary)
        jurisdictions = jurisdictions_in_force()
        self._driver = Driver(
            fleet=fleet,
            hub=hub,
            rules=Rules(terrain_of(fleet, jurisdictions)),
            settings=settings,
            database=self._database,
            trail=trail,
            clock=clock,
            send=self._agents.send,
            send_peer=lambda hub_id, message: self.federation.send_work(hub_id, message),
            open_secrets=self.credentials.secrets.open,
            on_record=self._metrics.count,
            on_restart=self._agents.close_all,
            on_broken=on_broken,
            leases=(leases or LeaseTerms()) if identity is not None else None,
        )
        self.audit = HubAudit(
            hub_id=hub.id,
            database=self._database,
            clock=clock,
            file=key_file,
            key=audit_key,
            write=self._driver.write,
        )
        self.policies = HubPolicies(
            fleet=fleet, hub_id=hub.id, database=self._database, clock=clock, write=self._driver.write, note=self._note
        )
        self._desk.policy_version = self.policies.version
        self.data = HubData(
            hub_id=hub.id,
            jurisdictions=jurisdictions,
            database=self._database,
            driver=self._driver,
            clock=clock,
        )
        answers = AnswerDesk(
            list_work=self.workloads,
            find=lambda ref: self.workload(ref, tenant=None),
            read_log=self._agents.read_log,
        )
        self.federation = HubFederation(
            identity=identity,
            listen=listen,
            clock=clock,
            driver=self._driver,
            policies=self.policies,
            audit=self.audit,
            summary=self.summary,
            list_work=self.workloads,
            answers=answers,
            urls=peer_urls,
        )
        self.operations = HubOperations(
            self._driver, self._database, lambda ref: self.workload(ref, tenant=None), self.federation
        )

    async def run(self) -> None:
        """Background work, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.federation.run())
            group.create_task(self._driver.keep_placing())
            group.create_task(self._driver.keep_auditing())
            group.create_task(Learner(self._driver, self._database, self._clock).run())

    async def close(self) -> None:
        await self.policies.close()
        await self._driver.close()
        self._database.close()

    def ready(self) -> str:
        return self._driver.not_ready

    # Workloads

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
            self.credentials.secrets.require(tenant, spec.secrets)
        now = self._clock.now()
        event = h.Submitted(new_id("wl", now=now), tenant, spec, annotations, idempotency_key, actor)
        try:
            await self._ask_policy(spec, tenant)
            self._desk.policy_version = self.policies.version
            stored = self._driver.handle(event)
        except HarchError as error:
            await self._audit_refusal(error, spec.name, tenant=tenant, actor=actor)
            raise
        self._driver.plan_placement()
        registry = self._desk.registry
        workload = registry.workloads.get(event.workload_id)
        if workload is not None:
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
                "E0301", f"no workload `{ref}` at hub {self._hub.name}", hint="`harch ps --all-states` lists them"
            )
        # The one in memory is newer than the one on disk by what is being written right now.
        return self._desk.registry.workloads.get(workload.id, workload)

    async def workloads(self, query: WorkloadQuery) -> WorkloadPage:
        return await asyncio.to_thread(self._database.workloads, query)

    async def replace_spec(
        self, ref: str, spec: WorkloadSpec, *, tenant: str | None, annotations: dict[str, str], actor: str = HUB
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        self.credentials.secrets.require(workload.tenant, spec.secrets)
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

    async def pause(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._ask(workload, h.PauseAsked(workload.id))

    async def resume(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._ask(workload, h.ResumeAsked(workload.id))

    async def stop(self, ref: str, *, tenant: str | None, reason: str) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        return await self._ask(workload, h.StopAsked(workload.id, reason))

    async def delete(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.id in self._desk.registry.workloads:
            return await self._ask(workload, h.StopAsked(workload.id, "deleted", hide=True))
        workload.hidden = True
        await self._driver.write([rows.save_workload(workload)], [])
        return workload

    async def _ask_policy(self, spec: WorkloadSpec, tenant: str) -> None:
        """With the data that it names, as the catalog knows it now; the machine's own gate comes afterwards."""
        ask = self._desk.guard.ask("", spec, tenant=tenant) if spec.data else None
        await self.policies.admit(spec, tenant=tenant, ask=ask)

    async def _audit_refusal(self, error: HarchError, subject: str, *, tenant: str, actor: str) -> None:
        """The machine raises before anything changed, so a policy's no is written here, before anybody hears it."""
        if drafts.is_refusal(error):
            policy = self._desk.policy_version
            draft = drafts.refused(
                subject, error, country=self.country, tenant=tenant, actor=actor, policy_version=policy
            )
            await self._driver.write([], [draft])

    def _note(self, kind: str, subject: str, message: str) -> None:
        if not self.ready():
            self._driver.handle(h.Noted(kind, subject, message))

    async def _ask(self, workload: Workload, event: h.Event) -> Workload:
        await self._driver.handle(event)
        self._driver.plan_placement()
        return self._desk.registry.workloads.get(workload.id, workload)

    def plan(self, spec: WorkloadSpec, *, tenant: str) -> Explanation:
        guard = self._desk.guard
        hubs = guard.hubs_allowed(guard.ask(spec.name, spec, tenant=tenant)) if spec.data else None
        request = Request.of(spec.name, spec, hubs_allowed=hubs)
        return explain(self._desk, request, self.peers(), None, may_leave=may_leave(spec))

    async def why(self, ref: str, *, tenant: str | None) -> Explanation:
        workload = await self.workload(ref, tenant=tenant)
        request = self._desk.request(workload)
        return explain(self._desk, request, self.peers(), workload, may_leave=may_leave(workload.spec))

    # The hub and its peers

    def summary(self) -> HubSummary:
        return summarise(
            self._desk,
            not_ready=self.ready(),
            version=self.version,
            started_at=self.started_at,
            now=self._clock.now(),
            url=self.url,
        )

    def peers(self) -> list[PeerView]:
        own = PeerView(hub_id=self.hub_id, url=self.url, reachable=True, age_s=0.0, summary=self.summary(), own=True)
        return [own, *self.federation.views()]

    def gpus(self, *, tenant: str | None) -> list[GpuView]:
        return list_gpus(self._desk, tenant=tenant)

    def metrics_text(self) -> bytes:
        return self._metrics.exposition()

    # History

    async def events(
        self, *, after: int, limit: int, tenant: str | None, subject: str | None, kind: str | None
    ) -> list[EventRecord]:
        return await asyncio.to_thread(
            lambda: self._database.events(after=after, limit=limit, tenant=tenant, subject=subject, kind=kind)
        )

    async def wait_for_event(self, after: int, timeout_s: float) -> None:
        await self._driver.wait_for_event(after, timeout_s)

    def last_event(self) -> int:
        return self._driver.seq_stored

    # Agents

    async def attach_agent(self, link: AgentLink) -> None:
        """Runs until the connection ends."""
        await self._agents.attach(link)

    async def read_log(
        self, ref: str, *, tenant: str | None, rank: int, attempt: int | None, offset: int, bytes_max: int
    ) -> LogPage:
        workload = await self.workload(ref, tenant=tenant)
        where = self.federation if workload.runner_hub and not workload.guest else self._agents
        return await where.read_log(workload, rank=rank, attempt=attempt, offset=offset, bytes_max=bytes_max)

    @property
    def _desk(self) -> Desk:
        return self._driver.machine.desk
