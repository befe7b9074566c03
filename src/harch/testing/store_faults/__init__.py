"""Does HarchOS notice that a disk lied? Every store that it keeps, and faults that hit them."""

from __future__ import annotations

from harch.testing.store_faults.faults import FaultVerdict, FaultyStore, StoreBench, StoreFault, Tried, attempts
from harch.testing.store_faults.hub_stores import HUB_STORES
from harch.testing.store_faults.sentinel_stores import SENTINEL_STORES
from harch.testing.store_faults.worker_stores import AGENT_STORES, PIPELINE_STORES

ALL_STORES = (*HUB_STORES, *SENTINEL_STORES, *PIPELINE_STORES, *AGENT_STORES)

__all__ = ["ALL_STORES", "FaultVerdict", "FaultyStore", "StoreBench", "StoreFault", "Tried", "attempts"]
