"""How well do hubs cooperate over a WAN? News, deaths, false alarms, traffic and hand-overs, with serf in the same run.

Everything is real but the network: processes in namespaces, TLS links, Ed25519 signatures, SQLite on disk. The WAN is
emulated: round trips of 8 to 45 ms, 1 % loss per way. `--minutes` shortens the ten minutes of processor stress.
"""

from __future__ import annotations

import argparse
import os

from federation_gossip import GossipFigures, false_suspicions, measure_gossip
from federation_serf import measure_serf, print_figures, why_no_serf
from federation_spill import RTT_MS, measure_spill
from federation_wan import JITTER_MS, LOSS, federation_wan, slowest_one_way_ms
from harch.testing.wan import why_not_permitted
from verdict import Verdict, conditions

SEEN_RATIO_MAX = 1.5  # median, of the slowest one-way delay


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--hubs", type=int, nargs="+", default=[5, 20])
    options.add_argument("--updates", type=int, default=60)
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--no-serf", action="store_true")
    chosen = options.parse_args()
    if reason := why_not_permitted():
        raise SystemExit(reason)
    verdict = Verdict("federation")
    print(f"conditions: {conditions()}; all hubs on this machine")
    print(f"links: round trips of 8 to 45 ms, {LOSS:.0%} loss and ±{JITTER_MS:g} ms jitter per way")
    for hub_count in chosen.hubs:
        with federation_wan(hub_count) as wan:
            slowest_ms = slowest_one_way_ms(wan)
            print(f"{hub_count} hubs, slowest way {slowest_ms:g} ms")
            readings = measure_gossip(wan, updates=chosen.updates, kills=chosen.kills)
            print_gossip(readings)
            late = wan.statistics()
            print(f"  the emulator was late by {late.late_ms_mean:.2f} ms on average, {late.late_ms_max:.1f} at most")
            seen, killed = readings.update_seen_by_all, readings.kill_seen_by_all
            ratio = seen.median_s * 1000 / slowest_ms
            verdict.goal(f"{hub_count} hubs: update seen by all, median / slowest way", f"<= {SEEN_RATIO_MAX}", ratio)
            verdict.goal(f"{hub_count} hubs: update seen by all, max", "< 300", seen.max_s * 1000, "ms")
            verdict.goal(f"{hub_count} hubs: kill detected by all, max", "< 2.5", killed.max_s, "s")
            if not chosen.no_serf and why_no_serf() is None:
                print_figures(measure_serf(wan, "lan", updates=10, kills=2, idle_s=10.0))
    if reason := why_no_serf():
        print(f"serf is not beside: {reason}")
    with federation_wan(5) as wan:
        burners = 2 * (os.cpu_count() or 1)
        alarms = false_suspicions(wan, minutes=chosen.minutes, burners=burners)
        print(f"{alarms} false suspicions in {chosen.minutes:g} minutes with {burners} busy processes beside 5 hubs")
        verdict.goal(f"false suspicions in {chosen.minutes:g} minutes of CPU stress", "== 0", alarms)
    spill = measure_spill()
    print(
        f"submit at a full hub -> running at a peer ({RTT_MS:g} ms away): p50 {spill.p50_ms:.0f} ms, "
        f"p99 {spill.p99_ms:.0f} ms ({len(spill.waits_ms)} jobs)"
    )
    print(f"over one link: {spill.lent_per_s:,.0f} jobs/s, while the full hub accepted {spill.accepted_per_s:,.0f}/s")
    verdict.goal("jobs handed over per second over one link", ">= 200", spill.lent_per_s, "jobs/s")
    verdict.print()


def print_gossip(readings: GossipFigures) -> None:
    print("  HarchOS:")
    print(f"    update seen by all:   {readings.update_seen_by_all}")
    print(f"    kill -9 seen by all:  {readings.kill_seen_by_all}")
    print(f"    bytes/s sent per hub: {readings.bytes_per_s_idle:,.0f} idle")
    print(f"                          {readings.bytes_per_s_updating:,.0f} while updating", flush=True)


if __name__ == "__main__":
    main()
