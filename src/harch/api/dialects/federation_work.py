"""How is the work of all hubs shown? In the shape of a hub's own list, with less in it, and who did not answer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from harch.api.dialects.pages import Pagination, page_of
from harch.api.dialects.workload_out import Metadata, WorkloadView
from harch.hub.federation.messages import WorkRow
from harch.hub.federation.work import SilentHub
from harch.workloads.lifecycle import State
from harch.workloads.spec import WorkloadType


class FederationPage(Struct, frozen=True, kw_only=True):
    """`silent_hubs` did not answer: their work is missing here, and is counted as it was when they were last heard.

    `complete` is false if hubs are silent, or if one of them has more work than it tells at once.
    """

    items: list[WorkloadView]
    total: int
    pagination: Pagination
    silent_hubs: list[SilentHub]
    complete: bool


class FederationFilter(Struct, frozen=True, kw_only=True):
    """What a caller wants to see of it; None: whatever it is."""

    hub_id: str | None
    state: State | None
    type: WorkloadType | None
    name: str | None

    def admits(self, row: WorkRow) -> bool:
        return (
            self.hub_id in {None, row.owner_hub}
            and self.state in {None, row.state}
            and self.type in {None, row.type}
            and self.name in {None, row.name}
        )


def federation_page(
    rows: Sequence[WorkRow], *, total: int, silent: list[SilentHub], page: int, per_page: int
) -> FederationPage:
    first = (page - 1) * per_page
    shown = page_of(
        [row_view(row) for row in rows[first : first + per_page]], total=total, page=page, per_page=per_page
    )
    return FederationPage(
        items=shown.items,
        total=total,
        pagination=shown.pagination,
        silent_hubs=silent,
        complete=not silent and total == len(rows),
    )


def row_view(row: WorkRow) -> WorkloadView:
    """What only its owner knows (command, environment, GPUs one by one) is not there."""
    resources: dict[str, object] = {"gpus": row.gpus}
    if row.gpu_fraction is not None:
        resources["gpu_fraction"] = row.gpu_fraction
    return WorkloadView(
        id=row.id,
        name=row.name,
        type=row.type,
        status=row.state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        metadata=Metadata(
            id=row.id, name=row.name, created_at=row.created_at, updated_at=row.updated_at, labels={}, annotations={}
        ),
        spec={"name": row.name, "type": row.type, "tasks": row.tasks, "resources": resources},
        hub_id=row.owner_hub,
        runner_hub=row.runner_hub,
        epoch=row.epoch,
        guest=row.guest,
        tenant=row.tenant,
        scheduling_class=row.turn_class,
        attempt=row.attempt,
        gpus_total=row.gpus * row.tasks,
        modelled=row.modelled,
        placement=(),
        nodes=row.nodes,
        placement_why="",
        task_ends=(),
        stopping=row.stopping,
        stop_reason="",
        started_at=row.started_at,
        completed_at=None,
        error_message=row.note or None,
        retry_count=0,
        unheard_s=row.unheard_s,
    )
