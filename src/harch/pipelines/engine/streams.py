"""Which streams, consumers and buckets should there be? Declared as values, and compared with what there is. No I/O."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from harch.base.counting import counted
from harch.base.rejection import Rejection
from harch.pipelines.engine.layout import ServerLimits, export_root, juris_root

NS = 1_000_000_000
ADVISORY_SUBJECTS = ("$JS.EVENT.ADVISORY.>",)


class Storage(StrEnum):
    FILE = "file"
    MEMORY = "memory"


class Retention(StrEnum):
    LIMITS = "limits"
    WORKQUEUE = "workqueue"
    INTEREST = "interest"


class StreamSpec(Struct, frozen=True, kw_only=True):
    """A stream of one jurisdiction. It always has a size: a stream without one fills the disk of its hub."""

    name: str
    country: str
    subjects: tuple[str, ...]
    max_bytes: int
    storage: Storage = Storage.FILE
    replicas: int = 1
    retention: Retention = Retention.LIMITS
    discard_new: bool = True  # refuse what does not fit instead of forgetting what was acknowledged
    max_age_s: float = 0.0  # 0: until there is no room
    max_message_bytes: int = -1
    max_per_subject: int = -1
    duplicate_window_s: float = 120.0
    allow_direct: bool = False
    allow_rollup: bool = False
    deny_delete: bool = True

    def wire(self) -> dict[str, Any]:
        """As JetStream's API takes it."""
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "max_bytes": self.max_bytes,
            "storage": self.storage.value,
            "num_replicas": self.replicas,
            "retention": self.retention.value,
            "discard": "new" if self.discard_new else "old",
            "max_age": int(self.max_age_s * NS),
            "max_msg_size": self.max_message_bytes,
            "max_msgs_per_subject": self.max_per_subject,
            "duplicate_window": int(min(self.duplicate_window_s, self.max_age_s or self.duplicate_window_s) * NS),
            "allow_direct": self.allow_direct,
            "allow_rollup_hdrs": self.allow_rollup,
            "deny_delete": self.deny_delete,
        }


class ConsumerSpec(Struct, frozen=True, kw_only=True):
    """A durable pull consumer that HarchOS makes for one stage."""

    stream: str
    name: str
    filter_subject: str
    ack_wait_s: float = 30.0
    max_deliver: int = 5
    max_ack_pending: int = 4096

    def wire(self) -> dict[str, Any]:
        return {
            "durable_name": self.name,
            "name": self.name,
            "filter_subject": self.filter_subject,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_wait": int(self.ack_wait_s * NS),
            "max_deliver": self.max_deliver,
            "max_ack_pending": self.max_ack_pending,
        }


class DesiredStreams(Struct, frozen=True, kw_only=True):
    """All that should be in one domain."""

    streams: tuple[StreamSpec, ...] = ()
    consumers: tuple[ConsumerSpec, ...] = ()


class ExistingStreams(Struct, frozen=True, kw_only=True):
    """All that is there, as JetStream tells it, with every field: streams by name, consumers by (stream, name)."""

    streams: Mapping[str, Mapping[str, Any]] = {}
    consumers: Mapping[tuple[str, str], Mapping[str, Any]] = {}


