"""What makes a pipeline, all of it? The parts of its specification with everything about its place, and the
configuration of each worker that follows from them. No I/O."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from harch.pipelines.act.settings import ActSettings
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.think.settings import ThinkSettings
from harch.pipelines.workers.config import (
    ActOptions,
    Egress,
    EngineAccess,
    LeaseSettings,
    SourceOptions,
    ThinkOptions,
    WorkerConfig,
    WorkerStage,
)
from harch.pipelines.workers.deployment import LaneSizes
from harch.pipelines.workers.names import PipelineNames, StageRoute, names_of
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import Tag

WORKERS_MAX = 64  # of one stage on one machine


class PipelineParts(Struct, frozen=True, kw_only=True):
    """One pipeline at one hub. `workers`: how many of each stage; `fused` in place of `sense` and `think`.

    With `fused` and without `act` workers, the fused ones act too."""

    name: str
    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")]
    site: LegalSite
    policy: PolicyTable
    juris_mask: int
    sense: SenseSettings
    think: ThinkSettings | None = None  # without: rules of ACT read features, or features are the result
    act: ActSettings | None = None  # without: what the last stage makes goes to the lane of results
    workers: dict[WorkerStage, int] = field(default_factory=lambda: {"source": 1, "sense": 1, "think": 1, "act": 1})
    model_folder: str = "."
    model_tags: dict[str, Tag] = {}
    enrichment: dict[str, dict[str, float]] = {}
    country_bits: dict[str, int] = {}
    egress: Egress = Egress()
    lane: Literal["durable", "hot"] = "durable"
    exports: bool = False
    sizes: LaneSizes = LaneSizes()
    leases: LeaseSettings = LeaseSettings()
    source: SourceOptions = SourceOptions()
    thinking: ThinkOptions = ThinkOptions()
    acting: ActOptions = ActOptions()
    status_every_s: float = 1.0
    trace_share: float = 0.0  # of windows that are traced
    seed: int = 0

    @property
    def names(self) -> PipelineNames:
        return names_of(self.country, self.name)

    @property
    def route(self) -> StageRoute:
        thinks = self.think is not None
        return StageRoute(thinks=thinks, acts=self.act is not None, is_hot=thinks and self.lane == "hot")

    @property
    def sensing_stage(self) -> WorkerStage:
        """Who holds the partitions."""
        return "fused" if self.workers.get("fused") else "sense"

    @property
    def fused_acts(self) -> bool:
        return self.act is not None and bool(self.workers.get("fused")) and not self.workers.get("act")


def worker_config(
    parts: PipelineParts,
    stage: WorkerStage,
    worker: str,
    *,
    engine: EngineAccess,
    act_engine: EngineAccess,
    state_folder: str,
    share: tuple[int, int] = (0, 1),
    state_version: int = 0,
    kept_folder: str = "",
) -> WorkerConfig:
    """The configuration of one worker: only the parts that it needs."""
    thinks = stage in ("think", "fused", "replay")
    acts = stage in ("act", "replay") or (stage == "fused" and parts.fused_acts)
    return WorkerConfig(
        worker=worker,
        stage=stage,
        pipeline=parts.name,
        country=parts.country,
        site=parts.site,
        policy=parts.policy,
        juris_mask=parts.juris_mask,
        sense=parts.sense,
        think=parts.think if thinks else None,
        act=parts.act if acts else None,
        engine=engine,
        act_engine=act_engine,
        state_folder=state_folder,
        kept_folder=kept_folder,
        model_folder=parts.model_folder,
        model_tags=parts.model_tags if thinks else {},
        enrichment=parts.enrichment,
        country_bits=parts.country_bits,
        egress=egress_of(parts, stage),
        lane=parts.lane,
        exports=parts.exports,
        route=parts.route,
        state_version=state_version,
        leases=parts.leases,
        source=parts.source,
        thinking=parts.thinking,
        acting=parts.acting,
        share=share,
        status_every_s=parts.status_every_s,
        trace_share=parts.trace_share,
        seed=parts.seed,
    )


def access_digest(parts: PipelineParts, stage: str) -> str:
    """Whom a worker of this stage may reach, and who may reach it; empty if nobody. Another digest is another worker:
    an operator who takes a place or a key back wants no worker to go on with it."""
    about = (egress_of(parts, stage), parts.source.keys_sha256 if stage == "source" else {})
    return (
        "" if about == (Egress(), {}) else hashlib.sha256(msgspec.json.encode(about, order="sorted")).hexdigest()[:16]
    )


def egress_of(parts: PipelineParts, stage: str) -> Egress:
    """What a stage may connect to; most stages connect to nobody outside."""
    reads, acts = stage == "source", stage == "act" or (stage == "fused" and parts.fused_acts)
    if not reads and not acts:
        return Egress()
    return Egress(
        places=parts.egress.places,
        sinks=parts.egress.sinks if acts else {},
        sources=parts.egress.sources if reads else {},
    )
