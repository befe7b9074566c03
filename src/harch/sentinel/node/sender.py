"""How do a node's figures reach SENTINEL? One remote-write request every 15 seconds; what fails waits in the spool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import chain
from urllib.parse import urlsplit

import cramjam

from harch.base.clock import Clock, epoch_ms
from harch.sentinel.node.frame import Frame
from harch.sentinel.node.gpus import Sensors
from harch.sentinel.node.readings import Reading, series
from harch.sentinel.node.spool import Spool

INTERVAL_S = 15.0
_TIMEOUT_S = 10.0
_CATCH_UP_AT_ONCE = 20  # spooled requests sent in one interval, so that a hub that comes back is not overrun
_ANSWER_BYTES_MAX = 64 * 1024

_log = logging.getLogger("harch.sentinel.node")


class Sender:
    """Reads the sensors and sends what they say, for as long as the agent runs."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        common: Sequence[tuple[str, str]],
        sensors: Sequence[Sensors],
        spool: Spool,
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

    def _own(self) -> list[Reading]:
        return [
            Reading(series("harchos_agent_spool_bytes"), float(self._spool.held_bytes)),
            Reading(series("harchos_agent_spool_dropped_total"), float(self._spool.dropped + self._refused)),
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
            self._note(f"SENTINEL answers with status {status}")
            return False
        if status >= 400:
            self._refused += 1
            self._note(f"SENTINEL refused a request with status {status}; it is not sent again")
            return True
        if self._failing:
            _log.info("telemetry is taken again; %d requests wait", len(self._spool))
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
                raise ValueError("the answer is no HTTP")
            return int(words[1])
        finally:
            writer.close()

    def _note(self, text: str) -> None:
        """Once per trouble: a line every 15 seconds would bury the others."""
        if not self._failing:
            _log.warning("%s; %d requests wait in the spool", text, len(self._spool))
            self._failing = True
