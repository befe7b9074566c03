"""By which limits are turns given? Every weight, share, bound and limit of `turns`, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from harch.workloads.spec import SchedulingClass

# Highest first: a class may preempt those behind it, never one before it.
CLASS_ORDER = (SchedulingClass.INFERENCE, SchedulingClass.INTERACTIVE, SchedulingClass.TRAINING)
LOWEST_CLASS = CLASS_ORDER[-1]

_CLASS_WEIGHTS = MappingProxyType(
    {SchedulingClass.INFERENCE: 100.0, SchedulingClass.INTERACTIVE: 10.0, SchedulingClass.TRAINING: 1.0}
)


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may hold and keep waiting; None: no limit."""

    gpus_held_max: float | None = None
    tasks_held_max: int | None = None
    workloads_waiting_max: int | None = None


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """The defaults suit a hub of some hundred GPUs with work of minutes to days."""

    class_weights: Mapping[SchedulingClass, float] = field(default_factory=lambda: _CLASS_WEIGHTS)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # inside a class; 1 for those not named
    # 100:10:1 alone would leave training 0.9 %. Of the service of the classes that wait.
    training_floor_share: float = 0.10
    # A flow is judged by the virtual time that it will have so much later with what it holds now. Without it, whoever
    # is behind would be given everything that comes free until the clock has caught up.
    lookahead_s: float = 600.0
    # Debt of a flow that comes back is forgiven beyond so many seconds of the whole hub: usage is not a grudge.
    memory_s: float = 3600.0
    # Whoever has waited longer is also in the lane of the aged, which serves the oldest first and gets this share.
    starvation_s: float = 3600.0
    aged_share: float = 0.05
    quota_default: Quota = NO_QUOTA  # of tenants that are not named below
    tenant_quotas: Mapping[str, Quota] = field(default_factory=dict)
    class_quotas: Mapping[tuple[str, SchedulingClass], Quota] = field(default_factory=dict)  # beside the tenant's
    reservations_max: int = 4  # each keeps nodes half idle, so few at a time
    backfill_margin_s: float = 30.0  # starting and stopping take time that no promised duration counts
    # Work that promised no end is assumed to last so long; what lasts longer, twice that, and so on.
    assumed_duration_s: float = 4 * 3600.0
    # A higher class looks elsewhere, and for whom to preempt, for so long before it takes what is kept for a lower one.
    kept_yields_after_s: float = 120.0
    # For work of several GPUs that has waited so long, smaller preemptible work on its kept nodes restarts elsewhere.
    makes_room_after_s: float = 3600.0
    makes_room_victims_max: int = 256  # for one request
    makes_room_per_hour_max: int = 256  # of the hub
    preemption_victims_max: int = 16  # of one plan
    preemptions_per_hour_max: int = 240  # of the hub
    preempted_again_after_s: float = 1800.0  # the same victim is left alone for so long
    moves_max: int = 16  # of one defragmentation plan
    # Work of several GPUs that has waited longer may have others moved by itself, if that pays; None: only when asked.
    defragment_after_s: float | None = None
    preemption_domains_tried_max: int = 8  # per level, those that miss least first: bounds the cost of a plan
    preemption_candidates_max: int = 128  # per domain, those that lose least

    def __post_init__(self) -> None:
        weights = [*(self.class_weights.get(c, 0.0) for c in CLASS_ORDER), *self.tenant_weights.values()]
        if min(weights) <= 0:
            raise ValueError("every class and every named tenant needs a weight above 0")
        if not (0 <= self.training_floor_share < 1 and 0 < self.aged_share < 1):
            raise ValueError("`training_floor_share` must be in [0, 1), `aged_share` in (0, 1)")
        if self.lookahead_s <= 0 or self.memory_s <= 0 or self.starvation_s <= 0:
            raise ValueError("`lookahead_s`, `memory_s` and `starvation_s` must be above 0")
        if self.assumed_duration_s <= 0:
            raise ValueError("`assumed_duration_s` must be above 0")
        if self.defragment_after_s is not None and self.defragment_after_s <= 0:
            raise ValueError("`defragment_after_s` must be above 0")

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @property
    def has_no_quotas(self) -> bool:
        return not self.tenant_quotas and not self.class_quotas and self.quota_default == NO_QUOTA

    def tenant_weight(self, tenant: str) -> float:
        return self.tenant_weights.get(tenant, 1.0)
