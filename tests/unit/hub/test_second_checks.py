"""Safeguards behind safeguards: each is met by an event that the first one would have kept away.

A hub does not trust that its peer, its own scheduler or its disk did their part. Every test here fails if the check
that it names is deleted.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError, InvariantBroken
from harch.execution.protocol import ExtendLease, StartTask, StopTask, TaskEnded, TaskKey
from harch.federation.offers import (
    DRIFT_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    DropBids,
    Granted,
    Grants,
    LeaseRenewal,
    LeaseRenewed,
    OrderKind,
    OwnerOrder,
    Reports,
    ReportsBooked,
    WorkLease,
    WorkReport,
)
from harch.hub.jobs import events as ev
from harch.hub.store.records import CatalogEntry
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.sovereignty.tags import Tag
from harch.testing.clock import START
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec
from unit.hub.lending_world import (
    AGENT_BOOT_S,
    BOOT_S,
    MOROCCO,
    SENEGAL,
    TERMS,
    LendingHub,
    data_object,
    tag_for,
)

SPEC = WorkloadSpec(name="theirs", command=("true",), resources=Resources(gpus=1), stop_grace_s=0.0)
THEIRS = WorkLease("wl_theirs", 1)


def borrower(**fields: object) -> LendingHub:
    """A hub that runs a peer's work."""
    hub = LendingHub(MOROCCO)
    assert hub.take(hub.grant(SPEC, **fields)) == ""
    hub.handle(ev.TaskStartSeen(TaskKey(THEIRS.workload_id, 1, 0)))
    return hub


def borrowed_at(hub: LendingHub) -> Workload:
    workload = hub.work(THEIRS.workload_id)
    assert workload is not None
    return workload


