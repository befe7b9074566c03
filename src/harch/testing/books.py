"""Do the books of a job machine balance, and would a restart find the same ones? For simulations and benchmarks.

`unbalanced` compares what is booked with the workloads that it is booked for, everything counted anew. `books_of` is
what must survive a restart, as values that can be compared: of two machines over the same disk they are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from harch.hub.jobs.machine import JobMachine
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.queueing.quotas import QuotaBook
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.placement.state import is_anchor
from harch.workloads.lifecycle import State, Workload

_WATTS_SLACK = 1e-3


def unbalanced(machine: JobMachine) -> list[str]:
    """What does not add up, in words; nothing if all is well."""
    return [*_who_holds(machine), *_how_much(machine), *_who_waits(machine), *_who_lends(machine)]


def books_of(machine: JobMachine) -> dict[str, object]:
    """Without what a restart is meant to lose: agents, bids, auctions, and guests that were waiting."""
    state = machine.state
    room, scheduler = state.scheduler.room, state.scheduler
    bids = _bids(machine)
    unfinished = [one for one in state.registry.workloads.values() if not one.state.is_final]
    return {
        "held": {key: one.slots for key, one in scheduler.running.items() if key not in bids},
        "waiting": {one.id for one in unfinished if not one.borrowed and _waits_anywhere(machine, one)},
        "own": {one.id: (one.state, one.attempt, one.epoch) for one in unfinished if not one.borrowed},
        "guests": {one.id: (one.owner_hub, one.epoch) for one in unfinished if one.borrowed and one.is_placed},
        "lent": {key: (given.runner, given.epoch) for key, given in state.lending.given.items()},
        "unbooked": {key for key, one in state.lending.unbooked.items() if not one.handed_back},
        "rendezvous": frozenset(state.agents.gang_ports_used),
        "closed": state.closed,
        "cordoned": tuple(room.cordoned.tolist()),
        "healthy": tuple(map(tuple, room.healthy.tolist())),
        "cooling": tuple(room.zone_heat_w_max.tolist()),
        "links": (tuple(scheduler.topology.nvlink_factor.tolist()), tuple(scheduler.topology.uplink_factor.tolist())),
        "data": dict(state.catalog.entries),
        "readers": {one.id for one in unfinished if one.data_ids and not (one.borrowed and not one.is_placed)},
    }


def _bids(machine: JobMachine) -> dict[str, PlacementRequest]:
    """GPUs that are held for hubs that may send work."""
    return {
        made.request.id: made.request for made in machine.state.lending.bids.values() if made.assignment is not None
    }


def _who_holds(machine: JobMachine) -> Iterator[str]:
    state = machine.state
    running, bids = state.scheduler.running, _bids(machine)
    placed = {one.id: one for one in state.registry.workloads.values() if one.is_placed}
    if running.keys() != placed.keys() | bids.keys():
        yield f"booked for {sorted(running.keys() ^ (placed.keys() | bids.keys()))}, which do not run"
    for key in running.keys() & placed.keys():
        nodes = state.hub.nodes
        slots = {
            (nodes[slot.row].id, tuple(nodes[slot.row].gpus[device].id for device in slot.devices))
            for slot in running[key].slots
        }
        if slots != {(task.node_id, tuple(task.gpu_ids)) for task in placed[key].placement}:
            yield f"{key} is booked elsewhere than it runs"
    ports = [(one.master_addr, one.master_port) for one in placed.values() if one.master_port is not None]
    if Counter(ports) != Counter(state.agents.gang_ports_used):
        yield "rendezvous ports are not those of the gangs that run"
    if state.scheduler.stopping.keys() - running.keys():
        yield "a stop is pending for work that holds nothing"


def _how_much(machine: JobMachine) -> Iterator[str]:
    """Every GPU, core, GiB and watt, from an empty room."""
    state = machine.state
    scheduler, room, empty = state.scheduler, state.scheduler.room, Room(state.hub)
    anchored, processes = np.zeros_like(scheduler.anchored), 0
    exclusive: set[int] = set()
    for held in scheduler.running.values():
        needs, rows = held.request.needs, [slot.row for slot in held.slots]
        for slot in held.slots:
            empty.take(needs, slot)  # raises if a GPU is given twice
        processes += len(rows) if held.request.runs_process else 0
        exclusive |= set(rows) if held.request.topology.exclusive else set()
        if is_anchor(held.request):
            np.add.at(anchored, rows, 1)
    arrays, fresh = room.arrays, empty.arrays
    for name, here, there in (
        ("GPUs", arrays.gpu_milli_free + room.withheld_milli, fresh.gpu_milli_free),
        ("sums of GPUs", arrays.gpu_milli_free_sum, arrays.gpu_milli_free.sum(axis=1)),
        ("cores", arrays.cpu_milli_free, fresh.cpu_milli_free),
        ("memory", arrays.memory_mib_free, fresh.memory_mib_free),
        ("tasks", room.tasks_on, empty.tasks_on),
        ("anchors", scheduler.anchored, anchored),
        ("watts", np.abs(room.rack_power_w_free - empty.rack_power_w_free) > _WATTS_SLACK, False),
        ("heat", np.abs(room.zone_heat_w - empty.zone_heat_w) > _WATTS_SLACK, False),
        ("exclusive nodes", room.exclusive_on, [row in exclusive for row in range(arrays.size)]),
    ):
        if (np.asarray(here) != np.asarray(there)).any():
            yield f"{name} free and held are not those of the hub"
    if room.withheld_milli[room.healthy].any() or (arrays.gpu_milli_free > GPU_MILLI).any():
        yield "healthy GPUs are withheld"
    if room.process_slots_free != state.agents.process_slots - processes:
        yield f"{room.process_slots_free} process slots free of {state.agents.process_slots}, {processes} in use"
    if scheduler.releases._numbers.keys() != scheduler.running.keys():
        yield "what running work would give back is not what runs"


def _who_waits(machine: JobMachine) -> Iterator[str]:
    state = machine.state
    for workload in state.registry.workloads.values():
        in_queue = workload.id in state.scheduler.queue
        if in_queue and (workload.state is not State.PENDING or workload.leased):
            yield f"{workload.id} is {workload.state} and in the queue"
        if workload.state is State.PENDING and not workload.leased and not _waits_anywhere(machine, workload):
            yield f"{workload.id} is pending and never looked at"
    queue, quotas = state.scheduler.queue, QuotaBook(state.scheduler.settings, state.scheduler.room)
    for key, waiting in queue._waiting.items():
        quotas.waits(waiting.request, 1)
        if key not in state.registry.workloads:
            yield f"{key} waits and is not known"
    for held in state.scheduler.running.values():
        quotas.holds(held.request, len(held.slots))
    if queue._holdings.keys() != state.scheduler.running.keys():
        yield "the queue counts other holders than there are"
    if queue._quotas._usage != quotas._usage:
        yield "quotas count something else than what waits and runs"


def _waits_anywhere(machine: JobMachine, workload: Workload) -> bool:
    state = machine.state
    return workload.state is State.PENDING and (
        workload.id in state.scheduler.queue
        or workload.id in state.carbon.held
        or workload.id in state.carbon.routes
        or not workload.home_fits
        or workload.id in state.set_aside
    )


def _who_lends(machine: JobMachine) -> Iterator[str]:
    state = machine.state
    lent = {one.id for one in state.registry.workloads.values() if one.leased}
    if lent != state.lending.given.keys():
        yield f"leases given differ from the lent work: {sorted(lent ^ state.lending.given.keys())}"
    borrowed = {one.id for one in state.registry.workloads.values() if one.borrowed and not one.state.is_final}
    if borrowed != state.lending.borrowed.keys():
        yield f"leases held differ from the borrowed work: {sorted(borrowed ^ state.lending.borrowed.keys())}"
