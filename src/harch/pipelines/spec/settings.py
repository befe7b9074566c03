"""What does a pipeline file say? One value for the whole of it; SENSE, THINK and ACT own their parts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from harch.pipelines.act.settings import ActSettings
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.think.settings import ThinkSettings

WORKERS_MAX = 256
EXPORTS_MAX = IMPORTS_MAX = 32
_MIB = 1 << 20

Name = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$",
        description="1 to 48 small letters, digits and dashes, no dash first or last.",
    ),
]
Country = Annotated[str, Meta(pattern="^[A-Z]{2}$", description="ISO 3166-1 alpha-2 code, e.g. MA, SN, CI.")]
HubId = Annotated[str, Meta(min_length=1, max_length=64)]
TagInput = Annotated[
    dict[str, Any], Meta(description="What is permitted, and where, as on data: docs/reference/tags.md.")
]
FeatureName = Annotated[str, Meta(min_length=1, max_length=128)]
Workers = Annotated[int, Meta(ge=1, le=WORKERS_MAX)]


class StageName(StrEnum):
    SENSE = "sense"
    THINK = "think"
    ACT = "act"


class ScalingSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many workers a stage has. Between the two, by lag and latency; equal numbers switch that off."""

    workers_min: Annotated[Workers, Meta(description="Never fewer.")] = 1
    workers_max: Annotated[Workers, Meta(description="Never more.")] = 1
    lag_s_target: Annotated[
        float, Meta(gt=0, le=3600, description="More workers while the oldest waiting batch is older than this.")
    ] = 1.0
    grow_cooldown_s: Annotated[
        float, Meta(ge=0, le=3600, description="How long a change is watched before more workers are added.")
    ] = 10.0
    shrink_cooldown_s: Annotated[
        float, Meta(ge=0, le=86_400, description="How long it must be quiet before one worker is taken away.")
    ] = 120.0
    hubs: Annotated[
        tuple[HubId, ...], Meta(max_length=64, description="Where this stage may run; empty: as the pipeline says.")
    ] = ()


class Scaling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sense: Annotated[ScalingSettings, Meta(description="Workers of SENSE.")] = ScalingSettings()
    think: Annotated[ScalingSettings, Meta(description="Workers of THINK.")] = ScalingSettings()
    act: Annotated[ScalingSettings, Meta(description="Workers of ACT.")] = ScalingSettings()

    def of(self, stage: StageName) -> ScalingSettings:
        found: ScalingSettings = getattr(self, stage.value)
        return found


class LatencySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A promise per hub: between hubs alone lie 8 to 45 ms. Missing it alerts, and scales where scaling may."""

    p99_ms_target: Annotated[
        float, Meta(gt=0, le=3_600_000, description="From the first event of a batch to the acknowledged action.")
    ] = 1000.0
    one_hub: Annotated[bool, Meta(description="All stages at one hub, or not at all.")] = False


class Lane(StrEnum):
    """How safe a message is before its sender goes on."""

    HOT = "hot"  # on its way; lost if nobody listens, for features that the next window replaces
    STORED = "stored"  # acknowledged by JetStream, on disk within two minutes
    SYNCED = "synced"  # on disk before it is acknowledged


class DurabilitySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lane into each stage, and how many copies of what is kept."""

    think: Annotated[Lane, Meta(description="From SENSE to THINK: hot or stored.")] = Lane.STORED
    act: Annotated[Lane, Meta(description="From THINK to ACT, and ACT's ledger: stored or synced.")] = Lane.SYNCED
    replicas: Annotated[Literal[1, 3], Meta(description="Copies of streams; 3 needs three servers in the country.")] = 1
    stream_bytes_max: Annotated[int, Meta(ge=_MIB, le=1 << 40, description="Of each stored lane.")] = 64 * _MIB
    state_bytes_max: Annotated[int, Meta(ge=_MIB, le=1 << 40, description="Of checkpoints and of the ledger.")] = (
        64 * _MIB
    )
    dead_letters_bytes_max: Annotated[int, Meta(ge=_MIB, le=1 << 40, description="Of what was given up.")] = 16 * _MIB
    events_kept_s: Annotated[
        float, Meta(ge=0, le=365 * 86_400, description="How long accepted events are kept for replays; 0: not at all.")
    ] = 0.0
    events_kept_bytes_max: Annotated[
        int, Meta(ge=_MIB, le=1 << 44, description="Of kept events; the oldest go first.")
    ] = 1 << 30


class ExportSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate that leaves the jurisdiction. A tag that permits more than the data's needs a declassification."""

    name: Name
    to: Annotated[tuple[Country, ...], Meta(min_length=1, max_length=64, description="Countries that receive it.")]
    tag: Annotated[TagInput | None, Meta(description="What the aggregate permits; absent: what the data permits.")] = (
        None
    )
    columns: Annotated[
        tuple[FeatureName, ...], Meta(max_length=256, description="Features that leave; absent: all of them.")
    ] = ()
    declassification: Annotated[
        dict[str, Any] | None, Meta(description="Signed statement for a looser tag, from `harch pipeline sign`.")
    ] = None


class ImportSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate of another country that comes in, through an HTTP source of this pipeline."""

    hub: Annotated[HubId, Meta(description="Where the pipeline runs that exports it.")]
    pipeline: Annotated[Name, Meta(description="The pipeline that exports it.")]
    export: Annotated[Name, Meta(description="The name of the export.")]
    source: Annotated[Name, Meta(description="The HTTP source that takes it; its `rows` say which feature is what.")]


class PipelineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream that becomes an action: where it may be, what comes in, what is computed, what is done."""

    name: Name
    jurisdiction: Annotated[TagInput, Meta(description="The tag of its data: countries, frameworks, borders.")]
    sense: Annotated[SenseSettings, Meta(description="Sources, schema, windows: docs/pipelines/sense.md.")]
    think: Annotated[ThinkSettings | None, Meta(description="Models: docs/pipelines/think.md. Absent: none.")] = None
    act: Annotated[ActSettings | None, Meta(description="Actions: docs/pipelines/act.md. Absent: none.")] = None
    hubs: Annotated[
        tuple[HubId, ...], Meta(max_length=64, description="Hubs that it may use; empty: all that its data allows.")
    ] = ()
    origins: Annotated[
        dict[str, Country],
        Meta(max_length=64, description="Country of a source by its name; absent: that of the hub that takes it in."),
    ] = {}
    scaling: Annotated[Scaling, Meta(description="Workers per stage.")] = Scaling()
    latency: Annotated[LatencySettings, Meta(description="How soon.")] = LatencySettings()
    durability: Annotated[DurabilitySettings, Meta(description="How safe.")] = DurabilitySettings()
    exports: Annotated[
        tuple[ExportSettings, ...], Meta(max_length=EXPORTS_MAX, description="Aggregates that cross borders.")
    ] = ()
    imports: Annotated[
        tuple[ImportSettings, ...], Meta(max_length=IMPORTS_MAX, description="Aggregates of other countries.")
    ] = ()

    @property
    def stages(self) -> tuple[StageName, ...]:
        """In the order in which events pass them."""
        present = {StageName.SENSE: True, StageName.THINK: self.think is not None, StageName.ACT: self.act is not None}
        return tuple(stage for stage in StageName if present[stage])
