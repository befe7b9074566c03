"""Where and when work starts for its power, rule by rule: promises, margins, choices, words, and new plans."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import ClassVar

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind, HubOption
from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.settings import AppliesTo, BudgetsEntry, PlanningEntry, PlanSettings
from harch.carbon.planning.work import FlexibleWork
from harch.federation.offers import (
    BidRequest,
    Bids,
    CapacityBid,
    Granted,
    OrderKind,
    OwnerOrder,
    Reports,
    WorkLease,
    WorkReport,
)
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_plan import ForecastBasis, HubPlan, Route
from harch.hub.jobs.carbon_routing import candidates, choices
from harch.hub.jobs.carbon_routing.candidates import (
    CPU,
    RUN_S_MIN,
    hubs_for,
    is_limited,
    is_movable,
    is_planned,
    release_at,
    running_work,
    scarce_for,
    size_of,
    start_by,
    waiting_work,
)
from harch.hub.jobs.carbon_routing.choices import GAIN_SHARE_MIN, over_limit, preview, settled
from harch.hub.jobs.carbon_routing.explanations import METHOD, describe, sentences
from harch.hub.jobs.events import EventContext
from harch.testing.clock import START
from harch.wire.carbon import CarbonChoice, CarbonOption
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import (
    CarbonPreferences,
    Gang,
    Resources,
    RestartPolicy,
    Resumes,
    SchedulingClass,
    WorkloadSpec,
)
from unit.hub.conftest import Bench
from unit.hub.lending_world import MOROCCO, SENEGAL, TERMS, LendingHub, data_object, tag_for
from unit.hub_carbon_routing.plans import plan, pools

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
SLACK = CarbonPreferences(slack_s=8 * 3600, duration_s=3600)
CLEAN_LATER = [600.0, 600.0, 600.0, 50.0]


def workload(*, gpus: int = 1, tasks: int = 1, choice: CarbonChoice | None = None, **fields: object) -> Workload:
    spec = WorkloadSpec(
        name="job",
        command=("true",),
        tasks=tasks,
        resources=Resources(gpus=gpus),
        **{"carbon": SLACK, **fields},  # type: ignore[arg-type]
    )
    return Workload(
        id="wl_1", tenant="t", owner_hub="dakhla", spec=spec, created_at=START, updated_at=START, carbon=choice
    )


def settings(applies_to: AppliesTo = AppliesTo.REQUESTED, **fields: object) -> PlanSettings:
    return PlanSettings(PlanningEntry(applies_to=applies_to, **fields))  # type: ignore[arg-type]


class TestWhoIsPlanned:
    @pytest.mark.parametrize(
        ("carbon", "requested", "everybody"),
        [
            (CarbonPreferences(), False, True),
            (CarbonPreferences(aware=True), True, True),
            (CarbonPreferences(aware=False), False, False),
            (CarbonPreferences(aware=False, g_max=5.0), False, False),
            (CarbonPreferences(g_max=5.0), True, True),
            (SLACK, True, True),
        ],
    )
    def test_what_it_says_and_what_the_operator_set_decide(
        self, carbon: CarbonPreferences, requested: bool, everybody: bool
    ) -> None:
        spec = workload(carbon=carbon).spec
        assert is_planned(spec, settings()) is requested
        assert is_planned(spec, settings(AppliesTo.ALL)) is everybody
        assert not is_planned(spec, settings(AppliesTo.NONE))

    def test_urgent_work_is_never_planned(self) -> None:
        for turn_class in (SchedulingClass.INFERENCE, SchedulingClass.INTERACTIVE):
            spec = workload(carbon=CarbonPreferences(aware=True), scheduling_class=turn_class).spec
            assert not is_planned(spec, settings(AppliesTo.ALL))

    def test_a_limit_of_its_own_of_its_tenant_or_of_all_binds(self) -> None:
        plain = workload(carbon=CarbonPreferences())
        assert not is_limited(plain, settings())
        assert is_limited(workload(carbon=CarbonPreferences(g_max=5.0)), settings())
        assert is_limited(workload(carbon=CarbonPreferences(g_per_kwh_max=5.0)), settings())
        assert is_limited(plain, PlanSettings(budgets=BudgetsEntry(tenants={"t": 1.0})))
        assert not is_limited(plain, PlanSettings(budgets=BudgetsEntry(tenants={"other": 1.0})))
        assert is_limited(plain, PlanSettings(budgets=BudgetsEntry(kg_per_month=1.0)))


class TestPromises:
    def test_work_without_slack_or_of_another_class_promises_nothing(self) -> None:
        assert start_by(workload(carbon=CarbonPreferences(aware=True))) is None
        urgent = workload()
        urgent.spec = replace(workload(carbon=CarbonPreferences()).spec, scheduling_class=SchedulingClass.INFERENCE)
        assert start_by(urgent) is None

    def test_the_earliest_of_its_limits_counts_and_never_before_it_came(self) -> None:
        assert start_by(workload()) == START + 8 * HOUR
        finish = CarbonPreferences(slack_s=8 * 3600, finish_by=START + 5 * HOUR, duration_s=3600)
        assert start_by(workload(carbon=finish)) == START + 4 * HOUR
        assert start_by(workload(gang=Gang(start_within_s=1800))) == START + 30 * MINUTE
        late = CarbonPreferences(finish_by=START + HOUR, duration_s=2 * 3600)
        assert start_by(workload(carbon=late)) == START
        assert start_by(workload(carbon=replace(late, finish_by=START + 5 * HOUR))) == START + 3 * HOUR

    def test_what_it_has_done_is_no_delay(self) -> None:
        ran = CarbonChoice(action="suspend", decided_at=START, hub_id="dakhla", ran_s=1800.0)
        assert start_by(workload(choice=ran)) == START + 8 * HOUR + 30 * MINUTE

    @pytest.mark.parametrize(
        ("gpus", "tasks", "slack_h", "scarce", "margin_h"),
        [
            (1, 1, 100, 0.0, 1.5),
            (7, 1, 100, 0.0, 1.5),
            (8, 1, 100, 0.0, 4.0),
            (5, 3, 100, 0.0, 4.0),
            (8, 2, 100, 0.0, 6.0),
            (1, 1, 4, 0.0, 1.0),
            (8, 1, 4, 0.5, 1.5),
            (8, 1, 100, 0.5, 11.0),
            (8, 1, 100, 1.0, 18.0),
            (0, 1, 0, 0.0, 0.0),
        ],
    )
    def test_it_joins_the_queue_a_margin_before_its_promise(
        self, gpus: int, tasks: int, slack_h: float, scarce: float, margin_h: float
    ) -> None:
        promise = START + slack_h * HOUR
        joins = release_at(workload(gpus=gpus, tasks=tasks), promise, scarce=scarce)
        assert promise - joins == margin_h * HOUR

    def test_a_promise_in_the_past_has_no_margin(self) -> None:
        assert release_at(workload(), START - HOUR) == START - HOUR


class TestSizes:
    POOLS: ClassVar = {pool.key: pool for pool in pools()}

    def size(self, bench: Bench, resources: Resources, tasks: int = 1, **more: Pool) -> tuple[str, float]:
        spec = WorkloadSpec(name="job", tasks=tasks, resources=resources)
        return size_of(bench.machine.state, spec, {**self.POOLS, **{pool.key: pool for pool in more.values()}})

    def test_work_without_gpus_is_counted_in_cores(self, bench: Bench) -> None:
        assert self.size(bench, Resources(cpus=3), 4) == (CPU, 12)

    def test_gpus_are_counted_over_all_tasks_and_shares_in_thousandths(self, bench: Bench) -> None:
        assert self.size(bench, Resources(gpus=4, gpu_model="a100-80gb"), 2) == ("a100-80gb", 8.0)
        assert self.size(bench, Resources(gpus=1, gpu_fraction=0.25), 2) == ("h100-80gb", 0.5)
        half = Resources(gpus=1, gpu_fraction=0.25, gpu_memory_gb=40, gpu_model="h100-80gb")
        assert self.size(bench, half) == ("h100-80gb", 0.5)

    def test_the_first_model_that_fits_here_then_one_elsewhere_then_what_it_named(self, bench: Bench) -> None:
        assert self.size(bench, Resources(gpus=1, gpu_models=("inference-card", "a100-80gb")))[0] == "a100-80gb"
        assert self.size(bench, Resources(gpus=1, gpu_model="inference-card"))[0] == "inference-card"
        assert self.size(bench, Resources(gpus=1, gpu_models=("unheard-of", "inference-card")))[0] == "inference-card"
        assert self.size(bench, Resources(gpus=1, gpu_model="unheard-of")) == ("unheard-of", 1.0)
        assert self.size(bench, Resources(gpus=1, gpu_memory_gb_min=79))[0] == "h100-80gb"
        assert self.size(bench, Resources(gpus=1, gpu_memory_gb_min=80))[0] == "h100-80gb"
        assert self.size(bench, Resources(gpus=1, gpu_memory_gb_min=81))[0] == "h100-80gb", "no model of home fits"

    def test_any_model_is_the_one_that_most_hubs_have_then_the_most_numerous(self, bench: Bench) -> None:
        assert self.size(bench, Resources(gpus=1))[0] == "h100-80gb"
        shared = {name: Pool(name, "a100-80gb", 1, 0.5) for name in ("x", "y")}
        assert self.size(bench, Resources(gpus=1), **shared)[0] == "a100-80gb"
        tie = Pool("x", "a100-80gb", 1, 0.5)
        assert self.size(bench, Resources(gpus=1), x=tie)[0] == "h100-80gb", "at home there are more of them"

    def test_gpus_are_scarce_by_their_share_of_those_in_reach(self, bench: Bench) -> None:
        state = bench.machine.state
        here = frozenset({"dakhla"})
        both = frozenset({"dakhla", "dakar", "unknown"})
        at_home, there = self.POOLS["dakhla", "h100-80gb"].gpus, self.POOLS["dakar", "h100-80gb"].gpus
        assert scarce_for(state, workload(gpus=1), self.POOLS, here) == 0.0
        assert scarce_for(state, workload(gpus=2), self.POOLS, here) == pytest.approx(2 / at_home / 0.25)
        assert scarce_for(state, workload(gpus=2), self.POOLS, both) == pytest.approx(2 / (at_home + there) / 0.25)
        assert scarce_for(state, workload(gpus=2), self.POOLS, frozenset({"unknown"})) == 1.0


class TestAllowedHubs:
    def hub(self) -> LendingHub:
        hub = LendingHub(MOROCCO)
        hub.meet_peer()
        return hub

    def peer(self, hub: LendingHub, status: str | None = None, **fields: object) -> None:
        known = hub.state.lending.peers[SENEGAL]
        assert known.summary is not None
        if status is not None:
            fields["summary"] = replace(known.summary, status=status)
        hub.handle(ev.PeersSeen((replace(known, **fields),)))

    def test_home_and_every_ready_hub_that_could_run_it(self) -> None:
        hub = self.hub()
        assert hubs_for(hub.state, workload()) == {MOROCCO, SENEGAL}
        elsewhere = workload()
        elsewhere.home_fits = False
        assert hubs_for(hub.state, elsewhere) == {SENEGAL}
        assert hubs_for(hub.state, workload(gpus=8, tasks=4)) == {MOROCCO}, "it is larger than the other hub"

    def test_hubs_that_are_away_silent_or_closed_are_not_among_them(self) -> None:
        for fields in ({"reachable": False}, {"summary": None}, {"status": "draining"}):
            hub = self.hub()
            self.peer(hub, **fields)  # type: ignore[arg-type]
            assert hubs_for(hub.state, workload()) == {MOROCCO}

    def test_work_that_stays_or_that_no_lease_covers_has_its_home_only(self) -> None:
        hub = self.hub()
        for fields in ({"stay_home": True}, {"secrets": ("TOKEN",)}, {"stop_grace_s": TERMS.batch_s / 2 + 1}):
            assert hubs_for(hub.state, workload(**fields)) == {MOROCCO}  # type: ignore[arg-type]
        assert hubs_for(hub.state, workload(stop_grace_s=TERMS.batch_s / 2)) == {MOROCCO, SENEGAL}
        hub.state.lending.enabled = False
        assert hubs_for(hub.state, workload()) == {MOROCCO}

    def test_the_tags_of_its_data_come_first(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA")))
        work = workload(data=("one",))
        work.data_ids = ("data_one",)
        assert hubs_for(hub.state, work) == {MOROCCO}

    def test_what_is_known_of_like_work_is_used_and_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(candidates, "KNOWN_MAX", 2)
        hub = self.hub()
        known: dict[object, frozenset[str]] = {}
        kinds: list[dict[str, object]] = [{}, {"stay_home": True}, {"gpus": 2}, {"stop_grace_s": 99.0}]
        for fields in [*kinds, *kinds]:
            work = workload(**fields)  # type: ignore[arg-type]
            assert hubs_for(hub.state, work, known) == hubs_for(hub.state, work)
            assert len(known) <= 2
        found = hubs_for(hub.state, workload(), known)
        self.peer(hub, reachable=False)
        assert hubs_for(hub.state, workload(), known) is found
        other = workload()
        other.home_fits = False
        assert hubs_for(hub.state, other, known) == frozenset()


class TestWork:
    POOLS: ClassVar = {pool.key: pool for pool in pools()}

    def waiting(self, bench: Bench, work: Workload, *, planned: bool = True) -> FlexibleWork:
        return waiting_work(bench.machine.state, EventContext(now=bench.now), work, self.POOLS, planned=planned)

    def test_work_that_waits_is_weighed_with_its_slack_and_its_limits(self, bench: Bench) -> None:
        carbon = CarbonPreferences(slack_s=8 * 3600, duration_s=7200, g_max=5.0, g_per_kwh_max=6.0, checkpoint_gb=7.0)
        found = self.waiting(bench, workload(gpus=2, tasks=2, carbon=carbon, stay_home=True))
        assert (found.id, found.tenant, found.home, found.hubs) == ("wl_1", "t", "dakhla", {"dakhla"})
        assert (found.model, found.gpus, found.hours_left) == ("h100-80gb", 4.0, 2.0)
        assert (found.g_max, found.g_per_kwh_max, found.checkpoint_gb) == (5.0, 6.0, 7.0)
        assert (found.running_at, found.movable) == (None, False)
        scarce = 4 / self.POOLS["dakhla", "h100-80gb"].gpus / 0.25
        margin_h = min(1.5 + scarce * 14.0, 0.25 * (1 + scarce) * 8)
        assert found.wait_h_max == pytest.approx(8 - margin_h)

    def test_work_that_is_only_limited_is_weighed_at_home_at_once(self, bench: Bench) -> None:
        found = self.waiting(bench, workload(), planned=False)
        assert (found.hubs, found.wait_h_max) == ({"dakhla"}, 0.0)

    def test_slack_that_has_passed_is_none(self, bench: Bench) -> None:
        bench.later(hours=7)
        assert self.waiting(bench, workload()).wait_h_max == 0.0
        assert self.waiting(bench, workload(carbon=CarbonPreferences(aware=True))).wait_h_max == 0.0

    def test_what_is_left_is_what_it_has_not_done_and_an_hour_where_it_does_not_say(self, bench: Bench) -> None:
        ran = CarbonChoice(action="", decided_at=START, hub_id="dakhla", ran_s=1800.0)
        assert self.waiting(bench, workload(choice=ran)).hours_left == 0.5
        over = replace(ran, ran_s=99999.0)
        assert self.waiting(bench, workload(choice=over)).hours_left == pytest.approx(1 / 3600)
        assert self.waiting(bench, workload(carbon=CarbonPreferences(slack_s=60.0))).hours_left == 1.0

    def running(self, bench: Bench, *, hours: float = 1.0, **fields: object) -> Workload:
        carbon = CarbonPreferences(slack_s=8 * 3600, duration_s=4 * 3600, resumes=Resumes.HERE)
        work = workload(**{"carbon": carbon, **fields})  # type: ignore[arg-type]
        work.state, work.started_at = State.RUNNING, bench.now - hours * HOUR
        return work

    def test_work_that_runs_is_weighed_where_it_is_with_what_is_left(self, bench: Bench) -> None:
        bench.later(hours=2)
        work = self.running(bench)
        found = running_work(bench.machine.state, EventContext(now=bench.now), work, self.POOLS)
        assert (found.running_at, found.hubs, found.movable, found.hours_left) == ("dakhla", {"dakhla"}, True, 3.0)
        # Its promise ends 8 h after it came, of which 2 have passed and 1 was spent running.
        assert found.wait_h_max == pytest.approx(8 - 1.5 - 2 + 1)

    def test_work_at_a_peer_is_weighed_there(self, bench: Bench) -> None:
        work = self.running(bench)
        work.leased, work.runner_hub = True, "dakar"
        found = running_work(bench.machine.state, EventContext(now=bench.now), work, self.POOLS)
        assert (found.running_at, found.hubs) == ("dakar", {"dakar"})

    def test_work_that_goes_on_anywhere_may_move_to_every_hub_that_could_run_it(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.meet_peer()
        bench = Bench()
        anywhere = CarbonPreferences(slack_s=8 * 3600, duration_s=4 * 3600, resumes=Resumes.ANYWHERE)
        for resumes, hubs in ((anywhere, {MOROCCO, SENEGAL}), (replace(anywhere, resumes=Resumes.HERE), {MOROCCO})):
            work = self.running(bench, carbon=resumes)
            assert running_work(hub.state, EventContext(now=bench.now), work, self.POOLS).hubs == hubs

    def test_work_that_may_not_move_has_neither_slack_nor_other_hubs(self, bench: Bench) -> None:
        work = self.running(bench, preemptible=False)
        found = running_work(bench.machine.state, EventContext(now=bench.now), work, self.POOLS)
        assert (found.movable, found.wait_h_max, found.hubs) == (False, 0.0, {"dakhla"})
        work.started_at = None
        found = running_work(bench.machine.state, EventContext(now=bench.now), work, self.POOLS)
        assert found.hours_left == 4.0

    def test_a_promise_that_has_passed_leaves_no_slack(self, bench: Bench) -> None:
        bench.later(hours=100)
        found = running_work(bench.machine.state, EventContext(now=bench.now), self.running(bench), self.POOLS)
        assert found.wait_h_max == 0.0

    def test_only_work_that_resumes_and_has_run_a_while_may_move(self, bench: Bench) -> None:
        context = EventContext(now=bench.now)
        resumes = CarbonPreferences(slack_s=3600, duration_s=4 * 3600, resumes=Resumes.HERE)
        good = self.running(bench)
        assert is_movable(context, good, RUN_S_MIN)
        assert not is_movable(context, good, RUN_S_MIN - 0.1)
        for fields in (
            {"carbon": replace(resumes, resumes=Resumes.NO)},
            {"carbon": replace(resumes, duration_s=None)},
            {"restart": RestartPolicy.NEVER},
            {"preemptible": False},
        ):
            assert not is_movable(context, self.running(bench, **fields), 9999.0)
        nobody = EventContext(now=bench.now, limits=ev.JobLimits(carbon=settings(AppliesTo.NONE)))
        assert not is_movable(nobody, good, 9999.0)
        for change in ({"state": State.PAUSED}, {"state": State.SCHEDULED}, {"stop_as": State.PENDING}):
            other = self.running(bench)
            for name, value in change.items():
                setattr(other, name, value)
            assert not is_movable(context, other, 9999.0)

    def test_what_moved_a_while_ago_may_move_again(self, bench: Bench) -> None:
        moved = CarbonChoice(action="", decided_at=START, hub_id="dakhla", moved_at=bench.now - 2 * HOUR)
        context = EventContext(now=bench.now)
        assert is_movable(context, self.running(bench, choice=moved), 9999.0)
        assert not is_movable(
            context, self.running(bench, choice=replace(moved, moved_at=bench.now - 2 * HOUR + MINUTE)), 9999.0
        )
        assert is_movable(context, self.running(bench, choice=replace(moved, moved_at=None)), 9999.0)


class Booked:
    """A book that notes what is entered."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, int, int]] = []

    def enter(self, _work: FlexibleWork, hub: str, start_step: int, *, sign: int = 1) -> None:
        self.entered.append((hub, start_step, sign))


