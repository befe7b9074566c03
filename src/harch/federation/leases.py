"""How long may a hub run another's work? Lease terms, and the two clocks that must never be confused.

No clock is shared between hubs; only the *rate* of each is trusted, to within `drift`. The runner counts its lease from
the moment it **sent** its bid or its renewal, the owner from the moment it **wrote** the grant or answered, which is
later. So the runner's lease always ends first, and by at least the margin.
"""

from __future__ import annotations

from msgspec import Struct

from harch.workloads.spec import SchedulingClass, WorkloadSpec

RENEWALS_PER_LEASE = 3


class LeaseTerms(Struct, frozen=True, kw_only=True):
    batch_s: float = 600.0
    service_s: float = 30.0  # inference: whoever waits for an answer cannot wait ten minutes for a lost hub
    margin_s: float = 5.0
    drift: float = 1e-3

    def length_s(self, spec: WorkloadSpec) -> float:
        return self.service_s if spec.turn_class is SchedulingClass.INFERENCE else self.batch_s

    def renew_every_s(self, spec: WorkloadSpec) -> float:
        return self.length_s(spec) / RENEWALS_PER_LEASE

    def covers_grace(self, spec: WorkloadSpec) -> bool:
        """A task is told to stop so long before its lease ends; a renewal must come before that."""
        return spec.stop_grace_s <= self.length_s(spec) / 2

    def owner_waits_s(self, spec: WorkloadSpec) -> float:
        """From its last word to the runner: after so long, the runner has surely stopped the work."""
        return self.length_s(spec) * (1 + 2 * self.drift) + self.margin_s
