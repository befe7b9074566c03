"""Is this `act` part one that can be obeyed? Every mistake at once, each with its place, a sentence and a way out."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import msgspec

from harch.base.errors import HarchError, Problems
from harch.pipelines.act.rules import NotUnderstood, read_condition
from harch.pipelines.act.settings import (
    ActionSettings,
    ActSettings,
    HttpSink,
    ModbusSink,
    Mode,
    MqttSink,
    NatsSink,
    SinkSettings,
    SqlSink,
    StepSettings,
)
from harch.pipelines.act.templates import Template, read_template

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
        problems.add(f"{where}.actions", f"`{name}` is there {names.count(name)} times; give each its own name")
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
        problems.add(f"{where}.keyed", "a coil has no registers for a key; write to registers, or leave it out")
    if isinstance(sink, HttpSink) and sink.status_url and "{key}" not in sink.status_url:
        problems.add(f"{where}.status_url", "does not say which command it asks about; put `{key}` into it")
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
        problems.add(where, "`args` and `undo` belong to each of the `steps`")
    for index, step in enumerate(action.all_steps):
        place = f"{where}.steps[{index}]" if action.steps else where
        _check_step(step, action, act, place, problems, outputs)
    known = {name for step in action.all_steps for name in step.args}
    for name, (low, high) in action.interlocks.ranges.items():
        if name not in known:
            problems.add(f"{where}.interlocks.ranges.{name}", f"is no argument; arguments: {', '.join(sorted(known))}")
        elif not (math.isfinite(low) and math.isfinite(high) and low <= high):
            problems.add(f"{where}.interlocks.ranges.{name}", "is empty; write [lowest, highest]")
    if action.mode is Mode.FIRE_AND_FORGET and action.steps:
        problems.add(f"{where}.steps", f"several steps need mode `{Mode.TRANSACTIONAL}`, which can take them back")


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
        problems.add(f"{where}.sink", f"`{step.sink}` is not described; sinks: {', '.join(act.sinks) or 'none'}")
        return
    for name, raw in (("args", step.args), ("undo", step.undo or {})):
        template = _template(raw, f"{where}.{name}", problems)
        if template is not None:
            _check_names(template.names, f"{where}.{name}", problems, outputs)
    if isinstance(sink, ModbusSink) and sink.value not in step.args:
        problems.add(f"{where}.args", f"has no `{sink.value}`, which sink `{step.sink}` writes")
    if step.undo is not None and not _can_undo(sink):
        problems.add(f"{where}.undo", f"sink `{step.sink}` has no way back; give it an `undo_url` or `undo_statement`")
    if action.mode is Mode.TRANSACTIONAL and not (can_read_back(sink) or keeps_keys(sink)):
        problems.add(
            f"{where}.sink",
            f"`{step.sink}` can neither be read back nor keeps keys, so a lost answer could not be cleared up; "
            f"use `honours_key`, a status address or topic, or mode `{Mode.FIRE_AND_FORGET}`",
        )


def _can_undo(sink: SinkSettings) -> bool:
    if isinstance(sink, HttpSink):
        return bool(sink.undo_url)
    return bool(sink.undo_statement) if isinstance(sink, SqlSink) else True


def _template(raw: dict[str, str | int | float | bool], where: str, problems: Problems) -> Template | None:
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
        problems.add(where, f"`{name}` is no output; outputs: {', '.join(sorted(outputs or ()))}")


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