class TestSettling:
    """A gain within the error of any forecast is not waited for."""

    HOME = HubOption("home", 0, 100.0, 100.0, 2.0)

    def work(self, **fields: object) -> FlexibleWork:
        facts: dict[str, object] = {"hubs": frozenset({"home", "there"}), "home": "home", **fields}
        return FlexibleWork(id="w", model="x", gpus=1, hours_left=1.0, **facts)  # type: ignore[arg-type]

    def decision(
        self, there: HubOption | None, verb: DecisionKind = DecisionKind.WAIT, home: HubOption | None = HOME
    ) -> CarbonDecision:
        hub, step = ("there", 1) if there is None else there[:2]
        return CarbonDecision("w", verb, hub, step, 5.0, there, home, () if there is None else (there,))

    def there(self, cost_g: float, step: int = 1) -> HubOption:
        return HubOption("there", step, cost_g, cost_g, 2.0)

    def stays(self, made: CarbonDecision, left_g: float = math.inf, **fields: object) -> bool:
        book = Booked()
        found = settled(made, self.work(**fields), book, left_g)  # type: ignore[arg-type]
        if found is made:
            assert book.entered == []
            return False
        assert made.chosen is not None
        assert book.entered == [(made.chosen.hub, made.chosen.start_step, -1), ("home", 0, 1)]
        assert (found.verb, found.hub, found.start_step) == (DecisionKind.START, "home", 0)
        assert (found.chosen, found.at_once, found.options) == (self.HOME, self.HOME, made.options)
        assert (found.work_id, found.starts_by_h) == ("w", 5.0)
        assert found.reason == "elsewhere or later would save less than the forecast error"
        return True

    def test_a_twentieth_is_worth_it_and_less_is_not(self) -> None:
        least = 100.0 - 100.0 * GAIN_SHARE_MIN
        assert not self.stays(self.decision(self.there(least)))
        assert self.stays(self.decision(self.there(least + 0.1)))
        assert self.stays(self.decision(self.there(least + 0.1, 0), DecisionKind.START))

    def test_other_decisions_and_those_for_home_at_once_stand(self) -> None:
        for verb in (DecisionKind.MOVE, DecisionKind.SUSPEND, DecisionKind.REFUSE):
            assert not self.stays(self.decision(self.there(99.0), verb))
        assert not self.stays(self.decision(None))
        assert not self.stays(self.decision(self.there(99.0), home=None))
        assert not self.stays(self.decision(self.HOME, DecisionKind.START))

    def test_home_must_be_allowed_and_within_every_limit(self) -> None:
        close = self.decision(self.there(99.0))
        assert not self.stays(close, hubs=frozenset({"there"}))
        assert self.stays(close, 100.0)
        assert not self.stays(close, 99.9)
        assert self.stays(close, g_max=100.0)
        assert not self.stays(close, g_max=99.9)
        assert self.stays(close, g_per_kwh_max=50.0)
        assert not self.stays(close, g_per_kwh_max=49.9)


