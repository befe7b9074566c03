"""On which WAN are federations compared? Round trips of 8 to 45 ms and 1 % loss per way, whoever runs on it."""

from __future__ import annotations

from harch.fleet.file import shipped_fleet
from harch.testing.wan import Wan, spread_rtt_ms

LOSS = 0.01
JITTER_MS = 1.0


def federation_wan(hub_count: int, *, seed: int = 1) -> Wan:
    """Five hubs are those of the shipped fleet; any other number has round trips drawn from the same range."""
    if hub_count == 5:
        return Wan.of_fleet(shipped_fleet("five-hubs"), jitter_ms=JITTER_MS, loss=LOSS, seed=seed)
    names = [f"hub{number:02}" for number in range(hub_count)]
    return Wan(names, rtt_ms=spread_rtt_ms(names, seed=seed), jitter_ms=JITTER_MS, loss=LOSS, seed=seed)


def slowest_one_way_ms(wan: Wan) -> float:
    """What no update that is to reach everybody from anywhere can beat."""
    return max(wan.rtt_ms.values()) / 2
