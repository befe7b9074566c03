"""What may a pipeline do, to what, and how carefully, and can that be obeyed?

The `act` part of a pipeline's file as values, and every mistake with its place and a way out.
"""

# harch: pure

from __future__ import annotations

import math
import re
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError, Problems
from harch.pipelines.act.expressions import ArgumentTemplate, NotUnderstood, Scalar, read_condition, read_template

# What may a pipeline do, to what, and how carefully? The `act` part of a pipeline's file, as values.
#
# Numbers have their limits here, next to the field; what needs more than one field to be judged is in `settings_check`.


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


class RetrySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    retries: RetrySettings = RetrySettings()
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


# Is this `act` part one that can be obeyed? Every mistake at once, each with its place, a sentence and a way out.


CODE = "E0770"
_AT = re.compile(r" - at (`key` in )?`\$(.*)`$")
HINT = "docs/pipelines/act.md describes every key and shows an example"


def read_act(raw: object, *, where: str = "act", outputs: Collection[str] | None = None) -> ActSettings:
    """Checks the `act` part of a pipeline. `outputs`: the names that the models give, when they are known.

    Raises HarchError E0770 with every problem found.
    """
    try:
        settings = msgspec.convert(raw, ActSettings)
    except msgspec.ValidationError as error:
        raise _refusal(_wrong_sinks(raw, where) or [_place(str(error), where)]) from error
    problems = Problems()
    check_act(settings, problems, where=where, outputs=outputs)
    if problems:
        raise _refusal(problems.found)
    return settings


def check_act(
    settings: ActSettings, problems: Problems, *, where: str = "act", outputs: Collection[str] | None = None
) -> None:
    """What single fields cannot tell. For callers that collect the problems of a whole pipeline."""
    names = [action.name for action in settings.actions]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"{where}.actions", f"`{name}` occurs {names.count(name)} times; names must be unique")
    for name, sink in settings.sinks.items():
        _check_sink(sink, f"{where}.sinks.{name}", problems)
    for index, action in enumerate(settings.actions):
        _check_action(action, settings, f"{where}.actions[{index}]", problems, outputs)


def can_read_back(sink: SinkSettings) -> bool:
    """Whether it can be asked what became of a command."""
    if isinstance(sink, HttpSink):
        return bool(sink.status_url)
    if isinstance(sink, MqttSink):
        return bool(sink.state_topic)
    return isinstance(sink, ModbusSink | SqlSink)


def keeps_keys(sink: SinkSettings) -> bool:
    """Whether the same key again has no second effect."""
    if isinstance(sink, NatsSink):
        return sink.jetstream or sink.honours_key
    if isinstance(sink, HttpSink | MqttSink):
        return sink.honours_key
    return sink.keyed if isinstance(sink, ModbusSink) else True


def _check_sink(sink: SinkSettings, where: str, problems: Problems) -> None:
    if isinstance(sink, MqttSink):
        for name, topic in (("topic", sink.topic), ("state_topic", sink.state_topic)):
            if "+" in topic or "#" in topic:
                problems.add(
                    f"{where}.{name}", "has a wildcard; a command goes to one topic, e.g. `field/{device}/set`"
                )
    if isinstance(sink, NatsSink) and any(token in ("*", ">") for token in sink.subject.split(".")):
        problems.add(f"{where}.subject", "has a wildcard; a command goes to one subject, e.g. `act.{device}`")
    if isinstance(sink, ModbusSink) and sink.type == "coil" and sink.keyed:
        problems.add(f"{where}.keyed", "a coil has no registers for a key; write to registers, or remove it")
    if isinstance(sink, HttpSink) and sink.status_url and "{key}" not in sink.status_url:
        problems.add(f"{where}.status_url", "does not identify the command; include `{key}`")
    if isinstance(sink, HttpSink) and any(_looks_secret(name, value) for name, value in sink.headers.items()):
        problems.add(f"{where}.headers", "has a secret in the file; write `env:NAME` and set that variable")
    if isinstance(sink, SqlSink) and re.match(r"postgresql://[^@/]*:[^@/]+@", sink.url):
        problems.add(f"{where}.url", "has a password in the file; write `env:NAME` and set that variable")


def _looks_secret(header: str, value: str) -> bool:
    word = header.lower()
    return not value.startswith("env:") and any(part in word for part in ("authorization", "token", "key", "secret"))


