"""May this pipeline be deployed here, and what changes?

A plan with the parts that its workers get, the hosts that it connects to and what becomes of SENSE's state; or every
reason why not. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from harch.base.errors import HarchError
from harch.base.hosts import NamedHost, read_host
from harch.base.rejection import Rejection
from harch.hub.pipelines.values import ALL_STAGES, SCALED, DesiredState, PipelineRecord
from harch.pipelines.act.settings import ActSettings
from harch.pipelines.act.sinks.addresses import sink_hosts
from harch.pipelines.sense.checkpoint import meaning_of
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.gate import MASK_ALL, PolicyTable, stream_mask
from harch.pipelines.sense.settings import MqttSource
from harch.pipelines.sense.state_migration import carry_problems
from harch.pipelines.spec.deployment import Deployment, lane_sizes, plan_deployment, route_of
from harch.pipelines.spec.file import data_tag, parse_pipelines
from harch.pipelines.spec.residency import PipelineHosts, ResidencyProof, model_tags, prove_residency
from harch.pipelines.spec.settings import PipelineSpec, PipelineStageName
from harch.pipelines.spec.update import UpdatePlan, UpdateStep, plan_update
from harch.pipelines.think.settings import RuntimeKind
from harch.pipelines.workers.config import Egress, SourceOptions, WorkerStage
from harch.pipelines.workers.parts import WORKERS_MAX, PipelineParts
from harch.sovereignty.compiled import Rules
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import parse_tag


def lost_state(before: PipelineSpec, after: PipelineSpec) -> tuple[str, ...]:
    """Why what SENSE has saved is of no use any more; nothing: it goes on with it."""
    found = list(carry_problems(meaning_of(before.sense), meaning_of(after.sense)))
    if before.sense.partitions != after.sense.partitions:
        found.append(f"devices move from {before.sense.partitions} to {after.sense.partitions} partitions")
    return tuple(found)


def check_state(before: PipelineSpec, after: PipelineSpec, *, is_running: bool, drop_state: bool) -> None:
    """Raises E0711 for what cannot be done to a pipeline that runs, E0757 for a loss that nobody has agreed to."""
    name = after.name
    lost = lost_state(before, after)
    if lost and is_running:
        raise HarchError(
            "E0711",
            f"`{name}` has open windows that would change meaning: {'; '.join(lost)}",
            hint=f"`harch pipeline drain {name} --wait`, then apply with --drop-state; {_loss(before)} would be lost",
        )
    if is_running and before.sense.event_schema.id != after.sense.event_schema.id:
        raise HarchError(
            "E0711",
            f"the event format of `{name}` changes while events of the old format are in flight",
            hint=f"`harch pipeline drain {name} --wait`, then apply; its windows are kept",
        )
    if lost and not drop_state:
        raise HarchError(
            "E0757",
            f"`{name}` would start without its state: {'; '.join(lost)}",
            hint=f"add --drop-state to discard it: {_loss(before)}",
        )


def _loss(spec: PipelineSpec) -> str:
    windows, forecast = spec.sense.windows, spec.sense.forecast
    open_s = windows.size_s + windows.lateness_s + windows.skew_s
    words = f"counts of open windows, at most the last {open_s:g} s"
    return words + (f", and {forecast.span_s:g} s of history for the forecast" if forecast is not None else "")


# How are the workers of a planned pipeline configured? By its parts, from the file, the plan and the rules. No I/O.


def parts_at(
    spec: PipelineSpec,
    plan: Deployment,
    hub: str,
    rules: Rules,
    jurisdictions: Jurisdictions,
    *,
    policy_version: int,
    model_folder: str = ".",
) -> PipelineParts:
    """The pipeline at one of its hubs, with the workers that the plan puts there."""
    site = rules.terrain.site(hub)
    if site is None:
        raise HarchError("E0305", f"the fleet has no hub `{hub}`", hint="`harch hubs` lists them")
    tag = data_tag(spec, jurisdictions)
    workers: dict[WorkerStage, int] = {}
    for placement in plan.placements:
        if placement.hub == hub:
            workers[placement.stage.value] = placement.workers
            if placement.stage is PipelineStageName.SENSE:
                workers["source"] = 1
    countries = {other.country for other in rules.terrain.sites if other.country is not None}
    return PipelineParts(
        name=spec.name,
        country=plan.country,
        site=site,
        policy=PolicyTable.of(rules, policy_version, tag, hub),
        juris_mask=stream_mask(rules, tag, hub),
        sense=spec.sense,
        think=spec.think,
        act=spec.act,
        workers=workers,
        model_folder=model_folder,
        model_tags=dict(model_tags(spec, jurisdictions)),
        country_bits={country: rules.hubs_in((country,)) & MASK_ALL for country in countries},
        lane="hot" if route_of(spec).is_hot else "durable",
        sizes=lane_sizes(spec),
        source=SourceOptions(
            kept_s=spec.durability.events_kept_s, kept_bytes_max=spec.durability.events_kept_bytes_max
        ),
        exports=bool(spec.exports),
    )


# Which hosts would a pipeline connect to? All of its sinks and sources, as their clients read the addresses.


def hosts_of(spec: PipelineSpec, variables: Mapping[str, str] | None = None) -> PipelineHosts:
    """`variables`: secrets that addresses may stand in. Raises E0776 where a package that reads one is missing."""
    known = variables or {}
    return PipelineHosts(
        sinks={name: sink_hosts(sink, known) for name, sink in (spec.act.sinks if spec.act else {}).items()},
        sources={source.name: (_broker(source),) for source in spec.sense.sources if isinstance(source, MqttSource)},
    )


def _broker(source: MqttSource) -> NamedHost:
    try:
        return NamedHost(field="host", host=read_host(source.host))
    except ValueError as error:
        return NamedHost(field="host", problem=str(error))


# May this pipeline be deployed here, and what changes? A plan, or every reason why not. No I/O.


_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)\Z")


class PlanningContext(Struct, frozen=True, kw_only=True):
    """Where plans are made: this hub, among these, by these rules."""

    hub_id: str
    rules: Rules
    jurisdictions: Jurisdictions
    trace_share: float = 0.0  # of windows that are traced


class PlannedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline that may be. `update` is None for a new one."""

    spec: PipelineSpec
    proof: ResidencyProof
    deployment: Deployment
    update: UpdatePlan | None = None


