"""Lent work is counted once, by its owner; its runner tells of it if the owner is silent; and silence is said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from harch.federation.offers import RENEWALS_PER_LEASE, LeaseRenewal, Reports, WorkLease, WorkReport
from harch.hub.explain import explain
from harch.hub.federation.answers import gather_work, row_of
from harch.hub.federation.messages import NOW, HubNow, Summaries, WorkReply, WorkRow, published_state
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.summary import summarise
from harch.hub.views import LiveStatus, PeerReach, PeerView
from harch.testing.samples import tiny_fleet
from harch.wire.hubs import HubSummary
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec
from unit.hub_federation.test_federation_published import view

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 600.0


def work(key: str, owner: str, state: State = State.RUNNING, **fields: Any) -> Workload:
    return Workload(
        id=key,
        tenant="t",
        owner_hub=owner,
        spec=WorkloadSpec(name=key),
        created_at=START,
        updated_at=START,
        state=state,
        started_at=START,
        **fields,
    )


def lent(key: str = "wl_lent") -> Workload:
    return work(key, "dakhla", leased=True, runner_hub="dakar", epoch=1, lease_s=LEASE_S)


def borrowed(key: str = "wl_lent") -> Workload:
    fleet = tiny_fleet()
    there = (TaskPlacement(rank=0, node_id=fleet.hubs[1].nodes[0].id, gpu_ids=()),)
    return work(key, "dakhla", borrowed=True, epoch=1, lease_s=LEASE_S, placement=there)


def machine(hub: int, *workloads: Workload, boot_s: float = 0.0) -> JobMachine:
    fleet = tiny_fleet()
    made = JobMachine(fleet, fleet.hubs[hub])
    made.state.lending.enabled = True
    made.restore(workloads, (), context=EventContext(now=START, boot_s=boot_s), lifetime="one")
    return made


def summary(of: JobMachine) -> HubSummary:
    return summarise(of.state, not_ready="", version="", started_at=START, now=START, url="")


def test_over_all_hubs_each_workload_is_counted_once() -> None:
    owner = summary(machine(0, lent(), work("wl_own", "dakhla", State.PENDING), work("wl_end", "dakhla", State.FAILED)))
    runner = summary(machine(1, borrowed(), work("wl_other", "dakar", State.PENDING)))
    assert (owner.workloads, owner.lent, owner.borrowed) == ({"running": 1, "pending": 1}, {"running": 1}, {})
    assert (runner.workloads, runner.lent, runner.borrowed) == ({"pending": 1}, {}, {"running": 1})
    assert sum(sum(hub.workloads.values()) for hub in (owner, runner)) == 3


def test_a_hub_that_does_not_count_guests_apart_is_understood() -> None:
    said = published_state(summary(machine(1, borrowed())), policy_version="")
    now = msgspec.msgpack.decode(said[NOW])
    assert len(now) == len(HubNow.__struct_fields__)
    older = Summaries().of(view({**said, NOW: msgspec.msgpack.encode(now[:-2])}), START)
    assert older is not None
    assert (older.lent, older.borrowed) == ({}, {})


def peer(hub_id: str, *, reachable: bool) -> PeerView:
    return PeerView(
        hub_id=hub_id,
        url="",
        reachable=reachable,
        age_s=1.0,
        summary=None,
        error="" if reachable else "suspected",
        reach=PeerReach.LINKED if reachable else PeerReach.SUSPECTED,
    )


class Answers:
    """Hubs that answer with nothing."""

    async def request(self, _hub_id: str, make: Any, _kind: Any) -> WorkReply:
        return WorkReply(number=make(1).number, rows=(), total=0)


@pytest.mark.parametrize("reachable", [True, False])
async def test_what_runs_here_for_a_hub_that_does_not_answer_is_in_the_list(reachable: bool) -> None:
    own = WorkReply(number=0, rows=(row_of(work("wl_own", "dakar")),), total=1)
    here = [row_of(borrowed(), runner="dakar")]
    questions: Any = Answers()
    found = await gather_work(own, here, [peer("dakhla", reachable=reachable)], questions, tenant=None)
    expected = {"wl_own": ("dakar", "", False)}
    if not reachable:
        expected["wl_lent"] = ("dakhla", "dakar", True)
    assert {row.id: (row.owner_hub, row.runner_hub, row.borrowed) for row in found.rows} == expected
    assert found.total == len(found.rows)
    assert [silent.hub_id for silent in found.silent] == ([] if reachable else ["dakhla"])


def test_work_of_which_nothing_is_heard_for_half_of_its_lease_is_said_to_be_so() -> None:
    hub = machine(0, lent(), boot_s=1000.0)
    workload = hub.state.registry.workloads["wl_lent"]

    def unheard(after_s: float) -> float | None:
        return hub.state.lending.unheard_s(workload, 1000.0 + after_s)

    assert unheard(LEASE_S / RENEWALS_PER_LEASE) is None
    assert unheard(0.5 * LEASE_S) is None
    assert unheard(0.6 * LEASE_S) == 0.6 * LEASE_S
    lease = WorkLease("wl_lent", 1)
    report = Reports((WorkReport(lease=lease, state=State.RUNNING, started_at=START),))
    for message in (report, LeaseRenewal(1, (lease,))):
        hub.apply(ev.PeerMessageReceived("dakar", message), EventContext(now=START, boot_s=1360.0))
        assert unheard(0.6 * LEASE_S) is None
    later = EventContext(now=START, boot_s=1360.0 + 400.0)
    told = explain(hub, later, hub.state.request(workload), [], workload).sentence
    assert "no message for 400 s" in told
    assert f"in {LEASE_S * 1.002 + 5 - 400:.0f} s" in told


def test_work_at_home_is_never_unheard() -> None:
    hub = machine(0, work("wl_own", "dakhla", State.PENDING))
    workload = hub.state.registry.workloads["wl_own"]
    assert hub.state.lending.unheard_s(workload, 1e9) is None


def test_rows_of_older_hubs_say_nothing_about_silence() -> None:
    row = msgspec.to_builtins(row_of(lent(), live=LiveStatus(unheard_s=400.0)))
    assert row.pop("unheard_s") == 400.0
    assert msgspec.convert(row, WorkRow, strict=False).unheard_s is None
