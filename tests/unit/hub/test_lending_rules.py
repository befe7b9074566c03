"""Work between two hubs, message by message: what is sent, what is kept, and when it is sent again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.execution.protocol import ExtendLease, PauseTask, ResumeTask, StartTask, StopTask, TaskEnded, TaskKey
from harch.federation.bidding import PeerOffer
from harch.federation.offers import (
    LEASE_S_MAX,
    LEASE_S_MIN,
    NEEDS_PER_REQUEST_MAX,
    BidRequest,
    Bids,
    CapacityBid,
    DropBids,
    Grant,
    Granted,
    Grants,
    LeaseRenewal,
    LeaseRenewed,
    Need,
    OrderKind,
    OwnerOrder,
    Reports,
    ReportsBooked,
    WorkLease,
    WorkReport,
)
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.admission import published_facts
from harch.hub.jobs.lending import borrowed
from harch.hub.jobs.lending.auctions import ANSWER_WITHIN_S, RTT_UNKNOWN_MS
from harch.hub.jobs.lending.borrowed import BID_S, BUSY_S, RENEW_AGAIN_S, START_UNKNOWN_S
from harch.hub.views import PeerView
from harch.placement.request import PlacementRequest
from harch.sovereignty.audit import chain as audit
from harch.testing.clock import START
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload
from harch.workloads.spec import CarbonPreferences, Resources, RestartPolicy, SchedulingClass, WorkloadSpec
from unit.hub.lending_world import MOROCCO, SENEGAL, TERMS, LendingHub, data_object, tag_for
from unit.hub.test_job_commands import drafts, kinds

SPEC = WorkloadSpec(name="theirs", command=("true",), resources=Resources(gpus=1), stop_grace_s=0.0)
THEIRS = WorkLease("wl_theirs", 1)
THERE = (TaskPlacement(rank=0, node_id="n1", gpu_ids=("g1",)), TaskPlacement(rank=1, node_id="n2", gpu_ids=("g2",)))


def need(ref: int = 0, gpus: int = 1, *, may_queue: bool = False) -> Need:
    spec = replace(SPEC, resources=Resources(gpus=gpus))
    return Need.of(ref, PlacementRequest.of("shape", spec), now_s=START.timestamp(), may_queue=may_queue)


def ended(workload_id: str, **fields: object) -> ev.TaskEndSeen:
    facts: dict[str, object] = {"reason": ExitReason.EXITED, "exit_code": 0, "at": START, **fields}
    return ev.TaskEndSeen("agent", TaskEnded(key=TaskKey(workload_id, 1, 0), **facts))  # type: ignore[arg-type]


class TestOffering:
    """The owner's side: who is asked about what waits."""

    def waiting(self, **fields: object) -> tuple[LendingHub, Workload]:
        hub = LendingHub(SENEGAL)
        hub.meet_peer()
        hub.submit(8, stay_home=True)
        hub.place()
        return hub, hub.submit(8, **fields)

    def offer(self, hub: LendingHub) -> list[BidRequest]:
        hub.later(20.0)
        hub.handle(ev.LendingDue())
        return hub.sent(BidRequest)

    def test_a_request_says_the_shape_of_each_and_is_numbered(self) -> None:
        hub, first = self.waiting()
        second = hub.submit(4)
        (invitation,) = self.offer(hub)
        assert [one.ref for one in invitation.needs] == [0, 1]
        assert [one.needs.gpus for one in invitation.needs] == [8, 4]
        assert [one.may_queue for one in invitation.needs] == [False, False]
        assert invitation.needs[0].waited_s == 20.0
        assert hub.state.lending.auctions.keys() == {first.id, second.id}
        hub.handle(ev.LendingDue())
        assert hub.sent(BidRequest) == [], "they are asked already"

    def test_nothing_is_offered_before_its_time_nor_what_no_longer_waits(self) -> None:
        hub, workload = self.waiting()
        hub.handle(ev.LendingDue())
        assert hub.sent(BidRequest) == []
        hub.handle(ev.StopRequested(workload.id, "enough"))
        assert self.offer(hub) == []
        hub, workload = self.waiting()
        hub.handle(ev.PauseRequested(workload.id))
        assert self.offer(hub) == []

    @pytest.mark.parametrize("fields", [{"stay_home": True}, {"secrets": ("TOKEN",)}])
    def test_work_that_stays_at_home_is_offered_to_no_one_and_tried_later(self, fields: dict[str, object]) -> None:
        hub, workload = self.waiting(**fields)
        assert self.offer(hub) == []
        assert workload.id not in hub.state.lending.answers
        assert not hub.state.lending.is_due(hub.boot_s + 0.9)
        assert hub.state.lending.is_due(hub.boot_s + 1.0)

    def test_a_grace_that_no_lease_covers_keeps_work_at_home_and_says_so(self) -> None:
        hub, workload = self.waiting(stop_grace_s=TERMS.batch_s / 2 + 1)
        assert self.offer(hub) == []
        assert hub.state.lending.answers == {
            workload.id: {"": "it stays at home: its stop_grace_s is longer than a lease can cover"}
        }

    def peer(self, hub: LendingHub, **fields: object) -> None:
        known = hub.state.lending.peers[hub.peer]
        hub.handle(ev.PeersSeen((replace(known, **fields),)))

    def test_only_peers_that_answer_and_say_what_they_have_are_queried(self) -> None:
        for fields in ({"reachable": False}, {"summary": None}):
            hub, workload = self.waiting()
            self.peer(hub, **fields)
            assert self.offer(hub) == []
            assert hub.state.lending.answers == {
                workload.id: {"": "no hub that may run it has room, as far as it is known"}
            }

    def test_a_peer_without_room_or_not_ready_is_not_queried_and_the_reason_kept(self) -> None:
        hub, workload = self.waiting()
        summary = hub.state.lending.peers[hub.peer].summary
        assert summary is not None
        full = [replace(model, free=0, free_shapes=[]) for model in summary.models]
        self.peer(hub, summary=replace(summary, models=full, gpus_free=0))
        assert self.offer(hub) == []
        assert hub.state.lending.answers[workload.id][MOROCCO].startswith("capacity: ")
        self.peer(hub, summary=replace(summary, status="draining"))
        assert self.offer(hub) == []
        assert MOROCCO in hub.state.lending.answers[workload.id]

    def test_a_peer_that_is_busy_is_left_alone_for_as_long_as_it_says_and_a_minute_at_most(self) -> None:
        hub, _ = self.waiting()
        (invitation,) = self.offer(hub)
        hub.receive(Bids(number=invitation.number, bids=(), busy_s=30.0))
        assert hub.state.lending.busy_until_s == {MOROCCO: hub.boot_s + 30.0}
        assert self.offer(hub) == []
        assert len(self.offer(hub)) == 1
        hub.receive(Bids(number=hub.sent(BidRequest)[0].number, bids=(), busy_s=999.0))
        assert hub.state.lending.busy_until_s == {MOROCCO: hub.boot_s + 60.0}

    def test_a_peer_that_was_busy_is_queried_at_the_very_moment_that_it_named(self) -> None:
        hub, _ = self.waiting()
        (invitation,) = self.offer(hub)
        hub.receive(Bids(number=invitation.number, bids=(), busy_s=20.0))
        assert len(self.offer(hub)) == 1

    def test_work_that_was_paused_for_a_moment_is_not_offered_a_second_time_at_once(self) -> None:
        hub, workload = self.waiting()
        assert len(self.offer(hub)) == 1
        hub.handle(ev.PauseRequested(workload.id))
        hub.handle(ev.ResumeRequested(workload.id))
        hub.later(0.2)
        hub.handle(ev.LendingDue())
        assert hub.sent(BidRequest) == []

    def test_why_peers_refused_is_forgotten_when_the_work_ends(self) -> None:
        hub, workload = self.waiting()
        (invitation,) = self.offer(hub)
        hub.receive(Bids(number=invitation.number, bids=(), refusals={0: "no room now"}))
        assert workload.id in hub.state.lending.answers
        hub.handle(ev.StopRequested(workload.id, "enough"))
        assert hub.state.lending.answers == {}
        assert hub.state.lending.is_first_try(workload.id)

    @pytest.mark.parametrize("why", ["held for its power", "set aside for a fault"])
    def test_work_for_another_hub_is_not_offered_while_it_waits_for_something_else(self, why: str) -> None:
        hub = LendingHub(MOROCCO)
        hub.meet_peer()
        cards = Resources(gpus=1, gpu_model="inference-card")
        hub.handle(ev.Submitted("wl_c", "t", replace(SPEC, name="c", resources=cards)))
        if why == "held for its power":
            hub.handle(ev.CarbonPreferencesChanged("wl_c", CarbonPreferences(slack_s=9e4, duration_s=60.0)))
            assert hub.state.carbon.held == {"wl_c"}
        else:
            hub.state.faults.hold("wl_c", ValueError(), hub.boot_s)
            hub.handle(ev.PauseRequested("wl_c"))
            hub.handle(ev.ResumeRequested("wl_c"))
            assert hub.state.set_aside == {"wl_c"}
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        assert hub.sent(BidRequest) == []

    @pytest.mark.parametrize(("rtt_ms", "counted"), [(12.0, 12.0), (None, RTT_UNKNOWN_MS)])
    def test_a_bid_is_weighed_with_the_distance_of_its_hub_and_where_its_data_are(
        self, rtt_ms: float | None, counted: float
    ) -> None:
        hub, workload = self.waiting()
        self.peer(hub, rtt_ms=rtt_ms)
        (invitation,) = self.offer(hub)
        auction = hub.state.lending.auctions[workload.id]
        auction.waits_for.add("slow")  # another hub that has not answered yet
        hub.receive(Bids(number=invitation.number, bids=(made := CapacityBid(ref=0, bid_id="bid"),)))
        assert auction.offers == [PeerOffer(MOROCCO, made, has_data=True, rtt_ms=counted)]
        assert auction.waits_for == {"slow"}
        hub.later(ANSWER_WITHIN_S)
        hub.handle(ev.LendingDue())
        assert workload.leased

    def test_work_on_data_that_may_not_be_read_there_is_never_offered_and_that_is_audited_once(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.meet_peer()
        hub.submit(8, stay_home=True)
        hub.place()
        hub.add_data(data_object("one", tag_for("SN"), at=SENEGAL))
        hub.submit(8, data=("one",))
        assert self.offer(hub) == []
        assert [draft.kind for draft in drafts(hub.effects)] == [audit.OFFERED]
        assert self.offer(hub) == []
        assert drafts(hub.effects) == []

    def test_work_without_data_for_which_no_hub_is_refused_is_offered_without_a_line_in_the_audit(self) -> None:
        hub, _ = self.waiting()
        assert len(self.offer(hub)) == 1
        assert drafts(hub.effects) == []

    def test_the_best_bid_is_taken_and_a_bid_that_no_one_wants_let_go(self) -> None:
        hub, workload = self.waiting()
        (invitation,) = self.offer(hub)
        bids = (
            CapacityBid(ref=0, bid_id="late", start_in_s=600.0),
            CapacityBid(ref=0, bid_id="now"),
            CapacityBid(ref=1, bid_id="beyond"),
            CapacityBid(ref=-1, bid_id="before"),
        )
        hub.receive(Bids(number=invitation.number, bids=bids))
        assert [grant.bid_id for message in hub.sent(Grants) for grant in message.grants] == ["now"]
        assert [one.bid_ids for one in hub.sent(DropBids)] == [("beyond", "before"), ("late",)]
        assert workload.leased
        assert hub.state.lending.auctions == {}

    def test_a_refusal_is_kept_as_the_reason_and_the_work_tried_later(self) -> None:
        hub, workload = self.waiting()
        (invitation,) = self.offer(hub)
        hub.receive(Bids(number=invitation.number, bids=(), refusals={0: "x" * 300, 1: "beyond", -1: "before"}))
        assert hub.state.lending.answers == {workload.id: {MOROCCO: "x" * 200}}
        assert not hub.state.lending.is_due(hub.boot_s + 0.9)
        assert hub.state.lending.is_due(hub.boot_s + 1.0)

    def test_whoever_does_not_answer_in_time_takes_no_part_and_its_bid_is_let_go(self) -> None:
        hub, workload = self.waiting()
        (invitation,) = self.offer(hub)
        hub.later(ANSWER_WITHIN_S - 0.01)
        hub.handle(ev.LendingDue())
        assert workload.id in hub.state.lending.auctions
        hub.later(0.01)
        hub.handle(ev.LendingDue())
        assert hub.state.lending.auctions == {}
        assert hub.state.lending.bid_requests == {}
        hub.receive(Bids(number=invitation.number, bids=(CapacityBid(ref=0, bid_id="late"),)))
        assert hub.sent(DropBids) == [DropBids(("late",))]
        assert not workload.leased

    def test_work_that_got_its_place_at_home_meanwhile_is_not_lent(self) -> None:
        hub, workload = self.waiting()
        (invitation,) = self.offer(hub)
        hub.handle(ev.StopRequested("wl_1", "makes room"))
        hub.handle(ended("wl_1"))
        hub.place()
        assert workload.is_placed
        hub.receive(Bids(number=invitation.number, bids=(CapacityBid(ref=0, bid_id="now"),)))
        assert hub.sent(Grants) == []
        assert hub.sent(DropBids) == [DropBids(("now",))]

    def test_an_answer_of_a_hub_that_was_not_queried_counts_for_nothing(self) -> None:
        hub, workload = self.waiting()
        (invitation,) = self.offer(hub)
        hub.receive(Bids(number=invitation.number, bids=(CapacityBid(ref=0, bid_id="x"),)), from_hub="elsewhere")
        assert hub.sent(DropBids) == [DropBids(("x",))]
        assert workload.id in hub.state.lending.auctions

    def test_only_as_many_as_the_limit_are_offered_at_a_time(self) -> None:
        hub, _ = self.waiting()
        for _ in range(NEEDS_PER_REQUEST_MAX):
            hub.submit(8)
        (invitation,) = self.offer(hub)
        assert len(invitation.needs) == NEEDS_PER_REQUEST_MAX - 1, "one of those that were due waits no longer"
        hub.handle(ev.LendingDue())
        assert [len(one.needs) for one in hub.sent(BidRequest)] == [2]


class TestGranting:
    def test_lent_work_is_all_the_peers_until_it_ends(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.meet_peer()
        hub.submit(8, stay_home=True)
        hub.place()
        workload = hub.submit(8, restarts_max=7)
        workload.error_message, workload.annotations = "earlier", {"a": "b"}
        workload.ranks_running, workload.runner_placement = frozenset({0}), THERE  # of an earlier run
        workload.task_ends = (TaskEnd(rank=0, reason=ExitReason.LOST),)
        grant = hub.offer()
        assert (workload.ranks_running, workload.runner_placement, workload.task_ends) == (frozenset(), (), ())
        assert grant == Grant(
            bid_id="bid1-0",
            lease=WorkLease(workload.id, 1),
            lease_s=TERMS.batch_s,
            attempt=1,
            tenant="t",
            spec=workload.spec,
            created_at=workload.created_at,
            annotations={"a": "b"},
        )
        assert kinds(hub.effects) == ["Save", "workload.lent", f"audit {audit.LENT}", "Grants"]
        assert (workload.state, workload.attempt, workload.lease_s) == (State.SCHEDULED, 1, TERMS.batch_s)
        assert (workload.runner_hub, workload.error_message) == (MOROCCO, "")
        assert drafts(hub.effects)[0].countries == ("MA",)
        assert workload.id not in hub.state.scheduler.queue
        records = [one for one in hub.effects if isinstance(one, fx.Record)]
        assert records[0].message == "goes to dakhla, held for it"

    def test_a_service_is_lent_for_less(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend(scheduling_class=SchedulingClass.INFERENCE, stop_grace_s=1.0)
        assert workload.lease_s == TERMS.service_s

    def test_its_data_go_with_it(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.meet_peer()
        hub.submit(8, stay_home=True)
        hub.place()
        hub.add_data(data := data_object("one", tag_for("MA", "SN"), at=SENEGAL))
        hub.submit(8, data=("one",))
        grant = hub.offer()
        assert grant is not None
        assert grant.data == (data,)

    def test_a_grant_that_was_not_answered_is_repeated_each_second_until_it_is(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        lease = WorkLease(workload.id, 1)

        def repeated(wait_s: float) -> list[WorkLease]:
            hub.later(wait_s)
            hub.handle(ev.LendingDue())
            return [grant.lease for message in hub.sent(Grants) for grant in message.grants]

        assert repeated(1.0) == [lease]
        assert repeated(0.9) == []
        assert repeated(0.1) == [lease]
        hub.handle(ev.PeerBack("elsewhere"))
        assert hub.sent(Grants) == []
        hub.receive(Granted(taken=(lease,)))
        assert hub.state.lending.given[workload.id].reported_s == hub.boot_s
        assert repeated(1.0) == []

    def test_a_report_answers_a_grant_too(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.receive(Reports((WorkReport(lease=WorkLease(workload.id, 1), state=State.SCHEDULED),)))
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        assert hub.sent(Grants) == []

    def test_a_refusal_brings_the_work_back_with_its_reason(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.receive(Granted(refused=((WorkLease(workload.id, 1), "y" * 300),)))
        assert (workload.leased, workload.state, hub.state.lending.given) == (False, State.PENDING, {})
        assert workload.error_message == f"dakhla did not take it: {'y' * 200}"
        assert hub.state.lending.answers[workload.id] == {MOROCCO: "y" * 200}
        assert workload.id in hub.state.scheduler.queue

    def test_work_that_was_to_be_stopped_ends_when_it_comes_back(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.handle(ev.StopRequested(workload.id, "enough"))
        hub.receive(Granted(refused=((WorkLease(workload.id, 1), "no room"),)))
        assert (workload.state, workload.leased) == (State.CANCELLED, False)
        assert workload.id not in hub.state.scheduler.queue


class TestReports:
    """The owner's side of what a runner says."""

    def lent(self, **fields: object) -> tuple[LendingHub, Workload]:
        hub = LendingHub(SENEGAL)
        return hub, hub.lend(**fields)

    def report(self, hub: LendingHub, workload: Workload, state: State = State.RUNNING, **fields: object) -> None:
        hub.receive(Reports((WorkReport(lease=WorkLease(workload.id, 1), state=state, **fields),)))  # type: ignore[arg-type]

    def test_work_runs_once_its_runner_says_that_it_started(self) -> None:
        hub, workload = self.lent()
        self.report(hub, workload, State.SCHEDULED, placement=THERE, restarts=2)
        assert kinds(hub.effects) == ["Save"]
        assert (workload.state, workload.runner_placement, workload.restarts) == (State.SCHEDULED, THERE, 2)
        self.report(hub, workload, placement=THERE, started_at=START)
        assert kinds(hub.effects) == ["Save", "workload.running"]
        assert (workload.state, workload.started_at) == (State.RUNNING, START)
        (record,) = [one for one in hub.effects if isinstance(one, fx.Record)]
        assert record.message == "runs at dakhla on 2 nodes"
        self.report(hub, workload, placement=THERE, started_at=START)
        assert hub.effects == [], "nothing is new"

    def test_an_end_is_booked_and_the_runner_notified(self) -> None:
        hub, workload = self.lent()
        ends = (TaskEnd(rank=0, reason=ExitReason.EXITED, exit_code=3),)
        hub.later(7.0)
        self.report(hub, workload, State.FAILED, placement=THERE, started_at=START, task_ends=ends, message="it exited")
        assert kinds(hub.effects) == ["Save", "workload.failed", f"audit {audit.ENDED}", "ReportsBooked"]
        assert hub.sent(ReportsBooked) == [ReportsBooked((WorkLease(workload.id, 1),))]
        assert (workload.state, workload.leased, workload.task_ends) == (State.FAILED, False, ends)
        assert (workload.error_message, workload.runner_placement, workload.started_at) == ("it exited", THERE, START)
        assert workload.completed_at == hub.context().now
        assert hub.state.lending.given == {}

    def test_an_end_without_places_keeps_those_that_were_recorded_before(self) -> None:
        hub, workload = self.lent()
        self.report(hub, workload, placement=THERE, started_at=START)
        self.report(hub, workload, State.COMPLETED, message="ignored")
        assert (workload.runner_placement, workload.started_at, workload.error_message) == (THERE, START, "")

    def test_what_it_produced_is_in_the_owners_catalog_under_its_tenant(self) -> None:
        hub, workload = self.lent()
        made = replace(data_object("made", tag_for("SN"), at=MOROCCO), tenant="somebody")
        self.report(hub, workload, State.COMPLETED, produced=(made,))
        entry = hub.state.catalog.entries["data_made"]
        assert (entry.object.tenant, entry.made_by) == ("t", workload.id)
        assert fx.SaveData(entry) in hub.effects
        assert "data.produced" in kinds(hub.effects)
        assert f"audit {audit.DATA_DERIVED}" in kinds(hub.effects)

    def test_work_that_is_given_back_waits_at_home(self) -> None:
        hub, workload = self.lent()
        self.report(hub, workload, State.CANCELLED, handed_back=True, message="no power")
        assert hub.sent(ReportsBooked) == [ReportsBooked((WorkLease(workload.id, 1),))]
        assert (workload.state, workload.error_message) == (State.PENDING, "dakhla gave it back: no power")

    def test_orders_that_were_lost_are_repeated(self) -> None:
        hub, workload = self.lent()
        self.report(hub, workload, placement=THERE, started_at=START)
        hub.handle(ev.PauseRequested(workload.id))
        self.report(hub, workload)
        assert [order.kind for order in hub.sent(OwnerOrder)] == [OrderKind.PAUSE]
        self.report(hub, workload, State.PAUSED)
        assert hub.sent(OwnerOrder) == []
        hub.handle(ev.ResumeRequested(workload.id))
        self.report(hub, workload, State.PAUSED)
        assert [order.kind for order in hub.sent(OwnerOrder)] == [OrderKind.RESUME]
        self.report(hub, workload)
        assert hub.sent(OwnerOrder) == []
        hub.handle(ev.StopRequested(workload.id, "enough"))
        self.report(hub, workload)
        assert [(order.kind, order.reason) for order in hub.sent(OwnerOrder)] == [(OrderKind.STOP, "enough")]
        self.report(hub, workload, State.CANCELLED)
        assert hub.sent(OwnerOrder) == []
        assert workload.state is State.CANCELLED

    def test_a_late_completion_counts_and_takes_the_work_out_of_the_queue(self) -> None:
        hub, workload = self.lent()
        hub.later(2 * TERMS.batch_s)
        hub.handle(ev.LendingDue())
        assert workload.state is State.PENDING
        self.report(hub, workload, State.COMPLETED)
        assert workload.state is State.COMPLETED
        assert workload.id not in hub.state.scheduler.queue
        assert "federation.reconciled" in kinds(hub.effects)
        assert hub.sent(ReportsBooked) == [ReportsBooked((WorkLease(workload.id, 1),))]

    @pytest.mark.parametrize(
        ("state", "handed_back", "word"),
        [(State.FAILED, False, "failed"), (State.RUNNING, False, "running"), (State.COMPLETED, True, "gave back")],
    )
    def test_whatever_else_is_late_is_listed_and_void(self, state: State, handed_back: bool, word: str) -> None:
        hub, workload = self.lent()
        hub.later(2 * TERMS.batch_s)
        hub.handle(ev.LendingDue())
        self.report(hub, workload, state, handed_back=handed_back)
        (record,) = [one for one in hub.effects if isinstance(one, fx.Record)]
        assert record.kind == "federation.reconciled"
        assert record.message == (f"dakhla reports {word} under epoch 1; here it is pending under epoch 1: ours counts")
        assert workload.state is State.PENDING
        assert bool(hub.sent(ReportsBooked)) is (handed_back or state is State.FAILED)

    def test_a_repeated_word_about_work_that_has_ended_is_not_listed_unless_it_is_an_end(self) -> None:
        hub, workload = self.lent()
        self.report(hub, workload, State.COMPLETED)
        self.report(hub, workload)
        assert hub.effects == []
        self.report(hub, workload, State.COMPLETED)
        assert kinds(hub.effects) == ["federation.reconciled", "ReportsBooked"]

    def test_the_end_of_unknown_work_is_listed_and_booked_and_its_start_is_not(self) -> None:
        hub = LendingHub(SENEGAL)
        lease = WorkLease("wl_gone", 3)
        hub.receive(Reports((WorkReport(lease=lease, state=State.RUNNING),)))
        assert hub.effects == []
        hub.receive(Reports((WorkReport(lease=lease, state=State.FAILED),)))
        assert kinds(hub.effects) == ["federation.reconciled", "ReportsBooked"]

    def test_a_lease_ends_at_the_very_moment_that_its_runner_has_surely_stopped(self) -> None:
        hub, workload = self.lent()
        hub.boot_s = hub.state.lending.given[workload.id].confirmed_s + TERMS.owner_waits_s(TERMS.batch_s)
        hub.handle(ev.LendingDue())
        assert not workload.leased

    @pytest.mark.parametrize(
        ("fields", "state", "restarts"),
        [
            ({}, State.PENDING, 1),
            ({"restart": RestartPolicy.NEVER}, State.FAILED, 0),
            ({"restarts_max": 0}, State.FAILED, 0),
        ],
    )
    def test_a_lease_that_ended_is_a_loss_and_the_restart_policy_decides(
        self, fields: dict[str, object], state: State, restarts: int
    ) -> None:
        hub, workload = self.lent(**fields)
        hub.later(2 * TERMS.batch_s)
        hub.handle(ev.LendingDue())
        assert (workload.state, workload.restarts, workload.leased) == (state, restarts, False)
        assert hub.state.lending.given == {}
        silence = "hub dakhla sent no message for 200 s, its lease has ended"
        assert silence in workload.error_message
        notes = [one for one in hub.effects if isinstance(one, fx.Record) and one.kind == "federation.lease_ended"]
        assert [one.message for one in notes] == [f"epoch 1 at dakhla: {silence}"]


class TestBidding:
    """The runner's side: GPUs are held for a moment."""

    def bids(self, hub: LendingHub, *needs: Need, number: int = 1) -> Bids:
        hub.receive(BidRequest(number, needs))
        (answer,) = hub.sent(Bids)
        assert answer.number == number
        return answer

    def held(self, hub: LendingHub) -> int:
        return sum(len(slot.devices) for one in hub.state.scheduler.running.values() for slot in one.slots)

    def test_gpus_are_held_for_two_seconds_and_no_longer(self) -> None:
        hub = LendingHub(MOROCCO)
        (made,) = self.bids(hub, need(gpus=4)).bids
        assert (made.ref, made.start_in_s, made.slowdown) == (0, 0.0, 1.0)
        assert self.held(hub) == 4
        hub.later(BID_S - 0.01)
        hub.handle(ev.LendingDue())
        assert self.held(hub) == 4
        hub.later(0.01)
        hub.handle(ev.LendingDue())
        assert self.held(hub) == 0
        assert hub.state.lending.bids == {}

    def test_only_bids_that_are_over_expire(self) -> None:
        hub = LendingHub(MOROCCO)
        self.bids(hub, need(gpus=4))
        hub.later(1.0)
        self.bids(hub, need(gpus=2), number=2)
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        assert self.held(hub) == 2

    def test_a_bid_that_was_not_taken_frees_its_gpus(self) -> None:
        hub = LendingHub(MOROCCO)
        (made,) = self.bids(hub, need(gpus=4)).bids
        hub.receive(DropBids((made.bid_id, "unknown")))
        assert self.held(hub) == 0

    def test_what_has_no_room_is_refused_or_may_wait_here(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.submit(8)
        hub.place()
        answer = self.bids(hub, need(0, 8), need(1, 8, may_queue=True), need(2, 1))
        assert answer.refusals == {0: "no room now"}
        assert [(one.ref, one.start_in_s > 0) for one in answer.bids] == [(1, True), (2, False)]

    def test_a_start_that_cannot_be_estimated_is_stated_to_be_an_hour_away(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.submit(8)
        hub.place()
        answer = self.bids(hub, need(0, 8, may_queue=True))
        assert (answer.bids[0].start_in_s, answer.bids[0].slowdown) == (START_UNKNOWN_S, 1.0)
        bounded = LendingHub(SENEGAL)
        bounded.submit(8, max_duration_s=100.0)
        bounded.place()
        (made,) = self.bids(bounded, need(0, 8, may_queue=True)).bids
        assert 1.0 <= made.start_in_s <= 200.0

    def test_only_a_few_starts_are_estimated_per_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hub = LendingHub(SENEGAL)
        hub.submit(8)
        hub.place()
        calls = []
        monkeypatch.setattr(hub.state.scheduler, "start_estimate_s", lambda *_, **__: calls.append(1) or 0.2)
        answer = self.bids(hub, *(need(ref, 8, may_queue=True) for ref in range(10)))
        assert len(calls) == borrowed.ESTIMATES_MAX
        assert [one.start_in_s for one in answer.bids] == [1.0] * 8 + [START_UNKNOWN_S] * 2

    def test_a_bid_says_what_a_kwh_emits_and_costs_here(self) -> None:
        hub = LendingHub(MOROCCO)
        context = replace(hub.context(), power=ev.BidPower(120.0, 0.08))
        hub.effects = hub.machine.apply(ev.PeerMessageReceived(SENEGAL, BidRequest(1, (need(),))), context)
        (answer,) = hub.sent(Bids)
        assert (answer.bids[0].carbon_g_per_kwh, answer.bids[0].price_per_kwh) == (120.0, 0.08)

    def test_a_closed_or_busy_hub_bids_nothing_and_says_how_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hub = LendingHub(MOROCCO)
        hub.handle(ev.HubClosed(1))
        assert (self.bids(hub, need()).bids, self.bids(hub, need()).busy_s) == ((), 30.0)
        hub.handle(ev.HubClosed(0))
        monkeypatch.setattr(borrowed, "BIDS_MAX", 3)
        assert len(self.bids(hub, need(0), need(1)).bids) == 2
        answer = self.bids(hub, need(0), need(1), number=2)
        assert (answer.bids, answer.busy_s) == ((), BUSY_S)
        answer = self.bids(hub, need(0), number=3)
        assert (len(answer.bids), answer.busy_s) == (1, 0.0)

    def test_a_request_for_more_than_the_limit_is_not_answered_with_bids(self) -> None:
        hub = LendingHub(MOROCCO)
        most = tuple(need(ref, 99) for ref in range(NEEDS_PER_REQUEST_MAX))
        assert len(self.bids(hub, *most).refusals) == NEEDS_PER_REQUEST_MAX
        assert self.bids(hub, *most, need(999), number=2).busy_s == BUSY_S


class TestBorrowing:
    def borrower(self, spec: WorkloadSpec = SPEC, **fields: object) -> LendingHub:
        hub = LendingHub(MOROCCO)
        assert hub.take(hub.grant(spec, **fields)) == ""
        return hub

    def work(self, hub: LendingHub) -> Workload:
        workload = hub.work(THEIRS.workload_id)
        assert workload is not None
        return workload

    def test_a_grant_that_is_taken_is_saved_recorded_audited_started_and_reported(self) -> None:
        hub = self.borrower(restarts=2, annotations={"a": "b"}, trace="z" * 200, attempt=5)
        workload = self.work(hub)
        assert kinds(hub.effects) == [
            "Save",
            "workload.borrowed",
            f"audit {audit.BORROWED}",
            "workload.scheduled",
            f"audit {audit.PLACED}",
            "StartTask",
            "Granted",
            "Reports",
        ]
        assert (workload.borrowed, workload.owner_hub, workload.attempt, workload.epoch) == (True, SENEGAL, 5, 1)
        assert (workload.restarts, workload.annotations, workload.trace) == (2, {"a": "b"}, "z" * 128)
        assert (workload.state, workload.created_at, workload.lease_s) == (State.SCHEDULED, START, TERMS.batch_s)
        (reports,) = hub.sent(Reports)
        assert reports.reports == (
            WorkReport(lease=THEIRS, state=State.SCHEDULED, placement=workload.placement, restarts=2),
        )
        assert hub.state.lending.bids == {}

    @pytest.mark.parametrize("lease_s", [LEASE_S_MIN, LEASE_S_MAX])
    def test_the_shortest_and_the_longest_lease_are_taken(self, lease_s: float) -> None:
        assert self.work(self.borrower(lease_s=lease_s)).lease_s == lease_s

    def test_its_end_is_reported_each_second_until_it_is_booked(self) -> None:
        hub = self.borrower()
        hub.handle(ended("wl_theirs", exit_code=3))
        (reports,) = hub.sent(Reports)
        (report,) = reports.reports
        assert (report.state, report.message, report.handed_back) == (
            State.FAILED,
            "the task exited with code 3",
            False,
        )
        assert [end.exit_code for end in report.task_ends] == [3]
        assert self.work(hub).report_due
        for wait_s, repeats in ((1.0, 1), (0.5, 0), (0.5, 1)):
            hub.later(wait_s)
            hub.handle(ev.LendingDue())
            assert len(hub.sent(Reports)) == repeats
        hub.receive(ReportsBooked((THEIRS,)))
        assert kinds(hub.effects) == ["Save"]
        assert not self.work(hub).report_due
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        assert hub.sent(Reports) == []
        hub.later(600.0)
        hub.submit(1)
        assert hub.work("wl_theirs") is None, "nobody needs it any longer"

    def test_a_lease_is_renewed_after_a_third_and_again_while_no_one_answers(self) -> None:
        hub = self.borrower()

        def renewals(wait_s: float) -> int:
            hub.later(wait_s)
            hub.handle(ev.LendingDue())
            assert len(hub.sent(Reports)) == len(hub.sent(LeaseRenewal))
            return len(hub.sent(LeaseRenewal))

        third = TERMS.batch_s / 3
        assert renewals(third - 1.0) == 0
        assert renewals(1.0) == 1
        assert hub.sent(LeaseRenewal)[0].leases == (THEIRS,)
        assert renewals(1.0) == 0
        assert renewals(RENEW_AGAIN_S - 1.0) == 1
        renewal = hub.sent(LeaseRenewal)[0]
        hub.receive(LeaseRenewed(number=renewal.number, leases=(THEIRS,)))
        assert hub.state.lending.borrowed["wl_theirs"].renew_s == pytest.approx(hub.boot_s + third)
        assert renewals(third - 0.5) == 0
        assert renewals(1.0) == 1

    def test_a_renewal_that_no_one_answered_within_a_minute_is_forgotten(self) -> None:
        hub = self.borrower()
        hub.handle(ev.PeerBack(SENEGAL))
        (renewal,) = hub.sent(LeaseRenewal)
        hub.later(59.9)
        hub.handle(ev.LendingDue())
        assert renewal.number in hub.state.lending.renewals
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        assert renewal.number not in hub.state.lending.renewals
        hub.handle(ev.PeerBack("elsewhere"))
        assert hub.sent(LeaseRenewal) == []

    def test_only_leases_of_the_renewal_itself_are_lengthened(self) -> None:
        hub = self.borrower()
        hub.handle(ev.PeerBack(SENEGAL))
        (renewal,) = hub.sent(LeaseRenewal)
        hub.state.lending.renewals[renewal.number] = (SENEGAL, hub.boot_s, ())
        hub.receive(LeaseRenewed(number=renewal.number, leases=(THEIRS,)))
        assert hub.sent_to_agent(ExtendLease) == []

    def test_an_owner_pauses_resumes_and_stops_it(self) -> None:
        hub = self.borrower()
        key = TaskKey("wl_theirs", 1, 0)
        hub.handle(ev.TaskStartSeen(key))

        def order(kind: OrderKind, **fields: object) -> None:
            hub.receive(OwnerOrder(lease=THEIRS, kind=kind, **fields))  # type: ignore[arg-type]

        order(OrderKind.RESUME)
        assert hub.effects == []
        self.work(hub).state = State.SCHEDULED
        order(OrderKind.RESUME)
        assert hub.effects == [], "it has not started yet"
        self.work(hub).state = State.RUNNING
        order(OrderKind.PAUSE)
        assert hub.sent_to_agent(PauseTask) == [PauseTask(key)]
        order(OrderKind.PAUSE)
        assert hub.effects == []
        order(OrderKind.RESUME)
        assert hub.sent_to_agent(ResumeTask) == [ResumeTask(key)]
        order(OrderKind.STOP)
        assert hub.sent_to_agent(StopTask) == [StopTask(key, 0.0)]
        assert (self.work(hub).stop_as, self.work(hub).stop_reason) == (State.CANCELLED, "dakar requested it")
        order(OrderKind.PAUSE)
        assert hub.effects == []
        hub.handle(ended("wl_theirs", reason=ExitReason.STOPPED, exit_code=None))
        (reports,) = hub.sent(Reports)
        assert (reports.reports[0].state, reports.reports[0].handed_back) == (State.CANCELLED, False)
        order(OrderKind.STOP)
        assert hub.effects == []

    def test_work_that_broke_the_rules_of_its_data_is_stopped_at_once_even_while_it_stops(self) -> None:
        hub = self.borrower(replace(SPEC, stop_grace_s=9.0))
        key = TaskKey("wl_theirs", 1, 0)
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.STOP, reason="enough"))
        assert hub.sent_to_agent(StopTask) == [StopTask(key, 9.0)]
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.STOP, reason="E0907", scrub=True))
        assert hub.sent_to_agent(StopTask) == [StopTask(key, 0.0, scrub=True)]
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.STOP, reason="E0907", scrub=True))
        assert hub.effects == []
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.RESUME))
        assert hub.effects == []

    def test_paused_work_that_broke_the_rules_of_its_data_is_not_resumed(self) -> None:
        hub = self.borrower()
        hub.handle(ev.TaskStartSeen(TaskKey("wl_theirs", 1, 0)))
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.PAUSE))
        self.work(hub).scrub = True
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.RESUME))
        assert hub.effects == []
        assert self.work(hub).state is State.PAUSED

    @pytest.mark.parametrize(("reason", "why"), [("", "dakar wants it back"), ("cleaner", "cleaner")])
    def test_work_that_its_owner_wants_back_stops_in_order_and_is_handed_back(self, reason: str, why: str) -> None:
        hub = self.borrower()
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.RETURN, reason=reason))
        workload = self.work(hub)
        assert (workload.stop_reason, workload.stop_as) == (why, State.PENDING)
        assert "workload.returning" in kinds(hub.effects)
        hub.receive(OwnerOrder(lease=THEIRS, kind=OrderKind.RETURN))
        assert hub.effects == []
        hub.handle(ended("wl_theirs", reason=ExitReason.STOPPED, exit_code=None))
        (reports,) = hub.sent(Reports)
        assert (reports.reports[0].handed_back, reports.reports[0].message) == (True, why)
        assert (workload.state, workload.handed_back) == (State.CANCELLED, True)
        assert "wl_theirs" not in hub.state.lending.borrowed
        assert hub.state.scheduler.running == {}

    def test_borrowed_work_that_waits_goes_back_when_the_hub_closes(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.submit(8)
        hub.place()
        assert hub.take(hub.grant(replace(SPEC, resources=Resources(gpus=8)))) == ""
        assert "wl_theirs" in hub.state.scheduler.queue
        hub.handle(ev.HubClosed(1))
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        workload = self.work(hub)
        assert (workload.handed_back, workload.error_message) == (True, "Dakar takes no work")
        assert "wl_theirs" not in hub.state.scheduler.queue

    def test_borrowed_work_that_runs_is_left_to_its_supervisor(self) -> None:
        hub = self.borrower()
        hub.later(2 * TERMS.batch_s)
        hub.handle(ev.LendingDue())
        assert self.work(hub).state is State.SCHEDULED
        assert hub.sent_to_agent(StopTask) == []

    def test_tags_that_came_with_it_are_kept_under_no_name(self) -> None:
        hub = LendingHub(MOROCCO)
        data = data_object("one", tag_for("MA", "SN"))
        assert hub.take(hub.grant(replace(SPEC, data=("one",)), data=(data,))) == ""
        entry = hub.state.catalog.entries["data_one"]
        assert (entry.home, entry.object) == (SENEGAL, data)
        assert fx.SaveData(entry) in hub.effects
        assert hub.state.catalog.named("one", tenant="t") is None
        assert self.work(hub).data_ids == ("data_one",)
        hub.handle(ev.DataRetagged("data_one", tag_for("SN")))
        assert [stop.scrub for stop in hub.sent_to_agent(StopTask)] == [True], "the runner watches its tags, too"


class TestRestoring:
    def restored(self, workload: Workload, hub_id: str = MOROCCO) -> LendingHub:
        hub = LendingHub(hub_id, join=False)
        hub.effects = hub.machine.restore([workload], (), context=hub.context(), lifetime="second")
        return hub

    def borrowed(self) -> Workload:
        hub = LendingHub(MOROCCO)
        assert hub.take(hub.grant(SPEC)) == ""
        workload = hub.work("wl_theirs")
        assert workload is not None
        return workload

    def test_borrowed_work_that_runs_goes_on_unconfirmed(self) -> None:
        hub = self.restored(self.borrowed())
        assert hub.state.lending.borrowed["wl_theirs"].until_s < 0
        assert "wl_theirs" in hub.state.scheduler.running
        hub.later(1.0)
        hub.handle(ev.LendingDue())
        assert [one.leases for one in hub.sent(LeaseRenewal)] == [(THEIRS,)]

    def test_borrowed_work_that_waited_is_given_back(self) -> None:
        workload = self.borrowed()
        workload.placement, workload.state = (), State.PENDING
        hub = self.restored(workload)
        assert (workload.handed_back, workload.state) == (True, State.CANCELLED)
        assert workload.error_message == "Dakhla was restarted before it could start"
        assert [one.reports[0].handed_back for one in hub.sent(Reports)] == [True]

    def test_borrowed_work_without_its_nodes_is_dropped_in_silence(self) -> None:
        workload = self.borrowed()
        workload.placement = (replace(workload.placement[0], node_id="sold"),)
        hub = self.restored(workload)
        assert (workload.state, hub.state.lending.borrowed) == (State.CANCELLED, {})
        assert hub.sent(Reports) == []
        assert kinds(hub.effects) == ["Save"]
        assert workload.error_message == "the fleet file no longer has its nodes"
        hub.later(600.0)
        hub.join()
        hub.submit(1)
        assert hub.work("wl_theirs") is None

    @pytest.mark.parametrize("due", [True, False])
    def test_an_end_is_recorded_again_unless_it_is_booked(self, due: bool) -> None:
        workload = self.borrowed()
        workload.state, workload.report_due = State.COMPLETED, due
        hub = self.restored(workload)
        assert (hub.state.lending.unbooked == {"wl_theirs": workload}) is due
        hub.later(600.0)
        hub.handle(ev.LendingDue())
        assert bool(hub.sent(Reports)) is due
        hub.join()
        hub.submit(1)
        assert (hub.work("wl_theirs") is not None) is due

    def test_lent_work_is_waited_for_in_full_again(self) -> None:
        before = LendingHub(SENEGAL)
        workload = before.lend()
        hub = self.restored(workload, SENEGAL)
        given = hub.state.lending.given[workload.id]
        assert (given.runner, given.epoch, given.confirmed_s, given.grant) == (MOROCCO, 1, hub.boot_s, None)
        assert workload.id not in hub.state.scheduler.queue


class TestWhenLendingIsDue:
    def test_a_hub_without_anything_of_others_has_nothing_to_do(self) -> None:
        hub = LendingHub(MOROCCO)
        assert not hub.machine.is_lending_due(hub.boot_s)

    def test_bids_auctions_and_work_that_waits_are_looked_at_each_moment(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.bid(SPEC)
        assert hub.machine.is_lending_due(hub.boot_s)
        owner = LendingHub(SENEGAL)
        owner.submit(1)
        assert not owner.machine.is_lending_due(owner.boot_s)
        assert owner.machine.is_lending_due(owner.boot_s + 0.1)

    def test_leases_are_looked_at_each_second(self) -> None:
        hub = LendingHub(MOROCCO)
        assert hub.take(hub.grant(SPEC)) == ""
        hub.handle(ev.LendingDue())
        assert not hub.machine.is_lending_due(hub.boot_s + 0.9)
        assert hub.machine.is_lending_due(hub.boot_s + 1.0)
        owner = LendingHub(SENEGAL)
        owner.lend()
        owner.handle(ev.LendingDue())
        assert not owner.machine.is_lending_due(owner.boot_s + 0.9)
        assert owner.machine.is_lending_due(owner.boot_s + 1.0)
        hub.handle(ended("wl_theirs"))
        hub.handle(ev.LendingDue())
        assert hub.machine.is_lending_due(hub.boot_s + 1.0), "an end that is not booked yet"


class TestPublishedFacts:
    """What the hard rules see of another hub."""

    def facts(self, **fields: object) -> tuple[bool, str]:
        hub = LendingHub(SENEGAL)
        hub.meet_peer()
        known = hub.state.lending.peers[MOROCCO]
        assert known.summary is not None
        summary = replace(known.summary, **{key: value for key, value in fields.items() if key.startswith("status")})
        peer = PeerView(
            hub_id=MOROCCO,
            url="",
            reachable=bool(fields.get("reachable", True)),
            age_s=3.0,
            summary=summary,
            error="cut",
        )
        request = PlacementRequest.of("shape", SPEC)
        found = published_facts(summary, peer, request)
        assert (found.hub_id, found.country, found.source, found.age_s) == (MOROCCO, "MA", "summary", 3.0)
        assert found.slots_empty >= found.slots_now > 0
        return found.accepts_work, found.status_detail

    def test_a_hub_takes_work_if_it_is_ready_and_answers(self) -> None:
        assert self.facts() == (True, "ready")
        assert self.facts(status="draining") == (False, "draining")
        assert self.facts(status="error", status_detail="disk") == (False, "disk")
        assert self.facts(reachable=False) == (False, "does not answer: cut")


def test_the_start_of_borrowed_work_names_its_lease() -> None:
    hub = LendingHub(MOROCCO)
    hub.receive(Grants((hub.grant(SPEC),)))
    (start,) = hub.sent_to_agent(StartTask)
    assert start.task.lease_until_s is not None
    assert start.task.key == TaskKey("wl_theirs", 1, 0)
