"""What has to be where for this pipeline to run? A plan from its specification and the proof of its residency. No I/O.

A pipeline lives in one country: between countries the message engine carries exports only. Inside it, stages share one
hub if they may, because a hop to another costs more than all stages together.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from harch.base.rejection import Rejection
from harch.pipelines.engine.streams import ConsumerSpec, StreamSpec, Wanted, bucket_stream
from harch.pipelines.engine.users import StageGrant, export_root, juris_root
from harch.pipelines.sense.source_settings import NatsSource
from harch.pipelines.spec.residency import ResidencyProof
from harch.pipelines.spec.settings import Lane, PipelineSpec, StageName
from harch.sovereignty.routes import quickest_way
from harch.sovereignty.terrain import Terrain

ACK_WAIT_S = 30.0
DELIVERIES_MAX = 5
NEVER_MS = 1e9


class StagePlacement(Struct, frozen=True, kw_only=True):
    """One stage at one hub. `partitions[i]` are those of worker number i; together they are all, each once."""

    stage: StageName
    hub: str
    workers: int
    partitions: tuple[tuple[int, ...], ...]
    listens: tuple[str, ...]
    speaks: tuple[str, ...]


class DomainShare(Struct, frozen=True, kw_only=True):
    """What one domain of the message engine must have for this pipeline: streams, consumers, users."""

    domain: str
    synced: bool
    wanted: Wanted
    grants: tuple[StageGrant, ...]


class Deployment(Struct, frozen=True, kw_only=True):
    """The whole plan, to be printed, compared and applied."""

    pipeline: str
    country: str
    placements: tuple[StagePlacement, ...]
    domains: tuple[DomainShare, ...]
    exports: Mapping[str, tuple[str, ...]]  # subject to countries that receive it
    rtt_ms: float  # between the hubs of its stages; 0 if all are at one


def plan_deployment(
    spec: PipelineSpec, proof: ResidencyProof, terrain: Terrain, *, scores: Mapping[str, float] | None = None
) -> Deployment | tuple[Rejection, ...]:
    """`scores`: which hubs are welcome, higher first, among ways that are equally short. Refuses what is not proved."""
    if not proof.holds:
        return proof.rejections
    chosen = _choose_hubs(spec, proof, terrain, scores or {})
    if isinstance(chosen, Rejection):
        return (chosen,)
    hubs, rtt_ms = chosen
    site = terrain.site(hubs[spec.stages[0]])
    country = (site.country if site is not None else None) or ""
    return Deployment(
        pipeline=spec.name,
        country=country,
        placements=tuple(_placement(spec, stage, hubs[stage], country) for stage in spec.stages),
        domains=_domains(spec, country),
        exports={f"{export_root(country)}.{spec.name}.{export.name}": export.to for export in spec.exports},
        rtt_ms=rtt_ms,
    )


def shared_partitions(partitions: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """Partition p belongs to worker p modulo workers: equal shares, and adding one worker moves few."""
    return tuple(tuple(range(first, partitions, workers)) for first in range(workers))


def _choose_hubs(
    spec: PipelineSpec, proof: ResidencyProof, terrain: Terrain, scores: Mapping[str, float]
) -> tuple[dict[StageName, str], float] | Rejection:
    """The shortest way through the stages that stays in one country; then the best score; then the names."""
    best: dict[str, tuple[float, float, tuple[str, ...]]] = {
        hub: (0.0, -scores.get(hub, 0.0), (hub,)) for hub in proof.hubs[spec.stages[0]]
    }
    for _, after in pairwise(spec.stages):
        reached: dict[str, tuple[float, float, tuple[str, ...]]] = {}
        for hub in proof.hubs[after]:
            ways = [
                (rtt_ms + _rtt_ms(proof, terrain, way[-1], hub), score - scores.get(hub, 0.0), (*way, hub))
                for rtt_ms, score, way in best.values()
                if _same_country(terrain, way[-1], hub)
            ]
            if ways:
                reached[hub] = min(ways)
        best = reached
    shortest = min(best.values(), default=None)
    if shortest is None or shortest[0] >= NEVER_MS:
        return Rejection(
            spec.name,
            "country",
            "its stages may only run in different countries, and streams do not leave theirs",
            "let one country process all of it, or make two pipelines and export an aggregate",
        )
    return dict(zip(spec.stages, shortest[2], strict=True)), shortest[0]


def _same_country(terrain: Terrain, one: str, other: str) -> bool:
    sites = terrain.site(one), terrain.site(other)
    return sites[0] is not None and sites[1] is not None and sites[0].country == sites[1].country


def _rtt_ms(proof: ResidencyProof, terrain: Terrain, one: str, other: str) -> float:
    way = quickest_way(terrain, proof.tag, one, other)
    return NEVER_MS if way is None else sum(passage.rtt_ms for passage in way)


def _placement(spec: PipelineSpec, stage: StageName, hub: str, country: str) -> StagePlacement:
    workers = spec.scaling.of(stage).workers_min
    return StagePlacement(
        stage=stage,
        hub=hub,
        workers=workers,
        partitions=shared_partitions(spec.sense.partitions, workers),
        listens=_listens(spec, stage, country),
        speaks=_speaks(spec, stage, country),
    )


def _root(spec: PipelineSpec, country: str) -> str:
    return f"{juris_root(country)}.{spec.name}"


def _listens(spec: PipelineSpec, stage: StageName, country: str) -> tuple[str, ...]:
    root = _root(spec, country)
    found = [f"{root}.{stage}.*"] if _lane(spec, stage) is Lane.HOT else []
    if stage is StageName.SENSE:
        found += [source.subject for source in spec.sense.sources if isinstance(source, NatsSource)]
    return (*found, f"{root}.credit.{stage}.*")


def _speaks(spec: PipelineSpec, stage: StageName, country: str) -> tuple[str, ...]:
    root = _root(spec, country)
    later = spec.stages[spec.stages.index(stage) + 1 :]
    earlier = spec.stages[: spec.stages.index(stage)]
    found = [f"{root}.{later[0]}.*"] if later else []
    if stage is StageName.SENSE:
        found += [f"{root}.sense.*", f"{root}.late.*"]  # what comes in by HTTP or MQTT is spread over the partitions
    found += [f"{root}.credit.{name}.*" for name in (*earlier[-1:], stage)]
    found.append(f"{root}.dead.*")
    if not later:
        found += [f"{export_root(country)}.{spec.name}.{export.name}" for export in spec.exports]
    return tuple(found)


def _lane(spec: PipelineSpec, stage: StageName) -> Lane:
    lanes = {StageName.THINK: spec.durability.think, StageName.ACT: spec.durability.act}
    return lanes.get(stage, Lane.HOT)


def _domains(spec: PipelineSpec, country: str) -> tuple[DomainShare, ...]:
    """The country's engine, and beside it the one that syncs every write, if ACT is to be that safe."""
    name = country.lower()
    synced = StageName.ACT in spec.stages and spec.durability.act is Lane.SYNCED
    act_here = StageName.ACT in spec.stages and not synced
    shares = [_share(spec, country, name, synced=False, with_act=act_here, with_rest=True)]
    if synced:
        shares.append(_share(spec, country, f"{name}-act", synced=True, with_act=True, with_rest=False))
    return tuple(shares)


