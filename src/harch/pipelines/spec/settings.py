"""What does a pipeline file say? One value for the whole of it; SENSE, THINK and ACT own their parts."""

# harch: pure

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
        description="1 to 48 lower-case letters, digits and dashes, no dash first or last.",
    ),
]
Country = Annotated[str, Meta(pattern="^[A-Z]{2}$", description="ISO 3166-1 alpha-2 code, e.g. MA, SN, CI.")]
HubId = Annotated[str, Meta(min_length=1, max_length=64)]
TagInput = Annotated[
    dict[str, Any], Meta(description="What is permitted and where, as for data: docs/reference/tags.md.")
]
FeatureName = Annotated[str, Meta(min_length=1, max_length=128)]
Workers = Annotated[int, Meta(ge=1, le=WORKERS_MAX)]


class PipelineStageName(StrEnum):
    SENSE = "sense"
    THINK = "think"
    ACT = "act"


class ScalingSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many workers a stage has. Between the two, by lag and latency; equal numbers switch that off."""

    workers_min: Annotated[Workers, Meta(description="Minimum workers.")] = 1
    workers_max: Annotated[Workers, Meta(description="Maximum workers.")] = 1
    lag_s_target: Annotated[
        float, Meta(gt=0, le=3600, description="Add workers while the oldest pending batch is older than this.")
    ] = 1.0
    grow_cooldown_s: Annotated[
        float, Meta(ge=0, le=3600, description="Time to wait after a change before adding more workers.")
    ] = 10.0
    shrink_cooldown_s: Annotated[float, Meta(ge=0, le=86_400, description="Idle time before a worker is removed.")] = (
        120.0
    )
    hubs: Annotated[
        tuple[HubId, ...], Meta(max_length=64, description="Where this stage may run; empty: as for the pipeline.")
    ] = ()


class Scaling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sense: Annotated[ScalingSettings, Meta(description="Workers of SENSE.")] = ScalingSettings()
    think: Annotated[ScalingSettings, Meta(description="Workers of THINK.")] = ScalingSettings()
    act: Annotated[ScalingSettings, Meta(description="Workers of ACT.")] = ScalingSettings()

    def of(self, stage: PipelineStageName) -> ScalingSettings:
        found: ScalingSettings = getattr(self, stage.value)
        return found


class LatencySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A promise per hub: between hubs alone lie 8 to 45 ms. Missing it alerts, and scales where scaling may."""

    p99_ms_target: Annotated[
        float, Meta(gt=0, le=3_600_000, description="Time from the first event of a batch to the acknowledged action.")
    ] = 1000.0
    one_hub: Annotated[bool, Meta(description="Run all stages at one hub, or not at all.")] = False


class Durability(StrEnum):
    """How safe a message is before its sender goes on."""

    HOT = "hot"  # on its way; lost if nobody listens, for features that the next window replaces
    STORED = "stored"  # acknowledged by JetStream, on disk within two minutes
    SYNCED = "synced"  # on disk before it is acknowledged


class DurabilitySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lane into each stage, and how many copies of what is kept."""

    think: Annotated[Durability, Meta(description="From SENSE to THINK: hot or stored.")] = Durability.STORED
    act: Annotated[Durability, Meta(description="From THINK to ACT, and ACT's ledger: stored or synced.")] = (
        Durability.SYNCED
    )
    replicas: Annotated[Literal[1, 3], Meta(description="Copies of streams; 3 needs three servers in the country.")] = 1
    stream_bytes_max: Annotated[int, Meta(ge=_MIB, le=1 << 40, description="Limit of each stored lane.")] = 64 * _MIB
    state_bytes_max: Annotated[int, Meta(ge=_MIB, le=1 << 40, description="Limit of checkpoints and ledger.")] = (
        64 * _MIB
    )
    dead_letters_bytes_max: Annotated[int, Meta(ge=_MIB, le=1 << 40, description="Limit of dead letters.")] = 16 * _MIB
    events_kept_s: Annotated[
        float, Meta(ge=0, le=365 * 86_400, description="Retention of accepted events for replays; 0: not kept.")
    ] = 0.0
    events_kept_bytes_max: Annotated[
        int, Meta(ge=_MIB, le=1 << 44, description="Limit of kept events; the oldest are deleted first.")
    ] = 1 << 30


class ExportSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate that leaves the jurisdiction. A tag that permits more than the data's needs a declassification."""

    name: Name
    to: Annotated[tuple[Country, ...], Meta(min_length=1, max_length=64, description="Countries that receive it.")]
    tag: Annotated[TagInput | None, Meta(description="Tag of the aggregate; absent: the tag of the data.")] = None
    columns: Annotated[
        tuple[FeatureName, ...], Meta(max_length=256, description="Features to export; absent: all.")
    ] = ()
    declassification: Annotated[
        dict[str, Any] | None, Meta(description="Signed statement for a looser tag, from `harch pipeline sign`.")
    ] = None


class ImportSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An aggregate of another country that comes in, through an HTTP source of this pipeline."""

    hub: Annotated[HubId, Meta(description="Hub of the exporting pipeline.")]
    pipeline: Annotated[Name, Meta(description="Exporting pipeline.")]
    export: Annotated[Name, Meta(description="Name of the export.")]
    source: Annotated[Name, Meta(description="HTTP source that receives it; its `rows` map the features.")]


class PipelineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream that becomes an action: where it may be, what comes in, what is computed, what is done."""

    name: Name
    jurisdiction: Annotated[TagInput, Meta(description="The tag of its data: countries, frameworks, borders.")]
    sense: Annotated[SenseSettings, Meta(description="Sources, schema, windows: docs/pipelines/sense.md.")]
    think: Annotated[ThinkSettings | None, Meta(description="Models: docs/pipelines/think.md. Absent: none.")] = None
    act: Annotated[ActSettings | None, Meta(description="Actions: docs/pipelines/act.md. Absent: none.")] = None
    hubs: Annotated[
        tuple[HubId, ...], Meta(max_length=64, description="Hubs it may use; empty: all that its data allows.")
    ] = ()
    origins: Annotated[
        dict[str, Country],
        Meta(max_length=64, description="Country of each source by name; absent: that of the receiving hub."),
    ] = {}
    scaling: Annotated[Scaling, Meta(description="Workers per stage.")] = Scaling()
    latency: Annotated[LatencySettings, Meta(description="Latency targets.")] = LatencySettings()
    durability: Annotated[DurabilitySettings, Meta(description="Durability of streams and state.")] = (
        DurabilitySettings()
    )
    exports: Annotated[
        tuple[ExportSettings, ...], Meta(max_length=EXPORTS_MAX, description="Aggregates that cross borders.")
    ] = ()
    imports: Annotated[
        tuple[ImportSettings, ...], Meta(max_length=IMPORTS_MAX, description="Aggregates of other countries.")
    ] = ()

    @property
    def stages(self) -> tuple[PipelineStageName, ...]:
        """In the order in which events pass them."""
        present = {
            PipelineStageName.SENSE: True,
            PipelineStageName.THINK: self.think is not None,
            PipelineStageName.ACT: self.act is not None,
        }
        return tuple(stage for stage in PipelineStageName if present[stage])
