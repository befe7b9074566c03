"""How does an export travel, and what do its rows become where it arrives?

A task per lane: one takes it out of the engine and over the border, one takes it in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.bucket import NatsBucket, Unreachable
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.borders import BorderLane, Fate, LaneReceiver, LaneSender
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import EdgeBatcher, Permit
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.inputs.http import BATCH_TYPE
from harch.pipelines.sense.settings import HttpSource, SenseSettings
from harch.pipelines.spec.deployment import ExportOffer
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.wire.rows import UNIT_NS, RowReader
from harch.pipelines.workers.names import PipelineNames
from harch.pipelines.workers.shared_state import Policies

# What does an export say, and what do the rows of one become where it arrives? Features in, JSON out, events in.
#
# JSON, so that whoever watches a border can read what crosses it. `(state, partition, seq)` names a window for good:
# the
# source that takes it in recognises by that what came twice. No I/O.


BODY_BYTES_MAX = 7 << 20  # below what the border server takes in one message


class ExportRow(Struct, frozen=True, array_like=True):
    device: str
    metric: str
    values: tuple[float | None, ...]


class ExportBatch(Struct, frozen=True, kw_only=True):
    """One window of one partition."""

    state: int
    partition: int
    seq: int
    window_end_ns: int
    columns: tuple[str, ...]
    rows: tuple[ExportRow, ...]


class Leaving(Struct, frozen=True, kw_only=True):
    """What may leave of a message of features, and how many rows that is."""

    body: bytes
    rows: int


class FeatureReader:
    """Makes exports of the features of one pipeline."""

    def __init__(self, settings: SenseSettings) -> None:
        self._schema = feature_schema(settings)
        self._names = tuple(column.name for column in self._schema.values)
        self._devices, self._metrics = settings.devices, settings.metrics
        self._per_device = settings.rows_per == "device"

    def leaving(
        self,
        message: bytes,
        *,
        state: int,
        partition: int,
        columns: Sequence[str],
        hub: str,
        tables: Sequence[PolicyTable],
        released: bool = False,
    ) -> Leaving | Rejection:
        """The rows with these columns, for that hub. A window whose events may not be there does not leave, whatever
        the pipeline permits. `state`: the version of what the numbers of windows mean. `released`: what the pipeline's
        data permits was loosened for this export, which covers no window whose events permit less than that."""
        header = unpack_header(message)
        if isinstance(header, Rejection):
            return header
        payload = check_payload(header, message)
        if isinstance(payload, Rejection):
            return payload
        table = next((one for one in tables if one.version == header.policy_version), None)
        if table is None or not (_permits_all(header, table) if released else _may_be_at(header, hub, table)):
            return Rejection(f"{hub}", "juris_mask", "events of this window are not allowed there", "it stays here")
        found = decode_columns(self._schema, header.n, payload)
        if isinstance(found, Rejection):
            return found
        picked = [self._names.index(name) for name in columns] if columns else list(range(len(self._names)))
        matrix = found.values[picked].T.tolist()
        rows = tuple(
            ExportRow(
                self._device(int(device)),
                "" if self._per_device else self._metrics[int(metric)],
                tuple(value if math.isfinite(value) else None for value in values),
            )
            for device, metric, values in zip(found.device, found.metric, matrix, strict=True)
        )
        batch = ExportBatch(
            state=state,
            partition=partition,
            seq=header.seq,
            window_end_ns=header.t_first_ns,
            columns=tuple(self._names[index] for index in picked),
            rows=rows,
        )
        body = msgspec.json.encode(batch)
        if len(body) > BODY_BYTES_MAX:
            detail = f"{len(body)} bytes for one window; at most {BODY_BYTES_MAX} cross a border at once"
            return Rejection("export", "size", detail, "export fewer columns, or use more partitions")
        return Leaving(body=body, rows=len(rows))

    def _device(self, number: int) -> str:
        return self._devices[number] if number < len(self._devices) else str(number)


class Arrived(Struct, frozen=True, kw_only=True):
    """A ready-made batch for a source; empty if none of its rows can be used. `left_out`: why, with counts."""

    message: bytes
    rows: int
    left_out: dict[str, int]


class RowTaker:
    """Makes batches for one HTTP source of a pipeline of what arrives from one export."""

    def __init__(self, settings: SenseSettings, source: HttpSource, permit: Permit, name: str) -> None:
        self._settings, self._source, self._permit, self._name = settings, source, permit, name
        table = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
        self._reader = RowReader(settings.event_schema, table, source.rows)

    def arrived(self, body: bytes, now_ns: int) -> Arrived | Rejection:
        try:
            batch = msgspec.json.decode(body, type=ExportBatch)
        except (msgspec.MsgspecError, RecursionError) as error:
            return Rejection("import", "body", f"not an export: {error}", "check that both hubs run the same version")
        format, unit_ns = self._source.rows, UNIT_NS[self._source.rows.time_unit]
        named: list[dict[str, object]] = [
            {
                **dict(zip(batch.columns, row.values, strict=False)),
                format.time: batch.window_end_ns // unit_ns,
                format.device: row.device,
                **({format.metric: row.metric} if row.metric else {}),
            }
            for row in batch.rows
        ]
        # The number of the window is the number of the batch, and each partition a sender of its own.
        edge = EdgeBatcher(
            f"{self._name}/{batch.state}/{batch.partition}",
            self._settings,
            self._permit,
            disorder_s=self._source.disorder_s,
            priority=self._source.priority,
            seq=max(0, batch.seq - 1),
        )
        prepared = edge.prepare(self._reader.mappings(named), now_ns)
        left_out: dict[str, int] = {}
        for example, count in prepared.aside:
            left_out[example.reason] = left_out.get(example.reason, 0) + count
        message = prepared.messages[0] if prepared.messages else b""
        return Arrived(message=message, rows=prepared.events, left_out=left_out)


def _may_be_at(header: BatchHeader, hub: str, table: PolicyTable) -> bool:
    return hub in table.bits and bool(header.juris_mask & table.ceiling & (1 << table.bits[hub]))


def _permits_all(header: BatchHeader, table: PolicyTable) -> bool:
    """Nothing in it is stricter than the tag that the statement is about."""
    return header.juris_mask & table.ceiling == table.ceiling


# How does an export travel? A task per lane: one takes it out of the engine and over the border, one takes it in.


SESSION, NUMBER = "Harch-Session", "Harch-Number"
IDLE_S = 0.2
RETRY_S = 0.5
QUEUED_MAX = 64
_NO_MESSAGE = 404

log = logging.getLogger("harch.hub")

Count = Callable[[str, int], None]


class ExportLane:
    """Sends what waits in the export stream of a pipeline. Where it is, it keeps in the state of the pipeline."""

    def __init__(
        self,
        lane: BorderLane,
        offer: ExportOffer,
        reader: FeatureReader,
        names: PipelineNames,
        policies: Policies,
        *,
        admin: Callable[[], JetStreamAdmin],
        border: AioClient,
        clock: Clock,
        count: Count,
    ) -> None:
        self.lane = lane
        self._offer, self._reader, self._names, self._policies = offer, reader, names, policies
        self._admin, self._border, self._clock, self._count = admin, border, clock, count
        self._news = asyncio.Event()
        self._sender = LaneSender(round(clock.now().timestamp() * 1000), secrets.randbits(16))
        self._rows: dict[int, int] = {}  # under way, by place
        self._place = 0  # the last message of the stream that was looked at

    @property
    def _key(self) -> str:
        return f"exported.{self.lane.export}.{self.lane.target}"

    @property
    def _read_subject(self) -> str:
        return f"$JS.API.DIRECT.GET.{self._names.export_stream}"

    async def run(self) -> None:
        """Until cancelled. Without an engine or a link it waits, and nothing is lost but what the stream forgets."""
        sid = self._border.subscribe(self.lane.receipts, self._on_receipt)
        try:
            kept = self._place = await self._began()
            while True:
                try:
                    await self._fill()
                    if self._sender.received_place > kept:
                        kept = await self._keep(self._sender.received_place)
                    self._send()
                except (HarchError, NatsError, Unreachable) as error:
                    log.info("export %s pending: %s", self.lane, error)
                    await self._clock.sleep(RETRY_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_S):
                        await self._news.wait()
                self._news.clear()
        finally:
            self._border.unsubscribe(sid)

    async def _began(self) -> int:
        while True:
            try:
                found = await NatsBucket(self._admin().client, self._names.state_bucket).get(self._key)
                return int(found.value) if found is not None else 0
            except (HarchError, NatsError, Unreachable, ValueError) as error:
                log.info("export %s cannot start: %s", self.lane, error)
            await self._clock.sleep(RETRY_S)

    async def _keep(self, place: int) -> int:
        await NatsBucket(self._admin().client, self._names.state_bucket).put(self._key, str(place).encode())
        return place

    async def _fill(self) -> None:
        """Takes from the stream what there is room for."""
        client = self._admin().client
        while self._sender.room:
            requested = {"seq": self._place + 1, "next_by_subj": self._names.exported("*")}
            message = await client.request(self._read_subject, msgspec.json.encode(requested))
            if message.status == _NO_MESSAGE:
                return
            headers = message.headers()
            found = int(headers.get("Nats-Sequence", "0"))
            if message.status or found <= self._place:
                raise NatsError(f"the export stream returned status {message.status}")
            leaving = await self._leaving(bytes(message.payload), headers)
            if self._place and found > self._place + 1:
                self._count("forgotten", found - self._place - 1)
            self._place = found
            if isinstance(leaving, Rejection):
                self._count(f"kept_back:{leaving.rule}", 1)
            else:
                self._rows[found] = leaving.rows
                self._sender.offer(found, leaving.body)

    async def _leaving(self, data: bytes, headers: Mapping[str, str]) -> Leaving | Rejection:
        partition = headers.get("Nats-Subject", "").rpartition(".")[2]
        state = headers.get("Nats-Msg-Id", "").partition("/")[0]  # of its worker: numbers begin again with each
        while True:
            found = self._reader.leaving(
                data,
                state=int(state) if state.isdecimal() else 0,
                partition=int(partition) if partition.isdecimal() else 0,
                columns=self._offer.columns,
                hub=self.lane.target,
                tables=self._policies.tables,
                released=self._offer.released,
            )
            if not isinstance(found, Rejection) or found.rule != "juris_mask" or not await self._learned():
                return found

    async def _learned(self) -> bool:
        """Whether there are tables of the policy that were not known here."""
        return bool(await self._policies.look(NatsBucket(self._admin().client, self._names.state_bucket)))

    def _send(self) -> None:
        for one in self._sender.due(self._clock.monotonic_s()):
            headers = {SESSION: str(one.session), NUMBER: str(one.number)}
            self._border.publish(self.lane.subject, one.body, headers=headers)

    def _on_receipt(self, message: Message) -> None:
        where = position_of(message)
        if where is not None and self._sender.received(*where, self._clock.monotonic_s()):
            for place in [place for place in self._rows if place <= self._sender.received_place]:
                self._count("rows", self._rows.pop(place))
                self._count("windows", 1)
            self._news.set()


class ImportLane:
    """Takes in what arrives, one after the other; says how far it is only after the source has it in its file."""

    def __init__(
        self,
        lane: BorderLane,
        taker: RowTaker,
        deliver: Callable[[bytes, str], Awaitable[bytes]],
        *,
        border: AioClient,
        clock: Clock,
        count: Count,
    ) -> None:
        """`deliver` gives a body of a type to the HTTP source; raises HarchError while it cannot."""
        self.lane = lane
        self._taker, self._deliver, self._border, self._clock, self._count = taker, deliver, border, clock, count
        self._queue: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue(QUEUED_MAX)
        self._receiver = LaneReceiver()

    async def run(self) -> None:
        """Until cancelled."""
        sid = self._border.subscribe(self.lane.subject, self._arrived)
        try:
            while True:
                session, number, body = await self._queue.get()
                fate = self._receiver.fate(session, number)
                if fate is Fate.TAKE:
                    await self._take(body)
                    self._receiver.taken(session, number)
                if fate is not Fate.PASS:
                    self._acknowledge()
        finally:
            self._border.unsubscribe(sid)

    async def _take(self, body: bytes) -> None:
        """Tries until the source has it. What can never be used is counted, and the lane goes on."""
        now_ns = round(self._clock.now().timestamp() * 1e9)
        found = self._taker.arrived(body, now_ns)
        if isinstance(found, Rejection):
            self._count(f"unusable:{found.rule}", 1)
            return
        for reason, count in found.left_out.items():
            self._count(f"left_out:{reason}", count)
        while found.message:
            try:
                await self._deliver(found.message, BATCH_TYPE)
                break
            except HarchError as error:
                if error.code == "E0201":  # the source will not have it, however often it is asked
                    self._count("refused", found.rows)
                    return
                log.info("import %s pending: %s", self.lane, error.message)
            await self._clock.sleep(RETRY_S)
        self._count("rows", found.rows)
        self._count("windows", 1)

    def _acknowledge(self) -> None:
        headers = {SESSION: str(self._receiver.session), NUMBER: str(self._receiver.number)}
        with contextlib.suppress(NatsError):  # it asks again
            self._border.publish(self.lane.receipts, b"", headers=headers)

    def _arrived(self, message: Message) -> None:
        where = position_of(message)
        if where is not None and not self._queue.full():  # what finds no room is sent again
            self._queue.put_nowait((*where, bytes(message.payload)))


def position_of(message: Message) -> tuple[int, int] | None:
    """Session and number of a message; None for one that has none."""
    headers = message.headers()
    words = headers.get(SESSION, ""), headers.get(NUMBER, "")
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        return None
    return int(words[0]), int(words[1])


class TransferTally:
    """What passed on each lane: all of it in `totals`, and since the last look for the audit chain."""

    def __init__(self) -> None:
        self.totals: dict[BorderLane, Counter[str]] = {}
        self._counts: dict[BorderLane, Counter[str]] = {}

    def of(self, lane: BorderLane) -> Count:
        def count(what: str, number: int) -> None:
            for counts in (self.totals, self._counts):
                counts.setdefault(lane, Counter()).update({what: number})

        return count

    def taken(self) -> dict[BorderLane, dict[str, int]]:
        counts, self._counts = self._counts, {}
        return {lane: dict(found) for lane, found in counts.items() if found}
