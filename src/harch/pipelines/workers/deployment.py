"""What does a pipeline need of the message engine? Its streams, consumers, buckets and users, as values. No I/O.

Two engines of one country: the main one carries features and state, the other one, which syncs every write, carries
outputs and the ledger of actions. Where both are the same server, everything is on it.
"""

from __future__ import annotations

from msgspec import Struct

from harch.pipelines.engine.streams import ConsumerSpec, Retention, StreamSpec, Wanted, bucket_stream
from harch.pipelines.engine.users import StageGrant
from harch.pipelines.workers.names import ACT_CONSUMER, THINK_CONSUMER, PipelineNames

MIB = 1 << 20
STATUS_AGE_S = 30.0  # a worker that says nothing for this long is no longer listed
ACK_WAIT_S = 5.0  # a worker that lives says so several times in it
_UNLIMITED = -1  # deliveries: workers count themselves, and put poison into the dead lane


class LaneSizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes on disk. A full lane makes its senders wait; late and dead lanes forget their oldest."""

    features_bytes: int = 256 * MIB
    outputs_bytes: int = 128 * MIB
    late_bytes: int = 32 * MIB
    dead_bytes: int = 32 * MIB
    audit_bytes: int = 64 * MIB
    state_bytes: int = 256 * MIB
    ledger_bytes: int = 256 * MIB
    ledger_age_s: float = 7 * 86_400.0


def main_streams(names: PipelineNames, sizes: LaneSizes, *, replicas: int = 1) -> Wanted:
    """What the main engine keeps."""
    country = names.country.upper()
    return Wanted(
        streams=(
            StreamSpec(
                name=names.features_stream,
                country=country,
                subjects=(names.features("*"),),
                max_bytes=sizes.features_bytes,
                retention=Retention.INTEREST,  # what every reader has acknowledged makes room
                replicas=replicas,
            ),
            _forgetting(names.late_stream, country, names.late("*"), sizes.late_bytes, replicas),
            _forgetting(names.dead_stream, country, names.dead("*"), sizes.dead_bytes, replicas),
            bucket_stream(names.state_bucket, country, max_bytes=sizes.state_bytes, replicas=replicas),
            bucket_stream(names.status_bucket, country, max_bytes=8 * MIB, max_age_s=STATUS_AGE_S, replicas=replicas),
        ),
        consumers=(
            ConsumerSpec(
                stream=names.features_stream,
                name=THINK_CONSUMER,
                filter_subject=names.features("*"),
                ack_wait_s=ACK_WAIT_S,
                max_deliver=_UNLIMITED,
                max_ack_pending=1024,
            ),
        ),
    )


def act_streams(names: PipelineNames, sizes: LaneSizes, *, replicas: int = 1, shares_server: bool = False) -> Wanted:
    """What the engine of outputs keeps. `shares_server`: it is the main engine, which has a dead lane already."""
    country = names.country.upper()
    dead = (
        () if shares_server else (_forgetting(names.dead_stream, country, names.dead("*"), sizes.dead_bytes, replicas),)
    )
    return Wanted(
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


def main_grants(names: PipelineNames) -> tuple[StageGrant, ...]:
    """Who may do what on the main engine."""
    country, pipeline = names.country.upper(), names.pipeline
    told = (names.control,)
    sense_speaks = (names.features("*"), names.late("*"), names.credit("*"), names.alerts)
    think_reads = ((names.features_stream, THINK_CONSUMER),)
    both = (names.state_bucket, names.status_bucket)
    return (
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="source",
            listens=(names.credit("*"), *told),
            speaks=(names.events("*"), names.alerts),
            buckets=both,
        ),
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="sense",
            listens=(names.events("*"), *told),
            speaks=sense_speaks,
            buckets=both,
        ),
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="think",
            listens=(names.features("*"), *told),
            speaks=(names.dead("*"), names.alerts),
            reads=think_reads,
            buckets=both,
        ),
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="act",
            listens=told,
            speaks=(names.alerts,),
            buckets=both,
        ),
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="fused",
            listens=(names.events("*"), *told),
            speaks=(*sense_speaks, names.dead("*")),
            buckets=both,
        ),
    )


def act_grants(names: PipelineNames) -> tuple[StageGrant, ...]:
    """Who may do what on the engine of outputs and the ledger."""
    country, pipeline = names.country.upper(), names.pipeline
    ledger = (names.ledger_bucket,)
    return (
        StageGrant(country=country, pipeline=pipeline, stage="think", speaks=(names.outputs("*"),)),
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="act",
            speaks=(names.audit, names.dead("*")),
            reads=((names.outputs_stream, ACT_CONSUMER),),
            buckets=ledger,
            scans=ledger,
        ),
        StageGrant(
            country=country,
            pipeline=pipeline,
            stage="fused",
            speaks=(names.outputs("*"), names.audit, names.dead("*")),
            buckets=ledger,
            scans=ledger,
        ),
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
