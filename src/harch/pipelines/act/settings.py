"""What may a pipeline do, to what, and how carefully? The `act` part of a pipeline's file, as values.

Numbers have their limits here, next to the field; what needs more than one field to be judged is in `settings_check`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from harch.pipelines.act.templates import Scalar

TTL_S_MAX = 86_400.0
RETENTION_S_MIN = 2 * TTL_S_MAX  # a ledger that forgets a command before it has expired would let it fire again

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Host = Annotated[str, Meta(min_length=1, max_length=253)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
TimeoutS = Annotated[float, Meta(gt=0, le=60)]
Register = Annotated[int, Meta(ge=0, le=65_535)]
Unit = Annotated[int, Meta(ge=0, le=255)]
Text = Annotated[str, Meta(max_length=1000)]
Arguments = Annotated[dict[Name, Scalar], Meta(max_length=50)]


class Mode(StrEnum):
    """How carefully an action is carried out."""

    FIRE_AND_FORGET = "fire-and-forget"  # one attempt, duplicates left out, the ledger is written behind
    CONFIRM = "confirm-and-execute"  # a person approves exactly this command
    TRANSACTIONAL = "transactional"  # prepare, write the intent to disk, execute, read back, else undo


class _Sink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all sinks have in common. `country`: where the far side stands, checked against the data's jurisdiction."""

    country: Annotated[str, Meta(max_length=2)] = ""
    timeout_s: TimeoutS = 5.0


class HttpSink(_Sink, frozen=True, kw_only=True, tag="http"):
    """A webhook. `honours_key`: the far side carries out each Idempotency-Key once. `status_url`: GET tells whether a
    key was carried out (200) or not (404). Header values `env:NAME` are read from the environment."""

    url: Annotated[str, Meta(pattern=r"^https?://[^{}/]+(/.*)?$", max_length=2000)]
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: Annotated[dict[str, Text], Meta(max_length=30)] = {}
    honours_key: bool = False
    status_url: Annotated[str, Meta(pattern=r"^(https?://[^{}/]+/.*)?$", max_length=2000)] = ""
    undo_url: Annotated[str, Meta(pattern=r"^(https?://[^{}/]+(/.*)?)?$", max_length=2000)] = ""


class MqttSink(_Sink, frozen=True, kw_only=True, tag="mqtt"):
    """A topic, QoS 1. `honours_key`: the device carries out each key once. `state_topic`: where the device says,
    retained, which key it carried out last."""

    host: Host
    topic: Annotated[str, Meta(min_length=1, max_length=1000)]
    port: Port = 1883
    tls: bool = False
    username_env: Text = ""
    password_env: Text = ""
    state_topic: Text = ""
    honours_key: bool = False
    version: Literal["3.1.1", "5"] = "3.1.1"


class ModbusSink(_Sink, frozen=True, kw_only=True, tag="modbus"):
    """A holding register or coil, Modbus/TCP. `units` maps devices to unit ids. `keyed`: the four registers after the
    value take 64 bits of the command's key in the same write, so that the device itself knows what was carried out."""

    host: Host
    register: Register
    port: Port = 502
    unit: Unit = 1
    units: Annotated[dict[str, Unit], Meta(max_length=10_000)] = {}
    type: Literal["uint16", "int16", "uint32", "int32", "float32", "coil"] = "uint16"
    value: Name = "value"  # the argument that is written
    scale: Annotated[float, Meta(gt=0)] = 1.0  # what is written = round(argument * scale), but for float32
    keyed: bool = False


class SqlSink(_Sink, frozen=True, kw_only=True, tag="sql"):
    """A statement and the command's key in one transaction. `:name` takes arguments; `:device`, `:cmd_id` and `:key`
    are there too. `undo_statement` takes the arguments of a step's `undo`."""

    url: Annotated[str, Meta(pattern=r"^(sqlite:///.+|postgresql://.+|env:[A-Za-z_][A-Za-z0-9_]*)$", max_length=2000)]
    statement: Annotated[str, Meta(min_length=1, max_length=10_000)]
    undo_statement: Annotated[str, Meta(max_length=10_000)] = ""
    outbox: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "harch_outbox"