class StreamVerb(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class StreamChange(Struct, frozen=True, kw_only=True):
    """One step. `fields` are those that differ, for people to read before they agree."""

    verb: StreamVerb
    stream: str
    consumer: str = ""
    config: Mapping[str, Any] = {}
    fields: tuple[str, ...] = ()


class StreamPlan(Struct, frozen=True, kw_only=True):
    """Steps in order. With any refusal nothing is done. `unknown` streams are nobody's: reported, never touched."""

    changes: tuple[StreamChange, ...]
    refusals: tuple[Rejection, ...]
    unknown: tuple[str, ...]


def bucket_stream(
    name: str, country: str, *, max_bytes: int, history: int = 1, replicas: int = 1, max_age_s: float = 0.0
) -> StreamSpec:
    """A key-value bucket is a stream of this form."""
    return StreamSpec(
        name=f"KV_{name}",
        country=country,
        subjects=(f"$KV.{name}.>",),
        max_bytes=max_bytes,
        replicas=replicas,
        max_age_s=max_age_s,
        max_per_subject=history,
        allow_direct=True,
        allow_rollup=True,
    )


def advisory_stream(country: str, *, max_bytes: int = 16 << 20, max_age_s: float = 7 * 86400.0) -> StreamSpec:
    """Keeps what JetStream says of its streams and consumers; by itself it says it once, to whoever listens."""
    return StreamSpec(
        name=f"{country.lower()}-advisories",
        country=country,
        subjects=ADVISORY_SUBJECTS,
        max_bytes=max_bytes,
        max_age_s=max_age_s,
        discard_new=False,
        deny_delete=False,
    )


def plan_streams(wanted: DesiredStreams, found: ExistingStreams, *, remove: Iterable[str] = ()) -> StreamPlan:
    """Creates what is missing, updates what differs, deletes only what is named. Streams come before consumers."""
    changes: list[StreamChange] = []
    refusals: list[Rejection] = []
    for spec in wanted.streams:
        config = spec.wire()
        there = found.streams.get(spec.name)
        if there is None:
            changes.append(StreamChange(verb=StreamVerb.CREATE, stream=spec.name, config=config))
            continue
        differing = _differing(config, there)
        fixed = [name for name in ("storage", "retention") if name in differing]
        if fixed:
            refusals.append(
                Rejection(
                    spec.name,
                    "fixed",
                    f"`{fixed[0]}` is {there.get(fixed[0])} and cannot become {config[fixed[0]]}",
                    "create a stream with another name and replay into it",
                )
            )
        elif differing:
            changes.append(StreamChange(verb=StreamVerb.UPDATE, stream=spec.name, config=config, fields=differing))
    for consumer in wanted.consumers:
        settings = consumer.wire()
        known = found.consumers.get((consumer.stream, consumer.name))
        fields = () if known is None else _differing(settings, known)
        if known is None or fields:
            changes.append(
                StreamChange(
                    verb=StreamVerb.CREATE if known is None else StreamVerb.UPDATE,
                    stream=consumer.stream,
                    consumer=consumer.name,
                    config=settings,
                    fields=fields,
                )
            )
    removed = [name for name in dict.fromkeys(remove) if name in found.streams]
    changes += [StreamChange(verb=StreamVerb.DELETE, stream=name) for name in removed]
    named = {spec.name for spec in wanted.streams}
    unknown = tuple(sorted(name for name in found.streams if name not in named and name not in removed))
    return StreamPlan(changes=tuple(changes), refusals=tuple(refusals), unknown=unknown)


def check_streams(
    wanted: DesiredStreams, limits: ServerLimits, *, servers: int, synced: bool = False
) -> tuple[Rejection, ...]:
    """Everything that the engine would refuse, or accept and regret, before it is asked."""
    found: list[Rejection] = []
    taken: dict[str, str] = {}
    names = {spec.name for spec in wanted.streams}
    for spec in wanted.streams:
        found += _check_stream(spec, limits, servers, synced)
        for subject in spec.subjects:
            if subject in taken:
                found.append(Rejection(spec.name, "subject", f"`{subject}` is already kept by {taken[subject]}"))
            taken[subject] = spec.name
    for storage, limit in ((Storage.FILE, limits.file_bytes_max), (Storage.MEMORY, limits.memory_bytes_max)):
        total = sum(spec.max_bytes * spec.replicas for spec in wanted.streams if spec.storage is storage)
        if total > limit * servers:
            found.append(
                Rejection(
                    "streams",
                    f"{storage.value}_bytes",
                    f"{total} bytes with replicas; {counted(servers, 'server')} can hold {limit * servers}",
                    "shorten or shrink streams, or raise the engine's limit",
                )
            )
    found += [
        Rejection(consumer.name, "stream", f"reads the stream `{consumer.stream}`, which is not planned")
        for consumer in wanted.consumers
        if consumer.stream not in names
    ]
    return tuple(found)


def allowed_subject(subject: str, country: str) -> bool:
    """May a stream of this country keep this subject? Its own data and aggregates, buckets, and advisories."""
    own = (f"{juris_root(country)}.", f"{export_root(country)}.", "$KV.", "$JS.EVENT.ADVISORY.")
    return subject.startswith(own)


def _check_stream(spec: StreamSpec, limits: ServerLimits, servers: int, synced: bool) -> list[Rejection]:
    found = []
    limit = limits.file_bytes_max if spec.storage is Storage.FILE else limits.memory_bytes_max
    if not 0 < spec.max_bytes <= limit:
        found.append(
            Rejection(spec.name, "max_bytes", f"{spec.max_bytes}; from 1 to the engine's {limit}", f"at most {limit}")
        )
    if spec.max_message_bytes > limits.payload_bytes_max:
        found.append(
            Rejection(spec.name, "max_message_bytes", f"above the engine's {limits.payload_bytes_max}", "lower it")
        )
    if spec.replicas not in (1, 3, 5) or spec.replicas > servers:
        found.append(
            Rejection(
                spec.name,
                "replicas",
                f"{spec.replicas} copies on {counted(servers, 'server')}",
                "use 1, or 3 on 3 servers",
            )
        )
    if synced and spec.storage is Storage.MEMORY:
        found.append(Rejection(spec.name, "storage", "is in memory on a server that syncs every write", "use file"))
    for subject in spec.subjects:
        if not allowed_subject(subject, spec.country):
            fix = f"use subjects below {juris_root(spec.country)}"
            found.append(Rejection(spec.name, "subject", f"`{subject}` is not of {spec.country}", fix))
    return found


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields with another value. JetStream leaves out what is false, zero or empty."""
    return tuple(name for name, value in wanted.items() if (found.get(name) or _nothing(value)) != value)


def _nothing(value: Any) -> Any:
    return type(value)() if isinstance(value, bool | int | str | list) else None
