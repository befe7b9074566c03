"""What has to be where for this pipeline, and for all pipelines of a country, to run?

A plan from specification and residency proof; shares in, domains out. No I/O.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from msgspec import Struct, structs

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.engine.layout import Domain, Server, StageGrant, controller_user, juris_root, stage_user
from harch.pipelines.engine.streams import DesiredStreams, advisory_stream
from harch.pipelines.sense.settings import NatsSource
from harch.pipelines.spec.residency import ResidencyProof
from harch.pipelines.spec.settings import Durability, PipelineSpec, PipelineStageName
from harch.pipelines.workers.deployment import (
    LaneSizes,
    act_grants,
    act_streams,
    export_stream,
    main_grants,
    main_streams,
    merged,
)
from harch.pipelines.workers.names import StageRoute, names_of
from harch.sovereignty.geography import Terrain
from harch.sovereignty.rules import quickest_way
from harch.sovereignty.tags import Tag

# What has to be where for this pipeline to run? A plan from its specification and the proof of its residency. No I/O.
#
# A pipeline lives in one country: between countries the message engine carries exports only. Inside it, stages share
# one
# hub if they may, because a hop to another costs more than all stages together.


NEVER_MS = 1e9
DEVICES = "devices"  # the user that devices and gateways publish events with, where a source is a subject
READERS = "readers"  # the user that listens to the results of a pipeline without ACT


class StagePlacement(Struct, frozen=True, kw_only=True):
    """One stage at one hub. `partitions[i]` are those of worker number i; together they are all, each once."""

    stage: PipelineStageName
    hub: str
    workers: int
    partitions: tuple[tuple[int, ...], ...]
    listens: tuple[str, ...]
    speaks: tuple[str, ...]


class DomainShare(Struct, frozen=True, kw_only=True):
    """What one domain of the message engine must have for this pipeline: streams, consumers, users."""

    domain: str
    synced: bool
    wanted: DesiredStreams
    grants: tuple[StageGrant, ...]


class ExportOffer(Struct, frozen=True, kw_only=True):
    """An aggregate that may leave: its columns (none: all features), what it permits, and the hubs it may go to."""

    name: str
    columns: tuple[str, ...]
    tag: Tag
    hubs: tuple[str, ...]
    released: bool = False  # permits more than the data, by a signed statement


class Deployment(Struct, frozen=True, kw_only=True):
    """The whole plan, to be printed, compared and applied."""

    pipeline: str
    country: str
    placements: tuple[StagePlacement, ...]
    domains: tuple[DomainShare, ...]
    exports: tuple[ExportOffer, ...]
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
    foreign = _foreign_inputs(spec, country)
    if foreign:
        return foreign
    shares = _domains(spec, country)
    return Deployment(
        pipeline=spec.name,
        country=country,
        placements=tuple(_placement(spec, stage, hubs[stage], shares) for stage in spec.stages),
        domains=shares,
        exports=_offers(proof, hubs[spec.stages[-1]]),
        rtt_ms=rtt_ms,
    )


def shared_partitions(partitions: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """Partition p belongs to worker p modulo workers: equal shares, and adding one worker moves few."""
    return tuple(tuple(range(first, partitions, workers)) for first in range(workers))


def _foreign_inputs(spec: PipelineSpec, country: str) -> tuple[Rejection, ...]:
    own = f"{juris_root(country)}."
    fix = f"use a subject below {own}"
    return tuple(
        Rejection(f"{spec.name}: source {source.name}", "country", f"`{source.subject}` is not of {country}", fix)
        for source in spec.sense.sources
        if isinstance(source, NatsSource) and not source.subject.startswith(own)
    )


def _choose_hubs(
    spec: PipelineSpec, proof: ResidencyProof, terrain: Terrain, scores: Mapping[str, float]
) -> tuple[dict[PipelineStageName, str], float] | Rejection:
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
            "process all of it in one country, or use two pipelines and export an aggregate",
        )
    return dict(zip(spec.stages, shortest[2], strict=True)), shortest[0]


def _same_country(terrain: Terrain, one: str, other: str) -> bool:
    sites = terrain.site(one), terrain.site(other)
    return sites[0] is not None and sites[1] is not None and sites[0].country == sites[1].country


def _rtt_ms(proof: ResidencyProof, terrain: Terrain, one: str, other: str) -> float:
    way = quickest_way(terrain, proof.tag, one, other)
    return NEVER_MS if way is None else sum(passage.rtt_ms for passage in way)


def _placement(
    spec: PipelineSpec, stage: PipelineStageName, hub: str, shares: tuple[DomainShare, ...]
) -> StagePlacement:
    workers = spec.scaling.of(stage).workers_min
    grants = [grant for share in shares for grant in share.grants if grant.stage == stage.value]
    return StagePlacement(
        stage=stage,
        hub=hub,
        workers=workers,
        partitions=shared_partitions(spec.sense.partitions, workers),
        listens=tuple(subject for grant in grants for subject in grant.listens),
        speaks=tuple(subject for grant in grants for subject in grant.speaks),
    )


def route_of(spec: PipelineSpec) -> StageRoute:
    thinks = spec.think is not None
    return StageRoute(
        thinks=thinks, acts=spec.act is not None, is_hot=thinks and spec.durability.think is Durability.HOT
    )


def lane_sizes(spec: PipelineSpec) -> LaneSizes:
    """How much of each lane may be kept on disk."""
    safe = spec.durability
    return LaneSizes(
        features_bytes=safe.stream_bytes_max,
        outputs_bytes=safe.stream_bytes_max,
        results_bytes=safe.stream_bytes_max,
        late_bytes=safe.dead_letters_bytes_max,
        dead_bytes=safe.dead_letters_bytes_max,
        state_bytes=safe.state_bytes_max,
        ledger_bytes=safe.state_bytes_max,
        ledger_age_s=spec.act.retention_s if spec.act is not None else LaneSizes().ledger_age_s,
    )


def _offers(proof: ResidencyProof, hub: str) -> tuple[ExportOffer, ...]:
    """Exactly the edges that were proved, from the hub of the last stage."""
    return tuple(
        ExportOffer(
            name=edge.name,
            columns=edge.columns,
            tag=edge.tag,
            hubs=tuple(target for source, target in edge.hubs if source == hub and target != hub),
            released=edge.released,
        )
        for edge in proof.exports
    )


def _domains(spec: PipelineSpec, country: str) -> tuple[DomainShare, ...]:
    """The country's engine, and beside it the one that syncs every write, if ACT is to be that safe."""
    names, sizes, copies = names_of(country, spec.name), lane_sizes(spec), spec.durability.replicas
    route = route_of(spec)
    main = main_streams(names, sizes, route, replicas=copies)
    if spec.exports:
        waiting = export_stream(names, sizes, replicas=copies)
        main = structs.replace(main, streams=(*main.streams, waiting))
    grants = _with_edges(spec, country, main_grants(names, route))
    if not route.acts:
        return (DomainShare(domain=names.country, synced=False, wanted=main, grants=grants),)
    act, act_users = act_streams(names, sizes, replicas=copies), act_grants(names, route)
    if spec.durability.act is Durability.SYNCED:
        return (
            DomainShare(domain=names.country, synced=False, wanted=main, grants=grants),
            DomainShare(domain=f"{names.country}-act", synced=True, wanted=act, grants=act_users),
        )
    act = act_streams(names, sizes, replicas=copies, shares_server=True)
    both = DesiredStreams(streams=(*main.streams, *act.streams), consumers=(*main.consumers, *act.consumers))
    return (DomainShare(domain=names.country, synced=False, wanted=both, grants=merged(grants, act_users)),)