class TestChoosing:
    def planned(self, bench: Bench, home: list[float] | float = 600.0, **fields: object) -> HubPlan:
        made = plan(bench.now, {"dakhla": home}, **fields)  # type: ignore[arg-type]
        bench.handle(ev.CarbonPlanned(made))
        return made

    def test_a_choice_says_what_was_weighed_and_on_what_it_rests(self, bench: Bench) -> None:
        made = self.planned(bench, CLEAN_LATER)
        choice = bench.submit(carbon=SLACK).carbon
        assert choice is not None
        assert (choice.action, choice.hub_id, choice.decided_at) == ("wait", "dakhla", bench.now)
        assert choice.chosen is not None
        assert choice.at_once is not None
        assert (choice.chosen.start_at, choice.at_once.start_at) == (made.moment(3), made.moment(0))
        assert (choice.chosen.rests_on, choice.chosen.data_at) == ("by hand", bench.now)
        assert choice.chosen.grams == round(choice.chosen.grams, 3)
        assert choice.chosen.kwh == round(choice.chosen.kwh, 6)
        assert choice.reserved_g == pytest.approx(choice.chosen.grams, abs=0.001)
        assert choice.at_once.grams == pytest.approx(12 * choice.chosen.grams, abs=0.1)
        assert [one.hub_id for one in choice.options] == ["dakhla"]
        assert (choice.refused, choice.requested_there, choice.held) == ("", False, True)

    def test_grams_are_reserved_only_where_there_are_budgets(self, bench: Bench) -> None:
        self.planned(bench, 600.0)
        bench.submit(carbon=SLACK)
        assert bench.machine.state.carbon.reserved == {}
        bench.plan_by(PlanSettings(budgets=BudgetsEntry(kg_per_month=99.0)))
        first = bench.submit(carbon=SLACK).carbon
        assert first is not None
        assert bench.machine.state.carbon.reserved == {"t": first.reserved_g}

    def test_without_any_plan_only_work_with_slack_waits_and_a_minute_at_most(self, bench: Bench) -> None:
        held = bench.submit(carbon=SLACK).carbon
        assert held is not None
        assert (held.held, held.action, held.reason) == (True, "wait", "waits for the first plan")
        assert held.start_at == held.release_at == bench.now + MINUTE
        soon = bench.submit(carbon=CarbonPreferences(slack_s=40.0, duration_s=60.0)).carbon
        assert soon is not None
        assert soon.start_at == bench.now + timedelta(seconds=30)
        at_once = bench.submit(carbon=CarbonPreferences(aware=True)).carbon
        assert at_once is not None
        assert (at_once.held, at_once.reason) == (False, "the hub has no plan: it starts without one")
        assert (at_once.start_at, at_once.start_by, at_once.hub_id) == (bench.now, None, "dakhla")
        limited = bench.submit(carbon=CarbonPreferences(g_max=9.0, aware=False)).carbon
        assert limited is not None
        assert limited.reason.endswith("; its limit of grams could not be judged")
        over = bench.submit(carbon=CarbonPreferences(finish_by=bench.now + HOUR, duration_s=3600)).carbon
        assert over is not None
        assert not over.held

    def test_a_plan_that_breaks_or_knows_no_number_starts_work(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.planned(bench, CLEAN_LATER)
        nan = HubOption("dakhla", 0, math.nan, math.nan, 1.0)

        def nonsense(work: FlexibleWork, *_: object) -> CarbonDecision:
            return CarbonDecision(work.id, DecisionKind.START, "dakhla", 0, 0.0, nan, nan)

        def broken(*_: object) -> CarbonDecision:
            raise LookupError

        for failing in (nonsense, broken):
            monkeypatch.setattr(choices, "decide", failing)
            choice = bench.submit(carbon=SLACK).carbon
            assert choice is not None
            assert (choice.held, choice.reason) == (False, "the plan could not evaluate it")
            assert choice.chosen is None

    def test_a_preview_takes_nothing_from_book_or_budgets(self, bench: Bench) -> None:
        bench.plan_by(PlanSettings(budgets=BudgetsEntry(kg_per_month=99.0)))
        made = self.planned(bench, CLEAN_LATER, all_g_left=99_000.0)
        spec = workload().spec
        load, free = made.book._load_kw.copy(), made.book._free.copy()
        choice = preview(bench.machine.state, bench.context, spec, tenant="t", data_ids=())
        assert choice is not None
        assert (choice.held, choice.start_at) == (True, bench.now + 3 * HOUR)
        assert bench.machine.state.carbon.reserved == {}
        assert made.book._load_kw == pytest.approx(load)
        assert made.book._free == pytest.approx(free)
        bench.plan_by(PlanSettings())
        plain = replace(spec, carbon=CarbonPreferences())
        assert preview(bench.machine.state, bench.context, plain, tenant="t", data_ids=()) is None

    def test_a_preview_without_a_plan_starts_at_once(self, bench: Bench) -> None:
        spec = workload(carbon=CarbonPreferences(aware=True)).spec
        choice = preview(bench.machine.state, bench.context, spec, tenant="t", data_ids=())
        assert choice is not None
        assert (choice.held, choice.action, choice.start_at) == (False, "start", bench.now)

    def test_a_refusal_says_what_would_help(self) -> None:
        ceiling = over_limit(workload(carbon=CarbonPreferences(g_max=5.0)), "above its ceiling")
        assert (ceiling.code, ceiling.field) == ("E0402", "carbon")
        assert ceiling.hint.startswith("raise `carbon.g_per_kwh_max`")
        assert over_limit(workload(carbon=CarbonPreferences(g_max=5.0)), "needs").hint.startswith(
            "raise `carbon.g_max`"
        )
        assert over_limit(workload(), "needs").hint.startswith("`harch carbon report --tenant t`")


class TestWords:
    NOW = START + timedelta(days=1)

    def option(self, hub_id: str, grams: float, at: datetime = START, **fields: object) -> CarbonOption:
        return CarbonOption(hub_id=hub_id, start_at=at, grams=grams, kwh=2.0, **fields)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"action": "start"}, "starts at dakhla"),
            ({"action": "wait"}, "waited for its hour at dakhla"),
            ({"action": "move"}, "moves to dakhla"),
            ({"action": "suspend"}, "goes on at dakhla"),
            (
                {"action": "start", "start_by": START},
                "starts at dakhla; starts by 2026-01-01 00:00:00 UTC at the latest",
            ),
            ({"action": "wait", "held": True}, "waited for its hour at dakhla"),
            (
                {"action": "wait", "held": True, "start_at": START},
                "held back for cleaner power at dakhla until 2026-01-01 00:00:00 UTC (planned)",
            ),
        ],
    )
    def test_a_choice_in_one_sentence(self, fields: dict[str, object], sentence: str) -> None:
        assert describe(CarbonChoice(decided_at=START, hub_id="dakhla", **fields)) == sentence  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("seconds", "age"),
        [
            (-5, "0 s"),
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7199, "120 min"),
            (7200, "2.0 h"),
            (86400, "24.0 h"),
        ],
    )
    def test_how_old_a_decision_is(self, seconds: float, age: str) -> None:
        choice = CarbonChoice(action="start", decided_at=self.NOW - timedelta(seconds=seconds), hub_id="dakhla")
        assert sentences(choice, self.NOW) == (f"starts at dakhla; decided {age} ago",)

    def test_every_option_that_was_weighed_is_a_line(self) -> None:
        chosen = self.option("there", 1000.0, rests_on="a grid", data_at=self.NOW - MINUTE)
        home = self.option("home", 3000.0)
        choice = CarbonChoice(
            action="start",
            decided_at=self.NOW,
            hub_id="there",
            reason="because",
            refused="a limit",
            chosen=chosen,
            at_once=home,
            options=(chosen, home, self.option("dear", 9000.0)),
            move_cost_g=50.0,
            moves=2,
            ran_s=1800.0,
        )
        at = "2026-01-01 00:00:00 UTC"
        assert sentences(choice, self.NOW) == (
            "starts at there; decided 0 s ago",
            "because",
            "by the newest plan no hub and hour meets its limits: a limit",
            f"chosen: there from {at}: 1,000 g, 2.00 kWh, 500 g/kWh",
            f"at home at once: home from {at}: 3,000 g, 2.00 kWh, 1500 g/kWh; so 1,950 g are saved, if forecasts hold",
            f"not home from {at}: 3,000 g, 2.00 kWh, 1500 g/kWh",
            f"not dear from {at}: 9,000 g, 2.00 kWh, 4500 g/kWh",
            "stopping and going on costs 50 g: work done twice, restart, transfer",
            "suspended or moved 2 times; ran 1,800 s before",
            f"method: {METHOD}",
            "based on: a grid, read 60 s ago",
        )

    def test_home_at_once_is_not_recorded_twice_and_unknown_data_is_stated_to_be_so(self) -> None:
        home = CarbonOption(hub_id="home", start_at=START, grams=5.0, kwh=0.0)
        choice = CarbonChoice(action="start", decided_at=self.NOW, hub_id="home", chosen=home, at_once=home)
        assert sentences(choice, self.NOW) == (
            "starts at home; decided 0 s ago",
            "chosen: home from 2026-01-01 00:00:00 UTC: 5 g, 0.00 kWh, no energy",
            f"method: {METHOD}",
            "based on: no known data",
        )
        later = replace(choice, at_once=replace(home, start_at=START + HOUR))
        assert sum(line.startswith("at home at once") for line in sentences(later, self.NOW)) == 1
        bare = replace(choice, chosen=None, options=(home,))
        assert sentences(bare, self.NOW)[1].startswith("not home from ")


