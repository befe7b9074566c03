"""The `act` part of a pipeline: what is refused, where, and with which way out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from harch.base.errors import HarchError
from harch.pipelines.act.settings import Mode, read_act

FILE = """
sinks:
  valve: {kind: modbus, host: 10.0.0.5, register: 40, type: uint16, scale: 10, country: MA}
  bank: {kind: sql, url: "env:BANK_URL", statement: "UPDATE accounts SET blocked = 1 WHERE id = :device"}
  phone: {kind: http, url: "https://hook.example/{device}", headers: {Authorization: "env:HOOK"}}
  field: {kind: mqtt, host: 10.0.0.6, topic: "field/{device}/set"}
  bus: {kind: nats, url: "nats://10.0.0.7:4222", subject: "act.{device}"}
actions:
  - name: irrigate
    when: score > 0.8 and moisture < 20
    sink: valve
    args: {value: "{clip(score * 10, 0, 8)}"}
    ttl_s: 60
    interlocks: {ranges: {value: [0, 8]}, min_interval_s: 300, newest_only: true}
    rate: {per_s: 0.1, burst: 2}
    retries: {attempts: 3, base_s: 1}
  - {name: block, when: score > 0.99, sink: bank, args: {}, ttl_s: 3600, mode: confirm-and-execute}
  - {name: notify, when: score > 0.5, sink: phone, args: {text: "look at {device}"}, ttl_s: 60, mode: fire-and-forget}
  - name: both
    when: score > 0.9
    ttl_s: 60
    steps: [{sink: valve, args: {value: 1}, undo: {value: 0}}, {sink: bus, args: {lit: true}}]
"""


def good() -> dict[str, Any]:
    return yaml.safe_load(FILE)


def problems(raw: object, **kwargs: Any) -> dict[str, str]:
    with pytest.raises(HarchError) as caught:
        read_act(raw, **kwargs)
    assert caught.value.code == "E0770"
    assert caught.value.hint
    found = caught.value.meta["problems"]
    assert isinstance(found, list)
    return {one["where"]: one["what"] for one in found}


def test_a_file_with_every_kind_of_sink_is_understood() -> None:
    settings = read_act(good(), outputs=["score", "moisture"])
    assert [action.mode for action in settings.actions] == [
        Mode.TRANSACTIONAL,
        Mode.CONFIRM,
        Mode.FIRE_AND_FORGET,
        Mode.TRANSACTIONAL,
    ]


@pytest.mark.parametrize(
    ("path", "value", "where", "word"),
    [
        (("actions", 0, "ttl_s"), 0, "act.actions[0].ttl_s", ">"),
        (("actions", 0, "ttl_s"), 1e9, "act.actions[0].ttl_s", "<="),
        (("actions", 0, "when"), "score >", "act.actions[0].when", "not an expression"),
        (("actions", 0, "when"), "exec('x') > 1", "act.actions[0].when", "not part of the language"),
        (("actions", 0, "sink"), "tap", "act.actions[0].sink", "not defined"),
        (("actions", 0, "args"), {"level": 1}, "act.actions[0].args", "no `value`"),
        (("actions", 0, "args"), {"value": "{scre}"}, "act.actions[0].args", "not an output"),
        (
            ("actions", 0, "interlocks"),
            {"ranges": {"v": [0, 1]}},
            "act.actions[0].interlocks.ranges.v",
            "not an argument",
        ),
        (
            ("actions", 0, "interlocks"),
            {"ranges": {"value": [9, 1]}},
            "act.actions[0].interlocks.ranges.value",
            "empty",
        ),
        (("actions", 1, "mode"), "maybe", "act.actions[1].mode", "maybe"),
        (("actions", 1, "undo"), {"x": 1}, "act.actions[1].undo", "cannot undo"),
        (("actions", 2, "mode"), "transactional", "act.actions[2].sink", "neither be read back"),
        (("actions", 3, "mode"), "fire-and-forget", "act.actions[3].steps", "several steps"),
        (("actions", 3, "sink"), "valve", "act.actions[3]", "either"),
        (("actions", 1, "name"), "irrigate", "act.actions", "2 times"),
        (("actions", 0, "retry"), 3, "act.actions[0]", "retry"),
        (("sinks", "field", "topic"), "field/+/set", "act.sinks.field.topic", "wildcard"),
        (("sinks", "bus", "subject"), "act.>", "act.sinks.bus.subject", "wildcard"),
        (("sinks", "phone", "headers"), {"Authorization": "Bearer x"}, "act.sinks.phone.headers", "secret"),
        (("sinks", "phone", "url"), "ftp://x", "act.sinks.phone.url", "matching"),
        (("sinks", "phone", "url"), "https://{device}/x", "act.sinks.phone.url", "matching"),
        (("sinks", "bank", "url"), "postgresql://u:pw@h/d", "act.sinks.bank.url", "password"),
        (("sinks", "valve", "type"), "float64", "act.sinks.valve.type", "float64"),
        (("sinks", "valve", "kind"), "serial", "act.sinks.valve.kind", "serial"),
    ],
)
def test_a_mistake_is_named_with_its_place(path: tuple[str | int, ...], value: object, where: str, word: str) -> None:
    raw = good()
    at: Any = raw
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    found = problems(raw, outputs=["score", "moisture"])
    assert any(place.startswith(where) for place in found), found
    assert word in " ".join(found.values())


def test_all_mistakes_come_at_once() -> None:
    raw = good()
    raw["actions"][0]["when"] = "1"
    raw["actions"][1]["sink"] = "nowhere"
    raw["sinks"]["field"]["topic"] = "#"
    assert len(problems(raw, where="spec.act")) == 3
    assert all(place.startswith("spec.act") for place in problems(raw, where="spec.act"))
