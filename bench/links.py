"""How many messages does a link carry, what does TLS with both certificates cost, and how soon is it back after a cut?

Two processes on loopback, each with one event loop as in a hub. The comparison is plain TCP: the same
bytes, but neither encrypted nor decoded.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import uvloop

from harch.base.clock import SystemClock
from harch.base.config import Home
from harch.federation.identity.authority import make_federation
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.frames import FrameKind, frame
from harch.federation.links.mesh import Mesh
from harch.testing.ports import free_port
from harch.testing.wan import Wan, why_not_permitted
from verdict import Verdict, conditions

MESSAGES = 200_000
BATCH = 200  # messages that a hub has to say in one turn of its loop
RTT_MS, CUT_S, CUTS = 30.0, 5.0, 6
BEAT_S = 0.01


class Note(msgspec.Struct, frozen=True, tag="note"):
    number: int
    text: str


NOTE = Note(1, "x" * 60)
encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Note).decode


def main() -> None:
    verdict = Verdict("links")
    print(f"conditions: {conditions()}; load average {os.getloadavg()[0]:.1f}")
    size = len(frame(FrameKind.MESSAGE, encode(NOTE)))
    linked, cpu_us = throughput("link")
    plain, _ = throughput("plain")
    print(f"messages of {size} bytes: {linked:,.0f} per s over a link, {plain:,.0f} per s over plain TCP")
    print(f"receiver: {cpu_us:.1f} us of CPU per message")
    verdict.goal("messages over one link", ">= 20000", linked, "per s")
    if reason := why_not_permitted():
        print(f"no cuts were measured: {reason}")
    else:
        noticed_s, back_s = cuts()
        print(
            f"{CUTS} cuts of {CUT_S:g} s at {RTT_MS:g} ms: noticed after {statistics.median(noticed_s):.1f} s (median)"
        )
        print(
            f"messages arrive again {statistics.median(back_s):.2f} s after healing (median), {max(back_s):.2f} s (max)"
        )
        verdict.goal("messages arrive again after healing, both ways, worst", "<= 1.5", max(back_s), "s")
    verdict.print()


def throughput(kind: str) -> tuple[float, float]:
    """Messages per second, and microseconds of the receiver's CPU per message."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = {name: ("127.0.0.1", free_port()) for name in ("from", "to")}
        make_federation(Home(Path(folder)), addresses, now=SystemClock().now())
        command = [sys.executable, __file__, kind, folder]
        receiver = subprocess.Popen([*command, "to"], stdout=subprocess.PIPE, text=True)
        sender = subprocess.Popen([*command, "from"])
        said, _ = receiver.communicate(timeout=300)
        sender.kill()
        sender.wait()
    measured = json.loads(said)
    return MESSAGES / measured["wall_s"], measured["cpu_s"] / MESSAGES * 1e6


class Meter:
    """Counts what arrives and prints how long it took."""

    def __init__(self) -> None:
        self.count = 0
        self.done = asyncio.Event()

    def add(self, count: int) -> None:
        if self.count == 0:
            self.start_s, self.start_cpu_s = time.perf_counter(), time.process_time()
        self.count += count
        if self.count >= MESSAGES and not self.done.is_set():
            wall_s, cpu_s = time.perf_counter() - self.start_s, time.process_time() - self.start_cpu_s
            print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}), flush=True)
            self.done.set()


def mesh_of(folder: str, name: str, **callbacks: object) -> Mesh[Note]:
    identity = HubIdentity(identity_folder(Home(Path(folder)), name))
    return Mesh(
        identity=identity,
        listen=identity.member.address,
        peers={member.hub_id: member.address for member in identity.roster},
        encode=encode,
        decode=decode,
        clock=SystemClock(),
        **callbacks,  # type: ignore[arg-type]
    )