class TestNewPlans:
    def held(self, bench: Bench, carbon: CarbonPreferences = SLACK, grid: list[float] | None = None) -> Workload:
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": grid or CLEAN_LATER})))
        job = bench.submit(carbon=carbon)
        assert job.id in bench.machine.state.carbon.held
        return job

    def decide(self, bench: Bench, job: Workload, verb: DecisionKind, step: int = 0, **fields: object) -> list[str]:
        """Hands the job this decision, with a new plan; the kinds of what is told of it."""
        made = plan(bench.now, {"dakhla": CLEAN_LATER})
        chosen, home = HubOption("dakhla", step, 10.0, 10.0, 5.0), HubOption("dakhla", 0, 3000.0, 3000.0, 5.0)
        facts: dict[str, object] = {"hub": "dakhla", "chosen": chosen, "at_once": home, **fields}
        one = CarbonDecision(job.id, verb, start_step=step, starts_by_h=5.0, **facts)  # type: ignore[arg-type]
        before = len(bench.records)
        bench.handle(
            ev.CarbonPlanned(
                HubPlan(at=made.at, book=made.book, decisions={job.id: one}, attempts={job.id: 1}, basis=made.basis)
            )
        )
        return [record.kind for record in bench.records[before:] if record.subject == job.id]

    def test_the_same_hub_at_about_the_same_time_is_not_written_again(self, bench: Bench) -> None:
        job = self.held(bench)
        before = job.carbon
        bench.later(minutes=29)
        assert self.decide(bench, job, DecisionKind.WAIT, 3) == []
        assert job.carbon is before
        bench.later(minutes=1)
        assert self.decide(bench, job, DecisionKind.WAIT, 3) == ["workload.replanned"]
        assert job.carbon is not None
        assert job.carbon.start_at == bench.now + 3 * HOUR

    def test_values_behind_an_unchanged_choice_are_renewed_after_an_hour_without_a_line(self, bench: Bench) -> None:
        job = self.held(bench)
        before = job.carbon
        assert before is not None
        bench.later(minutes=59)
        assert self.decide(bench, job, DecisionKind.WAIT, 2) == []
        assert job.carbon is before
        bench.later(minutes=1)
        assert self.decide(bench, job, DecisionKind.WAIT, 2) == []
        assert job.carbon is not None
        assert (job.carbon.decided_at, job.carbon.start_at) == (bench.now, before.start_at)

    def test_another_hub_is_news(self, bench: Bench) -> None:
        job = self.held(bench)
        assert self.decide(bench, job, DecisionKind.WAIT, 3, hub="dakar") == ["workload.replanned"]
        assert job.carbon is not None
        assert (job.carbon.hub_id, job.carbon.held) == ("dakar", True)

    def test_a_start_with_room_or_without_reason_to_wait_is_a_start(self, bench: Bench) -> None:
        for fields in ({}, {"room": False, "queues": True}):
            job = self.held(bench)
            assert self.decide(bench, job, DecisionKind.START, **fields) == ["workload.released"]
            assert job.carbon is not None
            assert (job.carbon.held, job.carbon.action) == (False, "start")
            assert job.id in bench.machine.state.scheduler.queue
            assert bench.records[-1].message.startswith("starts now: starts at dakhla")

    def test_without_room_it_keeps_its_place_until_its_promise_nears(self, bench: Bench) -> None:
        job = self.held(bench)
        assert job.carbon is not None
        joins = job.carbon.release_at
        assert self.decide(bench, job, DecisionKind.START, room=False) == ["workload.replanned"]
        assert (job.carbon.held, job.carbon.action, job.carbon.start_at) == (True, "wait", joins)
        assert job.id in bench.machine.state.carbon.held

    def test_a_refusal_is_kept_recorded_once_and_decides_at_the_promise(self, bench: Bench) -> None:
        job = self.held(bench)
        why = {"hub": None, "chosen": None, "at_once": None, "reason": "at best 600 g/kWh, above its ceiling"}
        assert self.decide(bench, job, DecisionKind.REFUSE, **why) == ["workload.replanned"]
        assert job.carbon is not None
        assert (job.carbon.refused, job.carbon.decided_at, job.carbon.held) == (why["reason"], bench.now, True)
        bench.later(minutes=1)
        assert self.decide(bench, job, DecisionKind.REFUSE, **why) == []
        assert self.decide(bench, job, DecisionKind.WAIT, 3) == ["workload.replanned"], "it can be kept after all"
        assert job.carbon.refused == ""

    def test_a_refusal_that_is_old_by_then_lets_the_work_start(self, bench: Bench) -> None:
        job = self.held(bench)
        self.decide(bench, job, DecisionKind.REFUSE, hub=None, chosen=None, at_once=None, reason="no")
        assert job.carbon is not None
        bench.now = job.carbon.release_at or bench.now
        bench.handle(ev.CarbonDue())
        assert job.state is State.PENDING
        assert job.id in bench.machine.state.scheduler.queue

    def test_why_it_was_released_is_stated(self, bench: Bench) -> None:
        job = self.held(bench)
        bench.later(hours=3)
        bench.handle(ev.CarbonDue())
        assert bench.records[-1].message == "its planned hour has come: wait at dakhla"
        assert job.id in bench.machine.state.scheduler.queue

    def test_work_near_its_promise_joins_the_queue_whatever_the_power(self, bench: Bench) -> None:
        job = self.held(bench)
        assert job.carbon is not None
        bench.now = job.carbon.release_at or bench.now
        bench.handle(ev.CarbonDue())
        assert bench.records[-1].message == "its promised start is near: it joins the queue, whatever the power"
        assert job.id in bench.machine.state.scheduler.queue

    def test_work_that_no_longer_waits_is_left_alone(self, bench: Bench) -> None:
        job = self.held(bench)
        bench.handle(ev.StopRequested(job.id, "enough"))
        assert self.decide(bench, job, DecisionKind.START) == []
        runs = bench.submit()
        bench.run(runs)
        bench.handle(ev.StopRequested(runs.id, "enough"))
        bench.later(hours=1)
        assert self.decide(bench, runs, DecisionKind.SUSPEND, 3) == []
        assert runs.stop_reason == "enough"

    def test_held_work_that_the_plan_does_not_name_is_weighed_by_it(self, bench: Bench) -> None:
        job = self.held(bench)
        bench.later(minutes=40)
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": CLEAN_LATER})))
        assert job.carbon is not None
        assert job.carbon.start_at == bench.now + 3 * HOUR
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakar": 20.0})))
        assert job.id not in bench.machine.state.carbon.held
        assert bench.records[-1].message.startswith("the plan could not evaluate it")


