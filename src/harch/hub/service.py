"""What can be asked of a hub? The control plane behind the API: one event loop, all decisions in-process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from harch.base.clock import Clock
from harch.base.errors import InvariantBroken
from harch.base.listen.gate import Gates
from harch.base.tracing.tracer import Tracing
from harch.federation.identity.identity import HubIdentity
from harch.federation.leases import LeaseTerms
from harch.fleet.model import Fleet, Hub
from harch.hub import happenings as h
from harch.hub.agent_door import AgentDoor
from harch.hub.audit.headfile import FILE_NAME as HEAD_FILE
from harch.hub.audit.headfile import HeadFile
from harch.hub.audit.keyfile import KeyFile
from harch.hub.audit.service import HubAudit, loss_at_start, loss_error
from harch.hub.audit.trail import AuditTrail
from harch.hub.carbon.service import HubCarbon
from harch.hub.credentials import HubCredentials
from harch.hub.data import HubData
from harch.hub.driver import Driver
from harch.hub.energy.service import HubEnergy
from harch.hub.federation.answers import AnswerDesk
from harch.hub.federation.service import HubFederation
from harch.hub.federation.telemetry_desk import TelemetryDesk, agreed_country, no_sentinel
from harch.hub.learning import Learner
from harch.hub.metrics import ALARMING, HubMetrics
from harch.hub.operations import HubOperations
from harch.hub.pipelines.service import HubPipelines
from harch.hub.pipelines.surroundings import Surroundings
from harch.hub.pipelines.window_traces import WindowTraces
from harch.hub.policy.service import HubPolicies
from harch.hub.references import HubReferences
from harch.hub.sentinel_door import SentinelDoor
from harch.hub.sessions import AgentLink
from harch.hub.store.database import Database
from harch.hub.summary import list_gpus, nodes_by_state, summarise
from harch.hub.time_keeping import TimeKeeper, open_clock
from harch.hub.tracing.watch import Watch
from harch.hub.views import (
    EventRecord,
    GpuView,
    HubSummary,
    LogPage,
    PeerView,
)
from harch.hub.workloads import HubWorkloads
from harch.placement.turns.settings import TurnSettings
from harch.sovereignty.compiled import Rules
from harch.sovereignty.in_force import jurisdictions_in_force
from harch.sovereignty.terrain import terrain_of
from harch.workloads.lifecycle import Workload

EVENTS_LOOKED_AT = 200_000  # the newest, for when something alarming happened last


class HubService(HubWorkloads):
    """One hub. Create it inside a running event loop; `close` writes what is left and lets go of the files.

    `identity` makes it part of a federation, with links to its peers at `listen` (the address of its member record if
    absent); without one it is on its own. `peer_urls`: where the APIs of the fleet's other hubs are believed to be.
    `sentinel` is where this hub's telemetry can be asked for; `gates` are those of this process's listeners.
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
        sentinel: SentinelDoor | None = None,
        tracing: Tracing | None = None,
        gates: Gates | None = None,
    ) -> None:
        self._sentinel = sentinel
        gates = gates or Gates()
        clock = self.clock = open_clock(clock, state_dir)
        self.hub_id, self.country, self.version, self.url = hub.id, hub.country, version, url
        self.started_at: datetime = clock.now()
        database = Database(state_dir / "hub.db")
        self.credentials = HubCredentials(state_dir, database, clock, lambda: driver)
        self.authenticate = self.credentials.authenticate
        trail = AuditTrail(hub.id, database, clock)
        self._head_file = HeadFile(state_dir / HEAD_FILE, hub.id, clock.monotonic_s)
        loss = loss_at_start(self._head_file, database, HEAD_FILE)
        self.audit = HubAudit(
            trail=trail,
            database=database,
            clock=clock,
            file=KeyFile(state_dir / "audit.key"),
            head_file=self._head_file,
            write=lambda statements, drafts: driver.write(statements, drafts),
            hold=lambda why: driver.hold(why),
            release=lambda: driver.release(),
            loss=loss,
        )
        self._agents = AgentDoor(lambda: driver, self.credentials)
        self._metrics = HubMetrics(self.summary, clock.now)
        self._metrics.remember(database.last_events(ALARMING, EVENTS_LOOKED_AT))
        self._metrics.watch_damage(state_dir, clock.monotonic_s)
        watch = Watch(self._metrics.count, tracing, hub.id)
        self._metrics.add(watch.waits)
        jurisdictions = jurisdictions_in_force()
        driver = Driver(
            fleet=fleet,
            hub=hub,
            rules=Rules(terrain_of(fleet, jurisdictions)),
            settings=settings,
            database=database,
            trail=trail,
            clock=clock,
            send=self._agents.send,
            send_peer=lambda hub_id, message: self.federation.send_work(hub_id, message),
            open_secrets=self.credentials.secrets.open,
            watch=watch,
            on_restart=self._agents.close_all,
            on_broken=on_broken,
            leases=(leases or LeaseTerms()) if identity is not None else None,
            note_head=self._head_file.note,
            held=loss_error(loss) if loss is not None else None,
        )
        self.policies = HubPolicies(
            fleet=fleet, hub_id=hub.id, database=database, clock=clock, write=driver.write, note=self._note
        )
        driver.policy_version = lambda: self.policies.version
        driver.machine.desk.policy_version = self.policies.version
        self.data = HubData(hub_id=hub.id, jurisdictions=jurisdictions, database=database, driver=driver, clock=clock)
        super().__init__(
            hub=hub,
            clock=clock,
            database=database,
            driver=driver,
            policies=self.policies,
            secrets=self.credentials.secrets,
            peers=self.peers,
            tracing=tracing,
        )
        self.federation = HubFederation(
            identity=identity,
            listen=listen,
            clock=clock,
            driver=driver,
            policies=self.policies,
            audit=self.audit,
            summary=self.summary,
            signals=lambda: self.carbon.said() | self.pipelines.said(),
            answers=AnswerDesk(
                hub_id=hub.id,
                list_work=self.workloads,
                unheard_s=self.unheard_s,
                find=self._any_workload,
                read_log=self._agents.read_log,
                telemetry=TelemetryDesk(
                    hub_id=hub.id,
                    country=hub.country,
                    country_of=lambda hub_id: agreed_country(fleet, self.federation.views(), hub_id),
                    judge=sentinel.judge if sentinel is not None else no_sentinel,
                    record=lambda draft: driver.write([], [draft]),
                    clock=clock,
                ),
            ),
            urls=peer_urls,
            gate=gates.gate("peers"),
        )
        self.carbon = HubCarbon(
            fleet=fleet,
            hub=hub,
            folder=state_dir,
            clock=clock,
            database=database,
            driver=driver,
            peers=self.peers,
            heard=self.federation.heard,
        )
        self.energy = HubEnergy(
            fleet=fleet,
            hub=hub,
            folder=state_dir,
            clock=clock,
            database=database,
            driver=driver,
            carbon=self.carbon,
        )
        windows = WindowTraces(tracing, lambda: self.pipelines.statuses())
        self.pipelines = HubPipelines(
            fleet=fleet,
            hub=hub,
            folder=state_dir,
            clock=clock,
            database=database,
            write=driver.write,
            note=self._note,
            open_secrets=self.credentials.secrets.open,
            around=Surroundings(
                identity=identity,
                listen_host=listen[0] if listen is not None else "",
                gates=gates,
                heard=self.federation.heard,
                authorities=self.data.authority_keys,
                on_spans=windows.hear,
            ),
        )
        self._metrics.add_of_tenants(windows)
        self._metrics.watch_energy(self.energy.figures, self.energy.currency)
        self._metrics.watch_pipelines(self.pipelines.figures)
        self._metrics.watch_workers(self.pipelines.worker_counts)
        self._metrics.watch_nodes(lambda: nodes_by_state(self._desk))
        self._metrics.watch_links(self.federation.links)
        self._metrics.watch_listeners(gates)
        self._metrics.watch_faults(lambda: driver.faults.total, lambda: len(driver.machine.desk.set_aside))
        self._metrics.watch_records(lambda: self.audit.loss.entries if self.audit.loss is not None else 0)
        self._metrics.watch_peers(self.federation.views)
        if tracing is not None:
            self._metrics.watch_spans(tracing.counts)
        self.operations = HubOperations(driver, database, self._any_workload, self.federation)
        self._time = TimeKeeper(clock, state_dir, hub.id, self._note)
        self._metrics.watch_clock(lambda: clock.offset_s)
        self.references = HubReferences(database, lambda: self._desk.catalog, self.workload)

    async def run(self) -> None:
        """Background work, until cancelled. A hub that is held speaks with its peers, and does nothing else."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.federation.run())
            group.create_task(self._time.run())
            await self._driver.opened.wait()
            group.create_task(self._driver.keep_placing())
            group.create_task(self._driver.keep_auditing())
            group.create_task(self._driver.keep_reserve())
            group.create_task(self.carbon.run())
            learner = Learner(self._driver, self._database, self._clock)
            for what, run in (
                ("learning where to place", learner.run),
                ("looking after energy", self.energy.run),
                ("looking after pipelines", self.pipelines.run),
            ):
                group.create_task(self._driver.kept_up(what, run))

    async def close(self) -> None:
        if self._sentinel is not None:
            await self._sentinel.close()
        await self.pipelines.close()
        await self.policies.close()
        await self.carbon.close()
        self.energy.close()
        await self._driver.close()
        self._time.leave()
        self._database.close()
        self._head_file.close()

    def ready(self) -> str:
        """Why it takes no work, if so."""
        full = self._driver.short_of_space
        return self._driver.not_ready or (f"{full.message}: {full.hint}" if full is not None else "")

    def is_sentinel(self, token: str) -> bool:
        """Whether this is the key of the hub's own SENTINEL."""
        return self._sentinel is not None and self._sentinel.is_sentinel(token)

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

    def watch_lines(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Shows what became of the lines that this process sends to SENTINEL."""
        self._metrics.watch_lines(counts)

    def metrics_text(self, *, openmetrics: bool = False, of_tenants: bool = False) -> bytes:
        return self._metrics.exposition(openmetrics=openmetrics, of_tenants=of_tenants)

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

    async def _any_workload(self, ref: str) -> Workload:
        return await self.workload(ref, tenant=None)

    def _note(self, kind: str, subject: str, message: str) -> None:
        self._driver.post(h.Noted(kind, subject, message))

    # Agents

    async def attach_agent(self, link: AgentLink, *, key_id: str) -> None:
        """Runs until the connection ends. `key_id` is the key that it was opened with."""
        await self._agents.attach(link, key_id=key_id)

    async def read_log(
        self, ref: str, *, tenant: str | None, rank: int, attempt: int | None, offset: int, bytes_max: int
    ) -> LogPage:
        workload = await self.workload(ref, tenant=tenant)
        where = self.federation if workload.runner_hub and not workload.guest else self._agents
        return await where.read_log(workload, rank=rank, attempt=attempt, offset=offset, bytes_max=bytes_max)
