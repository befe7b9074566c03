"""What does tracing cost a hub and SENSE? CPU time with and without it, in turns of a few milliseconds.

Hubs with the same fleet stand side by side in one process: two without tracing, two whose limit of traces is reached,
so that they look for room and find none, and one that traces every workload. They take turns of 20 jobs in random
order, so that other work on the machine meets all alike. Counted is the CPU time of the whole process, with the thread
that encodes spans and sends them to a server.

The first two kinds, compared by their median turns, tell what tracing costs work that is not traced. What traced work
costs on top is known from the hub that traces everything; as shipped it is paid ten times in a second at most, here of
the hub's CPU. The goal is for the sum of both. The hubs without tracing, compared with each other, show what is noise.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import random
import socket
import statistics
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

import uvloop

from harch.base.clock import SystemClock
from harch.base.tracing.exporter import EVERY_S, Exporter, HttpPost
from harch.base.tracing.spans import Resource
from harch.base.tracing.tracer import BATCH_SHARE, TRACES_PER_S, TraceBudget, Tracing, show_traces
from telemetry_overhead_hub import JOBS, BenchHub
from telemetry_overhead_sense import sense_turns
from verdict import Verdict, conditions

WARM, ALL_EVERY = 20, 8  # rounds that are not counted; every how many the hub that traces everything takes part
COLLECT_EVERY = 25
OFF, FULL, ALL = "off", "limit reached", "every workload"
LIMIT_PCT = 2.0
Turns = dict[str, dict[tuple[str, int], list[float]]]


def swallow(listener: socket.socket) -> None:
    """A server that takes every request and forgets it."""

    def serve(line: socket.socket) -> None:
        data = b""
        while piece := line.recv(1 << 20):
            data += piece
            head, found, body = data.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            if found and len(body) >= size:
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                data = body[size:]

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


async def hub_turns(rounds: int, folder: Path) -> Turns:
    """For each measure and hub the CPU seconds of a job, one figure per turn."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = get_context("fork").Process(target=swallow, args=(listener,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    exporters: list[Exporter] = []

    def tracing(budget: TraceBudget, every_s: float = EVERY_S) -> Tracing:
        post = HttpPost(url, lambda: "token")
        exporter = Exporter(Resource("harchos-hub", {"hub": "bench"}), post, every_s=every_s)
        exporter.start()
        exporters.append(exporter)
        return Tracing(exporter.give, SystemClock(), budget)

    hubs = {
        (OFF, 1): BenchHub(folder / "off-1", None),
        (OFF, 2): BenchHub(folder / "off-2", None),
        (FULL, 1): BenchHub(folder / "full-1", tracing(TraceBudget(per_s=1e-9, burst=0))),
        (FULL, 2): BenchHub(folder / "full-2", tracing(TraceBudget(per_s=1e-9, burst=0))),
        (ALL, 1): BenchHub(folder / "all", tracing(TraceBudget(per_s=1e9, burst=1e9), 0.02)),
    }
    found: Turns = {"submit": defaultdict(list), "placement": defaultdict(list)}
    try:
        for hub in hubs.values():
            await hub.open()
        for number in range(WARM + rounds):
            if number % COLLECT_EVERY == 0:  # the collector's pauses would fall on whoever is there
                gc.enable()
                gc.collect()
                gc.freeze()
                gc.disable()
            order = [key for key in hubs if key[0] != ALL or number % ALL_EVERY == 0]
            random.shuffle(order)
            for key in order:
                took_s = (await hubs[key].submitted(), await hubs[key].placed())
                while key[0] == ALL and exporters[-1].waiting:
                    await asyncio.sleep(0.02)  # what it has told is not counted for others
                for seconds, took in zip(found.values(), took_s, strict=True):
                    if number >= WARM:
                        seconds[key].append(took)
    finally:
        for hub in hubs.values():
            await hub.close()
        for exporter in exporters:
            exporter.close()
        server.terminate()
        server.join()
    sent, dropped = (sum(exporter.counts[word] for exporter in exporters) for word in ("sent", "dropped"))
    print(f"  {sent:,} spans sent, {dropped:,} dropped")
    return found


def pct(with_s: Sequence[float], without_s: Sequence[float]) -> float:
    return 100 * (statistics.median(with_s) / statistics.median(without_s) - 1)


def measure(verdict: Verdict, *, rounds: int, folder: Path | None = None) -> None:
    """Prints the figures and adds the goals: at most 2 % each, as shipped."""
    _log_to_a_file()
    with tempfile.TemporaryDirectory(dir=folder, prefix="harch-bench-") as name:
        found = uvloop.run(hub_turns(rounds, Path(name)))
    without = {phase: [*turns[OFF, 1], *turns[OFF, 2]] for phase, turns in found.items()}
    job_s = sum(statistics.median(seconds) for seconds in without.values())
    for phase, turns in found.items():
        own_s = statistics.median(without[phase])
        more_s = max(0.0, statistics.median(turns[ALL, 1]) - own_s)
        untraced = pct([*turns[FULL, 1], *turns[FULL, 2]], without[phase])
        traced = 100 * TRACES_PER_S * more_s / (own_s / job_s)
        noise = pct(turns[OFF, 2], turns[OFF, 1])
        print(
            f"{phase}: {1 / own_s:,.0f} jobs per CPU second; untraced work {untraced:+.2f} % (noise {noise:+.2f} %); "
            f"a traced job {1e6 * more_s:,.0f} us more, {TRACES_PER_S:g} in a second {traced:+.2f} %"
        )
        verdict.goal(f"tracing as shipped: {phase}", f"<= {LIMIT_PCT:g}", untraced + traced, "% of CPU")
    with_s, without_s, done = uvloop.run(sense_turns(rounds, BATCH_SHARE))
    print(f"SENSE: {done}; {pct(with_s, without_s):+.2f} %")
    verdict.goal("tracing as shipped: SENSE", f"<= {LIMIT_PCT:g}", pct(with_s, without_s), "% of CPU")


def _log_to_a_file() -> None:
    """As a hub does, so that lines about traced work count."""
    handler = logging.StreamHandler(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    show_traces(handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=400)
    options.add_argument("--folder", type=Path, default=None, help="where the hubs keep their state")
    chosen, _ = options.parse_known_args()
    print(f"conditions: {conditions()}; load average {os.getloadavg()[0]:.1f}; {chosen.rounds} rounds of {JOBS} jobs")
    verdict = Verdict("telemetry-overhead")
    measure(verdict, rounds=chosen.rounds, folder=chosen.folder)
    verdict.print()


if __name__ == "__main__":
    main()