class TestInterruptions:
    RESUMES = CarbonPreferences(slack_s=12 * 3600, duration_s=6 * 3600, resumes=Resumes.HERE)

    def option(self, step: int, grams: float) -> HubOption:
        return HubOption("dakhla", step, grams, grams, 5.0)

    def interrupt(self, handle: object, job: Workload, now: datetime, verb: DecisionKind, attempt: int = 1) -> None:
        made = plan(now, {"dakhla": [600.0] * 3 + [10.0]})
        one = CarbonDecision(
            job.id, verb, "dakhla", 3, 9.0, self.option(3, 10.0), self.option(0, 3000.0), move_cost_g=50.0
        )
        handle(  # type: ignore[operator]
            ev.CarbonPlanned(
                HubPlan(at=now, book=made.book, decisions={job.id: one}, attempts={job.id: attempt}, basis=made.basis)
            )
        )

    @pytest.mark.parametrize(
        ("verb", "kind"), [(DecisionKind.SUSPEND, "workload.suspending"), (DecisionKind.MOVE, "workload.moving")]
    )
    def test_a_move_is_recorded_with_what_it_saves_and_costs_and_counted(
        self, bench: Bench, verb: DecisionKind, kind: str
    ) -> None:
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": 100.0})))
        job = bench.submit(carbon=self.RESUMES)
        bench.run(job)
        bench.later(minutes=30)
        self.interrupt(bench.handle, job, bench.now, verb)
        record = bench.records[-1]
        assert record.kind == kind
        assert record.message.endswith("; saves 2,940 g (estimated), 50 g for stopping")
        assert job.carbon is not None
        assert (job.carbon.moves, job.carbon.ran_s, job.carbon.moved_at) == (1, 1800.0, bench.now)
        assert list(bench.machine.state.carbon._moved_s) == [0.0]

    def test_what_ran_before_adds_up(self, bench: Bench) -> None:
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": 100.0})))
        job = bench.submit(carbon=self.RESUMES)
        bench.run(job)
        bench.later(hours=3)
        assert job.carbon is not None
        job.carbon = replace(job.carbon, ran_s=100.0, moves=4)
        self.interrupt(bench.handle, job, bench.now, DecisionKind.SUSPEND)
        assert (job.carbon.moves, job.carbon.ran_s) == (5, 100.0 + 3 * 3600)

    def test_work_that_has_not_started_is_not_interrupted(self, bench: Bench) -> None:
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": 100.0})))
        job = bench.submit(carbon=self.RESUMES)
        bench.place()
        self.interrupt(bench.handle, job, bench.now, DecisionKind.SUSPEND)
        assert job.stop_as is None

    def test_work_at_a_peer_is_called_back(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.meet_peer()
        for _ in range(4):
            hub.submit(8, stay_home=True)
        hub.submit(4, stay_home=True, tasks=2)
        hub.place()
        job = hub.submit(8, carbon=self.RESUMES)
        hub.handle(ev.CarbonPlanned(plan(hub.context().now, {"dakhla": 100.0})))
        hub.handle(ev.CarbonDue())
        assert hub.offer() is not None
        hub.receive(Granted(taken=(WorkLease(job.id, 1),)))
        hub.receive(
            Reports((WorkReport(lease=WorkLease(job.id, 1), state=State.RUNNING, started_at=hub.context().now),))
        )
        hub.later(3600.0)
        self.interrupt(hub.handle, job, hub.context().now, DecisionKind.SUSPEND)
        (order,) = hub.sent(OwnerOrder)
        assert order.kind is OrderKind.RETURN
        assert order.reason.endswith("50 g for stopping")
        assert job.stop_as is None


class TestOtherHubsFirst:
    """The plan prefers another hub: it is asked for a moment before home is."""

    def routed(self) -> tuple[LendingHub, Workload]:
        hub = LendingHub(MOROCCO)
        hub.meet_peer()
        made = plan(START, {"dakhla": 600.0, "dakar": 50.0})
        hub.handle(ev.CarbonPlanned(made))
        return hub, hub.submit(1, carbon=CarbonPreferences(aware=True, duration_s=3600))

    def test_it_is_offered_there_before_it_joins_the_queue_at_home(self) -> None:
        hub, job = self.routed()
        assert job.carbon is not None
        assert (job.carbon.hub_id, job.carbon.held) == (SENEGAL, False)
        assert job.id not in hub.state.scheduler.queue
        hub.later(0.1)
        hub.handle(ev.LendingDue())
        (request,) = hub.sent(BidRequest)
        hub.receive(Bids(number=request.number, bids=(CapacityBid(ref=0, bid_id="bid"),)))
        assert (job.leased, job.runner_hub) == (True, SENEGAL)
        assert job.carbon.requested_there
        assert hub.state.carbon.routes == {}

    def test_without_an_answer_it_joins_the_queue_at_home_after_five_seconds(self) -> None:
        hub, job = self.routed()
        hub.later(4.9)
        assert not hub.machine.is_carbon_due(hub.context().now, hub.boot_s)
        hub.later(0.1)
        hub.handle(ev.CarbonDue())
        assert job.id in hub.state.scheduler.queue
        assert job.carbon is not None
        assert job.carbon.requested_there
        assert hub.effects
        assert hub.state.carbon.routes == {}

    def test_a_promise_that_was_missed_is_reported_once(self, bench: Bench) -> None:
        for node in bench.hub.nodes:
            bench.handle(ev.HardwareChanged("cordoned", node.id, 1))
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": 600.0})))
        job = bench.submit(carbon=SLACK)
        assert bench.machine.state.carbon.watched == {job.id}
        bench.later(hours=8)
        bench.handle(ev.CarbonDue())
        assert bench.records[-1].kind == "workload.promise_missed"
        assert bench.machine.state.carbon.watched == set()
        assert bench.handle(ev.CarbonDue()) == []

    def test_a_hub_that_the_plan_does_not_prefer_is_not_queried(self) -> None:
        hub, job = self.routed()
        hub.state.carbon.routes[job.id] = Route(("elsewhere",))
        hub.later(0.1)
        hub.handle(ev.LendingDue())
        assert hub.sent(BidRequest) == []

    def test_what_was_recorded_of_it_is_a_route(self) -> None:
        hub, job = self.routed()
        assert job.state is State.PENDING
        kinds = [one.kind for one in hub.effects if hasattr(one, "kind")]
        assert kinds == ["workload.submitted", "workload.routed"]


class TestPreferences:
    def test_a_change_is_recorded_with_what_follows(self, bench: Bench) -> None:
        bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": CLEAN_LATER})))
        job = bench.submit()
        bench.handle(ev.CarbonPreferencesChanged(job.id, SLACK, {"a": "b"}))
        assert bench.records[-1].kind == "workload.changed"
        assert bench.records[-1].message.startswith(
            "carbon preferences replaced: held back for cleaner power at dakhla"
        )
        assert job.id not in bench.machine.state.scheduler.queue
        bench.handle(ev.CarbonPreferencesChanged(job.id, CarbonPreferences(), {"c": "d"}))
        assert bench.records[-1].message == "carbon preferences replaced"
        assert job.annotations == {"a": "b", "c": "d"}
        assert job.id in bench.machine.state.scheduler.queue
        assert bench.machine.state.carbon.held == set()

    def test_paused_and_lent_work_keeps_its_place(self) -> None:
        hub = LendingHub(SENEGAL)
        lent = hub.lend()
        hub.handle(ev.CarbonPreferencesChanged(lent.id, SLACK))
        assert (lent.spec.carbon, lent.leased, lent.state) == (SLACK, True, State.SCHEDULED)
        assert lent.id not in hub.state.scheduler.queue
        waits = hub.submit(8)
        hub.handle(ev.PauseRequested(waits.id))
        hub.handle(ev.CarbonPreferencesChanged(waits.id, SLACK))
        assert waits.id not in hub.state.scheduler.queue

    def test_ended_work_is_refused(self, bench: Bench) -> None:
        job = bench.submit()
        bench.run(job)
        bench.end(job, reason=ExitReason.EXITED)
        with pytest.raises(HarchError) as refused:
            bench.handle(ev.CarbonPreferencesChanged(job.id, SLACK))
        assert refused.value.code == "E0304"


def test_a_basis_is_that_of_the_hub_and_unknown_where_there_is_none(bench: Bench) -> None:
    made = plan(bench.now, {"dakhla": CLEAN_LATER})
    made.basis["dakhla"] = ForecastBasis("measured", bench.now - HOUR)  # type: ignore[index]
    bench.handle(ev.CarbonPlanned(made))
    choice = bench.submit(carbon=SLACK).carbon
    assert choice is not None
    assert choice.chosen is not None
    assert (choice.chosen.rests_on, choice.chosen.data_at) == ("measured", bench.now - HOUR)
    made.basis.clear()  # type: ignore[attr-defined]
    choice = bench.submit(carbon=SLACK).carbon
    assert choice is not None
    assert choice.chosen is not None
    assert (choice.chosen.rests_on, choice.chosen.data_at) == ("", None)
