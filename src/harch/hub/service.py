"""What is a hub made of? The composition root: builder functions make the parts, each from those made before it.

One event loop, all decisions in-process. Where two parts need each other, a small port is made first (`AgentSessions`,
`PeerOutbox`, `PeerDirectory`, `SignalRegistry`, `ActivePolicy`): one part uses it, the other connects to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec import structs

from harch.base.clock import Clock, SteadyClock
from harch.base.errors import InvariantBroken
from harch.base.listen.gate import Gates
from harch.base.tracing.tracer import Tracing
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.offers import LeaseTerms
from harch.fleet.model import Fleet, Hub
from harch.hub.agent_gateway import AgentGateway, AgentLink, AgentSessions, ArtifactPort
from harch.hub.audit.files import HEAD_FILE_NAME, HeadFile, KeyFile
from harch.hub.audit.service import HubAudit, loss_at_start, loss_error
from harch.hub.audit.table import AuditTrail
from harch.hub.carbon.service import HubCarbon
from harch.hub.clock_state import ClockWatch, open_clock
from harch.hub.content.build import HubFiles, build_content
from harch.hub.content.bulk_channel import BulkChannel
from harch.hub.content.transfers import PeerContent
from harch.hub.credentials import HubCredentials
from harch.hub.data import HubData
from harch.hub.energy.service import HubEnergy
from harch.hub.federation.answers import PeerAnswers
from harch.hub.federation.messages import SignalRegistry
from harch.hub.federation.outbox import PeerOutbox
from harch.hub.federation.peer_view import PeerDirectory
from harch.hub.federation.service import HubFederation
from harch.hub.federation.telemetry import TelemetryAnswers, agreed_country, no_sentinel
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.keys import SecretBox
from harch.hub.learning import Learner
from harch.hub.metrics import ALARMING, HubMetrics
from harch.hub.operations import HubOperations
from harch.hub.pipelines.context import HubContext
from harch.hub.pipelines.service import HubPipelines
from harch.hub.pipelines.window_traces import WindowTraces
from harch.hub.policy.decisions import ActivePolicy
from harch.hub.policy.service import HubPolicies
from harch.hub.preparations import Preparations
from harch.hub.references import HubReferences
from harch.hub.sentinel_access import SentinelClient
from harch.hub.store.database import Database
from harch.hub.summary import list_gpus, nodes_by_state, summarise
from harch.hub.tracing.instrumentation import Watch
from harch.hub.views import LogPage, PeerView
from harch.hub.workloads import HubWorkloads
from harch.placement.queueing.settings import QueueSettings
from harch.sovereignty.audit.verification import Loss
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.wire.events import EventRecord
from harch.wire.hardware import GpuView
from harch.wire.hubs import HubSummary

EVENTS_LOOKED_AT = 200_000  # the newest, for when something alarming happened last


@dataclass(frozen=True)
class HubStore:
    """What one hub has on disk, and the clock that dates it."""

    folder: Path
    clock: SteadyClock
    database: Database
    trail: AuditTrail
    head_file: HeadFile
    loss: Loss | None  # entries of the audit chain that are known to be gone


@dataclass(frozen=True)
class HubPorts:
    """What parts of a hub meet at: made first, connected by whichever part comes later."""

    sessions: AgentSessions
    outbox: PeerOutbox
    directory: PeerDirectory
    signals: SignalRegistry
    policy: ActivePolicy
    secrets: SecretBox
    artifacts: ArtifactPort
    peer_content: PeerContent


class HubStatus:
    """How the hub is, for people, peers and gauges."""

    def __init__(self, jobs: JobRuntime, directory: PeerDirectory, clock: Clock, *, version: str, url: str) -> None:
        self._jobs, self._directory, self._clock = jobs, directory, clock
        self.version, self.url = version, url
        self.started_at: datetime = clock.now()
        self._counted: tuple[tuple[JobMachine, int, str], HubSummary] | None = None  # what of, and what came of it

    def ready(self) -> str:
        """Why it takes no work, if so."""
        full = self._jobs.short_of_space
        return self._jobs.not_ready or (f"{full.message}: {full.hint}" if full is not None else "")

    def summary(self) -> HubSummary:
        """Counted anew where an event may have changed it; readers ask several times a second, also of an idle hub."""
        machine, not_ready, now = self._jobs.machine, self.ready(), self._clock.now()
        basis = (machine, machine.revision, not_ready)
        if self._counted is not None and self._counted[0] == basis:
            return structs.replace(self._counted[1], at=now)
        counted = summarise(
            machine.state,
            not_ready=not_ready,
            version=self.version,
            started_at=self.started_at,
            now=now,
            url=self.url,
        )
        self._counted = (basis, counted)
        return counted

    def peers(self) -> list[PeerView]:
        own = self.summary()
        view = PeerView(hub_id=own.hub_id, url=self.url, reachable=True, age_s=0.0, summary=own, own=True)
        return [view, *self._directory.views()]


def build_hub(
    *,
    fleet: Fleet,
    hub: Hub,
    state_dir: Path,
    clock: Clock,
    version: str,
    url: str,
    peer_urls: dict[str, str],
    on_broken: Callable[[InvariantBroken], None],
    settings: QueueSettings | None = None,
    identity: HubIdentity | None = None,
    listen: tuple[str, int] | None = None,
    bulk_port: int = 0,
    leases: LeaseTerms | None = None,
    sentinel: SentinelClient | None = None,
    tracing: Tracing | None = None,
    gates: Gates | None = None,
) -> HubService:
    """One hub. Call it inside a running event loop; `HubService.close` writes what is left and lets go of the files.

    `identity` makes it part of a federation, with links to its peers at `listen` (the address of its member record if
    absent); without one it is on its own. `bulk_port`: where content is sent from, at the same address; 0 for any free
    one. `peer_urls`: where the APIs of the fleet's other hubs are believed to be.
    `sentinel` is where this hub's telemetry is read; `gates` are those of this process's listeners.
    """
    gates = gates or Gates()
    store = _open_store(hub, state_dir, clock)
    ports = _make_ports(store, peer_urls)
    metrics = _make_metrics(store)
    observer = Watch(metrics.count, tracing, hub.id)
    metrics.add(observer.waits)
    jurisdictions = jurisdictions_in_force()
    terms = (leases or LeaseTerms()) if identity is not None else None
    rules = Rules(terrain_of(fleet, jurisdictions))
    jobs = _start_jobs(fleet, hub, rules, settings, terms, store, ports, observer, on_broken)
    clock, database = store.clock, store.database

    status = HubStatus(jobs, ports.directory, clock, version=version, url=url)
    credentials = HubCredentials(database, clock, jobs, ports.secrets, ports.sessions.close_key)
    preparations = Preparations()
    agents = AgentGateway(jobs, credentials, ports.sessions, preparations, ports.artifacts)
    files = build_content(
        hub_id=hub.id,
        folder=state_dir,
        clock=clock,
        jobs=jobs,
        agents=agents,
        artifacts=ports.artifacts,
        peers=ports.peer_content,
    )
    audit = _build_audit(store, jobs)
    policies = HubPolicies(
        fleet=fleet,
        hub_id=hub.id,
        database=database,
        clock=clock,
        write=jobs.write,
        note=jobs.note,
        active=ports.policy,
    )
    with contextlib.ExitStack() as undo:  # one that cannot be built leaves nothing locked
        undo.callback(files.store.close)
        data = HubData(
            hub_id=hub.id,
            jurisdictions=jurisdictions,
            database=database,
            jobs=jobs,
            clock=clock,
            content=files.content,
            upkeep=files.upkeep,
        )
        work = HubWorkloads(
            hub=hub,
            clock=clock,
            database=database,
            jobs=jobs,
            policies=policies,
            secrets=ports.secrets,
            peers=status.peers,
            preparations=preparations,
            tracing=tracing,
        )
        federation = HubFederation(
            identity=identity,
            listen=listen,
            clock=clock,
            jobs=jobs,
            policies=policies,
            audit=audit,
            summary=status.summary,
            signals=ports.signals,
            answers=_build_answers(fleet, hub, clock, jobs, work, agents, files, sentinel, ports.directory),
            outbox=ports.outbox,
            directory=ports.directory,
            on_copies_changed=files.upkeep.soon,
            gate=gates.gate("peers"),
        )
        bulk = None
        if identity is not None:
            host = (listen or identity.member.address)[0]
            bulk = BulkChannel(
                fleet=fleet,
                identity=identity,
                listen=(host, bulk_port),
                source=files.source,
                clock=clock,
                gate=gates.gate("bulk"),
            )
            ports.peer_content.connect(federation.request, bulk.pull, federation.notify_copies_changed)
        carbon = HubCarbon(
            fleet=fleet,
            hub=hub,
            folder=state_dir,
            clock=clock,
            database=database,
            jobs=jobs,
            peers=status.peers,
            received=federation.received,
        )
        energy = HubEnergy(
            fleet=fleet, hub=hub, folder=state_dir, clock=clock, database=database, jobs=jobs, carbon=carbon
        )
        windows = WindowTraces(tracing)
        pipelines = HubPipelines(
            fleet=fleet,
            hub=hub,
            folder=state_dir,
            clock=clock,
            database=database,
            write=jobs.write,
            note=jobs.note,
            open_secrets=ports.secrets.open,
            around=HubContext(
                identity=identity,
                listen_host=listen[0] if listen is not None else "",
                gates=gates,
                peer_signals=federation.received,
                authorities=data.authority_keys,
                on_spans=windows.hear,
            ),
        )
        windows.follow(pipelines.statuses)
        ports.signals.add(carbon.published)
        ports.signals.add(pipelines.signals)

        metrics.watch_summary(status.summary)
        metrics.add_of_tenants(windows)
        metrics.watch_energy(energy.gauges, energy.currency)
        metrics.watch_pipelines(pipelines.inference_metrics)
        metrics.watch_workers(pipelines.worker_counts)
        metrics.watch_nodes(lambda: nodes_by_state(jobs.machine.state))
        metrics.watch_links(federation.links)
        metrics.watch_content(files.store.totals, bulk.traffic if bulk is not None else dict)
        metrics.watch_listeners(gates)
        metrics.watch_faults(lambda: jobs.faults.total, lambda: len(jobs.machine.state.set_aside))
        metrics.watch_records(lambda: audit.loss.entries if audit.loss is not None else 0)
        metrics.watch_peers(federation.views)
        metrics.watch_clock(lambda: store.clock.offset_s)
        if tracing is not None:
            metrics.watch_spans(tracing.counts)

        service = HubService(
            hub=hub,
            store=store,
            jobs=jobs,
            status=status,
            metrics=metrics,
            agents=agents,
            work=work,
            credentials=credentials,
            audit=audit,
            policies=policies,
            data=data,
            operations=HubOperations(jobs, database, work.find, federation),
            references=HubReferences(database, jobs, work.workload),
            federation=federation,
            carbon=carbon,
            energy=energy,
            pipelines=pipelines,
            files=files,
            bulk=bulk,
            sentinel=sentinel,
        )
        undo.pop_all()
        return service


def _open_store(hub: Hub, folder: Path, clock: Clock) -> HubStore:
    steady = open_clock(clock, folder)
    database = Database(folder / "hub.db")
    trail = AuditTrail(hub.id, database, steady)
    head_file = HeadFile(folder / HEAD_FILE_NAME, hub.id, steady.monotonic_s)
    loss = loss_at_start(head_file, database, HEAD_FILE_NAME)
    return HubStore(folder, steady, database, trail, head_file, loss)


def _make_ports(store: HubStore, peer_urls: dict[str, str]) -> HubPorts:
    return HubPorts(
        sessions=AgentSessions(),
        outbox=PeerOutbox(),
        directory=PeerDirectory(peer_urls),
        signals=SignalRegistry(),
        policy=ActivePolicy(store.database),
        secrets=SecretBox(store.folder / "secrets.key", store.database.secrets()),
        artifacts=ArtifactPort(),
        peer_content=PeerContent(),
    )


def _make_metrics(store: HubStore) -> HubMetrics:
    metrics = HubMetrics(store.clock.now)
    metrics.remember(store.database.last_events(ALARMING, EVENTS_LOOKED_AT))
    metrics.watch_damage(store.folder, store.clock.monotonic_s)
    return metrics


def _start_jobs(
    fleet: Fleet,
    hub: Hub,
    rules: Rules,
    settings: QueueSettings | None,
    leases: LeaseTerms | None,
    store: HubStore,
    ports: HubPorts,
    observer: Watch,
    on_broken: Callable[[InvariantBroken], None],
) -> JobRuntime:
    """The job machine, restored from disk."""
    return JobRuntime(
        fleet=fleet,
        hub=hub,
        rules=rules,
        settings=settings,
        database=store.database,
        trail=store.trail,
        clock=store.clock,
        send=ports.sessions.send,
        send_peer=ports.outbox.send,
        open_secrets=ports.secrets.open,
        observer=observer,
        policy=ports.policy,
        on_restart=ports.sessions.close_all,
        on_broken=on_broken,
        leases=leases,
        note_head=store.head_file.note,
        held=loss_error(store.loss) if store.loss is not None else None,
    )


def _build_audit(store: HubStore, jobs: JobRuntime) -> HubAudit:
    return HubAudit(
        trail=store.trail,
        database=store.database,
        clock=store.clock,
        file=KeyFile(store.folder / "audit.key"),
        head_file=store.head_file,
        write=jobs.write,
        hold=jobs.hold,
        release=jobs.release,
        loss=store.loss,
    )


def _build_answers(
    fleet: Fleet,
    hub: Hub,
    clock: Clock,
    jobs: JobRuntime,
    work: HubWorkloads,
    agents: AgentGateway,
    files: HubFiles,
    sentinel: SentinelClient | None,
    directory: PeerDirectory,
) -> PeerAnswers:
    """What other hubs may learn of this one."""
    telemetry = TelemetryAnswers(
        hub_id=hub.id,
        country=hub.country,
        country_of=partial(agreed_country, fleet, directory.views),
        judge=sentinel.judge if sentinel is not None else no_sentinel,
        record=jobs.record,
        clock=clock,
    )
    return PeerAnswers(
        hub_id=hub.id,
        list_work=work.workloads,
        live_status=work.live_status,
        find=work.find,
        read_log=agents.read_log,
        telemetry=telemetry,
        content=files.answers(work.find),
    )


class HubService:
    """One running hub: its parts by name, and what the API needs of the hub as a whole."""

    def __init__(
        self,
        *,
        hub: Hub,
        store: HubStore,
        jobs: JobRuntime,
        status: HubStatus,
        metrics: HubMetrics,
        agents: AgentGateway,
        work: HubWorkloads,
        credentials: HubCredentials,
        audit: HubAudit,
        policies: HubPolicies,
        data: HubData,
        operations: HubOperations,
        references: HubReferences,
        federation: HubFederation,
        carbon: HubCarbon,
        energy: HubEnergy,
        pipelines: HubPipelines,
        files: HubFiles,
        bulk: BulkChannel | None,
        sentinel: SentinelClient | None,
    ) -> None:
        self.hub_id, self.country, self.clock = hub.id, hub.country, store.clock
        self.version, self.started_at, self.url = status.version, status.started_at, status.url
        self._jobs, self._database, self._head_file = jobs, store.database, store.head_file
        self._metrics, self._agents, self._sentinel = metrics, agents, sentinel
        self.credentials, self.audit, self.policies, self.data = credentials, audit, policies, data
        self.operations, self.references, self.federation = operations, references, federation
        self.carbon, self.energy, self.pipelines = carbon, energy, pipelines
        self.content, self._files, self._bulk = files.content, files, bulk
        self._time = ClockWatch(store.clock, store.folder, hub.id, jobs.note)
        # What the API calls of the parts without naming them.
        self.authenticate = credentials.authenticate
        self.ready, self.summary, self.peers = status.ready, status.summary, status.peers
        self.submit, self.workload, self.workloads, self.live_status = (
            work.submit,
            work.workload,
            work.workloads,
            work.live_status,
        )
        self.replace_spec, self.relabel, self.set_carbon_preferences = (
            work.replace_spec,
            work.relabel,
            work.set_carbon_preferences,
        )
        self.pause, self.resume, self.restart = work.pause, work.resume, work.restart
        self.stop, self.delete = work.stop, work.delete
        self.plan, self.why, self.quotas = work.plan, work.why, work.quotas

    async def run(self) -> None:
        """Background work, until cancelled. A hub that is held speaks with its peers, and does nothing else."""
        if self._bulk is not None:
            self._bulk.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.federation.run())
            group.create_task(self._time.run())
            await self._jobs.opened.wait()
            group.create_task(self._jobs.keep_placing())
            group.create_task(self._jobs.keep_auditing())
            group.create_task(self._jobs.keep_reserve())
            group.create_task(self.carbon.run())
            learner = Learner(self._jobs, self._database, self.clock)
            for what, run in (
                ("placement learning", learner.run),
                ("energy planning", self.energy.run),
                ("pipelines", self.pipelines.run),
                ("content", self._files.upkeep.run),
            ):
                group.create_task(self._jobs.kept_up(what, run))

    async def close(self) -> None:
        if self._sentinel is not None:
            await self._sentinel.close()
        await self.pipelines.close()
        await self.policies.close()
        await self.carbon.close()
        self.energy.close()
        await self._files.transfers.close()
        if self._bulk is not None:
            await asyncio.to_thread(self._bulk.close)
        await self._jobs.close()
        await asyncio.to_thread(self._files.store.close)
        self._time.leave()
        self._database.close()
        self._head_file.close()

    async def look_after_content(self) -> None:
        """Takes away what need no longer be kept, now; it happens every minute anyway."""
        await self._files.upkeep.look()

    def is_sentinel(self, token: str) -> bool:
        """Whether this is the key of the hub's own SENTINEL."""
        return self._sentinel is not None and self._sentinel.is_sentinel(token)

    def gpus(self, *, tenant: str | None) -> list[GpuView]:
        return list_gpus(self._jobs.machine.state, tenant=tenant)

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
        await self._jobs.wait_for_event(after, timeout_s)

    def last_event(self) -> int:
        return self._jobs.seq_stored

    # Agents

    async def attach_agent(self, link: AgentLink, *, key_id: str) -> None:
        """Runs until the connection ends. `key_id` is the key that it was opened with."""
        await self._agents.attach(link, key_id=key_id)

    async def read_log(
        self,
        ref: str,
        *,
        tenant: str | None,
        rank: int,
        attempt: int | None,
        offset: int,
        bytes_max: int,
        since_s: float | None = None,
        preparation: bool = False,
    ) -> LogPage:
        workload = await self.workload(ref, tenant=tenant)
        where = self.federation if workload.runner_hub and not workload.borrowed else self._agents
        return await where.read_log(
            workload,
            rank=rank,
            attempt=attempt,
            offset=offset,
            bytes_max=bytes_max,
            since_s=since_s,
            preparation=preparation,
        )