class TestTheRunnersClock:
    """A lease counts from when the runner spoke: the owner's clock starts later, so the runner's ends first."""

    def test_a_lease_counts_from_the_bid_not_from_the_grant(self) -> None:
        hub = LendingHub(MOROCCO)
        grant = hub.grant(SPEC)
        hub.later(1.5)
        hub.receive(Grants((grant,)))
        (start,) = hub.sent_to_agent(StartTask)
        assert start.task.lease_until_s == AGENT_BOOT_S + TERMS.batch_s

    def test_a_renewed_lease_counts_from_the_renewal_not_from_the_answer(self) -> None:
        hub = borrower()
        hub.later(TERMS.batch_s / 3 + 1)
        hub.handle(ev.LendingDue())
        (renewal,), renewed_s = hub.sent(LeaseRenewal), hub.boot_s
        hub.later(30.0)
        hub.receive(LeaseRenewed(number=renewal.number, leases=renewal.leases))
        (extended,) = hub.sent_to_agent(ExtendLease)
        ((_, until_s),) = extended.leases
        assert until_s == pytest.approx(AGENT_BOOT_S + renewed_s - BOOT_S + TERMS.batch_s)

    def test_an_answer_to_an_older_renewal_never_shortens_a_lease(self) -> None:
        hub = borrower()
        renewals: list[tuple[LeaseRenewal, float]] = []
        for _ in range(2):
            hub.later(TERMS.batch_s / 3 + 1)
            hub.handle(ev.LendingDue())
            renewals += [(renewal, hub.boot_s) for renewal in hub.sent(LeaseRenewal)]
        (first, _), (second, second_s) = renewals
        until: list[float] = []
        for renewal in (second, first):
            hub.receive(LeaseRenewed(number=renewal.number, leases=renewal.leases))
            until += [until_s for message in hub.sent_to_agent(ExtendLease) for _, until_s in message.leases]
        assert until == [pytest.approx(AGENT_BOOT_S + second_s - BOOT_S + TERMS.batch_s)] * 2

    @pytest.mark.parametrize(
        ("number", "lease", "from_hub"),
        [(0, THEIRS, SENEGAL), (None, WorkLease(THEIRS.workload_id, 2), SENEGAL), (None, THEIRS, "elsewhere")],
        ids=["without a renewal", "of another epoch", "of another hub"],
    )
    def test_an_answer_without_its_renewal_lengthens_nothing(
        self, number: int | None, lease: WorkLease, from_hub: str
    ) -> None:
        hub = borrower()
        hub.later(TERMS.batch_s / 3 + 1)
        hub.handle(ev.LendingDue())
        (renewal,) = hub.sent(LeaseRenewal)
        hub.receive(
            LeaseRenewed(number=renewal.number if number is None else number, leases=(lease,)), from_hub=from_hub
        )
        assert hub.sent_to_agent(ExtendLease) == []

    def test_borrowed_work_that_waits_past_its_lease_is_given_back_and_never_started(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.submit(8)
        hub.place()
        assert hub.take(hub.grant(replace(SPEC, resources=Resources(gpus=8)))) == ""
        hub.later(TERMS.batch_s)
        hub.handle(ev.LendingDue())
        assert borrowed_at(hub).handed_back
        assert THEIRS.workload_id not in hub.state.scheduler.queue

    def test_borrowed_work_that_was_restored_and_not_confirmed_is_started_with_a_lease_that_is_over(self) -> None:
        """Its agent missed the order to start, then the hub was restarted: how long the owner waits is not known."""
        before = borrower()
        hub = LendingHub(MOROCCO, join=False)
        hub.restore(borrowed_at(before))
        hub.join()
        assert [start.task.lease_until_s for start in hub.sent_to_agent(StartTask)] == [0.0]

    def test_borrowed_work_without_a_known_lease_is_started_with_one_that_is_over(self) -> None:
        hub = borrower()
        del hub.state.lending.borrowed[THEIRS.workload_id]
        hub.join()  # an agent that lost its task
        assert [start.task.lease_until_s for start in hub.sent_to_agent(StartTask)] == [0.0]


class TestTheRunnersGrant:
    """Whatever its owner believes: a runner applies its own rules before it takes work."""

    def test_a_country_that_the_work_does_not_allow_refuses(self) -> None:
        hub = LendingHub(MOROCCO)
        assert hub.take(hub.grant(replace(SPEC, countries_allowed=("SN",)))) == "E0902 Dakhla is in MA"
        assert hub.work(THEIRS.workload_id) is None

    @pytest.mark.parametrize("came", [(), ("one",), ("other",), ("one", "third")])
    def test_any_data_without_its_tag_refuses(self, came: tuple[str, ...]) -> None:
        hub = LendingHub(MOROCCO)
        tagged = tuple(data_object(name, tag_for("MA")) for name in came)
        why = hub.take(hub.grant(replace(SPEC, data=("one", "data_other")), data=tagged))
        assert why == f"E0907 {'data_other' if 'one' in came else 'one'} came without its tag"
        assert hub.work(THEIRS.workload_id) is None

    def test_data_that_is_named_twice_needs_one_tag(self) -> None:
        hub = LendingHub(MOROCCO)
        one = data_object("one", tag_for("MA"))
        assert hub.take(hub.grant(replace(SPEC, data=("one", "data_one")), data=(one,))) == ""

    @pytest.mark.parametrize("tag", [None, tag_for("SN")], ids=["untagged", "for another country"])
    def test_one_tag_that_does_not_permit_it_refuses(self, tag: Tag | None) -> None:
        hub = LendingHub(MOROCCO)
        tagged = (data_object("one", tag_for("MA")), data_object("other", tag))
        why = hub.take(hub.grant(replace(SPEC, data=("one", "other")), data=tagged))
        assert why == f"E0907 data_other may not be read at {MOROCCO}"

    @pytest.mark.parametrize("revision", [1, 2])
    def test_a_tag_that_is_stricter_here_refuses_however_loose_it_came(self, revision: int) -> None:
        hub = LendingHub(MOROCCO)
        hub.add_data(data_object("one", tag_for("SN"), at=SENEGAL))
        loose = replace(data_object("one", tag_for("MA")), tag_revision=revision)
        why = hub.take(hub.grant(replace(SPEC, data=("one",)), data=(loose,)))
        assert why == f"E0907 data_one may not be read at {MOROCCO}"

    def test_a_tag_that_came_stricter_than_the_one_here_refuses(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.add_data(data_object("one", tag_for("MA")))
        why = hub.take(hub.grant(replace(SPEC, data=("one",)), data=(data_object("one", tag_for("SN")),)))
        assert why == f"E0907 data_one may not be read at {MOROCCO}"

    def test_a_tag_that_its_owner_has_loosened_since_is_the_one_in_force(self) -> None:
        hub = LendingHub(MOROCCO)
        strict, loose = data_object("one", tag_for("SN")), data_object("one", tag_for("MA"))
        kept = CatalogEntry(object=strict, created_at=START, updated_at=START, home=SENEGAL)
        hub.state.catalog.put(kept)
        grant = hub.grant(replace(SPEC, data=("one",)), data=(replace(loose, tag_revision=2),))
        assert hub.take(grant) == ""

    def test_other_work_than_was_bid_for_refuses(self) -> None:
        hub = LendingHub(MOROCCO)
        larger = replace(SPEC, resources=Resources(gpus=2))
        assert "not what was bid for" in hub.take(replace(hub.grant(SPEC), spec=larger))

    @pytest.mark.parametrize("lease_s", [LEASE_S_MIN / 2, LEASE_S_MAX * 2, float("nan"), float("inf")])
    def test_a_lease_without_measure_refuses(self, lease_s: float) -> None:
        hub = LendingHub(MOROCCO)
        assert "a lease of" in hub.take(hub.grant(SPEC, lease_s=lease_s))

    def test_a_hub_that_was_closed_since_its_bid_refuses(self) -> None:
        hub = LendingHub(MOROCCO)
        grant = hub.grant(SPEC)
        hub.handle(ev.HubClosed(1))
        assert "no longer accepts work" in hub.take(grant)

    def test_a_hub_without_the_agent_that_it_bid_with_refuses(self) -> None:
        hub = LendingHub(MOROCCO)
        grant = hub.grant(SPEC)
        hub.handle(ev.AgentLeft("agent", 1, "cut"))
        assert hub.take(grant) == "an agent of the nodes that were bid for has left"

    def test_a_bid_that_has_expired_refuses(self) -> None:
        hub = LendingHub(MOROCCO)
        grant = hub.grant(SPEC)
        hub.later(2.0)  # its GPUs are still held: no look has come yet
        assert hub.take(grant) == "the bid has expired"

    def test_a_bid_made_to_another_hub_refuses_and_stays(self) -> None:
        hub = LendingHub(MOROCCO)
        grant = hub.grant(SPEC)
        hub.receive(Grants((grant,)), from_hub="elsewhere")
        (answer,) = hub.sent(Granted)
        assert answer.refused == ((THEIRS, "the bid has expired"),)
        hub.receive(DropBids((grant.bid_id,)), from_hub="elsewhere")
        assert hub.take(grant) == "", "no other hub lets go of it"

    def test_a_tenant_over_its_quota_here_refuses(self) -> None:
        hub = LendingHub(MOROCCO, QueueSettings(tenant_quotas={"t": Quota(gpus_held_max=1)}))
        hub.submit(1)
        hub.place()
        assert "at most 1 GPUs" in hub.take(hub.grant(SPEC))

    @pytest.mark.parametrize("epoch", [1, 2], ids=["earlier", "later"])
    def test_another_epoch_of_what_runs_here_refuses(self, epoch: int) -> None:
        hub = LendingHub(MOROCCO)
        held = 3 - epoch
        assert hub.take(hub.grant(SPEC, lease=WorkLease(THEIRS.workload_id, held))) == ""
        assert f"epoch {held}" in hub.take(hub.grant(SPEC, lease=WorkLease(THEIRS.workload_id, epoch)))
        assert borrowed_at(hub).epoch == held

    def test_an_epoch_before_one_that_has_ended_here_refuses(self) -> None:
        hub, later = LendingHub(MOROCCO), WorkLease(THEIRS.workload_id, 2)
        assert hub.take(hub.grant(SPEC, lease=later)) == ""
        hub.handle(ended(THEIRS.workload_id))
        hub.receive(ReportsBooked((later,)))
        assert hub.take(hub.grant(SPEC)) == "epoch 2 was here already"

    def test_an_epoch_after_one_that_has_ended_here_is_taken(self) -> None:
        hub = borrower()
        hub.handle(ended(THEIRS.workload_id))
        following = WorkLease(THEIRS.workload_id, 2)
        assert "has not ended here yet" in hub.take(hub.grant(SPEC, lease=following)), "its owner has no end of it yet"
        hub.receive(ReportsBooked((THEIRS,)))
        assert hub.take(hub.grant(SPEC, lease=following)) == ""

    def test_work_of_this_hub_is_not_taken_over_by_a_peer(self) -> None:
        hub = LendingHub(MOROCCO)
        own = hub.submit(1)
        assert "belongs to dakhla" in hub.take(hub.grant(SPEC, lease=WorkLease(own.id, 7)))
        assert (own.borrowed, own.epoch) == (False, 0)

    def test_a_grant_that_comes_again_starts_nothing_again(self) -> None:
        hub = LendingHub(MOROCCO)
        grant = hub.grant(SPEC)
        assert hub.take(grant) == ""
        assert hub.take(grant) == ""
        assert hub.sent_to_agent(StartTask) == []


class TestOrdersToTheRunner:
    """Only the hub that lent this epoch commands it."""

    @pytest.mark.parametrize("kind", [OrderKind.STOP, OrderKind.RETURN, OrderKind.PAUSE])
    @pytest.mark.parametrize(("epoch", "from_hub"), [(0, SENEGAL), (2, SENEGAL), (1, "elsewhere")])
    def test_an_order_of_another_epoch_or_hub_changes_nothing(self, kind: OrderKind, epoch: int, from_hub: str) -> None:
        hub = borrower()
        hub.receive(OwnerOrder(lease=WorkLease(THEIRS.workload_id, epoch), kind=kind), from_hub=from_hub)
        assert hub.effects == []
        assert borrowed_at(hub).state is State.RUNNING

    @pytest.mark.parametrize("epoch", [1, 2])
    def test_only_the_present_epoch_can_become_stale(self, epoch: int) -> None:
        hub = borrower()
        hub.handle(ev.PeerBack(SENEGAL))
        (renewal,) = hub.sent(LeaseRenewal)
        hub.receive(LeaseRenewed(number=renewal.number, leases=(), stale=(WorkLease(THEIRS.workload_id, epoch),)))
        assert bool(hub.sent_to_agent(StopTask)) == (epoch == 1)

    @pytest.mark.parametrize(
        ("epoch", "from_hub", "confirmed"), [(1, SENEGAL, True), (2, SENEGAL, False), (1, "x", False)]
    )
    def test_an_end_is_reported_until_its_owner_has_this_epoch_of_it(
        self, epoch: int, from_hub: str, confirmed: bool
    ) -> None:
        hub = borrower()
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.STOP))
        hub.handle(ended(THEIRS.workload_id))
        hub.receive(ReportsBooked((WorkLease(THEIRS.workload_id, epoch),)), from_hub=from_hub)
        hub.handle(ev.PeerBack(SENEGAL))
        assert bool(hub.sent(Reports)) != confirmed


