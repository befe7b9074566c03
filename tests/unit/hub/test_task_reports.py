"""How the tasks ended decides what the workload is now."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from harch.hub.jobs.task_reports import Ending, decide_ending, describe
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload
from harch.workloads.spec import RestartPolicy, WorkloadSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNRENEWED = TaskEnd(rank=1, reason=ExitReason.LEASE_ENDED, detail="it was killed")


def workload(*ends: TaskEnd, restart: RestartPolicy = RestartPolicy.NEVER, stop_as: State | None = None) -> Workload:
    spec = WorkloadSpec(name="n", command=("true",), tasks=2, restart=restart)
    return Workload(
        id="wl_1",
        tenant="t",
        owner_hub="h",
        spec=spec,
        created_at=NOW,
        updated_at=NOW,
        task_ends=ends,
        stop_as=stop_as,
    )


@pytest.mark.parametrize("restart", list(RestartPolicy))
def test_a_lease_that_was_not_renewed_sends_the_work_back_and_uses_up_no_restart(restart: RestartPolicy) -> None:
    ended = decide_ending(workload(UNRENEWED, restart=restart))
    assert ended == Ending(State.PENDING, "rank 1 was stopped because its lease was not renewed: it was killed")


def test_one_rank_without_a_lease_decides_for_its_gang() -> None:
    bereft = TaskEnd(rank=0, reason=ExitReason.EXITED, exit_code=1)
    assert decide_ending(workload(bereft, UNRENEWED)).state is State.PENDING


def test_what_was_stopped_for_good_stays_stopped() -> None:
    assert decide_ending(workload(UNRENEWED, stop_as=State.CANCELLED)).state is State.CANCELLED


@pytest.mark.parametrize("reason", list(ExitReason))
def test_every_reason_has_words(reason: ExitReason) -> None:
    assert describe(TaskEnd(rank=0, reason=reason), of_gang=False).startswith("the task ")
