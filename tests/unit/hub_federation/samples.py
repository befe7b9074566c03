"""Small values for the tests."""

from __future__ import annotations

from datetime import UTC, datetime

from harch.federation import offers as o
from harch.hub.federation.messages import WorkRow
from harch.workloads.lifecycle import State
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec, WorkloadType

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = o.WorkLease("wl_1", 3)
GRANT = o.Grant(
    bid_id="b",
    lease=LEASE,
    attempt=1,
    tenant="t",
    spec=WorkloadSpec(name="job", command=("true",), resources=Resources(gpus=2)),
    created_at=NOW,
    lease_s=600.0,
)
ROW = WorkRow(
    id="wl_1",
    name="job",
    tenant="t",
    owner_hub="dakhla",
    state=State.RUNNING,
    type=WorkloadType.BATCH,
    turn_class=SchedulingClass.TRAINING,
    created_at=NOW,
    updated_at=NOW,
)