def _with_edges(spec: PipelineSpec, country: str, grants: tuple[StageGrant, ...]) -> tuple[StageGrant, ...]:
    """The pipeline's own ways in and out: subjects that devices publish to, and copies for exports. Nothing of what a
    worker says crosses a border: the hub takes copies across."""
    inputs = tuple(source.subject for source in spec.sense.sources if isinstance(source, NatsSource))
    copies = (names_of(country, spec.name).exported("*"),) if spec.exports else ()
    found = []
    for grant in grants:
        if grant.stage in ("source", "fused") and inputs:
            grant = structs.replace(grant, listens=(*grant.listens, *inputs))
        if grant.stage in ("sense", "fused"):
            grant = structs.replace(grant, speaks=(*grant.speaks, *copies))
        found.append(grant)
    if inputs:
        found.append(StageGrant(country=country, pipeline=spec.name, stage=DEVICES, speaks=inputs))
    if not route_of(spec).acts:
        results = (names_of(country, spec.name).results("*"),)
        found.append(StageGrant(country=country, pipeline=spec.name, stage=READERS, listens=results))
    return tuple(found)


# What does the message engine of a country need for all its pipelines together? Shares in, domains out. No I/O.


PublicKeys = Callable[[str], str]  # the name of a user to its public key


def controller_name(country: str) -> str:
    """The name that the controller's key is kept under; each country has a controller of its own."""
    return f"{country.lower()}-harch"


def assemble_domain(
    name: str, country: str, servers: tuple[Server, ...], deployments: Iterable[Deployment], public_key: PublicKeys
) -> tuple[Domain, DesiredStreams]:
    """The domain with the users of every pipeline in it, and all streams that should be there."""
    shares = _shares(name, country, deployments)
    grants = [grant for share in shares for grant in share.grants]
    users = (
        controller_user(country, public_key(controller_name(country))),
        *(stage_user(grant, public_key(grant.user_name)) for grant in grants),
    )
    wanted = DesiredStreams(
        streams=(*(stream for share in shares for stream in share.wanted.streams), advisory_stream(country)),
        consumers=tuple(consumer for share in shares for consumer in share.wanted.consumers),
    )
    synced = any(share.synced for share in shares)
    return Domain(country=country, name=name, servers=servers, users=users, synced=synced), wanted


def _shares(name: str, country: str, deployments: Iterable[Deployment]) -> list[DomainShare]:
    shares = []
    for deployment in deployments:
        for share in deployment.domains:
            if share.domain == name:
                if deployment.country != country:
                    raise InvariantBroken("a pipeline's domain stands in its country", deployment.pipeline, country)
                shares.append(share)
    return shares
