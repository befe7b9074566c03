"""How long may a hub run another's work? Lease terms, and the two clocks that must never be confused.

No clock is shared between hubs; only the *rate* of each is trusted, to within `drift`. The runner counts its lease from
the moment it **sent** its bid or its renewal, the owner from the moment it **wrote** the grant or answered, which is
later. So the runner's lease always ends first, and by at least the margin.
"""

from __future__ import annotations

from msgspec import Struct

from harch.workloads.spec import SchedulingClass, WorkloadSpec

RENEWALS_PER_LEASE = 3
LEASE_S_MIN, LEASE_S_MAX = 3.0, 86_400.0
DRIFT_MAX = 1e-3  # of the rate of a boot clock


class LeaseTerms(Struct, frozen=True, kw_only=True):
    """What an owner grants. Each lease carries its length, so hubs need not agree on these, and may change them."""

    batch_s: float = 600.0
    service_s: float = 30.0  # inference: whoever waits for an answer cannot wait ten minutes for a lost hub
    margin_s: float = 5.0

    def length_s(self, spec: WorkloadSpec) -> float:
        return self.service_s if spec.turn_class is SchedulingClass.INFERENCE else self.batch_s

    def covers_grace(self, spec: WorkloadSpec) -> bool:
        """A task is told to stop so long before its lease ends; a renewal must come before that."""
        return spec.stop_grace_s <= self.length_s(spec) / 2

    def owner_waits_s(self, length_s: float) -> float:
        """From its last word to the runner: after so long, the runner has surely stopped the work."""
        return length_s * (1 + 2 * DRIFT_MAX) + self.margin_s


def renew_at_s(sent_s: float, length_s: float) -> float:
    return sent_s + length_s / RENEWALS_PER_LEASE