def read_one(text: bytes, source: str, ground: PlanningContext) -> PipelineSpec:
    """The one pipeline of a file. Raises E0250 with every mistake."""
    specs = parse_pipelines(text, source, ground.jurisdictions)
    if len(specs) > 1:
        hint = "`harch pipeline apply` splits files at `---` and applies one after the other"
        raise HarchError(
            "E0250", f"{source} describes {len(specs)} pipelines; only one is accepted at a time", hint=hint
        )
    return specs[0]


def spec_of(record: PipelineRecord) -> PipelineSpec:
    return msgspec.convert(record.spec, PipelineSpec)


def plain(spec: PipelineSpec) -> dict[str, Any]:
    """As it is stored and shown."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found


def plan(
    spec: PipelineSpec,
    ground: PlanningContext,
    before: PipelineRecord | None = None,
    *,
    released: Iterable[str] = (),
    drop_state: bool = False,
    variables: Mapping[str, str] | None = None,
) -> PlannedPipeline:
    """Proves every edge, then places the stages. `released`: exports whose looser tag an authority has signed.
    `variables`: the tenant's secrets that addresses stand in.

    Raises E0907 with all refusals, E0711, E0712, E0757; E0776 if nothing here can read an address."""
    proof = prove_residency(spec, hosts_of(spec, variables), ground.rules, ground.jurisdictions, declassified=released)
    found = plan_deployment(spec, proof, ground.rules.terrain, scores={ground.hub_id: 1.0})
    if not isinstance(found, Deployment):
        raise refusal(spec.name, found)
    others = sorted({placement.hub for placement in found.placements} - {ground.hub_id})
    if others:
        raise HarchError(
            "E0712",
            f"`{spec.name}` may not run at {ground.hub_id}; its stages would be at {', '.join(others)}",
            hint=f"apply it there: `harch pipeline apply --hub {others[0]} -f …`",
        )
    not_foreign = [taken.hub for taken in spec.imports if _country(ground, taken.hub) in (None, found.country)]
    if not_foreign:
        raise HarchError(
            "E0711",
            f"`{spec.name}` imports from `{not_foreign[0]}`, which is not a hub in another country",
            hint="within a country use one pipeline, or a `nats` source",
        )
    update = None
    if before is not None:
        update = plan_update(spec_of(before), spec, ground.jurisdictions)
        if update.refusals and before.desired is DesiredState.RUN:
            raise _no_update(update)
        check_state(spec_of(before), spec, is_running=before.desired is DesiredState.RUN, drop_state=drop_state)
    return PlannedPipeline(spec=spec, proof=proof, deployment=found, update=update)


def _country(ground: PlanningContext, hub: str) -> str | None:
    site = ground.rules.terrain.site(hub)
    return site.country if site is not None else None


def refusal(name: str, rejections: tuple[Rejection, ...]) -> HarchError:
    """Every edge that may not be, with the nearest fix of each."""
    lines = [
        f"{one.subject}: {one.rule}: {one.detail}" + (f"; {one.nearest_fix}" if one.nearest_fix else "")
        for one in rejections
    ]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} reasons\n" + "\n".join(f"  {line}" for line in lines)
    return HarchError(
        "E0907",
        f"`{name}` may not be deployed: {message}",
        hint=rejections[0].nearest_fix or "see docs/pipelines/spec.md for what is proved of every edge",
        meta={"rejections": [msgspec.to_builtins(one) for one in rejections]},
    )


def _no_update(update: UpdatePlan) -> HarchError:
    lines = [f"{one.rule}: {one.detail}" for one in update.refusals]
    return HarchError(
        "E0711",
        f"`{update.pipeline}` cannot be changed like this while it runs: {'; '.join(lines)}",
        hint=update.refusals[0].nearest_fix,
        meta={"rejections": [msgspec.to_builtins(one) for one in update.refusals]},
    )


def updated(
    record: PipelineRecord, planned: PlannedPipeline, ground: PlanningContext, *, at: str, by: str
) -> PipelineRecord:
    """The record of the next version: which stages get new workers, and whether models are swapped."""
    update = planned.update
    version = record.version + 1
    generations, models = dict(record.generations), record.models_revision
    restart = set() if update is None else {one.stage.value for one in update.stages if one.step in _ANEW}
    if "sense" in restart:
        restart.add("source")
        if _read_by_all(spec_of(record)) != _read_by_all(planned.spec):
            restart |= {"think", "act"}
    if _own_tags(planned.spec) - _own_tags(spec_of(record)):
        restart.add("think")  # a running worker knows the tags of models, and those of versions it was started with
    for stage in restart:
        generations[stage] = version
    if update is not None and any(one.step is UpdateStep.SWAP and one.stage.value == "think" for one in update.stages):
        models = version
    elif "think" in restart:
        models = version  # the wanted roles of the file, also for what an earlier order had changed
    table = policy_table(planned.spec, planned.deployment, ground, record)
    state_version = version if lost_state(spec_of(record), planned.spec) else record.state_version
    swapped = set() if update is None else {one.stage.value for one in update.stages if one.step is UpdateStep.SWAP}
    devices = version if "sense" in swapped else record.devices_revision
    fixed = {stage: count for stage, count in record.fixed.items() if stage in planned.spec.stages}
    return structs.replace(
        record,
        version=version,
        spec=plain(planned.spec),
        desired=DesiredState.RUN,
        generations=generations,
        models_revision=models,
        fixed=fixed,
        state_version=state_version,
        devices_revision=devices,
        policy_version=table.version,
        policy_bits=table.bits,
        applied_at=at,
        applied_by=by,
    )


def _own_tags(spec: PipelineSpec) -> set[tuple[str, str]]:
    models = spec.think.models if spec.think else ()
    return {(model.name, one.version) for model in models for one in model.versions if one.tag is not None}


_ANEW = (UpdateStep.RESTART, UpdateStep.START)


def _read_by_all(spec: PipelineSpec) -> tuple[object, ...]:
    """What THINK and ACT need to know of SENSE: the columns of features, and the names of devices."""
    return (feature_schema(spec.sense), spec.sense.devices, spec.sense.metrics, spec.sense.partitions)


def policy_table(
    spec: PipelineSpec, deployment: Deployment, ground: PlanningContext, record: PipelineRecord
) -> PolicyTable:
    """The numbering of hubs for this pipeline. Another numbering than the stored one gets the next version."""
    parts = parts_at(spec, deployment, ground.hub_id, ground.rules, ground.jurisdictions, policy_version=1)
    same = not record.policy_bits or record.policy_bits == parts.policy.bits
    version = record.policy_version if same else record.policy_version + 1
    return structs.replace(parts.policy, version=version)


def parts_of(
    record: PipelineRecord,
    planned: PlannedPipeline,
    ground: PlanningContext,
    model_folder: str,
    keys_sha256: Mapping[str, str] | None = None,
) -> PipelineParts:
    """`keys_sha256`: by source that listens, the digest of its key. One without takes nothing."""
    found = parts_at(
        planned.spec,
        planned.deployment,
        ground.hub_id,
        ground.rules,
        ground.jurisdictions,
        policy_version=record.policy_version,
        model_folder=model_folder,
    )
    tags = found.model_tags | {
        model.name: parse_tag(model.tag or planned.spec.jurisdiction, ground.jurisdictions, where="tag")
        for model in (planned.spec.think.models if planned.spec.think else ())
    }  # by name too: versions that come later have no other
    proof = planned.proof
    return structs.replace(
        found,
        act=_with_countries(found.act, proof.sinks),
        enrichment=record.enrichment,
        model_tags=tags,
        trace_share=ground.trace_share,
        source=structs.replace(found.source, keys_sha256=dict(keys_sha256 or {})),
        egress=Egress(places=ground.jurisdictions.places, sinks=dict(proof.sinks), sources=dict(proof.sources)),
    )


def _with_countries(act: ActSettings | None, proved: Mapping[str, str]) -> ActSettings | None:
    """Workers compare each command with the country that was proved, whether the file names it or not."""
    if act is None:
        return None
    sinks = {name: structs.replace(sink, country=proved.get(name, "")) for name, sink in act.sinks.items()}
    return structs.replace(act, sinks=sinks)


def first_record(
    planned: PlannedPipeline, ground: PlanningContext, *, tenant: str, version: int, at: str, by: str
) -> PipelineRecord:
    record = PipelineRecord(
        name=planned.spec.name,
        tenant=tenant,
        version=version,
        spec=plain(planned.spec),
        generations=dict.fromkeys(ALL_STAGES, version),
        state_version=version,
        created_at=at,
        applied_at=at,
        applied_by=by,
    )
    table = policy_table(planned.spec, planned.deployment, ground, record)
    return structs.replace(record, policy_version=table.version, policy_bits=table.bits)


def secrets_named(spec: Mapping[str, Any], *, leaving_out: str = "") -> tuple[str, ...]:
    """Names of secrets that sources and sinks read: `env:NAME` anywhere, and what stands in `…_secret` or `…_env`."""
    found: dict[str, None] = {}

    def look(value: object, key: str = "") -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name != leaving_out:
                    look(inner, str(name))
        elif isinstance(value, list | tuple):
            for inner in value:
                look(inner)
        elif isinstance(value, str):
            if match := _ENV.match(value):
                found[match[1]] = None
            elif key.endswith(("_secret", "_env")) and value:
                found[value] = None

    look(spec)
    return tuple(found)


def files_named(spec: PipelineSpec) -> dict[str, str | None]:
    """Files that models are made of, with the hash that each must have: ONNX by path, Python by its module."""
    found: dict[str, str | None] = {}
    for model in spec.think.models if spec.think else ():
        for version in model.versions:
            if version.runtime is RuntimeKind.ONNX:
                found[version.path or ""] = version.sha256
            elif version.callable:
                module = version.callable.partition(":")[0]
                found[f"{module.replace('.', '/')}.py"] = version.sha256
    return found


def with_counts(record: PipelineRecord, counts: Mapping[str, int | None]) -> dict[str, int]:
    """Numbers that people have set, with these; None gives a stage back to its load. Raises E0201."""
    spec, fixed = spec_of(record), dict(record.fixed)
    for stage, count in counts.items():
        if problem := scale_problem(spec, stage, 1 if count is None else count, WORKERS_MAX):
            raise HarchError("E0201", problem, hint="e.g. `harch pipeline scale NAME think=2`, or `think=auto`")
        if count is None:
            fixed.pop(stage, None)
        else:
            fixed[stage] = count
    return fixed


def scale_problem(spec: PipelineSpec, stage: str, count: int, workers_max: int) -> str:
    """Why a stage cannot have so many workers; empty if it can."""
    if stage not in SCALED or stage not in spec.stages:
        return f"`{spec.name}` has no stage `{stage}` to scale"
    most = min(workers_max, spec.sense.partitions) if stage == "sense" else workers_max
    return "" if 1 <= count <= most else f"{count} workers of {stage}; allowed: 1 to {most}"
