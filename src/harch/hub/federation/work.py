"""What runs in the whole federation? Every hub tells of the work that it owns; who does not answer is named.

Work that is here for a hub that does not answer is told by this one: it runs, whoever can be asked about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from harch.base.errors import HarchError
from harch.hub.federation.messages import WorkAsked, WorkRow, WorkTold
from harch.hub.federation.questions import Questions
from harch.hub.views import PeerView, Sight
from harch.workloads.lifecycle import Workload

NODES_SHOWN_MAX = 8
NOTE_CHARACTERS_MAX = 200


class SilentHub(Struct, frozen=True, kw_only=True):
    """A hub whose work is not in the list, and what was last known of it."""

    hub_id: str
    why: str
    age_s: float | None  # of `workloads`; None: it was never heard
    workloads: dict[str, int]  # count by state, as it last said


class FederationWork(Struct, frozen=True, kw_only=True):
    """Newest first. `total` counts all work of the hubs that answered, also what did not fit into `rows`."""

    rows: list[WorkRow]
    total: int
    silent: list[SilentHub]


def row_of(workload: Workload, *, runner: str = "", unheard_s: float | None = None) -> WorkRow:
    """As its owner tells it, or the hub that has it for its owner (`runner`)."""
    spec, resources = workload.spec, workload.spec.resources
    placement = workload.runner_placement if workload.runner_hub else workload.placement
    return WorkRow(
        id=workload.id,
        name=spec.name,
        tenant=workload.tenant,
        owner_hub=workload.owner_hub,
        state=workload.state,
        type=spec.type,
        turn_class=spec.turn_class,
        created_at=workload.created_at,
        updated_at=workload.updated_at,
        runner_hub=runner or workload.runner_hub or (workload.owner_hub if placement else ""),
        nodes=tuple(sorted({task.node_id for task in placement}))[:NODES_SHOWN_MAX],
        epoch=workload.epoch,
        attempt=workload.attempt,
        tasks=spec.tasks,
        gpus=resources.gpus,
        gpu_fraction=resources.gpu_fraction,
        started_at=workload.started_at,
        stopping=bool(workload.stop_as),
        modelled=spec.modelled_duration_s is not None,
        note=workload.error_message[:NOTE_CHARACTERS_MAX],
        guest=bool(runner),
        unheard_s=unheard_s,
    )


async def gather_work(
    own: WorkTold, guests: Iterable[WorkRow], peers: Iterable[PeerView], questions: Questions, *, tenant: str | None
) -> FederationWork:
    """Asks every linked hub at once; each has the same two seconds."""
    others = [peer for peer in peers if not peer.own and peer.sight not in (Sight.STRANGER, Sight.RETIRED)]
    answers = await asyncio.gather(*(_ask(questions, peer, tenant) for peer in others))
    rows, total = list(own.rows), own.total
    silent, answered = [], set[str]()
    for peer, answer in zip(others, answers, strict=True):
        if isinstance(answer, SilentHub):
            silent.append(answer)
        else:
            answered.add(peer.hub_id)
            rows += answer.rows
            total += answer.total
    left = [row for row in guests if row.owner_hub not in answered]
    rows, total = rows + left, total + len(left)
    rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
    return FederationWork(rows=rows, total=total, silent=silent)


async def _ask(questions: Questions, peer: PeerView, tenant: str | None) -> WorkTold | SilentHub:
    why = peer.error
    if peer.reachable:
        try:
            told = await questions.ask(peer.hub_id, lambda number: WorkAsked(number=number, tenant=tenant), WorkTold)
        except HarchError as error:
            why = error.message
        else:
            # A hub speaks for what it owns; and whoever asked for one tenant gets that one, whatever comes.
            rows = tuple(row for row in told.rows if row.owner_hub == peer.hub_id and tenant in (None, row.tenant))
            return WorkTold(number=told.number, rows=rows, total=max(told.total, len(rows)))
    known = peer.summary.workloads if peer.summary is not None else {}
    return SilentHub(hub_id=peer.hub_id, why=why, age_s=peer.age_s, workloads=known)
