"""How often, how much and how patient? The numbers of the gossip; all hubs of a federation should use the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GossipSettings:
    interval_s: float = 0.2
    interval_spread: float = 0.1  # ±: hubs that started together shall not stay in step
    peers_per_tick: int = 3

    # Liveness
    phi_max: float = 8.0
    intervals_kept: int = 200
    intervals_assumed: int = 5  # so that the first few intervals seen do not decide alone
    stretch_max: float = 8.0
    latency_s_max: float = 1.0  # no link earns more patience than this, however slow
    forget_after_s: float = 24 * 3600.0

    # Limits of what one hub may say about itself
    keys_max: int = 1024
    bytes_max: int = 1024 * 1024  # keys and values together
    tombstones_max: int = 256
    tombstone_keep_s: float = 3600.0

    # Limit of what one message may carry; it must hold the largest entry
    delta_bytes_max: int = 256 * 1024
