"""Who sends the events of the pipeline benchmarks? A process that keeps to a timetable, on the wire and on credit.

It is a source like any other: batches of the wire format, numbered without gaps, kept until a checkpoint has them, sent
again when the receiver asks. Event number k is scheduled at `start + k / rate`; a batch leaves when its last event has
happened, or as soon as credit and the machine allow. Payloads are made beforehand and used in turn, heads and checksums
are made for every batch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import msgspec
import numpy as np
from msgspec import Struct

from harch.base.rejection import Rejection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions
from harch.pipelines.client.protocol import Message
from harch.pipelines.sense.flow_control import HEARTBEAT_S, Pressure, Sending, unpack_credit
from harch.pipelines.wire.columns import SHIPPED, Columns, EventSchema, encode_columns
from harch.pipelines.wire.header import BatchHeader, Flags, pack_batch
from pipelines_rubbish_batches import Hostile

VARIANTS = 8
DRAIN_S_MAX = 60.0
NAP_S = 0.001  # while credit is awaited
SPIN_NS = 2_000_000  # what is left of a wait is slept exactly; the loop counts in milliseconds


class Phase(Struct, frozen=True):
    """A rate of 0 is as fast as credit allows. `rubbish_every`: one hostile message after so many batches."""

    seconds: float
    events_per_s: float = 0.0
    rubbish_every: int = 0


class Timetable(Struct, frozen=True, kw_only=True):
    """What one generator does. `patient`: no batch is made before credit has let the one before it go."""

    options: ClientOptions
    subject: str
    credit_subject: str
    phases: list[Phase]
    batch: int
    devices: int
    metrics: int
    schema: str = "compact"
    source: int = 1
    whole_ns: int = 1  # the first event is at a multiple of this, so that windows are whole
    patient: bool = False
    bad_share: float = 0.001  # of events: half of them NaN, half of unknown devices


class Told(Struct, kw_only=True):
    """What one generator did."""

    events: int
    batches: int
    replayed: int
    shed: int
    drained: bool
    began_ns: int
    ended_ns: int  # event time
    sent_s: float  # until the last batch had left
    cpu_s: float
    late_ms: tuple[float, float, float]  # of batches: p50, p99, longest
    phases: list[tuple[int, float]]  # events, seconds
    rubbish: dict[str, int]  # what SENSE has to count, by reason


def payloads(schema: EventSchema, n: int, span_ns: int, table: Timetable) -> list[bytes]:
    """Some batches whose events are spread evenly over their span."""
    rng = np.random.default_rng(11)
    found = []
    for _ in range(VARIANTS):
        values = rng.normal(20, 5, (len(schema.values), n))
        values[0, rng.random(n) < table.bad_share / 2] = np.nan
        device = rng.integers(0, table.devices, n)
        device[rng.random(n) < table.bad_share / 2] = table.devices + 7
        ticks = np.arange(n) * span_ns // n // schema.tick_ns
        found.append(
            encode_columns(schema, Columns(ticks, device, rng.integers(0, table.metrics, n), np.zeros(n), values))
        )
    return found


class Generator:
    """One source with one line to one partition."""

    def __init__(self, table: Timetable, client: AioClient) -> None:
        self._table = table
        self._client = client
        self._schema = SHIPPED[table.schema]
        self._sending = Sending(self._header(0, 0, 0, Flags.WATERMARK_ONLY, 0), buffer_bytes_max=1 << 30)
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        self._late_ms: list[float] = []
        self._is_welcome = False
        self._hostile = Hostile(self._schema, table.batch, table.devices, table.source)

    async def run(self) -> Told:
        table, counters = self._table, self._sending.counters
        self._client.subscribe(table.credit_subject, self._granted)
        await self._say_hello()
        cpu_s, began_s = time.process_time(), time.monotonic()
        began_ns = at_ns = -(-self._now_ns() // table.whole_ns) * table.whole_ns
        phases = []
        for phase in table.phases:
            before, since_s = counters.events_offered, time.monotonic()
            at_ns = await self._phase(at_ns, phase)
            await self._let_go()
            phases.append((counters.events_offered - before, time.monotonic() - since_s))
        sent_s = time.monotonic() - began_s
        cpu_s = time.process_time() - cpu_s
        drained = await self._drain(at_ns)
        p50, p99, longest = np.percentile(self._late_ms, [50, 99, 100])
        return Told(
            events=counters.events_offered,
            batches=counters.batches_offered,
            replayed=counters.batches_replayed,
            shed=counters.events_shed,
            drained=drained,
            began_ns=began_ns,
            ended_ns=at_ns,
            sent_s=sent_s,
            cpu_s=cpu_s,
            late_ms=(float(p50), float(p99), float(longest)),
            phases=phases,
            rubbish=dict(self._hostile.expected),
        )

    async def _phase(self, at_ns: int, phase: Phase) -> int:
        table, rate = self._table, phase.events_per_s
        span_ns = round(table.batch / rate * 1e9) if rate else self._schema.tick_ns
        made = payloads(self._schema, table.batch, span_ns, table)
        end_s = time.monotonic() + phase.seconds
        batches = round(phase.seconds * rate / table.batch) if rate else 1 << 60
        for number in range(batches):
            if not rate:
                if time.monotonic() >= end_s:
                    break
                at_ns = max(at_ns, self._now_ns())
            due_ns = at_ns + span_ns
            while (wait_ns := due_ns - self._now_ns()) > 0:
                await asyncio.sleep((wait_ns - SPIN_NS) / 1e9) if wait_ns > SPIN_NS else time.sleep(wait_ns / 1e9)
            self._late_ms.append((self._now_ns() - due_ns) / 1e6)
            payload = made[number % VARIANTS]
            header = self._header(at_ns, due_ns, table.batch, 0, self._sending.next_seq, len(payload))
            self._sending.offer(pack_batch(header, payload))
            at_ns = due_ns
            await self._pump()
            if phase.rubbish_every and number % phase.rubbish_every == 0:
                self._client.publish(table.subject, self._hostile.next(self._now_ns()))
            if table.patient or not rate:
                await self._let_go()
        return at_ns

    async def _pump(self) -> None:
        """Grants that have come, then whatever may go."""
        await asyncio.sleep(0)
        for batch in self._sending.due(time.monotonic()):
            self._client.publish(self._table.subject, memoryview(batch))

    def _granted(self, message: Message) -> None:
        credit = unpack_credit(message.payload)
        if not isinstance(credit, Rejection):
            self._is_welcome |= credit.source == self._table.source
            self._sending.credit(credit)

    async def _let_go(self) -> None:
        while self._sending.pressure is not Pressure.NONE:
            await asyncio.sleep(NAP_S)
            await self._pump()

    async def _say_hello(self) -> None:
        """Until the receiver has answered with credit: nothing is offered before, so nothing is late by that."""
        while not self._is_welcome:
            await self._pump()
            await asyncio.sleep(HEARTBEAT_S / 10)

    async def _drain(self, at_ns: int) -> bool:
        """Until the receiver has all of it in a checkpoint; then it hears that nothing more comes."""
        self._sending.watermark(at_ns)
        until_s = time.monotonic() + DRAIN_S_MAX
        while not self._sending.is_drained and time.monotonic() < until_s:
            await self._pump()
            await asyncio.sleep(NAP_S)
        ended = self._header(at_ns, at_ns, 0, Flags.WATERMARK_ONLY | Flags.END, self._sending.next_seq - 1)
        self._client.publish(self._table.subject, pack_batch(ended))
        await self._client.flush()
        return self._sending.is_drained

    def _now_ns(self) -> int:
        return self._wall_ns + time.monotonic_ns()

    def _header(self, first_ns: int, mark_ns: int, n: int, flags: int, seq: int, size: int = 0) -> BatchHeader:
        return BatchHeader(
            schema=self._schema.id,
            n=n,
            juris_mask=1,
            policy_version=1,
            source=self._table.source,
            seq=seq,
            t_first_ns=first_ns,
            watermark_ns=mark_ns,
            payload_len=size,
            flags=flags,
        )


def main() -> None:
    """The timetable comes as JSON on standard input, the figures go to standard output."""
    table = msgspec.json.decode(sys.stdin.buffer.read(), type=Timetable)
    print(json.dumps(msgspec.to_builtins(asyncio.run(generate(table)))), flush=True)


async def generate(table: Timetable) -> Told:
    async with AioClient(table.options) as client:
        return await Generator(table, client).run()


if __name__ == "__main__":
    main()