def ended(workload_id: str, **fields: object) -> ev.TaskEndSeen:
    facts: dict[str, object] = {"reason": ExitReason.EXITED, "exit_code": 0, **fields}
    return ev.TaskEndSeen("agent", TaskEnded(key=TaskKey(workload_id, 1, 0), at=START, **facts))  # type: ignore[arg-type]


class TestTheOwnersFence:
    """What a peer says under an earlier epoch, or of work that another hub has, is void."""

    STALE: ClassVar = [(1, MOROCCO), (2, "elsewhere"), (3, MOROCCO)]

    @pytest.mark.parametrize(("epoch", "from_hub"), STALE)
    def test_a_refusal_does_not_bring_the_work_back(self, epoch: int, from_hub: str) -> None:
        hub = LendingHub(SENEGAL)
        hub.lend_again(workload := hub.lend())
        hub.receive(Granted(refused=((WorkLease(workload.id, epoch), "too late"),)), from_hub=from_hub)
        assert (workload.state, workload.leased, workload.epoch) == (State.SCHEDULED, True, 2)

    @pytest.mark.parametrize(("epoch", "from_hub"), STALE)
    def test_an_acceptance_does_not_count_for_the_grant_that_is_open(self, epoch: int, from_hub: str) -> None:
        hub = LendingHub(SENEGAL)
        hub.lend_again(workload := hub.lend())
        hub.receive(Granted(taken=(WorkLease(workload.id, epoch),)), from_hub=from_hub)
        hub.handle(ev.PeerBack(MOROCCO))
        assert [grant.lease for message in hub.sent(Grants) for grant in message.grants] == [WorkLease(workload.id, 2)]

    @pytest.mark.parametrize(("epoch", "from_hub"), STALE)
    @pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELLED])
    @pytest.mark.parametrize("handed_back", [False, True])
    def test_a_report_changes_nothing(self, epoch: int, from_hub: str, state: State, handed_back: bool) -> None:
        hub = LendingHub(SENEGAL)
        hub.lend_again(workload := hub.lend())
        report = WorkReport(lease=WorkLease(workload.id, epoch), state=state, started_at=START, handed_back=handed_back)
        hub.receive(Reports((report,)), from_hub=from_hub)
        assert (workload.state, workload.leased, workload.epoch) == (State.SCHEDULED, True, 2)
        assert workload.started_at is None

    @pytest.mark.parametrize(("epoch", "from_hub"), STALE)
    def test_a_renewal_is_answered_as_stale_and_keeps_no_work_waiting(self, epoch: int, from_hub: str) -> None:
        hub = LendingHub(SENEGAL)
        hub.lend_again(workload := hub.lend())
        hub.later(TERMS.batch_s)
        lease = WorkLease(workload.id, epoch)
        hub.receive(LeaseRenewal(1, (lease,)), from_hub=from_hub)
        assert hub.sent(LeaseRenewed) == [LeaseRenewed(number=1, leases=(), stale=(lease,))]
        hub.later(TERMS.margin_s + 1)
        hub.handle(ev.LendingDue())
        assert not workload.leased

    def test_an_end_that_is_reported_after_the_work_was_started_at_home_does_not_count(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.later(TERMS.batch_s + TERMS.margin_s + 1)
        hub.handle(ev.LendingDue())
        hub.handle(ev.StopRequested("wl_1", "makes room"))
        hub.handle(ended("wl_1"))
        hub.place()
        assert (workload.state, workload.epoch, workload.runner_hub) == (State.SCHEDULED, 2, "")
        hub.receive(Reports((WorkReport(lease=WorkLease(workload.id, 1), state=State.COMPLETED),)))
        assert workload.state is State.SCHEDULED


class TestTheOwnersMargin:
    """The work starts elsewhere only when the runner has surely stopped it, whatever clocks and messages do."""

    SURE_S = TERMS.batch_s * (1 + 2 * DRIFT_MAX) + TERMS.margin_s

    def test_a_lease_ends_after_its_length_the_drift_of_both_clocks_and_the_margin(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.later(self.SURE_S - 0.01)
        hub.handle(ev.LendingDue())
        assert (workload.leased, workload.state) == (True, State.SCHEDULED)
        hub.later(1.01)
        hub.handle(ev.LendingDue())
        assert (workload.leased, workload.state) == (False, State.PENDING)

    def test_a_renewal_that_was_answered_begins_the_wait_anew(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.later(TERMS.batch_s / 2)
        hub.receive(LeaseRenewal(1, (WorkLease(workload.id, 1),)))
        hub.later(self.SURE_S - 0.01)
        hub.handle(ev.LendingDue())
        assert workload.leased

    def test_a_report_is_no_renewal(self) -> None:
        """The runner's lease counts from renewals alone, so the owner's does too."""
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.later(TERMS.batch_s / 2)
        hub.receive(Reports((WorkReport(lease=WorkLease(workload.id, 1), state=State.RUNNING, started_at=START),)))
        hub.later(self.SURE_S - TERMS.batch_s / 2 + 1)
        hub.handle(ev.LendingDue())
        assert not workload.leased

    def test_a_restarted_owner_waits_as_long_again(self) -> None:
        before = LendingHub(SENEGAL)
        workload = before.lend()
        hub = LendingHub(SENEGAL)
        hub.restore(workload)
        hub.later(self.SURE_S - 0.01)
        hub.handle(ev.LendingDue())
        assert workload.leased

    def test_the_runner_has_stopped_by_then_though_every_clock_and_message_is_at_its_worst(self) -> None:
        """The runner's clock is slow, the owner's fast, and the grant took no time at all."""
        runner = LendingHub(MOROCCO)
        runner.receive(Grants((runner.grant(SPEC),)))
        (start,) = runner.sent_to_agent(StartTask)
        assert start.task.lease_until_s is not None
        stops_s = (start.task.lease_until_s - AGENT_BOOT_S) / (1 - DRIFT_MAX)
        starts_s = TERMS.owner_waits_s(TERMS.batch_s) / (1 + DRIFT_MAX)
        assert starts_s - stops_s > TERMS.margin_s * 0.99


class TestTheStart:
    """The last look before an agent is ordered to start: that it finds anything ends the process."""

    def test_work_that_may_not_run_in_this_country_is_never_started(self) -> None:
        hub = LendingHub(MOROCCO, join=False)
        hub.restore(placed_here(hub, countries_allowed=("SN",)))
        with pytest.raises(InvariantBroken, match="residency"):
            hub.join()

    def test_work_on_data_that_may_not_be_read_here_is_never_started(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.submit_on(data_object("one", tag_for("MA")))
        hub.state.catalog.objects["data_one"] = data_object("one", tag_for("SN"))
        with pytest.raises(InvariantBroken, match="tags"):
            hub.place()

    def test_work_on_data_that_has_left_the_catalog_is_never_started(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.submit_on(data_object("one", tag_for("MA")))
        del hub.state.catalog.objects["data_one"]
        with pytest.raises(InvariantBroken, match="tags"):
            hub.place()


def placed_here(hub: LendingHub, **fields: object) -> Workload:
    """As a disk has it that somebody else wrote: placed at this hub, and never started."""
    spec = WorkloadSpec(name="job", command=("true",), resources=Resources(gpus=1), **fields)  # type: ignore[arg-type]
    node = hub.hub.nodes[0]
    return Workload(
        id="wl_placed",
        tenant="t",
        owner_hub=hub.hub.id,
        spec=spec,
        created_at=START,
        updated_at=START,
        state=State.SCHEDULED,
        attempt=1,
        placement=(TaskPlacement(rank=0, node_id=node.id, gpu_ids=(node.gpus[0].id,)),),
    )


class TestTheWaitingQuota:
    """What a tenant keeps waiting is bounded at the only ways in."""

    SETTINGS = QueueSettings(
        tenant_quotas={"t": Quota(workloads_waiting_max=2, gpus_held_max=4)},
        class_quotas={("t", SchedulingClass.INFERENCE): Quota(workloads_waiting_max=1)},
    )

    def hub(self) -> LendingHub:
        return LendingHub(MOROCCO, self.SETTINGS)

    def test_a_submission_over_the_quota_is_refused_and_leaves_nothing(self) -> None:
        hub = self.hub()
        hub.submit(1)
        hub.submit(1)
        with pytest.raises(HarchError, match="2 of at most 2 workloads waiting") as refused:
            hub.submit(1)
        assert refused.value.code == "E0401"
        assert len(hub.state.registry.workloads) == len(hub.state.scheduler.queue) == 2
        assert not hub.machine.is_changed

    def test_a_submission_larger_than_the_whole_quota_is_refused(self) -> None:
        with pytest.raises(HarchError, match="at most 4 GPUs"):
            self.hub().submit(5)

    def test_another_specification_larger_than_the_whole_quota_is_refused_and_the_old_one_stays(self) -> None:
        hub = self.hub()
        workload = hub.submit(1)
        before = workload.spec
        with pytest.raises(HarchError, match="tenant t may hold at most 4 GPUs") as refused:
            hub.handle(ev.SpecReplaced(workload.id, replace(before, resources=Resources(gpus=5)), {}))
        assert refused.value.code == "E0401"
        assert workload.spec == before
        assert workload.id in hub.state.scheduler.queue
        assert not hub.machine.is_changed

    def test_another_specification_in_a_class_that_is_full_is_refused(self) -> None:
        hub = self.hub()
        hub.submit(1, scheduling_class=SchedulingClass.INFERENCE)
        workload = hub.submit(1)
        inference = replace(workload.spec, scheduling_class=SchedulingClass.INFERENCE)
        with pytest.raises(HarchError, match="class inference has 1 of at most 1"):
            hub.handle(ev.SpecReplaced(workload.id, inference, {}))

    def test_another_specification_takes_the_place_of_the_old_one_though_the_quota_is_used_up(self) -> None:
        hub = self.hub()
        hub.submit(1)
        workload = hub.submit(1, scheduling_class=SchedulingClass.INFERENCE)
        hub.handle(ev.SpecReplaced(workload.id, replace(workload.spec, resources=Resources(gpus=4)), {}))
        assert workload.spec.resources.gpus == 4
        assert len(hub.state.scheduler.queue) == 2
