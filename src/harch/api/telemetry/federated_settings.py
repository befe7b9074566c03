"""What may an operator change about questions of other hubs? The table `[federated]` of SENTINEL's settings file."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from harch.sentinel.federated.owning.policy import (
    AGGREGATIONS_ABROAD,
    FUNCTIONS_ABROAD,
    LABELS_ABROAD,
    TelemetryPolicy,
)


@dataclass(frozen=True, slots=True)
class FederatedSettings:
    """`answers` off: other hubs are told nothing. Asking them is not changed by it; they decide for themselves."""

    answers: bool = True
    policy: TelemetryPolicy = field(default_factory=TelemetryPolicy)


class FederatedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`labels_abroad` replaces the shipped list, `labels_abroad_more` adds to it.

    That other countries count as the own one cannot be set: a border is one of countries, for the hub as well.
    """

    answers: bool = True
    k: int = 5
    labels_abroad: frozenset[str] = LABELS_ABROAD
    labels_abroad_more: frozenset[str] = frozenset()
    aggregations_abroad: frozenset[str] = AGGREGATIONS_ABROAD
    functions_abroad: frozenset[str] = FUNCTIONS_ABROAD
    metrics_at_home: frozenset[str] = frozenset()
    tenants_abroad: frozenset[str] | None = None
    quantum_s: int = 60
    log_quantum_s: int = 300
    span_quantum_s: int = 900
    settling_s: int = 900
    closing_s: int = 30
    remembered_days: int = 30

    def settings(self) -> FederatedSettings:
        """Raises E0696 for a value that would give too much away."""
        return FederatedSettings(
            answers=self.answers,
            policy=TelemetryPolicy(
                k=self.k,
                labels_abroad=self.labels_abroad | self.labels_abroad_more,
                aggregations_abroad=self.aggregations_abroad,
                functions_abroad=self.functions_abroad,
                metrics_at_home=self.metrics_at_home,
                tenants_abroad=self.tenants_abroad,
                quantum_s=self.quantum_s,
                log_quantum_s=self.log_quantum_s,
                span_quantum_s=self.span_quantum_s,
                settling_s=self.settling_s,
                closing_s=self.closing_s,
                remembered_days=self.remembered_days,
            ),
        )
