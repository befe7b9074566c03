"""What does a changed file change, and which stages stay as they are? Two specifications in, a plan out. No I/O."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct, structs

from harch.base.rejection import Rejection
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.spec.file import data_tag
from harch.pipelines.spec.settings import Durability, PipelineSpec, PipelineStageName
from harch.pipelines.think.settings import ModelSettings, ThinkSettings
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import loosens

DEVICES_BYTES_MAX = 4 << 20  # of a table that is sent to running workers


class UpdateStep(StrEnum):
    """From the gentlest to the hardest. Each stage gets the hardest that any change of it needs."""

    KEEP = "keep"  # goes on as it is
    SCALE = "scale"  # workers come or go; the others go on
    SWAP = "swap"  # models change between two batches, or devices are added, and nothing restarts
    RESTART = "restart"  # a new worker takes each lease at a batch boundary
    START = "start"
    STOP = "stop"


_ORDER = {step: number for number, step in enumerate(UpdateStep)}


class StageUpdate(Struct, frozen=True, kw_only=True):
    stage: PipelineStageName
    step: UpdateStep
    because: tuple[str, ...]  # fields that changed


class UpdatePlan(Struct, frozen=True, kw_only=True):
    """`proof_again`: where data may be has changed, so residency is proved anew before anything is done."""

    pipeline: str
    stages: tuple[StageUpdate, ...]
    proof_again: bool
    streams_change: bool
    borders_change: bool
    refusals: tuple[Rejection, ...]

    @property
    def changes_nothing(self) -> bool:
        steps = all(update.step is UpdateStep.KEEP for update in self.stages)
        return steps and not (self.streams_change or self.borders_change or self.proof_again)


def plan_update(old: PipelineSpec, new: PipelineSpec, jurisdictions: Jurisdictions) -> UpdatePlan:
    """Which stage is touched, how, and why; and what cannot be done to a pipeline that runs."""
    wanted: dict[PipelineStageName, list[tuple[UpdateStep, str]]] = {stage: [] for stage in PipelineStageName}
    for stage, step, why in _changes(old, new):
        wanted[stage].append((step, why))
    stages = []
    for stage in PipelineStageName:
        found = wanted[stage]
        if stage in old.stages or stage in new.stages:
            step = max((step for step, _ in found), key=_ORDER.__getitem__, default=UpdateStep.KEEP)
            stages.append(StageUpdate(stage=stage, step=step, because=tuple(dict.fromkeys(why for _, why in found))))
    return UpdatePlan(
        pipeline=old.name,
        stages=tuple(stages),
        proof_again=_places(old) != _places(new),
        streams_change=old.durability != new.durability or old.stages != new.stages,
        borders_change=old.exports != new.exports,
        refusals=tuple(_refusals(old, new, jurisdictions)),
    )


def _places(spec: PipelineSpec) -> tuple[object, ...]:
    sinks = spec.act.sinks if spec.act else {}
    stage_hubs = tuple(spec.scaling.of(stage).hubs for stage in PipelineStageName)
    return (
        spec.jurisdiction,
        spec.hubs,
        spec.origins,
        stage_hubs,
        spec.sense.sources,
        sinks,
        spec.exports,
        spec.stages,
    )


def _changes(old: PipelineSpec, new: PipelineSpec) -> Iterator[tuple[PipelineStageName, UpdateStep, str]]:
    for stage in PipelineStageName:
        before, after = getattr(old, stage.value), getattr(new, stage.value)
        if before is None or after is None:
            if before is not after:
                yield stage, UpdateStep.START if before is None else UpdateStep.STOP, stage.value
            continue
        if before != after:
            step = (
                UpdateStep.SWAP if _only_versions(before, after) or _only_devices(before, after) else UpdateStep.RESTART
            )
            yield from ((stage, step, f"{stage}.{name}") for name in _differing(before, after))
        if old.scaling.of(stage) != new.scaling.of(stage):
            moved = old.scaling.of(stage).hubs != new.scaling.of(stage).hubs
            yield stage, UpdateStep.RESTART if moved else UpdateStep.SCALE, f"scaling.{stage}"
        for name in ("jurisdiction", "hubs"):
            if getattr(old, name) != getattr(new, name):
                yield stage, UpdateStep.RESTART, name
    if old.origins != new.origins:
        yield PipelineStageName.SENSE, UpdateStep.RESTART, "origins"
    for name in ("events_kept_s", "events_kept_bytes_max"):
        if getattr(old.durability, name) != getattr(new.durability, name):
            yield PipelineStageName.SENSE, UpdateStep.RESTART, f"durability.{name}"
    if old.exports != new.exports:
        step = (
            UpdateStep.RESTART if bool(old.exports) != bool(new.exports) else UpdateStep.KEEP
        )  # SENSE makes copies, or does not
        yield PipelineStageName.SENSE, step, "exports"
    for before_stage, stage in pairwise(new.stages):  # both ends of a lane must agree on what it is
        if getattr(old.durability, stage.value) != getattr(new.durability, stage.value):
            yield before_stage, UpdateStep.RESTART, f"durability.{stage}"
            yield stage, UpdateStep.RESTART, f"durability.{stage}"


def _only_versions(before: object, after: object) -> bool:
    """Models that differ in versions, canary share or rollback rules are swapped between two batches."""
    if not isinstance(before, ThinkSettings) or not isinstance(after, ThinkSettings):
        return False
    return [_frame(model) for model in before.models] == [_frame(model) for model in after.models]


def _only_devices(before: object, after: object) -> bool:
    """Devices that are added at the end are taken up by workers that run; a table too long for one message is not."""
    if not isinstance(before, SenseSettings) or not isinstance(after, SenseSettings):
        return False
    grown = after.devices[: len(before.devices)] == before.devices
    small = sum(len(name.encode()) + 3 for name in after.devices) <= DEVICES_BYTES_MAX
    return grown and small and structs.replace(after, devices=before.devices) == before


def _frame(model: ModelSettings) -> tuple[object, ...]:
    """What a running stage cannot exchange under its feet."""
    return (model.name, model.inputs, model.outputs, model.tag, model.device, model.threads, model.batching)


def _differing(before: Struct, after: Struct) -> list[str]:
    return [name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)]


def _refusals(old: PipelineSpec, new: PipelineSpec, jurisdictions: Jurisdictions) -> Iterator[Rejection]:
    if old.name != new.name:
        yield Rejection(
            old.name, "name", f"the new file defines `{new.name}`", "that is a different pipeline: apply it"
        )
    if old.sense.partitions != new.sense.partitions:
        yield Rejection(
            old.name,
            "partitions",
            f"devices would move between {old.sense.partitions} and {new.sense.partitions} partitions, along with "
            "their state",
            f"drain it first: `harch pipeline drain {old.name}`, then apply",
        )
    if old.stages != new.stages:
        yield Rejection(
            old.name,
            "stages",
            "work in flight was made for " + " -> ".join(old.stages) + ", not for " + " -> ".join(new.stages),
            f"drain it first: `harch pipeline drain {old.name}`, then apply",
        )
    if loosens(data_tag(old, jurisdictions), data_tag(new, jurisdictions)):
        yield Rejection(
            old.name,
            "declassification",
            "the new tag permits more than the old one, under which the stored data was accepted",
            "get it signed (`harch data declassify`), or create a pipeline with another name",
        )
    if old.durability.act is Durability.SYNCED and new.durability.act is not Durability.SYNCED and new.act is not None:
        yield Rejection(
            old.name,
            "durability",
            "actions in flight are in the synced ledger and would be lost",
            f"drain it first: `harch pipeline drain {old.name}`, then apply",
        )
