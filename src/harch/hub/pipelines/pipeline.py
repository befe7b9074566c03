"""How does one pipeline become what is wanted of it?

Looks, decides how many workers each stage should have and which of them run, and does one step.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.state_files import read_sealed
from harch.hub.pipelines.engine import HubEngine
from harch.hub.pipelines.files import LOGS, forget_old
from harch.hub.pipelines.planning import PlannedPipeline, PlanningContext, parts_of, secrets_named
from harch.hub.pipelines.promotion import Promotion, decide_promotion
from harch.hub.pipelines.roster import (
    RosterMember,
    StageTarget,
    WorkerRoster,
    draining_targets,
    holders,
    is_at_rest,
    next_roster,
    sense_before_source,
)
from harch.hub.pipelines.sources import digests
from harch.hub.pipelines.supervisor import WorkerOrder, WorkerReport
from harch.hub.pipelines.values import ALL_STAGES, SCALED, DesiredState, PipelineRecord
from harch.pipelines.act.store_nats import STOP_KEY
from harch.pipelines.client.bucket import NatsBucket, Unreachable
from harch.pipelines.client.errors import NatsError, as_harch_error
from harch.pipelines.engine.keys import write_state
from harch.pipelines.spec.settings import PipelineSpec, PipelineStageName
from harch.pipelines.think.rollout import WantedModels
from harch.pipelines.workers.config import EngineAccess, write_config
from harch.pipelines.workers.names import (
    ACT_CONSUMER,
    ASSIGNMENT_KEY,
    DEVICES_KEY,
    MODELS_KEY,
    POLICY_KEY,
    THINK_CONSUMER,
)
from harch.pipelines.workers.parts import access_digest, worker_config
from harch.pipelines.workers.scaling import (
    UNASSIGNED,
    PartitionAssignment,
    ScalingRules,
    ScalingState,
    StageLoad,
    decide_scale,
    reassigned,
)
from harch.pipelines.workers.shared_state import KnownDevices
from harch.pipelines.workers.telemetry import WorkerStatus, read_statuses


class StageScale(Struct, frozen=True, kw_only=True):
    """`changed_why` is empty while the number stays."""

    workers: int
    state: ScalingState
    changed_why: str = ""


def first_scale(spec: PipelineSpec) -> dict[str, StageScale]:
    return {
        stage.value: StageScale(workers=spec.scaling.of(stage).workers_min, state=ScalingState())
        for stage in spec.stages
        if stage.value in SCALED
    }


def next_scale(
    spec: PipelineSpec,
    before: Mapping[str, StageScale],
    fixed: Mapping[str, int],
    statuses: Collection[WorkerStatus],
    now_s: float,
) -> dict[str, StageScale]:
    """A number that a person has set stands. Without a word of any worker of a stage, nothing changes there."""
    after = {}
    for name, first in first_scale(spec).items():
        old = before.get(name, first)
        if name in fixed:
            after[name] = StageScale(workers=fixed[name], state=old.state)
            continue
        settings = spec.scaling.of(PipelineStageName(name))
        rules = ScalingRules(
            workers_min=settings.workers_min,
            workers_max=settings.workers_max,
            lag_s_max=settings.lag_s_target,
            latency_p99_ms_max=spec.latency.p99_ms_target,
            grow_cooldown_s=settings.grow_cooldown_s,
            shrink_cooldown_s=settings.shrink_cooldown_s,
        )
        reported = [status for status in statuses if status.stage == name]
        within = min(max(old.workers, settings.workers_min), settings.workers_max)
        if not reported or len(reported) < old.workers:  # some are starting, and say nothing of the load yet
            after[name] = StageScale(workers=within, state=old.state)
            continue
        decision = decide_scale(rules, load_of(name, old.workers, reported), old.state, now_s)
        why = decision.reason if decision.workers != old.workers else ""
        after[name] = StageScale(workers=decision.workers, state=decision.state, changed_why=why)
    return after


def load_of(stage: str, workers: int, statuses: Iterable[WorkerStatus]) -> StageLoad:
    """How a stage does, from what its workers say. Each sees the whole backlog of its lane, so the largest counts."""
    own = [one for one in statuses if one.stage == stage]
    return StageLoad(
        workers=workers,
        busy=sum(one.busy for one in own) / len(own) if own else 0.0,
        lag=max((one.lag for one in own), default=0.0),
        rate=sum(one.drain_rate for one in own),
        latency_p99_ms=max((one.latency_ms.get("p99", 0.0) for one in own), default=0.0),
    )


# How does one pipeline become what is wanted of it? Looks, decides by `roster` and `autoscale`, and does one step.


FILES, KEPT = "files", "kept"
STATUS_FRESH_MS = 5000
HALT_RENEWED_S = 3600.0  # the ledger forgets by age what is not written again
STATE_KEY = "wanted.state"  # which kind of state the checkpoints are of
RENEWALS_PER_LIFE = 7  # of keys that run out, so that workers last for days without the hub

log = logging.getLogger("harch.hub")


class RunningPipeline:
    """One pipeline at this hub. Everything that it keeps is below `folder`; a crash at any moment is harmless."""

    def __init__(
        self,
        record: PipelineRecord,
        planned: PlannedPipeline,
        ground: PlanningContext,
        folder: Path,
        *,
        engine: HubEngine,
        clock: Clock,
        environment: dict[str, str],
        source_keys: dict[str, str],
    ) -> None:
        self.folder = folder
        self.statuses: list[WorkerStatus] = []
        self.kept: dict[str, WorkerReport] = {}
        self.trouble = ""
        self.was_well = False  # since this hub started: until then, a worker that is not ready is starting
        self._engine, self._clock, self._ground = engine, clock, ground
        self._assignment: PartitionAssignment | None = None
        self._published_policy = self._published_models = self._published_devices = self._state_version = 0
        self.roster = self._read_roster()
        self.take(record, planned, environment, source_keys)
        self.scale: dict[str, StageScale] = first_scale(planned.spec)
        self._canaries_s: dict[str, float] = {}
        self._halt_written: tuple[str, float] = ("", 0.0)  # reason, and when

    def take(
        self, record: PipelineRecord, planned: PlannedPipeline, environment: dict[str, str], source_keys: dict[str, str]
    ) -> None:
        """What is wanted from now on. `source_keys`: what senders show, by source; workers get digests."""
        self.record, self.planned, self._environment = record, planned, environment
        self.source_keys = source_keys
        self.parts = parts_of(record, planned, self._ground, str(self.folder / FILES), digests(source_keys))
        self.names = self.parts.names

    @property
    def is_at_rest(self) -> bool:
        return is_at_rest(self.roster)

    def environment_of(self, stage: str) -> dict[str, str]:
        """Where code of its models is; secrets of sinks for ACT alone, and of sources for those. Keys of senders are
        not among them: a worker knows their digests."""
        part = self.record.spec.get({"act": "act", "source": "sense"}.get(stage, "")) or {}
        own = ("PYTHONPATH", *secrets_named(part, leaving_out="key_secret"))
        return {name: value for name, value in self._environment.items() if name in own}

    def access(self, stage: str) -> tuple[EngineAccess, EngineAccess]:
        """How workers of a stage reach the main engine, and the one of outputs."""
        return self._engine.access(self.planned.deployment, stage)

    @property
    def act_domain(self) -> str:
        return self._engine.act_domain(self.planned.deployment)

    async def step(self, kept: dict[str, WorkerReport]) -> dict[str, str]:
        """One look and one step; call it each second. Answers stages whose number changed by load, and why."""
        self.kept = {name: one for name, one in kept.items() if name.startswith(f"{self.record.name}/")}
        self.statuses = await self._fresh_statuses()
        changed = self._rescale()
        ready = {one.worker for one in self.statuses if one.health == "ok" and self._is_of_now(one)}
        running = {name.partition("/")[2] for name in self.kept}
        await self._begin_state()
        await self._hold_halt()  # before a worker can start that has not seen it
        staying = self.roster.staying
        self.was_well = bool(staying) and (self.was_well or all(member.name in ready for member in staying))
        after = next_roster(self.roster, await self._stage_targets(), ready=ready, running=running)
        for member in after.members:
            if member not in self.roster.members and not member.leaving:
                self._write_config(member)
        if after != self.roster:
            write_state(self.folder / "roster.json", msgspec.json.encode(after))
            there = {member.name for member in after.members}
            for member in self.roster.members:
                if member.name not in there:
                    self._config_path(member.name).unlink(missing_ok=True)
            self.roster = after
            forget_old(self.folder, {self.log_file(member.name) for member in after.members})
        self._renew_access()
        await self._publish_control(holders(after, self.parts.sensing_stage, ready))
        return changed

    def orders(self) -> tuple[WorkerOrder, ...]:
        """The workers that should run now; those that leave are not among them."""
        return tuple(
            WorkerOrder(
                pipeline=self.record.name,
                worker=member.name,
                stage=member.stage,
                config=str(self._config_path(member.name)),
                log_file=str(self.log_file(member.name)),
                environment=self.environment_of(member.stage),
            )
            for member in self.roster.staying
        )

    def log_file(self, worker: str) -> Path:
        return self.folder / LOGS / f"{worker}.log"

    def _rescale(self) -> dict[str, str]:
        self.scale = next_scale(
            self.planned.spec, self.scale, self.record.fixed, self.statuses, self._clock.monotonic_s()
        )
        return {stage: one.changed_why for stage, one in self.scale.items() if one.changed_why}

    def promotions(self) -> tuple[Promotion, ...]:
        """Versions that rules give another role now, from what workers said in the last step."""
        staying = {member.name for member in self.roster.staying if member.stage == "think"}
        if self.record.desired is not DesiredState.RUN or not staying <= {one.worker for one in self.statuses}:
            return ()
        found = decide_promotion(self.planned.spec, self.statuses, self._canaries_s, self._clock.monotonic_s())
        self._canaries_s = found.since_s
        return found.promotions

    async def _stage_targets(self) -> dict[str, StageTarget]:
        counts = {"source": 1, **{stage: one.workers for stage, one in self.scale.items()}}
        wanted = {
            stage: StageTarget(
                workers=counts[stage],
                generation=self.record.generations.get(stage, 0),
                access=access_digest(self.parts, stage),
            )
            for stage in ALL_STAGES
            if stage in counts
        }
        if self.record.desired is DesiredState.RUN:
            return sense_before_source(wanted, self.roster)
        if self.record.desired is DesiredState.REMOVE:
            return {}
        return draining_targets(wanted, self.roster, await self.waiting())

    async def waiting(self) -> dict[str, int | None]:
        """Messages that wait in the stored lanes into THINK and ACT."""
        lanes = {
            "think": (self._engine.main, self.names.features_stream, THINK_CONSUMER),
            "act": (self.act_domain, self.names.outputs_stream, ACT_CONSUMER),
        }
        found: dict[str, int | None] = {}
        for stage, (domain, stream, consumer) in lanes.items():
            if stage not in self.planned.spec.stages or (stage == "think" and self.parts.lane == "hot"):
                continue
            try:
                info = await self._engine.admin(domain).call(f"CONSUMER.INFO.{stream}.{consumer}")
                found[stage] = int(info.get("num_pending", 0)) + int(info.get("num_ack_pending", 0))
            except (HarchError, NatsError):
                found[stage] = None
        return found

    async def _fresh_statuses(self) -> list[WorkerStatus]:
        """Of workers that are on the roster and said something lately. Raises E0701."""
        try:
            found = await read_statuses(self._engine.admin(self._engine.main), self.names)
        except NatsError as error:
            raise as_harch_error(error, "reading the status of workers") from error
        now_ms = round(self._clock.now().timestamp() * 1000)
        there = {member.name for member in self.roster.members}
        return [one for one in found if one.worker in there and now_ms - one.at_ms <= STATUS_FRESH_MS]

    def _is_of_now(self, status: WorkerStatus) -> bool:
        """Not of a process that is gone. A keeper of an earlier release gives no tokens."""
        kept = self.kept.get(f"{self.record.name}/{status.worker}")
        return kept is not None and (kept.token == status.incarnation if kept.token else kept.pid == status.pid)

    async def _publish_control(self, holding: list[str]) -> None:
        """Assignment, models and policy, each when it is new."""
        client = self._engine.admin(self._engine.main).client
        bucket = NatsBucket(client, self.names.state_bucket)
        try:
            if self._assignment is None:
                found = await bucket.get(ASSIGNMENT_KEY)
                self._assignment = msgspec.json.decode(found.value, type=PartitionAssignment) if found else UNASSIGNED
            after = reassigned(self._assignment, self.parts.sense.partitions, holding)
            if after is not self._assignment:
                await self._want(bucket, ASSIGNMENT_KEY, after)
                self._assignment = after
            if self._published_devices < self.record.devices_revision:
                known = KnownDevices(self.record.devices_revision, self.parts.sense.devices)
                await self._want(bucket, DEVICES_KEY, known)
                self._published_devices = self.record.devices_revision
            if self._published_policy < self.record.policy_version:
                await self._want(bucket, POLICY_KEY, self.parts.policy)
                self._published_policy = self.record.policy_version
            if self.parts.think is not None and self._published_models < self.record.models_revision:
                versions = {model.name: model.versions for model in self.parts.think.models}
                wanted = WantedModels(self.record.models_revision, versions, self.parts.think.models)
                await self._want(bucket, MODELS_KEY, wanted)
                self._published_models = self.record.models_revision
        except (NatsError, Unreachable) as error:
            raise HarchError(
                "E0701", f"could not notify the workers: {error}", hint="a supervised engine restarts by itself"
            ) from error

    async def _begin_state(self) -> None:
        """Before the first worker of a new kind of state: checkpoints of the old kind are deleted, and lanes are made
        anew, because numbers begin again and JetStream would take them for repetitions. Raises E0701."""
        wanted = self.record.state_version
        if self._state_version >= wanted:
            return
        admin = self._engine.admin(self._engine.main)
        bucket = NatsBucket(admin.client, self.names.state_bucket)
        try:
            found = await bucket.get(STATE_KEY)
            if found is not None and int(found.value) < wanted:
                await self._engine.renew_lanes(self.planned.deployment, self.names)
            if found is None or int(found.value) < wanted:
                stream, name = f"KV_{self.names.state_bucket}", self.names.state_bucket
                await admin.call(f"STREAM.PURGE.{stream}", {"filter": f"$KV.{name}.checkpoint.>"})
                await bucket.put(STATE_KEY, str(wanted).encode())
        except (NatsError, Unreachable) as error:
            raise HarchError("E0701", f"could not read the state: {error}", hint="it will be retried") from error
        self._state_version = wanted

    async def write_stop(self, reason: str) -> None:
        """All workers of ACT stop sending, or with an empty reason go on: when this returns, the ledger has it, and a
        worker that cannot read the ledger sends nothing. Raises E0775."""
        try:
            bucket = NatsBucket(self._engine.admin(self.act_domain).client, self.names.ledger_bucket)
            await bucket.put(STOP_KEY, reason.encode())
        except (HarchError, NatsError, Unreachable) as error:
            raise HarchError(
                "E0775", f"the ledger of `{self.record.name}` cannot be written: {error}", hint="is its engine running?"
            ) from error
        self._halt_written = (reason, self._clock.monotonic_s())

    async def _hold_halt(self) -> None:
        """A halt of the record stays in the ledger, across restarts and for longer than the ledger remembers. What is
        not halted is left alone: only a person resumes."""
        written, at_s = self._halt_written
        halted = self.record.halted
        if halted and (written != halted or self._clock.monotonic_s() - at_s >= HALT_RENEWED_S):
            await self.write_stop(halted)

    async def _want(self, bucket: NatsBucket, key: str, value: Any) -> None:
        await bucket.put(key, msgspec.json.encode(value))
        self.wake()

    def wake(self) -> None:
        """Workers look at once at what is wanted of them."""
        self._engine.admin(self._engine.main).client.publish(self.names.control, b"look")

    def _config_path(self, worker: str) -> Path:
        return self.folder / "config" / f"{worker}.json"

    def _write_config(self, member: RosterMember) -> None:
        engine, act_engine = self.access(member.stage)
        state = self.folder / "state" / str(self.record.state_version) / member.stage
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = worker_config(
            self.parts,
            member.stage,  # type: ignore[arg-type]
            member.name,
            engine=engine,
            act_engine=act_engine,
            state_folder=str(state),
            share=(member.slot, member.slots),
            state_version=self.record.state_version,
            kept_folder=str(self.folder / KEPT),
        )
        write_config(self._config_path(member.name), config)

    def _renew_access(self) -> None:
        """Where keys run out, files get new ones daily: a worker that was cut off starts again with the new one."""
        life_s = self._engine.place.access_life_s
        if life_s is None:
            return
        oldest_s = self._clock.now().timestamp() - life_s / RENEWALS_PER_LIFE
        for member in self.roster.staying:
            path = self._config_path(member.name)
            if not path.exists() or path.stat().st_mtime < oldest_s:
                self._write_config(member)

    def _read_roster(self) -> WorkerRoster:
        try:
            return msgspec.json.decode(read_sealed(self.folder / "roster.json"), type=WorkerRoster)
        except FileNotFoundError:
            return WorkerRoster()
        except (msgspec.MsgspecError, HarchError):
            log.error("the roster in %s is damaged; restarting all workers", self.folder)
            return WorkerRoster()