async def link_end(folder: str, name: str) -> None:
    meter, up = Meter(), asyncio.Event()
    mesh = mesh_of(
        folder,
        name,
        on_message=lambda peer, note: meter.add(1),
        on_up=lambda peer: up.set(),
        on_down=lambda peer, why: None,
    )
    running = asyncio.create_task(mesh.run())
    await up.wait()
    if name == "from":
        left = MESSAGES
        while left:
            for _ in range(min(BATCH, left)):
                if not mesh.send("to", NOTE):  # the queue is full: the next turn goes on
                    break
                left -= 1
            await asyncio.sleep(0)
    await meter.done.wait()
    running.cancel()


async def plain_end(folder: str, name: str) -> None:
    address = HubIdentity(identity_folder(Home(Path(folder)), "to")).member.address
    sealed = frame(FrameKind.MESSAGE, encode(NOTE))
    meter = Meter()

    async def count(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while not meter.done.is_set() and (data := await reader.read(1 << 18)):
            meter.add(len(data) // len(sealed))

    if name == "to":
        async with await asyncio.start_server(count, *address):
            await meter.done.wait()
        return
    while True:
        try:
            _, writer = await asyncio.open_connection(*address)
            break
        except OSError:
            await asyncio.sleep(0.05)
    for _ in range(0, MESSAGES + BATCH * 10, BATCH):  # some more, because reads cut messages in two
        for _ in range(BATCH):
            writer.write(sealed)
        await writer.drain()
    await asyncio.Event().wait()


async def beating_end(folder: str, name: str) -> None:
    """Says something every 10 ms, and tells when a peer is lost and when something is heard again."""
    heard_s: dict[str, float] = {}

    def tell(kind: str) -> None:
        print(json.dumps([kind, name, time.monotonic()]), flush=True)

    def heard(peer: str, _: Note) -> None:
        now_s = time.monotonic()
        if now_s - heard_s.get(peer, 0.0) > CUT_S / 2:
            tell("heard")
        heard_s[peer] = now_s

    mesh = mesh_of(folder, name, on_message=heard, on_up=lambda peer: None, on_down=lambda peer, why: tell("lost"))

    async def beat() -> None:
        while True:
            mesh.broadcast(NOTE, droppable=True)
            await asyncio.sleep(BEAT_S)

    await asyncio.gather(mesh.run(), beat())


def cuts() -> tuple[list[float], list[float]]:
    """Seconds until a cut was noticed, and from healing until messages arrived: each way of each cut."""
    noticed_s: list[float] = []
    back_s: list[float] = []
    told: queue.Queue[tuple[str, str, float]] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder, Wan(["a", "b"], rtt_ms=RTT_MS, jitter_ms=1, loss=0.01) as wan:
        addresses = {name: (wan.address(name), 7721) for name in wan.names}
        make_federation(Home(Path(folder)), addresses, now=SystemClock().now())
        for name in wan.names:
            command = [sys.executable, __file__, "beating", folder, name]
            process = wan.popen(name, command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=lambda lines=process.stdout: [told.put(json.loads(line)) for line in lines]).start()
        times(told, "heard")
        for _ in range(CUTS):
            time.sleep(1)
            wan.cut("a", "b")
            cut_s = time.monotonic()
            noticed_s += [at_s - cut_s for at_s in times(told, "lost")]
            time.sleep(max(0.0, cut_s + CUT_S - time.monotonic()))
            wan.heal("a", "b")
            healed_s = time.monotonic()
            back_s += [at_s - healed_s for at_s in times(told, "heard")]
    return noticed_s, back_s


def times(told: queue.Queue[tuple[str, str, float]], kind: str) -> list[float]:
    """When each of the two has told this."""
    found: dict[str, float] = {}
    while len(found) < 2:
        said, name, at_s = told.get(timeout=60)
        if said == kind:
            found.setdefault(name, at_s)
    return list(found.values())


if __name__ == "__main__":
    ends = {"link": link_end, "plain": plain_end, "beating": beating_end}
    if len(sys.argv) == 1:
        main()
    else:
        uvloop.run(ends[sys.argv[1]](*sys.argv[2:]))
