"""What a hub remembers between events: submissions, faults, leases, held work, and how long each of it counts."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harch.base.elapsed import Adopted
from harch.base.errors import HarchError
from harch.carbon.planning.capacity import CapacityLedger
from harch.carbon.planning.outlook import HubHours, Pool, PowerOutlook
from harch.execution.protocol import AgentHello, TaskKey
from harch.federation.offers import BidRequest, DropBids
from harch.hub.jobs import events as ev
from harch.hub.jobs import registry as registry_module
from harch.hub.jobs.carbon_plan import (
    HOUR_S,
    OFFER_THERE_S,
    PLAN_HOLDS_S,
    CarbonMemory,
    HubPlan,
    Route,
    cleaner_hubs,
)
from harch.hub.jobs.events import EventContext, is_taken_on_a_full_disk
from harch.hub.jobs.faults import HOLD_S, FaultBook, cause_of, kind_of
from harch.hub.jobs.leases import FIRST_TRY_S, GivenLease, LendingRegistry
from harch.hub.jobs.registry import Registry, request_digest
from harch.hub.store.records import IdempotencyEntry
from harch.sovereignty.audit.chain import Draft
from harch.testing.agents import SimAgent
from harch.testing.clock import START
from harch.wire.carbon import CarbonChoice, CarbonOption
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import Resources, WorkloadSpec

SPEC = WorkloadSpec(name="job", resources=Resources(gpus=1))


def minutes(count: float) -> datetime:
    return START + timedelta(minutes=count)


def workload(
    workload_id: str = "wl_1", *, at: datetime = START, state: State = State.PENDING, **fields: object
) -> Workload:
    facts: dict[str, object] = {"tenant": "t", "spec": SPEC, **fields}
    return Workload(id=workload_id, owner_hub="home", created_at=at, updated_at=at, state=state, **facts)  # type: ignore[arg-type]


def submitted(spec: WorkloadSpec = SPEC, key: str | None = None, tenant: str = "t", **notes: str) -> ev.Submitted:
    return ev.Submitted("wl_new", tenant, spec, notes, key)


class TestTheRegistry:
    def earlier(self, registry: Registry, event: ev.Submitted, at: datetime = START) -> str | None:
        return registry.earlier_submission(event, EventContext(now=at))

    def test_a_name_is_of_its_tenant(self) -> None:
        registry = Registry()
        registry.add(workload())
        assert self.earlier(registry, submitted()) == "wl_1"
        assert self.earlier(registry, submitted(tenant="other")) is None
        assert self.earlier(registry, submitted(replace(SPEC, name="other"))) is None

    def test_the_same_name_with_other_words_is_no_retry(self) -> None:
        registry = Registry()
        registry.add(workload(annotations={"a": "b"}))
        assert self.earlier(registry, submitted(a="b")) == "wl_1"
        for other in (submitted(), submitted(replace(SPEC, priority="high"), a="b")):  # type: ignore[arg-type]
            with pytest.raises(HarchError) as refused:
                self.earlier(registry, other)
            assert (refused.value.code, refused.value.field) == ("E0302", "name")

    def test_ended_work_of_that_name_is_met_again_for_ten_minutes_unless_a_key_says_that_it_is_new(self) -> None:
        registry = Registry()
        registry.add(workload(state=State.COMPLETED))
        assert self.earlier(registry, submitted(), minutes(9.9)) == "wl_1"
        assert self.earlier(registry, submitted(), minutes(10)) is None
        assert self.earlier(registry, submitted(key="k")) is None
        assert self.earlier(registry, submitted(replace(SPEC, tasks=2))) is None

    def test_unfinished_work_keeps_its_name_with_a_key_too(self) -> None:
        registry = Registry()
        registry.add(workload())
        assert self.earlier(registry, submitted(key="k")) == "wl_1"
        with pytest.raises(HarchError):
            self.earlier(registry, submitted(key="k"), minutes(10))

    def test_a_key_counts_for_a_day_of_real_time(self) -> None:
        registry = Registry()
        entry = IdempotencyEntry(
            tenant="t", key="k", workload_id="wl_old", digest=request_digest(SPEC, {}), created_at=START
        )
        registry.remember_keys([entry])
        assert self.earlier(registry, submitted(key="k"), minutes(24 * 60 - 1)) == "wl_old"
        assert self.earlier(registry, submitted(key="k"), minutes(24 * 60)) is None
        assert self.earlier(registry, submitted(key="k", tenant="other")) is None
        assert self.earlier(registry, submitted(key="other")) is None
        jump = Adopted(before=minutes(1), after=minutes(3000))
        context = EventContext(now=minutes(3001), adopted=(jump,))
        assert registry.earlier_submission(submitted(key="k"), context) == "wl_old", "two minutes have passed"
        with pytest.raises(HarchError) as refused:
            self.earlier(registry, submitted(key="k", note="another"))
        assert (refused.value.code, refused.value.meta) == ("E0206", {"workload_id": "wl_old"})

    def test_the_oldest_keys_go_first_beyond_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry_module, "IDEMPOTENCY_KEYS_MAX", 2)
        registry = Registry()
        digest = request_digest(SPEC, {})
        registry.remember_keys(
            IdempotencyEntry(tenant="t", key=key, workload_id=f"wl_{key}", digest=digest, created_at=START)
            for key in "abc"
        )
        assert [self.earlier(registry, submitted(key=key)) for key in "abc"] == [None, "wl_b", "wl_c"]

    def test_ended_work_is_forgotten_after_ten_minutes_and_not_before(self) -> None:
        registry = Registry()
        ended = workload("wl_ended", state=State.COMPLETED)
        registry.add(ended)
        registry.add(workload("wl_runs", spec=replace(SPEC, name="runs")))
        registry.forget_old(EventContext(now=minutes(9.9)))
        assert set(registry.workloads) == {"wl_ended", "wl_runs"}
        registry.forget_old(EventContext(now=minutes(10)))
        assert set(registry.workloads) == {"wl_runs"}
        registry.forget_old(EventContext(now=minutes(1000)))
        assert set(registry.workloads) == {"wl_runs"}

    def test_work_that_ended_later_is_forgotten_too_and_its_name_stays_with_a_newer_holder(self) -> None:
        registry = Registry()
        for number in (1, 2, 3):
            one = workload(f"wl_{number}", at=minutes(number), spec=replace(SPEC, name="same"))
            registry.add(one)
            one.state = State.CANCELLED if number < 3 else State.PENDING
            if number < 3:
                registry.finished(one)
        registry.forget_old(EventContext(now=minutes(11)))
        assert set(registry.workloads) == {"wl_2", "wl_3"}
        assert self.earlier(registry, submitted(replace(SPEC, name="same")), minutes(4)) == "wl_3"

    def test_borrowed_work_has_no_name_here(self) -> None:
        registry = Registry()
        registry.add_borrowed(workload(borrowed=True))
        assert registry.workloads.keys() == {"wl_1"}
        assert self.earlier(registry, submitted()) is None

    def test_more_ended_work_than_the_limit_is_forgotten_early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry_module, "FINISHED_MAX", 2)
        registry = Registry()
        for number in range(4):
            registry.add(workload(f"wl_{number}", state=State.FAILED))
        registry.forget_old(EventContext(now=START))
        assert set(registry.workloads) == {"wl_2", "wl_3"}


class TestFaults:
    STOP = ev.StopRequested("wl_1", "enough")

    def test_rest_is_counted_from_the_moment_of_the_fault(self) -> None:
        faults = FaultBook()
        assert (faults.times(self.STOP), faults.rest_s(self.STOP, 0.0)) == (0, 0.0)
        assert faults.failed(self.STOP, ValueError(), 100.0).until_s == 100.0
        assert faults.failed(self.STOP, ValueError(), 100.0).until_s == 101.0
        assert faults.times(self.STOP) == 2
        assert faults.rest_s(self.STOP, 100.25) == 0.75
        assert faults.rest_s(self.STOP, 101.5) == 0.0
        faults.went_well(ev.StopRequested("wl_2", ""))
        assert faults.times(self.STOP) == 2
        faults.went_well(self.STOP)
        assert faults.times(self.STOP) == 0

    def test_work_is_held_twice_as_long_each_time_and_not_at_the_very_end(self) -> None:
        faults = FaultBook()
        for times, hold_s in enumerate((HOLD_S, 2 * HOLD_S, 4 * HOLD_S), start=1):
            held = faults.hold("wl_1", ValueError(), 50.0)
            assert (held.times, held.until_s) == (times, 50.0 + hold_s)
        assert faults.held("wl_1", 50.0 + 4 * HOLD_S - 0.1) is held
        assert faults.held("wl_1", 50.0 + 4 * HOLD_S) is None
        assert faults.held("wl_2", 50.0) is None

    def test_the_newest_error_is_named_by_its_code_or_its_type(self) -> None:
        faults = FaultBook()
        faults.failed(self.STOP, ValueError("secret"), 0.0)
        assert faults.failed(self.STOP, HarchError("E1002", "full"), 0.0).error == "E1002"
        assert kind_of(KeyError("secret")) == "KeyError"

    def test_what_failed_again_is_kept_longest(self) -> None:
        faults = FaultBook()
        for number in range(1000):
            faults.hold(f"wl_{number}", ValueError(), 0.0)
        faults.hold("wl_0", ValueError(), 0.0)
        faults.hold("wl_new", ValueError(), 0.0)
        assert faults.held("wl_0", 0.0) is not None
        assert faults.held("wl_1", 0.0) is None
        assert faults.held("wl_2", 0.0) is not None

    def test_each_part_of_an_event_that_matters_tells_causes_apart(self) -> None:
        hello = SimAgent("a", "MA").hello()

        def joined(hello: AgentHello) -> ev.Event:
            return ev.AgentJoined(hello, 1)

        apart = [
            ev.TaskStartSeen(TaskKey("wl_1", 1, 0)),
            ev.TaskStartSeen(TaskKey("wl_2", 1, 0)),
            ev.TaskStartSeen(TaskKey("wl_1", 2, 0)),
            ev.TaskStartSeen(TaskKey("wl_1", 1, 1)),
            joined(hello),
            joined(replace(hello, agent_id="b")),
            ev.PauseRequested("wl_1"),
            ev.ResumeRequested("wl_1"),
            ev.NodeDrained("n1"),
            ev.NodeDrained("n2"),
            ev.PeerBack("h1"),
            ev.PeerBack("h2"),
            ev.HardwareChanged("cordoned", "n1", 1),
            ev.HardwareChanged("nvlink", "n1", 1),
            ev.HardwareChanged("nvlink", "n2", 1),
            ev.AgentLeft("a", 1, ""),
            ev.AgentLeft("b", 1, ""),
            ev.AgentBarred("a", Draft("kind", "a", "refused")),
            submitted(),
            submitted(tenant="other"),
            submitted(note="another"),
        ]
        causes = [cause_of(event) for event in apart]
        assert len(set(causes)) == len(causes)
        assert cause_of(joined(replace(hello, boot_s=7.0))) == cause_of(joined(hello))


def test_a_full_disk_takes_what_ends_work_and_no_request_for_room() -> None:
    assert is_taken_on_a_full_disk(ev.StopRequested("wl_1", ""))
    assert is_taken_on_a_full_disk(ev.PeerMessageReceived("h", DropBids(())))
    assert not is_taken_on_a_full_disk(ev.PeerMessageReceived("h", BidRequest(1, ())))
    assert not is_taken_on_a_full_disk(submitted())
    assert not is_taken_on_a_full_disk(ev.PlacementDue())


class TestTheLendingRegistry:
    def lending(self) -> LendingRegistry:
        return LendingRegistry(enabled=True, lifetime="run")

    def test_work_is_offered_a_moment_after_it_began_to_wait(self) -> None:
        lending = self.lending()
        assert not lending.is_due(math.inf)
        lending.waits("wl_1", 10.0)
        assert not lending.is_due(10.0 + FIRST_TRY_S - 0.01)
        assert lending.take_due(10.0 + FIRST_TRY_S - 0.01, 9) == []
        assert lending.is_due(10.0 + FIRST_TRY_S)
        assert lending.take_due(10.0 + FIRST_TRY_S, 9) == ["wl_1"]
        assert lending.take_due(math.inf, 9) == []

    def test_a_hub_on_its_own_offers_nothing(self) -> None:
        lending = LendingRegistry()
        lending.waits("wl_1", 0.0)
        assert not lending.is_due(math.inf)

    def test_no_more_than_the_limit_are_taken_longest_due_first(self) -> None:
        lending = self.lending()
        for at_s, name in ((2.0, "b"), (1.0, "a"), (3.0, "c")):
            lending.waits(name, at_s)
        assert lending.take_due(10.0, 2) == ["a", "b"]
        assert lending.take_due(10.0, 2) == ["c"]

    def test_each_try_comes_later_than_the_one_before_up_to_ten_seconds(self) -> None:
        lending = self.lending()
        waits = []
        for number in range(6):
            assert lending.is_first_try("wl_1") == (number == 0)
            lending.try_later("wl_1", 100.0)
            waits.append(next(s / 2 for s in range(40) if lending.is_due(100.0 + s / 2)))
            lending.take_due(math.inf, 9)
        assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        lending.answers["wl_1"] = {"h": "no"}
        lending.settled("wl_1")
        assert lending.is_first_try("wl_1")
        assert lending.answers == {}

    def test_numbers_and_bids_are_never_used_twice_and_name_this_run(self) -> None:
        lending = self.lending()
        assert (lending.number(), lending.number(), lending.bid_id()) == (1, 2, "run-3")

    def test_work_that_no_message_came_of_for_half_its_lease_is_stated_to_be_so(self) -> None:
        lending = self.lending()
        lent = workload(lease_s=100.0)
        assert lending.unheard_s(lent, math.inf) is None, "nobody has it"
        given = lending.given["wl_1"] = GivenLease("h", 1, confirmed_s=10.0)
        assert lending.unheard_s(lent, 60.0) is None
        assert lending.unheard_s(lent, 60.5) == 50.5
        given.reported_s = 20.0
        assert lending.unheard_s(lent, 60.5) is None
        assert given.silent_s(60.5) == 40.5


OUTLOOK = PowerOutlook(
    hubs=(HubHours(hub="home", grid_g_per_kwh=np.full(4, 500.0), onsite_kw=np.zeros(4)),),
    pools=(Pool("home", "h100", 8, 1.0),),
)


def plan(at: datetime = START, **fields: object) -> HubPlan:
    book = CapacityLedger(OUTLOOK, np.zeros((1, 4)), {("home", "h100"): np.full(4, 8.0)})
    return HubPlan(at, book, **fields)  # type: ignore[arg-type]


def choice(**fields: object) -> CarbonChoice:
    return CarbonChoice(**{"action": "wait", "decided_at": START, "hub_id": "home", **fields})  # type: ignore[arg-type]


def option(hub_id: str, cost_g: float) -> CarbonOption:
    return CarbonOption(hub_id=hub_id, start_at=START, grams=cost_g, kwh=1.0, cost_g=cost_g)


class TestCarbonMemory:
    def test_a_plan_is_fresh_for_half_an_hour_by_both_clocks(self) -> None:
        memory = CarbonMemory()
        assert memory.fresh_plan(START, 0.0) is None
        memory.planned(made := plan(), 100.0)
        half = timedelta(seconds=PLAN_HOLDS_S)
        moment = timedelta(seconds=1)
        assert memory.fresh_plan(START + half, 100.0 + PLAN_HOLDS_S) is made
        assert memory.fresh_plan(START - half, 100.0) is made
        assert memory.fresh_plan(START + half + moment, 100.0) is None
        assert memory.fresh_plan(START - half - moment, 100.0) is None
        assert memory.fresh_plan(START, 101.0 + PLAN_HOLDS_S) is None

    def test_a_plan_knows_its_pools_and_the_time_of_its_steps(self) -> None:
        made = plan(step_s=600.0)
        assert made.pools == {("home", "h100"): OUTLOOK.pools[0]}
        assert made.moment(0) == START
        assert made.moment(3) == START + timedelta(minutes=30)

    def test_what_is_left_of_budgets_is_less_what_was_given_out_since_the_plan(self) -> None:
        memory = CarbonMemory()
        memory.reserve("t", 5.0)
        assert (memory.budgets("t").tenant_g_left, memory.budgets("t").all_g_left) == ({}, None)
        memory.planned(plan(tenant_g_left={"t": 100.0}, all_g_left=300.0), 0.0)
        assert memory.reserved == {}, "the plan has counted it"
        memory.reserve("t", 30.0)
        memory.reserve("t", 10.0)
        memory.reserve("other", 50.0)
        assert (memory.budgets("t").tenant_g_left, memory.budgets("t").all_g_left) == ({"t": 60.0}, 210.0)
        assert (memory.budgets("other").tenant_g_left, memory.budgets("other").all_g_left) == ({}, 210.0)
        memory.planned(plan(tenant_g_left={"t": 100.0}), 0.0)
        assert (memory.budgets("t").tenant_g_left, memory.budgets("t").all_g_left) == ({"t": 100.0}, None)

    def keeps(self, memory: CarbonMemory, work: Workload, *, offers: bool = False, now: datetime = START) -> bool:
        return memory.keeps_waiting(work, home="home", offers_elsewhere=offers, now=now, boot_s=50.0)

    def test_work_without_a_choice_or_of_another_hub_does_not_wait(self) -> None:
        memory = CarbonMemory()
        held = choice(held=True, start_at=minutes(60))
        assert not self.keeps(memory, workload())
        assert not self.keeps(memory, workload(carbon=held, borrowed=True))
        assert memory.held == set()

    def test_held_work_waits_until_its_hour_by_whichever_clock_is_first(self) -> None:
        for now_s, boot_s, due in (
            (59 * 60.0, 50.0 + 59 * 60.0, False),
            (60 * 60.0, 0.0, True),
            (0.0, 50.0 + 60 * 60.0, True),
        ):
            memory = CarbonMemory()
            assert self.keeps(memory, workload(carbon=choice(held=True, start_at=minutes(60))))
            assert memory.held == {"wl_1"}
            now_s += START.timestamp()
            assert memory.is_due(now_s, boot_s) is due
            assert memory.take_due(now_s, boot_s) == (["wl_1"] if due else [])
            assert memory.take_due(math.inf, math.inf) == ([] if due else ["wl_1"])

    def test_it_waits_for_the_earlier_of_its_planned_start_and_its_place_in_the_queue(self) -> None:
        for start, release, until in ((60, 30, 30), (30, 60, 30), (None, 45, 45), (45, None, 45)):
            memory = CarbonMemory()
            held = choice(
                held=True,
                start_at=None if start is None else minutes(start),
                release_at=None if release is None else minutes(release),
            )
            memory.hold(workload(carbon=held), held, now=START, boot_s=0.0)
            assert memory.take_due(minutes(until).timestamp() - 1, -math.inf) == []
            assert memory.take_due(minutes(until).timestamp(), -math.inf) == ["wl_1"]

    def test_a_clock_that_was_set_back_makes_no_wait_longer(self) -> None:
        memory = CarbonMemory()
        held = choice(held=True, start_at=minutes(60), decided_at=minutes(50))
        memory.hold(workload(carbon=held, at=minutes(40)), held, now=START, boot_s=0.0)
        assert memory.take_due(-math.inf, 599.0) == []
        assert memory.take_due(-math.inf, 600.0) == ["wl_1"], "it was to wait for ten minutes from its decision"
        memory.hold(workload(carbon=held, at=minutes(55)), held, now=START, boot_s=0.0)
        assert memory.take_due(-math.inf, 300.0) == ["wl_1"], "and has only been known for five"
        past = choice(held=True, start_at=minutes(-5))
        memory.hold(workload(carbon=past), past, now=START, boot_s=7.0)
        assert memory.take_due(-math.inf, 6.9) == []
        assert memory.take_due(-math.inf, 7.0) == ["wl_1"]

    def test_work_after_its_hour_has_come_is_held_no_longer(self) -> None:
        memory = CarbonMemory()
        late = workload(carbon=choice(held=True, start_at=START))
        assert not self.keeps(memory, late)
        assert late.carbon is not None
        assert not late.carbon.held
        assert memory.held == set()

    def there(self, **fields: object) -> CarbonChoice:
        return choice(
            action="start", hub_id="clean", at_once=option("home", 10.0), options=(option("clean", 5.0),), **fields
        )

    def test_cleaner_hubs_are_queried_for_five_seconds_before_home(self) -> None:
        memory = CarbonMemory()
        assert self.keeps(memory, workload(carbon=self.there()), offers=True)
        assert memory.routes == {"wl_1": Route(("clean",))}
        assert memory.take_due(math.inf, 50.0 + OFFER_THERE_S - 0.1) == []
        assert memory.take_due(-math.inf, 50.0 + OFFER_THERE_S) == ["wl_1"]

    def test_home_comes_first_where_nothing_is_offered_or_was_before(self) -> None:
        for offers, there in ((False, self.there()), (True, self.there(requested_there=True))):
            memory = CarbonMemory()
            assert not self.keeps(memory, workload(carbon=there), offers=offers)
            assert memory.routes == {}

    def test_a_promise_is_watched_until_its_moment_unless_the_work_has_started(self) -> None:
        memory = CarbonMemory()
        promised = choice(action="start", start_by=minutes(60))
        assert not self.keeps(memory, workload(carbon=promised))
        assert memory.watched == {"wl_1"}
        assert memory.take_due(minutes(60).timestamp() - 1, math.inf) == []
        assert memory.take_due(minutes(60).timestamp(), -math.inf) == ["wl_1"]
        for work, now in (
            (workload(carbon=promised, attempt=1), START),
            (workload(carbon=promised), minutes(60)),
            (workload(carbon=choice(action="start")), START),
        ):
            memory = CarbonMemory()
            assert not self.keeps(memory, work, now=now)
            assert memory.watched == set()

    def test_what_is_forgotten_is_never_due(self) -> None:
        memory = CarbonMemory()
        self.keeps(memory, workload(carbon=choice(held=True, start_at=minutes(60))))
        self.keeps(memory, workload("wl_2", carbon=self.there()), offers=True)
        self.keeps(memory, workload("wl_3", carbon=choice(action="start", start_by=minutes(60))))
        for one in ("wl_1", "wl_2", "wl_3"):
            memory.forget(one)
        assert (memory.held, memory.routes, memory.watched) == (set(), {}, set())
        assert memory.take_due(math.inf, math.inf) == []
        assert not memory.is_due(math.inf, math.inf), "and looked at once only"

    @given(
        st.lists(
            st.tuples(
                st.sampled_from("abcd"),
                st.sampled_from(["hold", "route", "watch", "forget", "take"]),
                st.integers(1, 60),
            ),
            max_size=15,
        )
    )
    def test_timers_ring_once_each_at_their_time_whatever_was_set_before(
        self, steps: list[tuple[str, str, int]]
    ) -> None:
        """Against a dictionary that is searched in full each time."""
        memory, naive = CarbonMemory(), dict[str, tuple[float, float]]()
        now_s, boot_s = START.timestamp(), 0.0
        for name, what, wait in steps:
            now = datetime.fromtimestamp(now_s, START.tzinfo)
            if what == "take":
                now_s, boot_s = now_s + 60 * wait, boot_s + 60 * wait
                due = {one: max(now_s - t, boot_s - b) for one, (t, b) in naive.items() if t <= now_s or b <= boot_s}
                assert memory.is_due(now_s, boot_s) or not due
                taken = memory.take_due(now_s, boot_s)
                assert sorted(taken) == sorted(due)
                for one in due:
                    del naive[one]
            elif what == "forget":
                memory.forget(name)
                naive.pop(name, None)
            elif what == "hold":
                until = now + timedelta(minutes=wait)
                held = choice(held=True, start_at=until, decided_at=now)
                memory.hold(workload(name, at=now, carbon=held), held, now=now, boot_s=boot_s)
                naive[name] = (until.timestamp(), boot_s + 60 * wait)
            else:
                moment = now + timedelta(minutes=wait)
                chosen = self.there() if what == "route" else choice(action="start", start_by=moment)
                memory.keeps_waiting(
                    workload(name, carbon=chosen), home="home", offers_elsewhere=True, now=now, boot_s=boot_s
                )
                naive[name] = (math.inf, boot_s + OFFER_THERE_S) if what == "route" else (moment.timestamp(), math.inf)
        assert sorted(memory.take_due(math.inf, math.inf)) == sorted(naive)

    def test_thousands_of_timers_that_were_set_anew_are_tidied_away_and_none_is_lost(self) -> None:
        memory = CarbonMemory()
        for number in range(2000):
            held = choice(held=True, start_at=minutes(60 + number % 7), decided_at=START)
            memory.hold(workload(f"wl_{number % 3}", carbon=held), held, now=START, boot_s=0.0)
        watched = choice(action="start", start_by=minutes(30))
        self.keeps(memory, workload("wl_watched", carbon=watched))
        self.keeps(memory, workload("wl_there", carbon=self.there()), offers=True)
        assert len(memory._by_time) + len(memory._by_boot) <= 1000 + 4 * 5
        assert memory.take_due(-math.inf, 50.0 + OFFER_THERE_S) == ["wl_there"]
        assert memory.take_due(minutes(30).timestamp(), -math.inf) == ["wl_watched"]
        assert memory.take_due(-math.inf, 1e6) == ["wl_2", "wl_0", "wl_1"], "in the order of what was set last"

    def test_the_longest_due_come_first(self) -> None:
        memory = CarbonMemory()
        for name, wait in (("a", 30), ("b", 10), ("c", 20)):
            held = choice(held=True, start_at=minutes(wait))
            memory.hold(workload(name, carbon=held), held, now=START, boot_s=0.0)
        assert memory.take_due(minutes(40).timestamp(), 0.0) == ["b", "c", "a"]

    def test_the_longest_due_come_first_by_whichever_clock(self) -> None:
        memory = CarbonMemory()
        watched = choice(action="start", start_by=minutes(30))
        self.keeps(memory, workload("by_time", carbon=watched))
        self.keeps(memory, workload("by_boot", carbon=self.there()), offers=True)
        assert memory.take_due(minutes(40).timestamp(), 60.0 + OFFER_THERE_S) == ["by_time", "by_boot"]

    def test_no_more_moves_than_the_limit_within_any_hour(self) -> None:
        memory = CarbonMemory()
        assert not memory.may_move(0.0, moves_per_hour=0)
        for at_s in (0.0, 100.0):
            assert memory.may_move(at_s, moves_per_hour=2)
            memory.moved(at_s)
        assert not memory.may_move(HOUR_S - 1, moves_per_hour=2)
        assert memory.may_move(HOUR_S, moves_per_hour=2)
        memory.moved(HOUR_S)
        assert not memory.may_move(HOUR_S + 99, moves_per_hour=2)


@pytest.mark.parametrize(
    ("fields", "hubs"),
    [
        ({"hub_id": "home"}, ()),
        ({"hub_id": ""}, ()),
        ({"hub_id": "a", "at_once": None}, ()),
        ({"hub_id": "a"}, ("a", "b")),
        ({"hub_id": "c"}, ("c", "a", "b")),
    ],
)
def test_hubs_that_are_cleaner_than_home_are_queried_best_first(
    fields: dict[str, object], hubs: tuple[str, ...]
) -> None:
    options = (option("a", 5.0), option("b", 9.0), option("home", 1.0), option("dear", 10.0), option("a", 6.0))
    chosen = choice(**{"at_once": option("home", 10.0), "options": options, **fields})
    assert cleaner_hubs(chosen, "home") == hubs
