"""What does a hub answer about quotas? What each tenant holds and has pending there, beside what it may."""

# harch: pure

from __future__ import annotations

from msgspec import Struct


class TenantQuota(Struct, frozen=True, kw_only=True):
    """At one hub. `scheduling_class` empty: of the tenant as a whole. A limit that is None is none."""

    tenant: str
    scheduling_class: str = ""
    weight: float = 1.0  # its share among the tenants of a class that wait
    gpus_held: float = 0.0
    gpus_held_max: float | None = None
    tasks_held: int = 0
    tasks_held_max: int | None = None
    workloads_pending: int = 0
    workloads_pending_max: int | None = None
