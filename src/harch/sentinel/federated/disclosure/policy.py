"""What may be disclosed to other hubs? The values an operator can set; the rules themselves are fixed.

Inside one jurisdiction everything may move. Over a border only aggregates of at least `k` sources do, by labels of the
allow-list, at times on a coarse grid.
"""

# harch: pure

from __future__ import annotations

from msgspec import Struct

from harch.base.errors import HarchError

CROSS_BORDER_LABELS = frozenset(
    {"hub", "hub_name", "job", "level", "le", "model", "region_name", "service", "service_name", "source", "status"}
    | {"type", "zone"}
)
# Nothing else is safe, so a policy can only take away from these.
CROSS_BORDER_AGGREGATIONS = frozenset({"sum", "count", "group", "avg", "stddev", "stdvar"})
CROSS_BORDER_FUNCTIONS = frozenset({"rate", "increase", "delta", "avg_over_time", "sum_over_time", "count_over_time"})
K_LEAST = 3  # below, two colluding members of a group know the third


class TelemetryPolicy(Struct, frozen=True, kw_only=True):
    """One hub's rules for questions of others. The defaults are meant to be kept.

    A *source* is what series have in common apart from their name and allow-listed labels: one GPU, one instance.
    `labels_abroad` are the only labels that matchers and groups of a question from abroad may name.
    """

    k: int = 5  # sources of a group at every step; traces of a group of spans
    cross_border_labels: frozenset[str] = CROSS_BORDER_LABELS
    cross_border_aggregations: frozenset[str] = CROSS_BORDER_AGGREGATIONS
    cross_border_functions: frozenset[str] = CROSS_BORDER_FUNCTIONS  # over time, of a metric
    metrics_at_home: frozenset[str] = frozenset()  # names that are never disclosed, not even summed up
    cross_border_tenants: frozenset[str] | None = None  # None: every tenant
    neighbours: frozenset[str] = frozenset()  # other countries of the same jurisdiction
    quantum_s: int = 60  # times, steps and ranges of metrics from abroad are multiples of it
    log_quantum_s: int = 300
    span_quantum_s: int = 900
    settling_s: int = 900  # values this close in time may not differ by fewer than k sources
    closing_s: int = 30  # what is younger may still grow: asked again and again, it would tell who wrote last
    cross_border_steps_max: int = 1_500
    cross_border_groups_max: int = 500
    points_max: int = 400_000  # of one answer's part, also at home
    remembered_days: int = 30

    def __post_init__(self) -> None:
        wrong = next((name for name, holds in _limits(self) if not holds), None)
        if wrong is not None:
            raise HarchError("E0696", f"`{key_of(wrong)}` cannot be {getattr(self, wrong)!r}")

    def is_home(self, own_country: str, other_country: str) -> bool:
        """Whether both are one jurisdiction. A country that is not known is abroad."""
        if not own_country or not other_country:
            return False
        return own_country == other_country or other_country in self.neighbours


# The keys of the table `[federated]`, which files may have.
KEYS = {
    "cross_border_labels": "labels_abroad",
    "more_cross_border_labels": "labels_abroad_more",
    "cross_border_aggregations": "aggregations_abroad",
    "cross_border_functions": "functions_abroad",
    "cross_border_tenants": "tenants_abroad",
}


def key_of(setting: str) -> str:
    """What a person wrote in the file for it."""
    return KEYS.get(setting, setting)


def _limits(policy: TelemetryPolicy) -> tuple[tuple[str, bool], ...]:
    hour = 3600
    return (
        ("k", K_LEAST <= policy.k <= 1000),
        ("cross_border_aggregations", policy.cross_border_aggregations <= CROSS_BORDER_AGGREGATIONS),
        ("cross_border_functions", policy.cross_border_functions <= CROSS_BORDER_FUNCTIONS),
        ("quantum_s", 15 <= policy.quantum_s <= hour and hour % policy.quantum_s == 0),
        ("log_quantum_s", 60 <= policy.log_quantum_s <= hour and hour % policy.log_quantum_s == 0),
        ("span_quantum_s", 60 <= policy.span_quantum_s <= hour and hour % policy.span_quantum_s == 0),
        ("settling_s", policy.quantum_s <= policy.settling_s <= 24 * hour),
        ("closing_s", 10 <= policy.closing_s <= hour),
        ("cross_border_steps_max", 1 <= policy.cross_border_steps_max <= 11_000),
        ("cross_border_groups_max", 1 <= policy.cross_border_groups_max <= 10_000),
        ("points_max", 1 <= policy.points_max <= 400_000),
        ("remembered_days", 1 <= policy.remembered_days <= 3650),
    )