def _share(
    spec: PipelineSpec, country: str, domain: str, *, synced: bool, with_act: bool, with_rest: bool
) -> DomainShare:
    root, base = _root(spec, country), f"{country.lower()}-{spec.name}"
    safe = spec.durability
    streams: list[StreamSpec] = []
    consumers: list[ConsumerSpec] = []
    lanes = [stage for stage in (StageName.THINK, StageName.ACT) if stage in spec.stages]
    for stage in lanes:
        here = with_act if stage is StageName.ACT else with_rest
        if here and _lane(spec, stage) is not Lane.HOT:
            subject = f"{root}.{stage}.*"
            streams.append(_stream(f"{base}-{stage}", country, (subject,), safe.stream_bytes_max, safe.replicas))
            consumers.append(
                ConsumerSpec(
                    stream=f"{base}-{stage}",
                    name=stage.value,
                    filter_subject=subject,
                    ack_wait_s=ACK_WAIT_S,
                    max_deliver=DELIVERIES_MAX,
                )
            )
    if with_rest:
        aside = (f"{root}.late.*", f"{root}.dead.*")
        streams.append(_stream(f"{base}-dead", country, aside, safe.dead_letters_bytes_max, safe.replicas))
        streams.append(bucket_stream(f"{base}-state", country, max_bytes=safe.state_bytes_max, replicas=safe.replicas))
    if with_act and spec.act is not None:
        streams.append(
            bucket_stream(
                f"{base}-ledger",
                country,
                max_bytes=safe.state_bytes_max,
                replicas=safe.replicas,
                max_age_s=spec.act.retention_s,
            )
        )
    names = {stream.name for stream in streams}
    grants = [_grant(spec, stage, country, names, with_rest=with_rest) for stage in spec.stages]
    return DomainShare(
        domain=domain,
        synced=synced,
        wanted=Wanted(streams=tuple(streams), consumers=tuple(consumers)),
        grants=tuple(grant for grant in grants if grant is not None),
    )


def _grant(
    spec: PipelineSpec, stage: StageName, country: str, streams: set[str], *, with_rest: bool
) -> StageGrant | None:
    """What this stage may do in this domain; nobody who has no business there gets a user."""
    base = f"{country.lower()}-{spec.name}"
    own_stream = f"{base}-{stage}"
    reads = ((own_stream, stage.value),) if own_stream in streams else ()
    buckets = {StageName.SENSE: f"{base}-state", StageName.ACT: f"{base}-ledger"}
    bucket = buckets.get(stage, "")
    has_bucket = f"KV_{bucket}" in streams
    speaks = _speaks(spec, stage, country)
    if not with_rest:  # in the synced domain a stage speaks only to what is kept there
        kept = [subject for subject in speaks if subject.endswith(".act.*")]
        speaks = tuple(kept) if stage is not StageName.ACT else ()
        if not (speaks or reads or has_bucket):
            return None
    return StageGrant(
        country=country,
        pipeline=spec.name,
        stage=stage.value,
        listens=_listens(spec, stage, country) if with_rest else (),
        speaks=speaks,
        reads=reads,
        buckets=(bucket,) if has_bucket else (),
        scans=(bucket,) if has_bucket and stage is StageName.ACT else (),
    )


def _stream(name: str, country: str, subjects: tuple[str, ...], max_bytes: int, replicas: int) -> StreamSpec:
    return StreamSpec(name=name, country=country, subjects=subjects, max_bytes=max_bytes, replicas=replicas)
