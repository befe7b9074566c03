"""What does a pipeline need of the message engine? Its streams, consumers, buckets and users, as values. No I/O.

Two engines of one country: the main one carries features and state, the other one, which syncs every write, carries
outputs and the ledger of actions. Where both are the same server, everything is on it.
"""

from __future__ import annotations

from msgspec import Struct, structs

from harch.pipelines.engine.layout import StageGrant
from harch.pipelines.engine.streams import ConsumerSpec, DesiredStreams, Retention, StreamSpec, bucket_stream
from harch.pipelines.workers.names import ACT_CONSUMER, THINK_CONSUMER, PipelineNames, StageRoute

MIB = 1 << 20
STATUS_AGE_S = 30.0  # a worker that says nothing for this long is no longer listed
ACK_WAIT_S = 5.0  # a worker that lives says so several times in it
_UNLIMITED = -1  # deliveries: workers count themselves, and put poison into the dead lane
ALL_STAGES = StageRoute()

Subjects = tuple[str, ...]
Reads = tuple[tuple[str, str], ...]


class LaneSizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes on disk. A full lane makes its senders wait; results, late and dead lanes forget their oldest."""

    features_bytes: int = 256 * MIB
    outputs_bytes: int = 128 * MIB
    results_bytes: int = 64 * MIB
    late_bytes: int = 32 * MIB
    dead_bytes: int = 32 * MIB
    audit_bytes: int = 64 * MIB
    state_bytes: int = 256 * MIB
    ledger_bytes: int = 256 * MIB
    ledger_age_s: float = 7 * 86_400.0


def main_streams(
    names: PipelineNames, sizes: LaneSizes, route: StageRoute = ALL_STAGES, *, replicas: int = 1
) -> DesiredStreams:
    """What the main engine keeps. Features of the hot lane are kept by nobody."""
    country = names.country.upper()
    features = StreamSpec(
        name=names.features_stream,
        country=country,
        subjects=(names.features("*"),),
        max_bytes=sizes.features_bytes,
        retention=Retention.INTEREST,  # what every reader has acknowledged makes room
        replicas=replicas,
    )
    thinker = ConsumerSpec(
        stream=names.features_stream,
        name=THINK_CONSUMER,
        filter_subject=names.features("*"),
        ack_wait_s=ACK_WAIT_S,
        max_deliver=_UNLIMITED,
        max_ack_pending=1024,
    )
    results = _forgetting(names.results_stream, country, names.results("*"), sizes.results_bytes, replicas)
    has_features = route.thinks and not route.is_hot
    return DesiredStreams(
        streams=(
            *((features,) if has_features else ()),
            *(() if route.acts else (results,)),
            _forgetting(names.late_stream, country, names.late("*"), sizes.late_bytes, replicas),
            _forgetting(names.dead_stream, country, names.dead("*"), sizes.dead_bytes, replicas),
            bucket_stream(names.state_bucket, country, max_bytes=sizes.state_bytes, replicas=replicas),
            bucket_stream(names.status_bucket, country, max_bytes=8 * MIB, max_age_s=STATUS_AGE_S, replicas=replicas),
        ),
        consumers=(thinker,) if has_features else (),
    )


def export_stream(names: PipelineNames, sizes: LaneSizes, *, replicas: int = 1) -> StreamSpec:
    """What waits to leave the country. It forgets its oldest: a border that is shut for long stops nothing at home."""
    country = names.country.upper()
    made = _forgetting(names.export_stream, country, names.exported("*"), sizes.results_bytes, replicas)
    return structs.replace(made, allow_direct=True)  # read message by message, as it is


def act_streams(
    names: PipelineNames, sizes: LaneSizes, *, replicas: int = 1, shares_server: bool = False
) -> DesiredStreams:
    """What the engine of outputs keeps. `shares_server`: it is the main engine, which has a dead lane already."""
    country = names.country.upper()
    dead = (
        () if shares_server else (_forgetting(names.dead_stream, country, names.dead("*"), sizes.dead_bytes, replicas),)
    )
    return DesiredStreams(
        streams=(
            StreamSpec(
                name=names.outputs_stream,
                country=country,
                subjects=(names.outputs("*"),),
                max_bytes=sizes.outputs_bytes,
                retention=Retention.INTEREST,
                replicas=replicas,
            ),
            *dead,
            StreamSpec(
                name=names.audit_stream,
                country=country,
                subjects=(names.audit,),
                max_bytes=sizes.audit_bytes,
                replicas=replicas,
                deny_delete=False,  # the hub takes entries out once they are in its chain
            ),
            bucket_stream(
                names.ledger_bucket,
                country,
                max_bytes=sizes.ledger_bytes,
                max_age_s=sizes.ledger_age_s,
                replicas=replicas,
            ),
        ),
        consumers=(
            ConsumerSpec(
                stream=names.outputs_stream,
                name=ACT_CONSUMER,
                filter_subject=names.outputs("*"),
                ack_wait_s=ACK_WAIT_S,
                max_deliver=_UNLIMITED,
                max_ack_pending=1024,
            ),
        ),
    )


def main_grants(names: PipelineNames, route: StageRoute = ALL_STAGES) -> tuple[StageGrant, ...]:
    """Who may do what on the main engine."""
    control_subjects = (names.control,)
    both = (names.state_bucket, names.status_bucket)
    news = (names.alerts, names.spans)
    aside = (names.late("*"), names.credit("*"), *news)
    results = () if route.acts else (names.results("*"),)
    next_to_sense = () if route.after("sense") == "act" else (names.into(route.after("sense"), "*"),)

    def grant(stage: str, listens: Subjects, speaks: Subjects, reads: Reads = ()) -> StageGrant:
        return _grant(names, stage, listens=(*listens, *control_subjects), speaks=speaks, reads=reads, buckets=both)

    found = [
        grant("source", (names.credit("*"),), (names.events("*"), *news)),
        grant("sense", (names.events("*"),), (*next_to_sense, *aside)),
    ]
    if route.thinks:
        reads = ((names.features_stream, THINK_CONSUMER),)
        found.append(grant("think", (names.features("*"),), (names.dead("*"), *news, *results), reads))
        fused = (*next_to_sense, *aside, names.dead("*"), *results)
        found.append(grant("fused", (names.events("*"),), fused))
    if route.acts:
        found.append(grant("act", (), news))
    found.append(grant("replay", (), (*news, *results)))
    return tuple(found)


def act_grants(names: PipelineNames, route: StageRoute = ALL_STAGES) -> tuple[StageGrant, ...]:
    """Who may do what on the engine of outputs and the ledger."""
    ledger = (names.ledger_bucket,)
    reads = ((names.outputs_stream, ACT_CONSUMER),)
    before = _grant(names, "think" if route.thinks else "sense", speaks=(names.outputs("*"),))
    act = _grant(names, "act", speaks=(names.audit, names.dead("*")), reads=reads, buckets=ledger, scans=ledger)
    replay = _grant(names, "replay", speaks=(names.outputs("*"),), buckets=ledger, scans=ledger)
    if not route.thinks:
        return (before, act, replay)
    fused = (names.outputs("*"), names.audit, names.dead("*"))
    return (before, act, replay, _grant(names, "fused", speaks=fused, buckets=ledger, scans=ledger))


def _grant(
    names: PipelineNames,
    stage: str,
    *,
    listens: Subjects = (),
    speaks: Subjects = (),
    reads: Reads = (),
    buckets: Subjects = (),
    scans: Subjects = (),
) -> StageGrant:
    return StageGrant(
        country=names.country.upper(),
        pipeline=names.pipeline,
        stage=stage,
        listens=listens,
        speaks=speaks,
        reads=reads,
        buckets=buckets,
        scans=scans,
    )


def merged(grants: tuple[StageGrant, ...], more: tuple[StageGrant, ...]) -> tuple[StageGrant, ...]:
    """The grants of two engines for one server that is both."""
    found: dict[str, StageGrant] = {grant.stage: grant for grant in grants}
    for grant in more:
        known = found.get(grant.stage)
        found[grant.stage] = grant if known is None else _joined(known, grant)
    return tuple(found.values())


def _joined(one: StageGrant, other: StageGrant) -> StageGrant:
    def both(name: str) -> tuple[object, ...]:
        return tuple(dict.fromkeys((*getattr(one, name), *getattr(other, name))))

    lists = {name: both(name) for name in ("listens", "speaks", "reads", "buckets", "scans")}
    return StageGrant(country=one.country, pipeline=one.pipeline, stage=one.stage, **lists)  # type: ignore[arg-type]


def _forgetting(name: str, country: str, subject: str, max_bytes: int, replicas: int) -> StreamSpec:
    return StreamSpec(
        name=name,
        country=country,
        subjects=(subject,),
        max_bytes=max_bytes,
        replicas=replicas,
        discard_new=False,
        deny_delete=False,
    )
