"""How do a node's figures reach SENTINEL? One remote-write request every 15 seconds; what fails waits in the spool."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from urllib.parse import urlsplit

import cramjam

from harch.base.clock import Clock, epoch_ms
from harch.sentinel.model.labels import Labels
from harch.sentinel.node.gpus import Sensors
from harch.sentinel.node.sensors import SensorReading, series
from harch.sentinel.node.spool import RequestSpool

_VALUE = struct.Struct("<d")
_TIME_BYTES = 6  # a varint of 6 bytes holds milliseconds from 1971 to 2109
_TIME_RANGE = (1 << 35, 1 << 42)
_SAMPLE_BYTES = 1 + 8 + 1 + _TIME_BYTES


class Frame:
    """One request that is sent again and again with new figures."""

    def __init__(self, common: Sequence[tuple[str, str]]) -> None:
        self._common = tuple(common)  # what every series of the node carries; a reading's own labels win
        self._series: tuple[Labels, ...] = ()
        self._body = bytearray()
        self._values: list[int] = []  # where the values stand; the time follows one byte after the value's end

    def filled(self, readings: Sequence[SensorReading], at_ms: int) -> bytearray:
        """The request's bytes, not yet compressed. They change with the next call."""
        if not _TIME_RANGE[0] <= at_ms < _TIME_RANGE[1]:
            raise ValueError(f"the clock reads {at_ms} ms since 1970, which is before 1971 or after 2109")
        layout = tuple(reading.labels for reading in readings)
        if layout != self._series:
            self._lay_out(layout)
        time = _varint(at_ms)
        body = self._body
        for place, reading in zip(self._values, readings, strict=True):
            _VALUE.pack_into(body, place, reading.value)
            body[place + 9 : place + 9 + _TIME_BYTES] = time
        return body

    def _lay_out(self, layout: tuple[Labels, ...]) -> None:
        self._series = layout
        self._body = bytearray()
        self._values = []
        for labels in layout:
            own = dict(self._common)
            own.update(labels)
            encoded = b"".join(_label(name, value) for name, value in sorted(own.items()))
            self._body += b"\x0a" + _varint(len(encoded) + 2 + _SAMPLE_BYTES) + encoded
            self._body += bytes((0x12, _SAMPLE_BYTES, 0x09))
            self._values.append(len(self._body))
            self._body += bytes(8) + b"\x10" + bytes(_TIME_BYTES)


def _label(name: str, value: str) -> bytes:
    pair = _text(0x0A, name) + _text(0x12, value)
    return b"\x0a" + _varint(len(pair)) + pair


def _text(tag: int, text: str) -> bytes:
    encoded = text.encode()
    return bytes((tag,)) + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


INTERVAL_S = 15.0
_TIMEOUT_S = 10.0
_CATCH_UP_AT_ONCE = 20  # spooled requests sent in one interval, so that a hub that comes back is not overrun
_ANSWER_BYTES_MAX = 64 * 1024

_log = logging.getLogger("harch.sentinel.node")


class MetricSender:
    """Reads the sensors and sends what they say, for as long as the agent runs."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        common: Sequence[tuple[str, str]],
        sensors: Sequence[Sensors],
        spool: RequestSpool,
        clock: Clock,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._address = urlsplit(url)
        self._token = token
        self._frame = Frame(common)
        self._sensors = sensors
        self._spool = spool
        self._clock = clock
        self._interval_s = interval_s
        self._refused = 0
        self._failing = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = self._clock.monotonic_s()
            await self.step()
            await self._clock.sleep(max(0.1, self._interval_s - (self._clock.monotonic_s() - began)))

    async def step(self) -> None:
        """Reads once, keeps it, and sends what waits. A request is in the spool before it is sent."""
        readings = [*chain.from_iterable(sensor.read() for sensor in self._sensors), *self._own()]
        try:
            body = self._frame.filled(readings, epoch_ms(self._clock.now()))
        except (
            ValueError
        ) as problem:  # a clock that is years off: mended by whoever sets it, and telemetry goes on then
            self._note(str(problem))
            return
        self._spool.add(bytes(cramjam.snappy.compress_raw(body)))
        for _ in range(_CATCH_UP_AT_ONCE):
            waiting = self._spool.oldest()
            if waiting is None or not await self._sent(waiting):
                return
            self._spool.take()

    def _own(self) -> list[SensorReading]:
        return [
            SensorReading(series("harchos_agent_spool_bytes"), float(self._spool.held_bytes)),
            SensorReading(series("harchos_agent_spool_dropped_total"), float(self._spool.dropped + self._refused)),
        ]

    async def _sent(self, body: bytes) -> bool:
        """True if the request need not be kept: it was taken, or refused for good."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status = await self._post(body)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as problem:
            self._note(f"SENTINEL is not reachable: {problem}")
            return False
        if status in {401, 403, 429} or status >= 500:
            self._note(f"SENTINEL returned status {status}")
            return False
        if status >= 400:
            self._refused += 1
            self._note(f"SENTINEL refused a request with status {status}; it will not be resent")
            return True
        if self._failing:
            _log.info("SENTINEL accepts telemetry again; %d requests queued", len(self._spool))
            self._failing = False
        return True

    async def _post(self, body: bytes) -> int:
        """A request by hand: an HTTP library would take a third of the agent's memory."""
        at = self._address
        host, port = at.hostname or "127.0.0.1", at.port or (443 if at.scheme == "https" else 80)
        reader, writer = await asyncio.open_connection(host, port, ssl=at.scheme == "https" or None)
        try:
            head = (
                f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Length: {len(body)}\r\n"
                "Content-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\nConnection: close\r\n"
                f"X-Prometheus-Remote-Write-Version: 0.1.0\r\nAuthorization: Bearer {self._token()}\r\n\r\n"
            )
            writer.write(head.encode("latin-1") + body)
            await writer.drain()
            answer = await reader.readline()
            words = answer[:_ANSWER_BYTES_MAX].split()
            if len(words) < 2 or not words[1].isdigit():
                raise ValueError("the answer is not HTTP")
            return int(words[1])
        finally:
            writer.close()

    def _note(self, text: str) -> None:
        """Once per trouble: a line every 15 seconds would bury the others."""
        if not self._failing:
            _log.warning("%s; %d requests queued in the spool", text, len(self._spool))
            self._failing = True
