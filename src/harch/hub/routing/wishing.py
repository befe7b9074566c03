"""What if somebody changes what work wants of its power? It is weighed again if it waits, and left where it runs."""

from __future__ import annotations

from msgspec import ValidationError
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.hub.desk import Desk
from harch.hub.happenings import CarbonWished
from harch.hub.routing.choices import choose
from harch.hub.routing.telling import describe
from harch.workloads.lifecycle import State


def wish(desk: Desk, event: CarbonWished) -> None:
    """Raises E0201 for wishes that its class excludes, E0402 if a limit leaves no hub and hour."""
    workload = desk.unfinished(event.workload_id)
    before = workload.spec
    try:
        workload.spec = replace(before, carbon=event.wishes)
    except (ValueError, ValidationError) as error:
        raise HarchError("E0201", str(error), hint="docs/reference/workload.md tells more", field="carbon") from None
    waits = workload.state is State.PENDING and not (workload.is_placed or workload.leased or workload.guest)
    if waits:
        try:
            choice = choose(desk, workload)
        except HarchError:
            workload.spec = before
            raise
        desk.scheduler.withdraw(workload.id)
        desk.carbon.forget(workload.id)
        workload.carbon = choice
        desk.enqueue(workload)
    workload.annotations = {**workload.annotations, **event.annotations}
    told = f": {describe(workload.carbon)}" if waits and workload.carbon is not None else ""
    desk.changed(workload, "workload.changed", f"carbon wishes replaced{told}")
