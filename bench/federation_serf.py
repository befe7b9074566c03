"""How fast is serf, a gossip of others, on the same emulated WAN? Updates, kills and traffic, beside HarchOS's own.

Real agents of the Debian package, one per namespace, with the settings of its LAN and of its WAN profile. An update
counts as seen when an agent logs it, which it does at once: serf's handlers hear of changed members 1 to 3 s later, as
it waits for more. `measure_serf(wan, profile)` is for `bench/federation.py`; alone, this file prints the figures.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from federation_serf_agents import Profile, agents_in
from federation_wan import JITTER_MS, LOSS, federation_wan, slowest_one_way_ms
from harch.testing.wan import Wan, why_not_permitted
from verdict import conditions

GAP_S = (0.2, 1.2)  # between updates: not in step with its gossip, every 200 ms (LAN) or 500 ms (WAN)


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took, from the act until the last hub had seen it; those that somebody never saw apart."""

    seen_s: tuple[float, ...]
    unseen: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.seen_s) if self.seen_s else float("inf")

    @property
    def max_s(self) -> float:
        return max(self.seen_s) if self.seen_s and not self.unseen else float("inf")

    def __str__(self) -> str:
        unseen = f", {self.unseen} never" if self.unseen else ""
        return (
            f"median {self.median_s * 1000:,.0f} ms, max {self.max_s * 1000:,.0f} ms ({len(self.seen_s)} times{unseen})"
        )


@dataclass(frozen=True, slots=True)
class SerfFigures:
    """One profile on one WAN. Bytes are whole IP packets that a hub sends, the mean of all hubs."""

    hub_count: int
    profile: Profile
    tag_seen_by_all: Times
    event_seen_by_all: Times
    kill_seen_by_all: Times
    bytes_per_s_idle: float
    bytes_per_s_updating: float
    false_failures: int  # live hubs that an agent declared failed


def why_no_serf() -> str | None:
    """Why serf cannot be measured here; None where it can."""
    return why_not_permitted() or (None if shutil.which("serf") else "serf is not installed (apt-get install serf)")


def measure_serf(
    wan: Wan, profile: Profile, *, updates: int = 20, kills: int = 3, idle_s: float = 30.0, seed: int = 1
) -> SerfFigures:
    """Runs agents in all hubs of a WAN that is up, then ends them. Raises TimeoutError if they do not meet."""
    draw = random.Random(seed)
    with agents_in(wan, profile) as agents:
        idle = traffic(wan, lambda: time.sleep(idle_s))
        tags: list[float | None] = []
        events: list[float | None] = []

        def update() -> None:
            for number in range(updates):
                name = wan.names[number % len(wan.names)]
                for times, act in ((tags, agents.set_tag), (events, agents.send_event)):
                    time.sleep(draw.uniform(*GAP_S))
                    times.append(act(name, f"v{number}"))

        updating = traffic(wan, update)
        killed = [agents.kill_and_restart(draw.choice(wan.names)) for _ in range(kills)]
        return SerfFigures(
            hub_count=len(wan.names),
            profile=profile,
            tag_seen_by_all=_times(tags),
            event_seen_by_all=_times(events),
            kill_seen_by_all=_times(killed),
            bytes_per_s_idle=idle,
            bytes_per_s_updating=updating,
            false_failures=agents.false_failures,
        )


def traffic(wan: Wan, act: Callable[[], None]) -> float:
    """Bytes per second that a hub sends meanwhile: the mean of all hubs."""
    before, start = wan.statistics(), time.monotonic()
    act()
    after, elapsed_s = wan.statistics(), time.monotonic() - start
    sent = sum(after.bytes_sent(name) - before.bytes_sent(name) for name in wan.names)
    return sent / len(wan.names) / elapsed_s


def _times(taken_s: list[float | None]) -> Times:
    seen = tuple(taken for taken in taken_s if taken is not None)
    return Times(seen, len(taken_s) - len(seen))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--hubs", type=int, nargs="+", default=[5, 20])
    options.add_argument("--profiles", choices=["lan", "wan"], nargs="+", default=["lan", "wan"])
    options.add_argument("--updates", type=int, default=20)
    options.add_argument("--kills", type=int, default=3)
    options.add_argument("--idle-s", type=float, default=30.0)
    chosen = options.parse_args()
    if reason := why_no_serf():
        raise SystemExit(reason)
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "serf"], check=True, capture_output=True, text=True)
    print(f"conditions: {conditions()}; serf {asked.stdout} (Debian); all hubs on this machine")
    print(f"links: round trips of 8 to 45 ms, {LOSS:.0%} loss and ±{JITTER_MS:g} ms jitter per way")
    for hub_count in chosen.hubs:
        with federation_wan(hub_count) as wan:
            print(f"{hub_count} hubs, slowest way {slowest_one_way_ms(wan):g} ms")
            for profile in chosen.profiles:
                readings = measure_serf(wan, profile, updates=chosen.updates, kills=chosen.kills, idle_s=chosen.idle_s)
                print_figures(readings)
            late = wan.statistics()
            print(
                f"  the emulator was late by {late.late_ms_mean:.2f} ms on average, {late.late_ms_max:.1f} ms at most"
            )


def print_figures(readings: SerfFigures) -> None:
    print(f"  serf, {readings.profile} profile:")
    print(f"    tag seen by all:        {readings.tag_seen_by_all}")
    print(f"    user event seen by all: {readings.event_seen_by_all}")
    print(f"    kill -9 seen by all:    {readings.kill_seen_by_all}")
    print(f"    bytes/s sent per hub:   {readings.bytes_per_s_idle:,.0f} idle")
    print(f"                            {readings.bytes_per_s_updating:,.0f} while updating")
    print(f"    live hubs declared failed: {readings.false_failures}", flush=True)


if __name__ == "__main__":
    main()
