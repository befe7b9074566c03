"""What is remembered of faults: how long something rests, and that no loop ends by an error."""

from __future__ import annotations

import asyncio

from harch.base.errors import HarchError
from harch.execution.protocol import TaskEnded, TaskKey
from harch.federation.offers import DropBids, ReportsBooked
from harch.hub.jobs import events as ev
from harch.hub.jobs.faults import CAUSES_MAX, HELD_MAX, HOLD_S, HOLD_S_MAX, REST_S_MAX, FaultBook, cause_of, words_of
from harch.hub.jobs.supervision import LOOP_AGAIN_S, kept_up
from harch.testing.clock import START, SimClock
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import WorkloadSpec

STOP = ev.StopRequested("wl_1", "asked")


def end(workload_id: str) -> ev.TaskEndSeen:
    return ev.TaskEndSeen("agent", TaskEnded(key=TaskKey(workload_id, 1, 0), reason=ExitReason.EXITED, at=START))


def test_what_fails_again_and_again_rests_longer_each_time_and_not_at_all_once_it_went_well() -> None:
    faults = FaultBook()
    rests = []
    for _ in range(9):
        faults.failed(STOP, ValueError(), 0.0)
        rests.append(faults.rest_s(STOP, 0.0))
    assert rests == [0, 1, 2, 4, 8, 16, 32, REST_S_MAX, REST_S_MAX]
    assert faults.rest_s(STOP, 30.0) == REST_S_MAX - 30
    assert faults.rest_s(ev.StopRequested("wl_2", "asked"), 0.0) == 0
    faults.went_well(STOP)
    assert faults.rest_s(STOP, 0.0) == 0


def test_work_that_fails_rounds_is_held_back_for_half_a_minute_and_at_most_an_hour() -> None:
    faults = FaultBook()
    assert faults.held("wl_1", 0.0) is None
    for _ in range(20):
        held = faults.hold("wl_1", ValueError(), 0.0)
    assert held.until_s == HOLD_S_MAX
    assert faults.held("wl_1", HOLD_S_MAX) is None
    faults.forget("wl_1")
    assert faults.hold("wl_1", ValueError(), 0.0).until_s == HOLD_S


def test_what_is_remembered_is_limited() -> None:
    faults = FaultBook()
    for number in range(2 * CAUSES_MAX):
        faults.failed(ev.StopRequested(f"wl_{number}", ""), ValueError(), 0.0)
        faults.hold(f"wl_{number}", ValueError(), 0.0)
    assert (len(faults._causes), len(faults._held)) == (CAUSES_MAX, HELD_MAX)
    assert faults.total == 2 * CAUSES_MAX


def test_events_that_would_fail_alike_have_one_cause() -> None:
    one, other = WorkloadSpec(name="one"), WorkloadSpec(name="other")
    assert cause_of(ev.Submitted("wl_1", "t", one)) == cause_of(ev.Submitted("wl_2", "t", one))
    assert cause_of(ev.Submitted("wl_1", "t", one)) != cause_of(ev.Submitted("wl_1", "t", other))
    assert cause_of(ev.PeerMessageReceived("dakar", DropBids(("a",)))) == cause_of(
        ev.PeerMessageReceived("dakar", DropBids(("b",)))
    )
    assert cause_of(ev.PeerMessageReceived("dakar", DropBids(("a",)))) != cause_of(
        ev.PeerMessageReceived("dakar", ReportsBooked(()))
    )
    assert cause_of(end("wl_1")) != cause_of(end("wl_2"))
    assert cause_of(ev.PlacementDue()) == cause_of(ev.PlacementDue())
    assert words_of(ev.PlacementDue()) == "placement due"


async def test_a_loop_that_an_error_ends_begins_anew() -> None:
    faults, clock, turns = FaultBook(), SimClock(), 0

    async def loop() -> None:
        nonlocal turns
        turns += 1
        if turns < 3:
            raise HarchError("E1002", "full") if turns == 1 else KeyError(turns)

    running = asyncio.create_task(kept_up("looping", loop, faults, clock))
    await clock.advance(3 * LOOP_AGAIN_S)
    await running
    assert turns == 3
    assert faults.total == 1, "an error for people is none of ours"
