"""Who may say what to the message engine? Users with lists of what is allowed; everything else is refused.

A worker may publish to and listen on its own subjects, read through consumers that HarchOS made for it, and use its own
buckets. It cannot make, change, mirror or list streams, read another stream directly, or listen to another's inbox.
"""

from __future__ import annotations

from msgspec import Struct

INBOX_ROOT = "_INBOX"
CONTROLLER = "harch"
NAME_CHARS_MAX = 96


class EngineUser(Struct, frozen=True, kw_only=True):
    """One user of one account. `public_key` is an NKey; the private half never reaches the engine's configuration."""

    name: str
    public_key: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    connection_types: tuple[str, ...] = ("STANDARD",)


class StageGrant(Struct, frozen=True, kw_only=True):
    """What the workers of one stage of one pipeline need, and no more."""

    country: str
    pipeline: str
    stage: str
    listens: tuple[str, ...] = ()  # subjects of the hot lane
    speaks: tuple[str, ...] = ()  # subjects it publishes to, in streams or not
    reads: tuple[tuple[str, str], ...] = ()  # (stream, consumer) that HarchOS made for it
    buckets: tuple[str, ...] = ()  # key-value buckets of its own: get, put, compare-and-set
    scans: tuple[str, ...] = ()  # buckets among them whose keys it lists when it starts

    @property
    def user_name(self) -> str:
        return f"{self.country.lower()}-{self.pipeline}-{self.stage}"


def permission(subjects: tuple[str, ...]) -> dict[str, list[str]]:
    """As NATS takes it. An empty list would mean "anything" there, so it becomes a deny of everything."""
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def inbox_of(user_name: str) -> str:
    """The prefix of a user's replies; nobody else may listen there."""
    return f"{INBOX_ROOT}.{user_name}"


def juris_root(country: str) -> str:
    return f"juris.{country.lower()}"


def export_root(country: str) -> str:
    """Aggregates that may leave a jurisdiction, by the country that they come from."""
    return f"export.agg.{country.lower()}"


def received_root(country: str) -> str:
    """What a country says of aggregates that have arrived there: numbers, nothing of their content."""
    return f"export.got.{country.lower()}"


def stage_user(grant: StageGrant, public_key: str) -> EngineUser:
    """The allow-lists of a stage's workers."""
    publish = list(grant.speaks)
    for stream, consumer in grant.reads:
        publish += [
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
            f"$JS.ACK.{stream}.{consumer}.>",
        ]
    for bucket in grant.buckets:
        publish += [
            f"$KV.{bucket}.>",
            f"$JS.API.STREAM.INFO.KV_{bucket}",
            f"$JS.API.DIRECT.GET.KV_{bucket}",  # by revision
            f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.>",  # by key
        ]
        if bucket in grant.scans:
            publish += [
                f"$JS.API.CONSUMER.CREATE.KV_{bucket}",  # as nats-py asks for a consumer without a name
                f"$JS.API.CONSUMER.CREATE.KV_{bucket}.>",
                f"$JS.API.CONSUMER.DELETE.KV_{bucket}.>",
                f"$JS.API.CONSUMER.MSG.NEXT.KV_{bucket}.>",
                f"$JS.FC.KV_{bucket}.>",
            ]
    return EngineUser(
        name=grant.user_name,
        public_key=public_key,
        publish=tuple(dict.fromkeys(publish)),
        subscribe=(*dict.fromkeys(grant.listens), f"{inbox_of(grant.user_name)}.>"),
    )


def controller_user(country: str, public_key: str) -> EngineUser:
    """HarchOS itself: the only one who administers streams, inside its own account."""
    return EngineUser(
        name=CONTROLLER,
        public_key=public_key,
        publish=("$JS.API.>", "$JS.ACK.>", "$KV.>", f"{juris_root(country)}.>", f"{export_root(country)}.>"),
        subscribe=(f"{inbox_of(CONTROLLER)}.>", "$JS.EVENT.>", f"{juris_root(country)}.>", "export.agg.>"),
    )


def border_user(name: str, public_key: str, *, sends: tuple[str, ...], receives: tuple[str, ...]) -> EngineUser:
    """The other side of a border link. Its key opens no client connection, only the link."""
    return EngineUser(
        name=name, public_key=public_key, publish=sends, subscribe=receives, connection_types=("LEAFNODE",)
    )
