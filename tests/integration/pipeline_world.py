"""A whole pipeline of real processes for one test: senders, a recording sink, a tap on the features, and the books."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import numpy as np
from nats_pull import stored_seq
from nats_world import until

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act.settings import ActionSettings, ActSettings, HttpSink
from harch.pipelines.client.aio import AioClient
from harch.pipelines.engine.layout import ServerLimits
from harch.pipelines.engine.streams import ConsumerSpec
from harch.pipelines.listener_keys import key_digest
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import CheckpointSettings, HttpSource, SenseSettings, TcpSource, WindowSettings
from harch.pipelines.think.settings import BatchingSettings, ModelSettings, RuntimeKind, ThinkSettings, VersionSettings
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.workers.config import LeaseSettings, SourceOptions, WorkerStage
from harch.pipelines.workers.deployment import LaneSizes
from harch.pipelines.workers.parts import PipelineParts
from harch.pipelines.workers.pull_consumer import Puller, acknowledge
from harch.pipelines.workers.telemetry import WorkerStatus
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import Classification, Tag
from harch.testing.local_pipeline import LocalPipeline

MIB = 1 << 20
DEVICES = 12
KEY = "a-key-of-the-tests-alone"
SHOWN = {"x-api-key": KEY}
WINDOW_S = 0.5
LIMITS = ServerLimits(memory_bytes_max=64 * MIB, file_bytes_max=512 * MIB)
SIZES = LaneSizes(
    features_bytes=32 * MIB,
    outputs_bytes=32 * MIB,
    late_bytes=8 * MIB,
    dead_bytes=8 * MIB,
    audit_bytes=32 * MIB,
    state_bytes=64 * MIB,
    ledger_bytes=64 * MIB,
)
MOROCCO = Tag(
    process_in=("MA",),
    rest_in=("MA",),
    transit_in=("MA",),
    may_cross_borders=False,
    frameworks=(),
    classification=Classification.INTERNAL,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=(),
)
_MODELS = """
import numpy as np

def dry(rows):
    return (rows[:, :1] * 0 + 1).astype(np.float32)

def drier(rows):
    return (rows[:, :1] * 0 + 2).astype(np.float32)
"""


def parts_of(sink_url: str, *, workers: dict[WorkerStage, int] | None = None, partitions: int = 2) -> PipelineParts:
    """Moisture of fields in, a window per half second, one action per device and window."""
    return PipelineParts(
        name="fields",
        country="MA",
        site=LegalSite(hub="dakhla", country="MA"),
        policy=PolicyTable(1, {"dakhla": 0, "dakar": 1}),
        juris_mask=1,
        sense=SenseSettings(
            sources=(HttpSource(name="web", disorder_s=0.1), TcpSource(name="fast")),
            devices=tuple(f"field-{number}" for number in range(DEVICES)),
            devices_max=DEVICES,
            metrics=("moisture",),
            statistics=("count", "mean"),
            windows=WindowSettings(size_s=WINDOW_S, lateness_s=0.2, skew_s=5.0, future_s=5.0),
            source_idle_s=3600.0,
            partitions=partitions,
            checkpoint=CheckpointSettings(every_s=0.2),
        ),
        think=ThinkSettings(
            models=(
                ModelSettings(
                    name="dryness",
                    inputs=("mean",),
                    outputs=("need",),
                    versions=(version("1", "dry"),),
                    batching=BatchingSettings(preferred_rows=(64,)),
                ),
            )
        ),
        act=ActSettings(
            sinks={"valves": HttpSink(url=sink_url, honours_key=True, timeout_s=10)},
            actions=(
                ActionSettings(name="water", when="need >= 1", ttl_s=120, sink="valves", args={"need": "{need}"}),
            ),
        ),
        workers=workers or {"source": 1, "sense": 1, "think": 1, "act": 1},
        model_tags={"dryness": MOROCCO},
        sizes=SIZES,
        leases=LeaseSettings(ttl_s=3.0, poll_s=0.1),
        source=SourceOptions(keys_sha256={"web": key_digest(KEY), "fast": key_digest(KEY)}),
        status_every_s=0.2,
    )


def version(name: str, function: str) -> VersionSettings:
    return VersionSettings(version=name, runtime=RuntimeKind.PYTHON, callable=f"field_models:{function}")


@contextlib.asynccontextmanager
async def broker(port: int) -> AsyncIterator[None]:
    """A real MQTT broker."""
    from amqtt.broker import Broker

    config = {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    running = Broker(config)
    await running.start()
    try:
        yield
    finally:
        await running.shutdown()


class RecordingSink:
    """An HTTP server that writes down every request that it carries out: each key once, as it promises."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()
        self.carried_out: dict[str, dict[str, object]] = {}
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/valve"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = json.loads(await reader.readexactly(int(fields.get("content-length", "0"))))
                key = fields["idempotency-key"]
                self.keys[key] += 1
                self.carried_out.setdefault(key, body)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        writer.close()


