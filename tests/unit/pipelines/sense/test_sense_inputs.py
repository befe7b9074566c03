"""Ways in, each with good and hostile input: what can be used arrives, the rest is counted, and the lane goes on.

Sockets and a broker are in tests/integration/test_sense_for_real.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow
import pytest
from sense_world import T0, batch_of, rows_of, settings_of, stage_of, take

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.pipelines.listener_keys import key_digest
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import EdgeBatcher, Permit
from harch.pipelines.sense.inputs.batches import NatsInput
from harch.pipelines.sense.inputs.file import FileInput
from harch.pipelines.sense.inputs.http import ARROW_TYPE, BATCH_TYPE, HttpInput
from harch.pipelines.sense.inputs.mqtt import MqttInput, TopicPattern, read_topic, topic_pattern
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import EXPLANATIONS, Quarantine
from harch.pipelines.sense.settings import FileSource, MqttSource
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import RowFormat, RowReader
from harch.testing.clock import SimClock

SETTINGS = settings_of()
SCHEMA = SETTINGS.event_schema
FORMAT = RowFormat(values={"v0": "value"})
DEVICES = DeviceTable(SETTINGS.devices, SETTINGS.devices_max, SETTINGS.metrics)
READER = RowReader(SCHEMA, DEVICES, FORMAT)
ROW = {"ts": T0 // 1_000_000, "device": "pump-1", "metric": "flow", "value": 2.5}
PATIENCE_S = 30.0
KEY = "a-key-of-the-tests-alone"


def make_edge(name: str = "in") -> EdgeBatcher:
    return EdgeBatcher(name, SETTINGS, Permit(1, 1), disorder_s=0.0, priority=3)


def make_intake(bytes_max: int = 1 << 20) -> Intake:
    return Intake(bytes_max=bytes_max, quarantine=Quarantine(10))


def events_in(messages: list[bytes]) -> int:
    headers = [unpack_header(message) for message in messages]
    return sum(header.n for header in headers if isinstance(header, BatchHeader))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


# HTTP


def http_client(intake: Intake, **changed: Any) -> httpx.AsyncClient:
    options: dict[str, Any] = {"body_bytes_max": 100_000, "key_sha256": key_digest(KEY), **changed}
    app = HttpInput(make_edge(), READER, FORMAT, intake, SystemClock(), **options)
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://sense", headers={"x-api-key": KEY})


async def test_http_takes_good_rows_and_explains_the_others() -> None:
    intake = make_intake()
    lines = "\n".join(json.dumps(row) for row in (ROW, {**ROW, "device": "?"}, {**ROW, "value": None}))
    async with http_client(intake) as client:
        answer = await client.post("/v1/events", content=lines, headers={"content-type": "application/x-ndjson"})
        assert answer.status_code == 202
        assert answer.json()["accepted"] == 1
        assert answer.json()["reasons"] == {"unknown_device": 1, "bad_value": 1}
        assert "`?`" in answer.json()["examples"][0]["detail"]
        assert (await client.post("/v1/events", json=[ROW, ROW])).json()["accepted"] == 2
    assert events_in(intake.get_nowait()) == 3
    assert intake.quarantine.counts == {"unknown_device": 1, "bad_value": 1}


async def test_http_takes_arrow_and_ready_made_batches() -> None:
    table = pyarrow.table({"ts": [ROW["ts"]], "device": ["pump-2"], "value": [1.5]})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    intake = make_intake()
    async with http_client(intake) as client:
        body = sink.getvalue().to_pybytes()
        assert (await client.post("/v1/events", content=body, headers={"content-type": ARROW_TYPE})).status_code == 202
        batch = batch_of(1, [(0.0, 0, 0, 1.0)])
        assert (await client.post("/v1/events", content=batch, headers={"content-type": BATCH_TYPE})).status_code == 202
        damaged = batch[:-1] + b"?"
        answer = await client.post("/v1/events", content=damaged, headers={"content-type": BATCH_TYPE})
        assert (answer.status_code, answer.json()["code"]) == (400, "E0202")
    assert events_in(intake.get_nowait()) == 2


async def test_http_turns_away_what_is_too_much_and_takes_nothing_of_it() -> None:
    intake = make_intake(bytes_max=150)
    edge = make_edge()
    app = HttpInput(edge, READER, FORMAT, intake, SystemClock(), body_bytes_max=1000, key_sha256=key_digest(KEY))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sense", headers={"x-api-key": KEY}) as client:
        assert (await client.post("/v1/events", json=ROW)).status_code == 202
        full = await client.post("/v1/events", json=[ROW] * 5)
        assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (429, "E0742", "1")
        assert edge.seq == 1
        intake.get_nowait()
        assert (await client.post("/v1/events", json=[ROW] * 5)).status_code == 202

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 600

        assert (await client.post("/v1/events", content=endless())).status_code == 413
        assert (await client.post("/v1/events", content=b"x" * 10_000_000)).status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/v1/events", {}, 405),
        ("POST", "/", {}, 404),
        ("POST", "/v1/events", {"content": b"a", "headers": {"content-type": "text/html"}}, 400),
        ("POST", "/v1/events", {"content": b"\xff\x00", "headers": {"content-type": ARROW_TYPE}}, 400),
    ],
)
async def test_http_answers_mistakes_with_code_and_hint(method: str, path: str, options: Any, status: int) -> None:
    async with http_client(make_intake()) as client:
        answer = await client.request(method, path, **options)
    assert answer.status_code == status
    assert answer.json()["hint"]


@pytest.mark.parametrize("length", [b"\xb2", b"9" * 5000, b"-1", b"", b"1e9"])
async def test_http_is_not_misled_by_a_false_length(length: bytes) -> None:
    intake = make_intake()
    app = HttpInput(make_edge(), READER, FORMAT, intake, SystemClock(), body_bytes_max=1000, key_sha256=key_digest(KEY))
    bodies = [json.dumps(ROW).encode(), b" " * 2000]
    for body, status in zip(bodies, (202, 413), strict=True):
        sent: list[Any] = []

        async def receive(body: bytes = body) -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/events",
            "headers": [(b"content-length", length), (b"x-api-key", KEY.encode())],
        }
        await app(scope, receive, send)
        assert sent[0]["status"] == status


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "E0101"),
        ({"x-api-key": ""}, "E0101"),
        ({"authorization": "Basic eDp5"}, "E0101"),
        ({"x-api-key": "another key"}, "E0102"),
        ({"x-api-key": KEY[:-1]}, "E0102"),
        ({"x-api-key": KEY + "x"}, "E0102"),
        ({"authorization": "Bearer another"}, "E0102"),
        ({"x-api-key": key_digest(KEY)}, "E0102"),  # what workers know opens nothing
    ],
)
async def test_http_without_the_right_key_reads_no_body(headers: dict[str, str], code: str) -> None:
    intake = make_intake()

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with http_client(intake) as client:
        client.headers.pop("x-api-key")
        refused = await client.post("/v1/events", content=never(), headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (401, code)
        assert "harch pipeline key" in refused.json()["hint"]
        assert refused.headers["www-authenticate"] == "Bearer"
        assert intake.quarantine.counts == {"unauthorised": 1}
        for right in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert (await client.post("/v1/events", json=ROW, headers=right)).status_code == 202
    assert events_in(intake.get_nowait()) == 2


async def test_a_source_that_was_given_no_key_takes_nothing() -> None:
    async with http_client(make_intake(), key_sha256="") as client:
        assert (await client.post("/v1/events", json=ROW)).status_code == 401
        assert (await client.post("/v1/events", json=ROW, headers={"x-api-key": ""})).status_code == 401


# MQTT


@pytest.mark.parametrize(
    "topic",
    [
        "farm/pump-1", "farm/pump-1/flow/more", "other/pump-1/flow", "farm//flow", "farm/+/flow", "farm/#", "$SYS/a/b",
        "farm/pump\x00/flow", "farm/pu\nmp/flow", "farm/" + "x" * 200 + "/flow", "a/" * 4000, "", "/",
        "farm/\u202e/flow",
    ],
)  # fmt: skip
def test_hostile_topics_mean_nothing(topic: str) -> None:
    pattern = topic_pattern("farm/{device}/{metric}")
    assert isinstance(pattern, TopicPattern)
    assert not isinstance(read_topic((pattern,), topic), dict)


@pytest.mark.parametrize("text", ["", "a//b", "a/+/b", "a/#", "{device}/{device}", "$SYS/{device}", "a/{other}"])
def test_patterns_with_a_mistake_are_refused_at_the_start(text: str) -> None:
    with pytest.raises(HarchError, match="E0201"):
        mqtt_input(make_intake(), topics=(text,))


def mqtt_input(intake: Intake, port: int = 1, topics: tuple[str, ...] = ("farm/{device}/{metric}",)) -> MqttInput:
    source = MqttSource(name="m", host="127.0.0.1", port=port, topics=topics, rows=FORMAT)
    return MqttInput(source, SCHEMA, make_edge(), READER, intake, SystemClock())


async def test_mqtt_payloads_are_numbers_or_rows_and_the_topic_wins() -> None:
    intake = make_intake()
    source = mqtt_input(intake)
    source.take("farm/pump-0/flow", b"12.5")
    source.take("farm/pump-1/pressure", json.dumps({**ROW, "device": "pump-2"}).encode())
    for payload in (b"", b"NaN", b"[1]", b'{"value": [1]}', b"\xff", b"[" * 100_000):
        source.take("farm/pump-0/flow", payload)
    source.take("farm/nobody/flow", b"1")
    await source.send_gathered()
    assert intake.quarantine.counts == {"unreadable": 6, "unknown_device": 1}
    assert events_in(intake.get_nowait()) == 2


# Files


def file_input(path: Path, intake: Intake, clock: Any = None, **changed: Any) -> FileInput:
    after = {make_edge().source: changed.pop("after_seq", 0)}
    source = FileSource(name="f", path=str(path), rows=FORMAT, **changed)
    return FileInput(source, SCHEMA, make_edge(), READER, intake, clock or SystemClock(), after=after)


async def test_a_csv_file_is_played_and_its_bad_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "pumps.csv"
    good = "".join(f"{T0 // 1_000_000 + second * 1000},pump-1,flow,{second}\n" for second in range(5))
    bad = "1,2\n1700000000000,pump-9,flow,1\n1700000000000,pump-1,flow,nan\n" + "x" * 10_000_000 + "\n"
    path.write_bytes(b"ts,device,metric,value\n" + good.encode() + bad.encode() + b"\xff,\xff,,\n\n")
    intake = make_intake()
    await file_input(path, intake).run()
    stage = stage_of()
    outcomes = [take(stage, message) for message in intake.get_nowait()]
    assert {end: row["flow.last"] for (end, _), row in rows_of(outcomes).items()} == {
        n + 1.0: float(n) for n in range(5)
    }
    assert intake.quarantine.counts == {"unreadable": 2, "unknown_device": 1, "bad_value": 1, "too_large": 1}


async def test_a_file_gives_the_same_batches_again_and_can_go_on_after_some(tmp_path: Path) -> None:
    path = tmp_path / "pumps.ndjson"
    path.write_text("\n".join(json.dumps({**ROW, "ts": ROW["ts"] + 700 * number}) for number in range(100)))  # type: ignore[operator]
    first, second, rest = make_intake(), make_intake(), make_intake()
    await file_input(path, first, format="ndjson").run()
    await file_input(path, second, format="ndjson").run()
    await file_input(path, rest, format="ndjson", after_seq=10).run()
    messages = first.get_nowait()
    assert len(messages) > 20
    assert second.get_nowait() == messages
    assert rest.get_nowait() == messages[10:]


async def test_a_file_in_its_own_time_takes_its_time(tmp_path: Path) -> None:
    path = tmp_path / "pumps.ndjson"
    path.write_text("\n".join(json.dumps({**ROW, "ts": ROW["ts"] + 1000 * number}) for number in range(600)))  # type: ignore[operator]
    clock = SimClock()
    began_s = clock.monotonic_s()
    task = asyncio.create_task(file_input(path, make_intake(), clock, format="ndjson", speed=60.0).run())
    async with asyncio.timeout(PATIENCE_S):
        while not task.done():
            if clock.sleeper_count:
                clock.jump(0.25)
            await asyncio.sleep(0.001)
    await task
    assert clock.monotonic_s() - began_s >= 599 / 60


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", None])
async def test_a_file_that_is_none_is_an_error_with_a_hint(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HarchError, match="E0202"):
        await file_input(path, make_intake()).run()


# The message engine


class Engine:
    """What the input needs of a client."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[Any], None]] = {}

    def subscribe(self, subject: str, handler: Callable[[Any], None]) -> int:
        self.handlers[7] = handler
        return 7

    def unsubscribe(self, sid: int) -> None:
        del self.handlers[sid]


class Delivered:
    def __init__(self, payload: memoryview) -> None:
        self.payload = payload


async def test_messages_of_the_engine_are_copied_and_what_finds_no_room_is_counted() -> None:
    engine, intake = Engine(), make_intake(bytes_max=200)
    task = asyncio.create_task(NatsInput(engine, "juris.ma.farm.sense.3", intake).run())
    await until(lambda: bool(engine.handlers))
    memory = bytearray(batch_of(1, [(0.1, 0, 0, 1.0)]))
    for _ in range(4):
        engine.handlers[7](Delivered(memoryview(memory)))
    memory[:] = bytes(len(memory))
    assert [events_in([message]) for message in intake.get_nowait()] == [1, 1]
    assert (intake.refused, intake.quarantine.counts) == (2, {"intake_full": 2})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not engine.handlers


def test_every_reason_has_an_explanation() -> None:
    assert all(sentence.endswith(".") for sentence in EXPLANATIONS.values())
