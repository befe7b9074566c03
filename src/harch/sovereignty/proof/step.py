"""What is one thing that can happen? The steps that a proof looks for, and how they are told apart."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from harch.sovereignty.proof.model import Kind

Failed = tuple[str, ...]


class StepKind(StrEnum):
    PLACEMENT = "placement"
    SPILL_OVER = "spill_over"
    ROUTE = "route"
    REPLICA = "replica"
    EDGE = "pipeline_edge"
    EXPORT = "telemetry_export"


class Step(Struct, frozen=True, kw_only=True):
    """One thing that can happen and must not. `data` is empty if the work's own residency is broken."""

    kind: StepKind
    actor_kind: Kind
    actor: str
    data: str
    hub: str  # where it happens or arrives
    cluster: str = ""
    source: str = ""
    link: str = ""
    failed: Failed = ()

    @property
    def breach(self) -> tuple[str, ...]:
        """Steps of one breach differ only in who takes them; one of them is enough to tell."""
        return self.kind, self.data, self.hub, self.cluster, self.link
