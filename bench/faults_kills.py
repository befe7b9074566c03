"""Do a hub and its SENTINEL survive each other? 100 kill -9 at random times under load, in turn, as real processes.

After each kill the one that survived must go on serving, the one that was killed must come back and find the other,
and every job and every sample that was acknowledged must be there.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harch.testing.kill_rounds import HubAndSentinel, Rounds, kill_in_turn
from harch.testing.samples import TINY_FLEET_TOML
from verdict import Verdict, conditions

KILLS = 100
QUIET_S = (0.5, 4.0)  # how long all is well before a kill; the time of a kill in what happens is chance


def measure(verdict: Verdict, kills: int = KILLS, seed: int = 20260101) -> None:
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="harch-kills-") as folder,
        HubAndSentinel(TINY_FLEET_TOML, "dakhla", Path(folder)) as world,
    ):
        world.wait_for_sentinel()
        rounds = kill_in_turn(world, kills, random.Random(seed), quiet_s=QUIET_S, on_round=_show)
    print(
        f"{rounds.kills} kills in {time.monotonic() - began_s:.0f} s, {rounds.jobs} jobs and {rounds.samples} samples "
        f"acknowledged; the survivor answered {rounds.answers} times; slowest return: hub "
        f"{rounds.hub_back_s_max:.1f} s, SENTINEL {rounds.sentinel_back_s_max:.1f} s ({conditions()})",
        file=sys.stderr,
    )
    verdict.goal("kills_of_sentinel_and_hub", f">= {kills}", rounds.kills)
    verdict.goal("kills_of_sentinel_and_hub_violations", "== 0", len(rounds.violations))


def _show(rounds: Rounds, news: Sequence[str]) -> None:
    for violation in news:
        print(f"violation: {violation}", file=sys.stderr, flush=True)
    if rounds.kills % 10 == 0:
        print(f"{rounds.kills} kills, {len(rounds.violations)} violations", file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=20260101)
    options = parser.parse_args()
    verdict = Verdict("faults-kills")
    measure(verdict, options.kills, options.seed)
    verdict.print()