class NatsSink(_Sink, frozen=True, kw_only=True, tag="nats"):
    """A subject. With `jetstream`, a stream that leaves out duplicates must take it, and has to remember keys for at
    least as long as a command lives. Without, a responder has to answer; `honours_key` says that it keeps keys."""

    url: Annotated[str, Meta(pattern=r"^(nats|tls)://.+$|^env:[A-Za-z_][A-Za-z0-9_]*$", max_length=2000)]
    subject: Annotated[str, Meta(min_length=1, max_length=1000)]
    jetstream: bool = True
    honours_key: bool = False
    credentials_file: Text = ""


SinkSettings = HttpSink | MqttSink | ModbusSink | SqlSink | NatsSink


class StepSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to do. `undo`: the arguments that take it back; a Modbus step without them restores what it read."""

    sink: Name
    args: Arguments = {}
    undo: Arguments | None = None


class Interlocks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold for any command of an action, asked when it is made and again right before it is sent."""

    ranges: Annotated[dict[Name, tuple[float, float]], Meta(max_length=50)] = {}
    min_interval_s: Annotated[float, Meta(ge=0, le=TTL_S_MAX)] = 0.0  # between two commands to one device
    newest_only: bool = False  # one command per device and window, and none of an older window
    stop_file: Text = ""  # while this file exists, nothing of this action is sent


class RateLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token bucket per device and action. What finds it empty waits, as long as it lives."""

    per_s: Annotated[float, Meta(gt=0, le=1e6)]
    burst: Annotated[int, Meta(ge=1, le=100_000)] = 1


class Retries(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often to try, and how long to wait in between: `base_s * factor**n`, at most `max_s`, +- `jitter`."""

    attempts: Annotated[int, Meta(ge=1, le=20)] = 5
    base_s: Annotated[float, Meta(gt=0, le=3600)] = 0.5
    factor: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2


class ActionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action: when, what, how carefully. Either `sink` with `args` (and `undo`), or `steps`."""

    name: Name
    when: Annotated[str, Meta(min_length=1, max_length=500)]
    ttl_s: Annotated[float, Meta(gt=0, le=TTL_S_MAX)]
    model: Annotated[str, Meta(max_length=128)] = ""  # whose outputs `when` is about; else those that have its outputs
    mode: Mode = Mode.TRANSACTIONAL
    sink: str = ""
    args: Arguments = {}
    undo: Arguments | None = None
    steps: Annotated[tuple[StepSettings, ...], Meta(max_length=10)] = ()
    priority: Annotated[int, Meta(ge=0, le=9)] = 5  # 0 goes first
    interlocks: Interlocks = Interlocks()
    rate: RateLimit | None = None
    retries: Retries = Retries()
    dead_letter: bool = True
    dry_run: bool = False

    @property
    def all_steps(self) -> tuple[StepSettings, ...]:
        return self.steps or (StepSettings(sink=self.sink, args=self.args, undo=self.undo),)


class ActSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `act` part of a pipeline. `settle_s`: how long after its timeout a request may still take effect at a sink;
    nobody takes over a command before that."""

    sinks: Annotated[dict[Name, SinkSettings], Meta(max_length=100)]
    actions: Annotated[tuple[ActionSettings, ...], Meta(max_length=200)]
    stop_file: Text = ""
    queue_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    concurrency: Annotated[int, Meta(ge=1, le=256)] = 8
    letters_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    settle_s: Annotated[float, Meta(ge=0, le=600)] = 2.0
    retention_s: Annotated[float, Meta(ge=RETENTION_S_MIN, le=366 * 86_400)] = 7 * 86_400.0
    dry_run: bool = False  # nothing at all is sent