def _check_action(
    action: ActionSettings, act: ActSettings, where: str, problems: Problems, outputs: Collection[str] | None
) -> None:
    try:
        _check_names(read_condition(action.when).names, f"{where}.when", problems, outputs)
    except NotUnderstood as error:
        problems.add(f"{where}.when", str(error))
    if bool(action.sink) == bool(action.steps):
        problems.add(where, "give either `sink` with `args`, or `steps`")
        return
    if action.steps and (action.args or action.undo is not None):
        problems.add(where, "set `args` and `undo` on each of the `steps`")
    for index, step in enumerate(action.all_steps):
        place = f"{where}.steps[{index}]" if action.steps else where
        _check_step(step, action, act, place, problems, outputs)
    known = {name for step in action.all_steps for name in step.args}
    for name, (low, high) in action.interlocks.ranges.items():
        if name not in known:
            problems.add(f"{where}.interlocks.ranges.{name}", f"not an argument; arguments: {', '.join(sorted(known))}")
        elif not (math.isfinite(low) and math.isfinite(high) and low <= high):
            problems.add(f"{where}.interlocks.ranges.{name}", "is empty; write [lowest, highest]")
    if action.mode is Mode.FIRE_AND_FORGET and action.steps:
        problems.add(f"{where}.steps", f"several steps need mode `{Mode.TRANSACTIONAL}`, which can undo them")


def _check_step(
    step: StepSettings,
    action: ActionSettings,
    act: ActSettings,
    where: str,
    problems: Problems,
    outputs: Collection[str] | None,
) -> None:
    sink = act.sinks.get(step.sink)
    if sink is None:
        problems.add(f"{where}.sink", f"`{step.sink}` is not defined; sinks: {', '.join(act.sinks) or 'none'}")
        return
    for name, raw in (("args", step.args), ("undo", step.undo or {})):
        template = _template(raw, f"{where}.{name}", problems)
        if template is not None:
            _check_names(template.names, f"{where}.{name}", problems, outputs)
    if isinstance(sink, ModbusSink) and sink.value not in step.args:
        problems.add(f"{where}.args", f"has no `{sink.value}`, which sink `{step.sink}` writes")
    if step.undo is not None and not _can_undo(sink):
        problems.add(f"{where}.undo", f"sink `{step.sink}` cannot undo; give it an `undo_url` or `undo_statement`")
    if action.mode is Mode.TRANSACTIONAL and not (can_read_back(sink) or keeps_keys(sink)):
        problems.add(
            f"{where}.sink",
            f"`{step.sink}` can neither be read back nor deduplicate by key, so a lost response could not be resolved; "
            f"use `honours_key`, a status address or topic, or mode `{Mode.FIRE_AND_FORGET}`",
        )


def _can_undo(sink: SinkSettings) -> bool:
    if isinstance(sink, HttpSink):
        return bool(sink.undo_url)
    return bool(sink.undo_statement) if isinstance(sink, SqlSink) else True


def _template(raw: dict[str, str | int | float | bool], where: str, problems: Problems) -> ArgumentTemplate | None:
    for name, value in raw.items():
        if isinstance(value, float) and not math.isfinite(value):
            problems.add(f"{where}.{name}", "is not a finite number")
    try:
        return read_template(raw)
    except NotUnderstood as error:
        problems.add(where, str(error))
        return None


def _check_names(names: frozenset[str], where: str, problems: Problems, outputs: Collection[str] | None) -> None:
    for name in sorted(names - set(outputs) if outputs is not None else ()):
        problems.add(where, f"`{name}` is not an output; outputs: {', '.join(sorted(outputs or ()))}")


def _wrong_sinks(raw: object, where: str) -> list[tuple[str, str]]:
    """Of a mapping msgspec tells only that something in it is wrong; people want to know which sink."""
    sinks = raw.get("sinks") if isinstance(raw, dict) else None
    found = []
    for name, sink in sinks.items() if isinstance(sinks, dict) else ():
        try:
            msgspec.convert(sink, SinkSettings)
        except msgspec.ValidationError as error:
            found.append(_place(str(error), f"{where}.sinks.{name}"))
    return found


def _place(text: str, where: str) -> tuple[str, str]:
    """msgspec ends its sentence with the place; people look for the place first."""
    ends = _AT.search(text)
    if ends is None:
        return where, text[:300]
    hint = "; YAML reads on, off, yes and no as true and false: quote them" if ends.group(1) else ""
    return where + ends.group(2), text[: ends.start()][:300] + hint


def _refusal(found: list[tuple[str, str]]) -> HarchError:
    lines = [f"{where}: {what}" for where, what in found]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n  " + "\n  ".join(lines)
    meta: dict[str, object] = {"problems": [{"where": where, "what": what} for where, what in found]}
    return HarchError(CODE, message, hint=HINT, field=found[0][0], meta=meta)
