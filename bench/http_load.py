"""A load generator that costs little: raw HTTP/1.1 over asyncio, one request in flight per connection.

Run as its own process: `python bench/http_load.py PORT KEY CONNECTIONS SECONDS`. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

BODY = '{"name":"%s","type":"batch","modelled_duration_s":2,"resources":{"gpus":1,"cpus":4,"memory_gb":16}}'


class Connection(asyncio.Protocol):
    """Sends the next job as soon as the last one was answered."""

    def __init__(self, number: int, key: str, until: float, latencies: list[float], bad: list[bytes]) -> None:
        self._number, self._until, self._latencies, self._bad = number, until, latencies, bad
        self._head = f"POST /v1/workloads HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n"
        self._count = 0
        self._sent_at = 0.0
        self._buffer = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._count += 1
        body = BODY % f"load-{self._number}-{self._count}-{time.time_ns()}"
        self._sent_at = time.perf_counter()
        self._transport.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        at = head.lower().index(b"content-length:") + 15
        length = int(head[at : head.find(b"\r\n", at) if b"\r\n" in head[at:] else None])
        if len(rest) < length:
            return
        self._buffer = b""
        if head.startswith(b"HTTP/1.1 201"):
            self._latencies.append(time.perf_counter() - self._sent_at)
        elif len(self._bad) < 10:
            self._bad.append(head[:40] + rest[:200])
        if time.perf_counter() < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def main(port: int, key: str, connections: int, duration_s: float) -> None:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    bad: list[bytes] = []
    start = time.perf_counter()
    made = [
        (
            await loop.create_connection(
                lambda n=n: Connection(n, key, start + duration_s, latencies, bad), "127.0.0.1", port
            )
        )[1]
        for n in range(connections)
    ]
    await asyncio.wait([connection.done for connection in made])
    elapsed_s = time.perf_counter() - start
    latencies.sort()
    result = {
        "accepted": len(latencies),
        "elapsed_s": elapsed_s,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        "refused": [text.decode(errors="replace") for text in bad],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
