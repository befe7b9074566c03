"""How much earlier than its promise must work join a queue because GPUs of its kind are few? Nodes are rarely empty at
once in small pools: a gang that needs much of all GPUs that it may use needs far more time to get them than another."""

from __future__ import annotations

SCARCE_SHARE, SCARCE_MARGIN_S = 0.25, 14 * 3600.0


def scarcity(gpus: float, gpus_in_reach: float) -> float:
    """From 0 to 1: the share of all GPUs in reach that it needs, over that which is hard to get. One GPU is not."""
    if gpus <= 1:
        return 0.0
    return min(gpus / gpus_in_reach / SCARCE_SHARE, 1.0) if gpus_in_reach > 0 else 1.0