class PipelineWorld:
    """The pipeline, and everything that is counted about it."""

    def __init__(self, pipeline: LocalPipeline, sink: RecordingSink) -> None:
        self.pipeline = pipeline
        self.sink = sink
        self.accepted = 0  # events that a source said yes to
        self.refused = 0  # posts that it did not say yes to
        self.rows: Counter[tuple[int, int]] = Counter()  # events in features, by window end and device
        self.windows: Counter[tuple[int, int, int]] = Counter()  # how often each (partition, seq, end) was told
        self.newest_ns = 0
        self._clock = SystemClock()
        self._tap: asyncio.Task[None] | None = None
        self.contradictions = 0  # windows that were told in two ways
        self._bytes: dict[tuple[int, int, int], bytes] = {}
        self._stored: set[int] = set()  # numbers in the stream that were seen

    async def start(self) -> None:
        await self.pipeline.start()
        stream = self.pipeline.parts.names.features_stream
        tap = ConsumerSpec(stream=stream, name="tap", filter_subject=self.pipeline.parts.names.features("*"))
        admin = self.pipeline.engine.admin
        body = {"stream_name": stream, "config": tap.wire(), "action": "create"}
        await admin.call(f"CONSUMER.CREATE.{stream}.tap", body)
        self._tap = asyncio.create_task(self._listen(admin.client, stream))
        await self.pipeline.ready(timeout_s=90)

    async def stop(self) -> None:
        if self._tap is not None:
            self._tap.cancel()
            await asyncio.gather(self._tap, return_exceptions=True)
        await self.pipeline.stop()

    def now_ns(self) -> int:
        return round(self._clock.now().timestamp() * 1e9)

    async def status(self, worker: str) -> WorkerStatus:
        found: list[WorkerStatus] = []

        async def there() -> bool:
            with contextlib.suppress(HarchError):  # the engine may just be starting again
                found[:] = [one for one in await self.pipeline.statuses() if one.worker == worker and self._is_now(one)]
            return bool(found)

        await until(there, f"{worker} says something")
        return found[0]

    def _is_now(self, status: WorkerStatus) -> bool:
        process = self.pipeline.workers.get(status.worker)
        return process is not None and process.pid == status.pid

    async def address(self, source: str) -> str:
        name = next(name for name, worker in self.pipeline.workers.items() if worker.stage == "source")
        found = ""

        async def there() -> bool:
            nonlocal found
            found = (await self.status(name)).endpoints.get(source, "")
            return bool(found)

        await until(there, f"{source} has an address")
        return found

    async def post(self, client: httpx.AsyncClient, url: str, rows: list[dict[str, object]]) -> bool:
        """True if the source said yes to all of them."""
        try:
            answer = await client.post(f"{url}/v1/events", json=rows, headers=SHOWN, timeout=20)
        except httpx.HTTPError:
            return False
        if answer.status_code != 202 or answer.json()["rejected"]:
            return False
        self.accepted += len(rows)
        return True

    def moment(self) -> list[dict[str, object]]:
        """One event of every device, now."""
        now_ns = self.now_ns()
        self.newest_ns = max(self.newest_ns, now_ns)
        return [{"ts": now_ns // 1_000_000, "device": f"field-{number}", "v0": 0.5} for number in range(DEVICES)]

    async def close_windows(self, client: httpx.AsyncClient, url: str) -> int:
        """Events beyond all others close their windows; answers where those others ended."""
        end_ns = self.newest_ns + round(1e9)
        later_ms = (end_ns + round(2.5e9)) // 1_000_000
        rows = [{"ts": later_ms, "device": f"field-{number}", "v0": 0.5} for number in range(DEVICES)]
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.post(f"{url}/v1/events", json=rows, headers=SHOWN, timeout=20)
                    if answer.status_code == 202:
                        return end_ns + round(1e9)
                await asyncio.sleep(0.1)

    def counted(self, end_ns: int) -> int:
        return sum(count for (window_ns, _), count in self.rows.items() if window_ns <= end_ns)

    async def _listen(self, client: AioClient, stream: str) -> None:
        puller = Puller(client, stream, "tap", SystemClock())
        schema = feature_schema(self.pipeline.parts.sense)
        while True:
            for message in await puller.next(64, 0.5):
                if (stored := stored_seq(message)) in self._stored:
                    continue  # the same one delivered again, since our acknowledgement got lost
                self._stored.add(stored)
                header = unpack_header(message.payload)
                assert isinstance(header, BatchHeader)
                payload = check_payload(header, message.payload)
                assert not isinstance(payload, Rejection)
                columns = decode_columns(schema, header.n, payload)
                assert not isinstance(columns, Rejection)
                partition = int(message.subject.rpartition(".")[2])
                told = (partition, header.seq, header.t_first_ns)
                self.windows[told] += 1
                self.contradictions += self._bytes.setdefault(told, bytes(message.payload)) != message.payload
                if self.windows[told] == 1:
                    for device, count in zip(columns.device, columns.values[0], strict=True):
                        self.rows[(header.t_first_ns, int(device))] += int(np.float64(count))
                with contextlib.suppress(Exception):
                    acknowledge(client, message)

    @contextlib.asynccontextmanager
    async def feeding(self, pause_s: float = 0.03) -> AsyncIterator[None]:
        """Posts one event of every device again and again; what a source did not say yes to is not sent twice."""
        stop = asyncio.Event()
        feeder = asyncio.create_task(self._feed(stop, pause_s))
        try:
            yield
        finally:
            stop.set()
            await feeder

    async def _feed(self, stop: asyncio.Event, pause_s: float) -> None:
        async with httpx.AsyncClient() as client:
            url = await self.address("web")
            while not stop.is_set():
                if not await self.post(client, url, self.moment()):
                    self.refused += 1
                    url = await self.address("web")
                await asyncio.sleep(pause_s)

    async def settled(self) -> int:
        """Closes all windows and waits until everything accepted is in features, and every row of them acted on.

        Answers the end of the last window that counts."""
        async with httpx.AsyncClient() as client:
            end_ns = await self.close_windows(client, await self.address("web"))
        await until(lambda: self.counted(end_ns) >= self.accepted, "all accepted events are in features")
        await until(lambda: len(self.sink.carried_out) >= self.acted_on(end_ns), "every row has its action")
        return end_ns

    def acted_on(self, end_ns: int) -> int:
        return sum(window_ns <= end_ns for window_ns, _ in self.rows)


@contextlib.asynccontextmanager
async def fields(
    folder: Path,
    change: Callable[[PipelineParts], PipelineParts] = lambda parts: parts,
    *,
    synced_act: bool = True,
    **options: object,
) -> AsyncIterator[PipelineWorld]:
    """The running pipeline. `change` changes its parts before it starts."""
    models = folder / "models"
    models.mkdir()
    (models / "field_models.py").write_text(_MODELS)
    sink = RecordingSink()
    await sink.start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(models), *sys.path])}
    parts = change(parts_of(sink.url, **options))  # type: ignore[arg-type]
    pipeline = LocalPipeline(parts, folder / "pipeline", limits=LIMITS, synced_act=synced_act, environment=environment)
    made = PipelineWorld(pipeline, sink)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
        await sink.stop()
