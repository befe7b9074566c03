"""Where do events come from? One kind of source per way in, as a pipeline writes them down."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from harch.pipelines.wire.header import PRIORITY_MAX
from harch.pipelines.wire.rows import RowFormat

Name = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,47}$")]
# The secret whose value senders show; absent: the hub makes a key, which `harch pipeline key` prints.
SecretName = Annotated[str, Meta(max_length=128)]
Seconds = Annotated[float, Meta(ge=0, le=30 * 86_400)]


class _Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    name: Name
    disorder_s: Seconds = 0.0  # how much older than its newest an event of this source may be
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 3


class HttpSource(_Source, frozen=True, kw_only=True, tag="http"):
    """POST of JSON, NDJSON, Arrow or ready-made batches, on loopback, by whoever shows the source's key."""

    key_secret: SecretName = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    body_bytes_max: Annotated[int, Meta(ge=1024, le=64 << 20)] = 8 << 20
    rows: RowFormat = RowFormat()


class MqttSource(_Source, frozen=True, kw_only=True, tag="mqtt"):
    """Topics of a broker. `{device}` and `{metric}` in a topic stand for one level each."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65_535)] = 1883
    tls: bool = False
    topics: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
    qos: Literal[0, 1] = 1
    username: str = ""
    password_secret: str = ""  # the name of a secret; never the password
    rows: RowFormat = RowFormat()


class NatsSource(_Source, frozen=True, kw_only=True, tag="nats"):
    """Ready-made batches on a subject of the pipeline's own jurisdiction."""

    subject: Annotated[str, Meta(min_length=1, max_length=200)]


class FileSource(_Source, frozen=True, kw_only=True, tag="file"):
    """A CSV or NDJSON file, again. `speed` 1 replays in its own time, 60 a minute per second, 0 as fast as it can."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    format: Literal["csv", "ndjson"] = "csv"
    speed: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    rows: RowFormat = RowFormat()


class TcpSource(_Source, frozen=True, kw_only=True, tag="tcp"):
    """Ready-made batches over a socket of loopback, behind the source's key: the fast lane without a broker."""

    key_secret: SecretName = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    connections_max: Annotated[int, Meta(ge=1, le=4096)] = 64


Listening = HttpSource | TcpSource
Source = HttpSource | MqttSource | NatsSource | FileSource | TcpSource
