"""How does SENTINEL compare? Ingest, queries, memory and disk beside Prometheus and VictoriaMetrics, in one run.

`make bench-sentinel`. Peers are Debian's packages, where `apt-get install prometheus victoria-metrics` put them; goals
against a peer that is missing are left out. Ratios of CPU and of the fastest of several answers, taken in turns; a busy
machine moves both sides alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import httpx

from sentinel_load import STEP_MS, Load, sent, usual_load
from sentinel_servers import Server, servers
from verdict import Verdict, conditions

SERIES, STEPS = 10_000, 300
ROUNDS = 15
_CLIENT = httpx.Client(timeout=60, trust_env=False)  # one for all: making one takes longer than a small query
HEAVY = {
    "sum by rate": "sum by (job) (rate(bench_requests_total[5m]))",
    "sum by gauge": "sum by (zone) (bench_temperature_celsius)",
    "histogram_quantile": "histogram_quantile(0.99, sum by (le, job) (rate(bench_latency_seconds_bucket[5m])))",
    "topk rate": "topk(5, rate(bench_requests_total[5m]))",
}
LIGHT = {
    "rate, 200 series out": 'rate(bench_requests_total{instance=~"10.0.[01].*"}[5m])',
    "absent": "absent(bench_nothing_at_all)",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="ingest,queries,disk,cold,busy,many")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    parts = set(options.parts.split(","))
    folder = Path(tempfile.mkdtemp(prefix="harch-bench-sentinel-"))
    verdict = Verdict("sentinel")
    print(f"{conditions()}; {SERIES} series x {STEPS} samples at 15 s, 2,000 samples a request, 5 connections")
    running = servers(folder)
    try:
        _measure(running, parts, options.rounds, verdict)
    finally:
        for server in running:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    verdict.print()


def _measure(running: list[Server], parts: set[str], rounds: int, verdict: Verdict) -> None:
    end_ms = int(time.time() * 1000) // STEP_MS * STEP_MS
    load = usual_load(SERIES, STEPS, end_ms - STEPS * STEP_MS + 4_000)
    bodies = list(load.requests())
    for server in running:
        server.start()
    _ingest(running, load, bodies, verdict)
    if "queries" in parts:
        warm = _queries(running, load, {**HEAVY, **LIGHT}, rounds)
        _query_goals(warm, verdict, "warm", {"prometheus": 0.2, "victoria-metrics": 0.7})
        _goal(verdict, "absent, over Prometheus", "<= 1", warm, "absent", "prometheus")
    if "busy" in parts:
        _busy(running, load, verdict)
    if "disk" in parts or "cold" in parts:
        _disk(running, load, verdict)
    if "cold" in parts:
        _cold(running, load, verdict)
    if "many" in parts:
        _many(running[:1], verdict)


def _ingest(running: list[Server], load: Load, bodies: list[bytes], verdict: Verdict) -> None:
    cpu: dict[str, float] = {}
    rss: dict[str, float] = {}
    for server in running:
        # The first tenth warms up what compiles or allocates; everybody's figures are of the rest.
        cut = len(bodies) // 10
        asyncio.run(sent(server.port, bodies[:cut]))
        before, began = server.cpu_s(), time.perf_counter()
        took = asyncio.run(sent(server.port, bodies[cut:]))
        wall = time.perf_counter() - began
        samples = load.samples * (len(bodies) - cut) / len(bodies)
        cpu[server.name] = (server.cpu_s() - before) / samples * 1e6
        rss[server.name] = server.rss_mb()
        p99 = statistics.quantiles(took, n=100)[98] * 1000
        print(
            f"ingest {server.name:<17} {cpu[server.name]:6.2f} us CPU/sample  {samples / wall / 1000:7.0f} k/s  "
            f"p99 {p99:6.1f} ms  RSS {rss[server.name]:5.0f} MB"
        )
    for peer, limit in (("prometheus", 0.2), ("victoria-metrics", 0.5)):
        if peer in cpu:
            verdict.goal(f"ingest CPU per sample, over {peer}", f"<= {limit}", cpu["sentinel"] / cpu[peer])
    if "prometheus" in rss:
        verdict.goal("RSS after ingest, over prometheus", "<= 2", rss["sentinel"] / rss["prometheus"])


def _queries(running: list[Server], load: Load, queries: dict[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """Fastest of several answers in ms, by query and server; servers take turns."""
    best: dict[str, dict[str, float]] = {name: {} for name in queries}
    answers: dict[str, dict[str, float]] = {}
    for name, query in queries.items():
        for _ in range(rounds):
            for server in running:
                took, total = _asked(server, load, query)
                best[name][server.name] = min(best[name].get(server.name, 1e9), took)
                answers.setdefault(name, {})[server.name] = total
        shown = "  ".join(f"{server.name} {best[name][server.name]:7.1f} ms" for server in running)
        print(f"query {name:<22} {shown}   sums {_agree(answers[name])}")
    return best


def _asked(server: Server, load: Load, query: str) -> tuple[float, float]:
    """Milliseconds, and the sum of all values as a check that servers answer the same."""
    end = (load.first_ms + (STEPS - 1) * STEP_MS) // 1000
    form = {"query": query, "start": str(end - 3600), "end": str(end), "step": "15", "nocache": "1"}
    began = time.perf_counter()
    answer = _CLIENT.post(f"{server.url}/api/v1/query_range", data=form)
    took = (time.perf_counter() - began) * 1000
    answer.raise_for_status()
    result = json.loads(answer.content)["data"]["result"]
    values = (float(value) for series in result for _, value in series["values"])
    return took, sum(value for value in values if value == value and abs(value) < 1e300)


def _agree(sums: dict[str, float]) -> str:
    ours = sums["sentinel"]
    off = [abs(other - ours) / max(abs(ours), 1e-12) for name, other in sums.items() if name != "sentinel"]
    return "alone" if not off else f"within {max(off):.1e}"


def _query_goals(best: dict[str, dict[str, float]], verdict: Verdict, when: str, limits: dict[str, float]) -> None:
    for name in HEAVY:
        for peer, limit in limits.items():
            _goal(verdict, f"{name}, {when}, over {peer}", f"<= {limit}", best, name, peer)


def _goal(verdict: Verdict, title: str, wanted: str, best: dict[str, dict[str, float]], name: str, peer: str) -> None:
    if peer in best[name]:
        verdict.goal(title, wanted, best[name]["sentinel"] / best[name][peer])


def _busy(running: list[Server], load: Load, verdict: Verdict) -> None:
    """Writes at a steady pace, first alone and then beside heavy queries without a pause."""
    for server in running:
        at_ms = load.first_ms + STEPS * STEP_MS
        more = usual_load(SERIES, 24, at_ms, seed=8)
        bodies = list(more.requests())
        half = len(bodies) // 2
        idle = asyncio.run(_paced(server, bodies[:half]))
        stop = threading.Event()
        asking = threading.Thread(target=_ask_until, args=(server, load, stop))
        asking.start()
        busy = asyncio.run(_paced(server, bodies[half:]))
        stop.set()
        asking.join()
        ratio = _p99(busy) / _p99(idle)
        print(f"writes {server.name:<17} p99 idle {_p99(idle):6.1f} ms, beside queries {_p99(busy):6.1f} ms")
        if server.name == "sentinel":
            verdict.goal("p99 of writes beside a heavy query, over idle", "<= 2", ratio)


async def _paced(server: Server, bodies: list[bytes]) -> list[float]:
    took: list[float] = []
    for body in bodies:
        took += await sent(server.port, [body], 1)
        await asyncio.sleep(0.05)
    return took


def _ask_until(server: Server, load: Load, stop: threading.Event) -> None:
    while not stop.is_set():
        _asked(server, load, HEAVY["histogram_quantile"])


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98] * 1000


def _disk(running: list[Server], load: Load, verdict: Verdict) -> None:
    sizes: dict[str, float] = {}
    for server in running:
        server.flush()
        sizes[server.name] = server.disk_bytes() / load.samples
        print(f"disk {server.name:<17} {sizes[server.name]:.2f} B/sample with index")
    verdict.goal("bytes per sample with index", "<= 1.3", sizes["sentinel"])
    if len(sizes) > 1:
        better = min(size for name, size in sizes.items() if name != "sentinel")
        verdict.goal("bytes per sample, over the better peer", "<= 1.5", sizes["sentinel"] / better)


def _cold(running: list[Server], load: Load, verdict: Verdict) -> None:
    """The first answer after a restart, from blocks on disk; the median of three restarts for each query."""
    firsts: dict[str, dict[str, float]] = {name: {} for name in HEAVY}
    for server in running:
        for name, query in HEAVY.items():
            took = []
            for _ in range(3):
                server.stop()
                server.start()
                time.sleep(1)
                took.append(_asked(server, load, query)[0])
            firsts[name][server.name] = statistics.median(took)
    for name in HEAVY:
        print(f"cold {name:<22} " + "  ".join(f"{who} {took:7.1f} ms" for who, took in firsts[name].items()))
    _query_goals(firsts, verdict, "cold", {"prometheus": 0.5})


def _many(running: list[Server], verdict: Verdict) -> None:
    """100,000 series, then a tenth of them replaced with every round."""
    for server in running:
        server.stop()
        shutil.rmtree(server.folder)
        server.start()
        first_ms = int(time.time() * 1000) - 3_600_000
        before = server.cpu_s()
        load = usual_load(100_000, 10, first_ms, seed=9)
        asyncio.run(sent(server.port, list(load.requests())))
        print(f"many {server.name}: 100,000 series {(server.cpu_s() - before) / load.samples * 1e6:.2f} us CPU/sample")
        before, samples = server.cpu_s(), 0
        for generation in range(5):
            churned = usual_load(10_000, 4, first_ms + (12 + generation * 4) * STEP_MS, name=f"_{generation}")
            asyncio.run(sent(server.port, list(churned.requests())))
            samples += churned.samples
        cost = (server.cpu_s() - before) / samples * 1e6
        print(f"churn {server.name}: {cost:.2f} us CPU/sample, RSS {server.rss_mb():.0f} MB after 150,000 series")
        answer = httpx.get(f"{server.url}/api/v1/query", params={"query": "count({__name__=~'bench.*'})"}, timeout=60)
        verdict.goal("status of a query over 150,000 series", "== 200", answer.status_code)


if __name__ == "__main__":
    main()
