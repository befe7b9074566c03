"""A hub in memory: enough of a control plane to answer every call of the API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec

from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.base.rejection import RuleOutcome
from harch.carbon.ledger.chain import LedgerHead
from harch.hub.agent_gateway import AgentLink
from harch.hub.carbon.views import PastHour, ReportQuery
from harch.hub.federation.alerts import AlertExchange
from harch.hub.federation.answers import FederationWork, row_of
from harch.hub.federation.messages import WorkRow
from harch.hub.pipelines.views import InferenceStats
from harch.hub.store.records import AgentKey
from harch.hub.views import (
    KeyInfo,
    LiveStatus,
    LogPage,
    PeerReach,
    PeerView,
    Principal,
    Role,
    WorkloadPage,
    WorkloadQuery,
)
from harch.placement.explanation import Explanation, Verdict
from harch.wire.carbon import (
    CarbonPlanView,
    Figure,
    ForecastHour,
    GridForecast,
    HubPower,
    HubReport,
    JobCarbon,
    PowerView,
    Used,
)
from harch.wire.events import EventRecord
from harch.wire.explanations import HubExplanation
from harch.wire.hardware import GpuView
from harch.wire.hubs import HubSummary, ModelCapacity, NodeMaxima
from harch.wire.quotas import TenantQuota
from harch.wire.workloads import SilentHub
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import CarbonPreferences, SchedulingClass, WorkloadSpec, WorkloadType, fingerprint
from unit.api.fake_energy import FakeEnergy
from unit.api.fake_operations import FakeOperations

START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
KEYS = {role: f"hsk_{role.value}_0123456789abcdef" for role in Role}
OTHER_TENANT_KEY = "hsk_other_tenant_0123456789"


class FakeFederation:
    """Dakar answers with one workload, Abidjan does not answer."""

    def __init__(self, hub: FakeHub) -> None:
        self._hub = hub

    def exchange_alerts(self, records: bytes) -> AlertExchange:
        self._hub.alert_exchanges += 1
        return AlertExchange(records=(b"from a peer", records), position=2)

    def has_alert_news(self, position: int) -> bool:
        return self._hub.alert_news or position != self._hub.alert_position

    async def query_telemetry(self, hub_id: str, question: bytes, *, within_s: float) -> bytes:
        if hub_id != "dakar":
            raise HarchError("E0698", f"hub {hub_id} does not answer: suspected")
        return question

    async def work(self, *, tenant: str | None) -> FederationWork:
        there = WorkRow(
            id="wl_there",
            name="there",
            tenant="globex",
            owner_hub="dakar",
            runner_hub="tangier",
            epoch=2,
            nodes=("tangier-r1-n1",),
            state=State.RUNNING,
            type=WorkloadType.BATCH,
            turn_class=SchedulingClass.TRAINING,
            created_at=START,
            updated_at=START,
            gpus=2,
        )
        own = [row_of(one) for one in reversed(self._hub.store.values()) if not one.state.is_final]
        rows = [row for row in (*own, there) if tenant in {None, row.tenant}]
        silent = SilentHub(hub_id="abidjan", why="suspected", age_s=7.5, workloads={"running": 3})
        return FederationWork(rows=rows, total=len(rows), silent=[silent])


class FakeCarbon:
    """Dakhla is measured, Dakar has told a model's figure, Abidjan nothing."""

    def now(self) -> list[PowerView]:
        return [
            PowerView(hub_id="dakhla", own=True, age_s=4.0, power=self._power("dakhla", "MA", 630, "measured")),
            PowerView(hub_id="dakar", age_s=20.0, power=self._power("dakar", "SN", 512, "estimated")),
            PowerView(hub_id="abidjan", error="never heard"),
        ]

    def forecast(self, hub_id: str, hours: int) -> GridForecast:
        if hub_id == "abidjan":
            raise HarchError("E0801", "hub abidjan has no forecast yet", hint="try again")
        clean = {2, 3}  # hours of the night wind
        values = [300.0 if index in clean else 600.0 for index in range(hours)]
        return GridForecast(
            hub_id=hub_id,
            grid_zone="MA",
            made_at=START,
            model="persistence",
            hours=tuple(
                ForecastHour(
                    at=START + timedelta(hours=index),
                    g_per_kwh=value,
                    low=value - 50,
                    high=value + 50,
                    low_half=value - 20,
                    high_half=value + 20,
                )
                for index, value in enumerate(values)
            ),
        )

    async def past(self, start: datetime, end: datetime) -> list[PastHour]:
        hours = [PastHour(at=START + timedelta(hours=n), g_per_kwh=500.0 + 100 * n, estimated=False) for n in range(4)]
        return [hour for hour in hours if start <= hour.at < end]

    async def report(self, query: ReportQuery) -> HubReport:
        query.span()
        self.asked = query
        used = Used(kwh=2.0, g=900.0, saved_g=100.0, estimated_share=1.0, jobs_away=3)
        return HubReport(
            hub_id="dakhla",
            at=START,
            not_booked_kwh=0.5,
            report={"lines": [{"name": "wl-1", "energy_kwh": 2.0}]},
            csv="a,b\n",
            used=used,
        )

    async def ledger_head(self) -> LedgerHead:
        return LedgerHead(3)

    async def ledger_lines(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        return [(seq, b"row %d\n" % seq) for seq in range(after + 1, upto + 1)][: min(limit, 2)]

    def plan(self, *, tenant: str | None) -> CarbonPlanView:
        return CarbonPlanView(hub_id="dakhla", at=START, held=2, tenant_g_left={tenant or "all": 5.0})

    async def why(self, workload_id: str, *, tenant: str | None) -> JobCarbon:
        return JobCarbon(workload_id=workload_id, hub_id="dakhla", at=START, report={"tenant": tenant})

    def _power(self, hub_id: str, zone: str, value: float, evidence: str) -> HubPower:
        readings = (
            Figure(signal="grid-average-lifecycle", value=value, unit="g/kWh", evidence=evidence, source="s", at=START),
            Figure(signal="pue", value=1.2, unit="PUE", evidence="estimated", source="s", at=START),
        )
        return HubPower(
            hub_id=hub_id,
            country=zone,
            grid_zone=zone,
            at=START,
            marginal_g_per_kwh=value * 1.2,
            marginal_rests_on="the grid",
            readings=readings,
        )


class FakePipelines:
    """One model has answered 40 rows, one of them too late."""

    def inference(self) -> list[InferenceStats]:
        within = (("0.01", 39), ("+Inf", 40))
        return [InferenceStats(pipeline="fields", model="irrigation", rows=40, failed=1, within=within)]


class FakeReferences:
    """Work by its store, subjects by its events; the tenants of its keys; one dataset."""

    def __init__(self, hub: FakeHub) -> None:
        self._hub = hub

    async def workload(self, ref: str, *, tenant: str | None) -> str:
        if ref == "wl_of_another_hub":  # it once ran here
            return ref
        return (await self._hub.workload(ref, tenant=tenant)).id

    async def data(self, ref: str, *, tenant: str | None) -> str:
        if ref not in {"data_1", "census"}:
            raise HarchError("E0906", f"no data object `{ref}`")
        return "data_1"

    async def subject(self, ref: str, *, tenant: str | None) -> str:
        if ref in {record.subject for record in self._hub.records}:
            return ref
        try:
            return await self.workload(ref, tenant=tenant)
        except HarchError:
            raise HarchError("E0351", f"nothing is called `{ref}`") from None

    async def tenant(self, name: str) -> str:
        if name not in {principal.tenant for principal in self._hub.principals.values()}:
            raise HarchError("E0350", f"no tenant `{name}`")
        return name


class FakeHub:
    pipelines = FakePipelines()
    hub_id, country, version, started_at = "dakhla", "MA", "0.1.0", START

    def __init__(self) -> None:
        self.not_ready = ""
        self.failure: Exception | None = None
        self.store: dict[str, Workload] = {}
        self.hidden: set[str] = set()
        self.idempotent: dict[str, str] = {}
        self.log = b""
        self.log_eof = True
        self.records: list[EventRecord] = []
        self.secrets: dict[tuple[str, str], str] = {}
        self.frames: list[bytes] = []
        self.operations = FakeOperations()
        self.credentials = self
        self.references = FakeReferences(self)
        self.federation = FakeFederation(self)
        self.carbon = FakeCarbon()
        self.energy = FakeEnergy()
        self.alert_news, self.alert_position, self.alert_exchanges = False, 2, 0
        self.agent_keys: list[AgentKey] = []
        self.key_infos = {
            role.value: KeyInfo(
                id=f"key_{role.value}", name=role.value, tenant="acme", role=role, prefix="hsk_", created_at=START
            )
            for role in Role
        }
        self.principals = {
            token: Principal(key_id=f"key_{role.value}", name=role.value, tenant="acme", role=role)
            for role, token in KEYS.items()
        }
        self.principals[OTHER_TENANT_KEY] = Principal(key_id="key_other", name="other", tenant="globex", role=Role.USER)
        self._moment = START
        self._appended = asyncio.Event()

    def now(self) -> datetime:
        self._moment += timedelta(milliseconds=1)
        return self._moment

    def ready(self) -> str:
        return self.not_ready

    def authenticate(self, token: str) -> Principal | None:
        return self.principals.get(token)

    def revoked_count(self) -> int:
        return sum(info.revoked for info in self.key_infos.values())

    def is_sentinel(self, token: str) -> bool:
        return token == KEYS[Role.OPERATOR]

    def emit(self, kind: str, subject: str, tenant: str = "acme") -> None:
        record = EventRecord(
            seq=len(self.records) + 1, at=self.now(), kind=kind, subject=subject, tenant=tenant, message=f"{kind}!"
        )
        self.records.append(record)
        self._appended.set()
        self._appended = asyncio.Event()

    async def submit(
        self, spec: WorkloadSpec, *, tenant: str, annotations: dict[str, str], idempotency_key: str | None, actor: str
    ) -> tuple[Workload, bool]:
        if self.failure:
            raise self.failure
        for other in self.store.values():
            if (other.tenant, other.spec.name) == (tenant, spec.name) and not other.state.is_final:
                if fingerprint(other.spec) == fingerprint(spec):
                    return other, False
                raise HarchError("E0302", f"`{spec.name}` is in use", hint="choose another name")
        now = self.now()
        workload = Workload(
            id=new_id("wl", now=now),
            tenant=tenant,
            owner_hub=self.hub_id,
            spec=spec,
            created_at=now,
            updated_at=now,
            annotations=annotations,
        )
        self.store[workload.id] = workload
        self.emit("workload.submitted", workload.id, tenant)
        return workload, True

    def live_status(self, workload: Workload) -> LiveStatus:
        waits = "waits for free resources" if workload.spec.name == "waits" else ""
        return LiveStatus(pending_reason=waits, unheard_s=400.0 if workload.leased else None)

    async def workload(self, ref: str, *, tenant: str | None) -> Workload:
        for workload in reversed(self.store.values()):
            if ref in {workload.id, workload.spec.name} and tenant in {None, workload.tenant}:
                return workload
        raise HarchError("E0301", f"no workload is called `{ref}`", hint="`harch ps` lists them")

    async def workloads(self, query: WorkloadQuery) -> WorkloadPage:
        found = [
            workload
            for workload in reversed(self.store.values())
            if query.tenant in {None, workload.tenant}
            and workload.id not in self.hidden
            and query.state in {None, workload.state}
            and query.type in {None, workload.spec.type}
            and query.name in {None, workload.spec.name}
            and not (query.active and workload.state.is_final)
            and query.labels.items() <= workload.spec.labels.items()
        ]
        first = (query.page - 1) * query.per_page
        return WorkloadPage(items=found[first : first + query.per_page], total=len(found))

    async def replace_spec(
        self, ref: str, spec: WorkloadSpec, *, tenant: str | None, annotations: dict[str, str], actor: str
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.state not in {State.PENDING, State.PAUSED}:
            raise HarchError("E0304", f"`{ref}` is {workload.state}", hint="stop it and submit it again")
        workload.spec, workload.annotations, workload.updated_at = spec, annotations, self.now()
        return workload

    async def set_carbon_preferences(
        self, ref: str, preferences: CarbonPreferences, *, tenant: str | None, annotations: dict[str, str]
    ) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        workload.spec = msgspec.structs.replace(workload.spec, carbon=preferences)
        workload.annotations = workload.annotations | annotations
        return workload

    async def relabel(self, ref: str, labels: dict[str, str], *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        workload.spec = msgspec.structs.replace(workload.spec, labels=labels)
        return workload

    async def _move(self, ref: str, state: State, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if workload.state.is_final:
            raise HarchError("E0304", f"`{ref}` is {workload.state}", hint="submit it again")
        workload.state, workload.updated_at = state, self.now()
        self.emit(f"workload.{state.value}", workload.id, workload.tenant)
        return workload

    async def pause(self, ref: str, *, tenant: str | None) -> Workload:
        return await self._move(ref, State.PAUSED, tenant)

    async def resume(self, ref: str, *, tenant: str | None) -> Workload:
        return await self._move(ref, State.RUNNING, tenant)

    async def restart(
        self, ref: str, *, tenant: str | None, reason: str, idempotency_key: str | None, actor: str
    ) -> Workload:
        workload = await self._move(ref, State.PENDING, tenant)
        workload.error_message = reason
        return workload

    async def stop(self, ref: str, *, tenant: str | None, reason: str) -> Workload:
        return await self._move(ref, State.CANCELLED, tenant)

    async def delete(self, ref: str, *, tenant: str | None) -> Workload:
        workload = await self.workload(ref, tenant=tenant)
        if not workload.state.is_final:
            workload.state = State.CANCELLED
        self.hidden.add(workload.id)
        return workload

    def quotas(self, *, tenant: str | None) -> list[TenantQuota]:
        known = [TenantQuota(tenant=name, gpus_held=8.0, gpus_held_max=64.0) for name in ("acme", "globex")]
        return [quota for quota in known if tenant in (None, quota.tenant)]

    def plan(self, spec: WorkloadSpec, *, tenant: str) -> Explanation:
        return self._explain(spec.name)

    async def why(self, ref: str, *, tenant: str | None) -> Explanation:
        return self._explain((await self.workload(ref, tenant=tenant)).id)

    def _explain(self, subject: str) -> Explanation:
        rules = (RuleOutcome(rule="residency", passed=True, detail="anywhere"),)
        hub = HubExplanation(hub_id="dakhla", country="MA", eligible=True, source="live", age_s=None, rules=rules)
        return Explanation(subject=subject, verdict=Verdict.FITS_NOW, sentence="It fits at dakhla now.", hubs=(hub,))

    def summary(self) -> HubSummary:
        return self._summary("dakhla", "MA", 640, 600)

    def _summary(self, hub_id: str, country: str, total: int, free: int) -> HubSummary:
        models = [
            ModelCapacity(
                model="h100-80gb", memory_gb=80, total=total, free=free, gpus_per_node_max=8, free_shapes=[0] * 8
            )
        ]
        return HubSummary(
            hub_id=hub_id,
            name=hub_id.capitalize(),
            country=country,
            grid_zone=country,
            latitude=23.7,
            longitude=-15.9,
            pue=1.2,
            provenance="modelled",
            status="ready",
            status_detail="",
            version=self.version,
            started_at=START,
            at=START,
            url=f"http://127.0.0.1:7701/{hub_id}",
            gpus_total=total,
            gpus_free=free,
            gpus_allocated=total - free,
            models=models,
            nodes_total=total // 8,
            nodes_up=total // 8,
            node_max=NodeMaxima(cpus=64, memory_gb=512),
            cpus_total=640.5,
            cpus_free=640.2,
            memory_gb_total=1000,
            memory_gb_free=900,
            storage_gb_total=5000,
            process_slots_total=64,
            process_slots_free=60,
            workloads={"running": 2, "pending": 1},
            agents=1,
        )

    def peers(self) -> list[PeerView]:
        own = PeerView(
            hub_id="dakhla", url="http://127.0.0.1:7701", reachable=True, age_s=0, summary=self.summary(), own=True
        )
        seen = self._summary("dakar", "SN", 214, 214)
        near = PeerView(
            hub_id="dakar", url="http://127.0.0.1:7704", reachable=True, age_s=1.5, summary=seen, rtt_ms=8.5
        )
        never = PeerView(
            hub_id="abidjan",
            url="http://127.0.0.1:7705",
            reachable=False,
            age_s=None,
            summary=None,
            error="refused",
            reach=PeerReach.UNHEARD,
        )
        return [own, near, never]

    def gpus(self, *, tenant: str | None) -> list[GpuView]:
        return [
            GpuView(
                id=f"dakhla-r1-n1-g{index}",
                hub_id="dakhla",
                node_id="dakhla-r1-n1",
                rack_id="dakhla-r1",
                index=index,
                model="h100-80gb",
                memory_gb=80,
                island=0,
                pcie_switch=index // 4,
                numa=index // 4,
                provenance="modelled",
                status="free" if index else "allocated",
            )
            for index in range(8)
        ]

    async def events(
        self, *, after: int, limit: int, tenant: str | None, subject: str | None, kind: str | None
    ) -> list[EventRecord]:
        return [
            record
            for record in self.records
            if record.seq > after
            and tenant in {None, record.tenant}
            and subject in {None, record.subject}
            and kind in {None, record.kind}
        ][:limit]

    async def wait_for_event(self, after: int, timeout_s: float) -> None:
        if self.last_event() > after:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._appended.wait()
        except TimeoutError:
            return

    def last_event(self) -> int:
        return len(self.records)

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
        await self.workload(ref, tenant=tenant)
        self.log_since_s = since_s
        first = max(0, len(self.log) + offset) if offset < 0 else offset
        data = self.log[first : first + bytes_max]
        end = first + len(data)
        return LogPage(offset=first, next_offset=end, data=data, eof=self.log_eof and end >= len(self.log))

    async def create_key(
        self, *, name: str, tenant: str, role: Role, actor: str, agent_id: str = "", node_ids: tuple[str, ...] = ()
    ) -> tuple[KeyInfo, str]:
        if agent_id:
            self.agent_keys.append(AgentKey(key_id=f"key_{name}", agent_id=agent_id, node_ids=node_ids))
        token = f"hsk_{name}_0123456789abcdef"
        info = KeyInfo(id=f"key_{name}", name=name, tenant=tenant, role=role, prefix=token[:8], created_at=self.now())
        self.key_infos[name] = info
        self.principals[token] = Principal(key_id=info.id, name=name, tenant=tenant, role=role)
        return info, token

    def agents_of(self, key_id: str) -> tuple[AgentKey, ...]:
        return tuple(one for one in self.agent_keys if one.key_id == key_id)

    async def release_key(self, key_id: str, *, tenant: str | None, actor: str) -> KeyInfo:
        self.agent_keys = [one for one in self.agent_keys if one.key_id != key_id]
        return next(info for info in self.key_infos.values() if info.id == key_id)

    async def keys(self, tenant: str | None) -> list[KeyInfo]:
        return [info for info in self.key_infos.values() if tenant in {None, info.tenant}]

    async def revoke_key(self, key_id: str, *, tenant: str | None, actor: str) -> KeyInfo:
        for name, info in self.key_infos.items():
            if info.id == key_id and tenant in {None, info.tenant}:
                self.key_infos[name] = msgspec.structs.replace(info, revoked=True)
                self.principals = {token: who for token, who in self.principals.items() if who.key_id != key_id}
                return self.key_infos[name]
        raise HarchError("E0308", f"no key has the id `{key_id}`")

    async def put_secret(self, name: str, value: str, *, tenant: str, actor: str) -> None:
        self.secrets[tenant, name] = value

    async def secret_names(self, *, tenant: str) -> list[str]:
        return sorted(name for owner, name in self.secrets if owner == tenant)

    async def delete_secret(self, name: str, *, tenant: str, actor: str) -> None:
        if self.secrets.pop((tenant, name), None) is None:
            raise HarchError("E0306", f"no secret is called `{name}`")

    async def attach_agent(self, link: AgentLink, *, key_id: str) -> None:
        while True:
            frame = await link.receive()
            self.frames.append(frame)
            await link.send(b"echo " + frame)

    def metrics_text(self, *, openmetrics: bool = False, of_tenants: bool = False) -> bytes:
        page = b"# HELP harch_up One while the hub runs.\n# TYPE harch_up gauge\nharch_up 1\n"
        return page + b'harch_pipeline_lag{pipeline="valves",tenant="acme"} 7\n' if of_tenants else page
