"""What does a pipeline stand? Rate, latency, bursts, kills, updates, rubbish and attacks, with real processes.

Everything is real: nats-server, the workers, the wire format, credit, checkpoints, synced JetStream; generator and
measuring processes share the machine's cores with them. `--parts` picks some; `--seconds` and `--rounds` shorten a
look, and then the verdict says so by its names. Run it on a quiet machine: the load average and the time that
processes waited for a core are printed with every figure. `--real-time` puts the benchmark before all other programs
of a machine that is not quiet; it says so, and needs the right to do that.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

import pipelines_faults
import pipelines_latency
import pipelines_peer
import pipelines_rate
import pipelines_rubbish
import pipelines_update
from harch.pipelines.engine.server import find_nats_server, version_of
from verdict import Verdict, conditions

ATTACKS = Path(__file__).parent.parent / "tests" / "integration" / "test_nats_sovereignty.py"


async def rate(verdict: Verdict, options: argparse.Namespace) -> None:
    await pipelines_rate.measure(verdict, seconds=options.seconds or 30)


async def latency(verdict: Verdict, options: argparse.Namespace) -> None:
    await pipelines_latency.measure(verdict, seconds=options.seconds or 5, rounds=options.rounds)


async def peer(verdict: Verdict, options: argparse.Namespace) -> None:
    pipelines_peer.measure()


async def burst(verdict: Verdict, options: argparse.Namespace) -> None:
    await pipelines_faults.burst(verdict, seconds=options.seconds or 5)


async def kills(verdict: Verdict, options: argparse.Namespace) -> None:
    await pipelines_faults.kills(verdict, seconds=options.seconds or 60)


async def update(verdict: Verdict, options: argparse.Namespace) -> None:
    await pipelines_update.measure(verdict, seconds=options.seconds or 8)


async def rubbish(verdict: Verdict, options: argparse.Namespace) -> None:
    await pipelines_rubbish.measure(verdict, seconds=options.seconds or 5)


async def attacks(verdict: Verdict, options: argparse.Namespace) -> None:
    """The tests of the engine try every attack twice: where it must succeed, and on our layout."""
    print("\nattacks: Senegal's credentials against a Moroccan stream, with an unsafe layout as control")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-p", "no:cacheprovider", str(ATTACKS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ATTACKS.parent.parent.parent,
    )
    sys.path.insert(0, str(ATTACKS.parent))
    from test_nats_sovereignty import API_ATTACKS, PLANTED, PREFIXES

    passed, failed = (
        sum(map(int, re.findall(rf"(\d+) {word}", ran.stdout))) for word in ("passed", "(?:failed|error)")
    )
    print(f"  {passed} stories held, {failed} did not; among them {len(API_ATTACKS)} API requests by {len(PREFIXES)}")
    print(f"  ways each (list, read, consume, re-tag, purge, ...), and {len(PLANTED)} violations that the audit found")
    verdict.goal(
        "attacks on a foreign jurisdiction's streams that succeeded, or were not tried", "== 0", failed + (not passed)
    )


PARTS: dict[str, Callable[[Verdict, argparse.Namespace], Awaitable[None]]] = {
    part.__name__: part for part in (rate, latency, peer, burst, kills, update, rubbish, attacks)
}


async def measure(options: argparse.Namespace) -> None:
    verdict = Verdict("pipelines")
    print(f"conditions: {conditions()}; nats-server {version_of(find_nats_server())}; all on loopback of this machine")
    print(f"load average at the start: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
    if options.real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # every process that we start inherits it
        print("scheduling: real-time (SCHED_RR 1) for all processes of the benchmark", flush=True)
    for name in options.parts:
        await PARTS[name](verdict, options)
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    verdict.print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=0.0, help="per measurement; 0: as long as each part wants")
    parser.add_argument("--rounds", type=int, default=5, help="of the latency part")
    parser.add_argument("--real-time", action="store_true", help="before all other programs (SCHED_RR)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: message engines outlive us otherwise
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
