"""What is sent? The note's load: counters, gauges and buckets of 10,000 series, in remote-write requests of 2,000."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import cramjam
import numpy as np

STEP_MS = 15_000
SAMPLES_PER_REQUEST = 2_000
CONNECTIONS = 5
LES = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "+Inf")


@dataclass(frozen=True, slots=True)
class Load:
    """Series by name and labels, and a value for each at every step."""

    labels: list[bytes]  # encoded, as a TimeSeries message holds them
    values: np.ndarray  # [step, series]
    first_ms: int

    @property
    def samples(self) -> int:
        return int(self.values.size)

    def requests(self) -> Iterator[bytes]:
        """In the order of time, as scrapers would send them: all series of a step, then the next step."""
        for step in range(len(self.values)):
            at_ms = self.first_ms + step * STEP_MS
            for low in range(0, len(self.labels), SAMPLES_PER_REQUEST):
                yield self._request(step, low, min(low + SAMPLES_PER_REQUEST, len(self.labels)), at_ms)

    def _request(self, step: int, low: int, high: int, at_ms: int) -> bytes:
        body = bytearray()
        for place in range(low, high):
            # A scrape does not take place at one moment: some milliseconds of jitter for each target.
            time_bytes = varint(at_ms + (place // 100 * 37) % 11)
            sample = b"\x09" + struct.pack("<d", self.values[step, place]) + b"\x10" + time_bytes
            inside = self.labels[place] + b"\x12" + varint(len(sample)) + sample
            body += b"\x0a" + varint(len(inside)) + inside
        return bytes(cramjam.snappy.compress_raw(bytes(body)))


def usual_load(series: int, steps: int, first_ms: int, *, seed: int = 7, name: str = "") -> Load:
    """Four tenths counters, two tenths gauges, four tenths buckets of histograms with ten bounds each."""
    rng = np.random.default_rng(seed)
    counters, gauges = series * 4 // 10, series * 2 // 10
    buckets = series - counters - gauges
    names = [
        *(encoded(f"bench_requests_total{name}", one, code=str(200 + one % 5 * 100)) for one in range(counters)),
        *(encoded(f"bench_temperature_celsius{name}", one, zone=f"z{one % 8}") for one in range(gauges)),
        *(encoded(f"bench_latency_seconds_bucket{name}", one // 10, le=LES[one % 10]) for one in range(buckets)),
    ]
    values = np.empty((steps, series))
    values[:, :counters] = rng.poisson(rng.uniform(1, 200, counters), (steps, counters)).cumsum(axis=0)
    walk = rng.normal(0, 0.3, (steps, gauges)).cumsum(axis=0) + rng.uniform(20, 80, gauges)
    values[:, counters : counters + gauges] = np.round(walk, 1)
    arrived = rng.poisson(rng.uniform(0.1, 20, (buckets // 10, 10)), (steps, buckets // 10, 10)).cumsum(axis=0)
    values[:, counters + gauges :] = arrived.cumsum(axis=2).reshape(steps, buckets)
    return Load(names, values, first_ms)


def encoded(metric: str, number: int, **more: str) -> bytes:
    pairs = {
        "__name__": metric,
        "instance": f"10.0.{number // 100 % 250}.{number % 100}:9100",
        "job": f"job{number % 10}",
        "path": f"/api/v1/things/{number}",
        "region": f"r{number % 4}",
        **more,
    }
    out = b""
    for key, value in sorted(pairs.items()):
        pair = b"\x0a" + varint(len(key)) + key.encode() + b"\x12" + varint(len(value)) + value.encode()
        out += b"\x0a" + varint(len(pair)) + pair
    return out


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


async def sent(port: int, bodies: list[bytes], connections: int = CONNECTIONS) -> list[float]:
    """Sends all bodies; seconds that each request took. A series stays on its connection, so that it stays in order."""
    took: list[float] = []

    async def connection(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in bodies[first::connections]:
            head = (
                "POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
                "Content-Encoding: snappy\r\nX-Prometheus-Remote-Write-Version: 0.1.0\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            began = time.perf_counter()
            writer.write(head.encode() + body)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split(None, 2)[1])
            for line in answer.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.split(b":")[1]))
            if status >= 300:
                raise SystemExit(f"a write to port {port} was answered with status {status}")
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(connection(first) for first in range(connections)))
    return took
