"""The book of power and GPUs against a naive one: loops over hubs, steps and jobs, with nothing kept or vectorised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.carbon.planning.capacity import (
    BORROWED_LEAVE,
    BORROWED_LEAVE_MAX,
    BORROWED_PAY_SHARE,
    FLAT_SHARE,
    HOSTS_NEED_MOST,
    NO_ROOM_G_PER_GPU_HOUR,
    ROOM_WEIGHT,
    SCARCITY_WEIGHT,
    CapacityLedger,
)
from harch.carbon.planning.outlook import Aims, HubHours, Pool, PowerOutlook
from harch.carbon.planning.plan import Announced, booked
from harch.carbon.planning.program import ClassPlan
from harch.carbon.planning.work import ClassKey, FlexibleWork

STEPS = 6


def softplus(x: float) -> float:
    return x if x > 30 else math.log1p(math.exp(x))


@dataclass
class NaiveLedger:
    """As the docstrings of `capacity` say it, one number at a time."""

    outlook: PowerOutlook
    free: dict[tuple[str, str], list[float]]
    load_kw: dict[str, list[float]]
    scarcity: dict[str, list[float]] = field(default_factory=dict)
    room_price: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    expected: Mapping[ClassKey, float] = field(default_factory=dict)

    def hub(self, name: str) -> HubHours:
        return next(hub for hub in self.outlook.hubs if hub.hub == name)

    def pool(self, hub: str, model: str) -> Pool | None:
        return next((pool for pool in self.outlook.pools if pool.key == (hub, model)), None)

    def kw_per_gpu(self, pool: Pool) -> float:
        return pool.kw_per_gpu * self.hub(pool.hub).pue

    def grid_g(self, name: str, step: int) -> float:
        hub = self.hub(name)
        return float(hub.grid_g_per_kwh[step]) * (1 + hub.transmission_loss)

    def grid_cost(self, name: str, step: int) -> float:
        hub = self.hub(name)
        money = 0.0 if hub.price_per_mwh is None else float(hub.price_per_mwh[step]) / 1000
        return self.grid_g(name, step) + self.outlook.aims.g_per_money * money

    def heed(self, plan: ClassPlan) -> None:
        self.expected = plan.gpus_expected
        for hub, prices in plan.hub_g_per_kwh.items():
            self.scarcity[hub] = [
                SCARCITY_WEIGHT * min(max(float(price), 0.0), self.grid_cost(hub, step))
                for step, price in enumerate(prices)
            ]
        for (hub, model), prices in plan.pool_g_per_gpu_hour.items():
            pool = self.pool(hub, model)
            assert pool is not None
            self.room_price[pool.key] = [
                ROOM_WEIGHT * min(float(price), self.kw_per_gpu(pool) * self.grid_cost(hub, step))
                for step, price in enumerate(prices)
            ]
        for (key, hub), gpus in plan.quotas.items():
            if key.deferrable:
                continue
            pool = self.pool(hub, key.model)
            assert pool is not None
            for step in range(STEPS):
                to_come = plan.to_come.get(key, 1.0) * float(gpus[step])
                self.free[pool.key][step] -= to_come
                self.load_kw[hub][step] += to_come * self.kw_per_gpu(pool)

    def enter(self, work: FlexibleWork, hub: str, start: int, sign: int = 1) -> None:
        pool = self.pool(hub, work.model)
        assert pool is not None
        end = start + work.hours_left / self.outlook.step_h
        for step in range(start, STEPS):
            share = min(max(end - step, 0.0), 1.0)
            self.free[pool.key][step] -= sign * work.gpus * share
            self.load_kw[hub][step] += sign * work.gpus * share * self.kw_per_gpu(pool)

    def own_share(self, name: str, step: int, kw: float) -> float:
        """The mean of clip((forecast - load) / kw, 0, 1) over a logistic error of the forecast."""
        hub = self.hub(name)
        sd = 0.0 if hub.onsite_sd_kw is None else float(hub.onsite_sd_kw[step])
        scale = max(sd / 1.702, 1e-3 * kw)
        onsite = float(hub.onsite_kw[step])
        left = onsite - self.load_kw[name][step]
        covered = scale * (softplus(left / scale) - softplus((left - kw) / scale))
        return min(max(min(covered, 2 * onsite) / kw, 0.0), 1.0)

    def for_hosts(self, work: FlexibleWork, hub: str, step: int) -> float:
        hosts = [key for key in self.expected if key.model == work.model and hub in key.hubs and key.hubs < work.hubs]
        if not hosts:
            return 0.0

        def gpus(one: str) -> int:
            pool = self.pool(one, work.model)
            return 0 if pool is None else pool.gpus

        reach = {key: max(sum(gpus(one) for one in key.hubs), 1) for key in hosts}
        leaves = gpus(hub) * min(BORROWED_LEAVE / math.sqrt(min(reach.values())), BORROWED_LEAVE_MAX)
        expected = sum(self.expected[key] * gpus(hub) / reach[key] for key in hosts)
        if expected < HOSTS_NEED_MOST * gpus(hub):
            return leaves
        return leaves + max(expected - (gpus(hub) - self.free[hub, work.model][step]), 0.0)

    def hourly(
        self, work: FlexibleWork, hub: str, step: int, *, keeps: bool, hosts: bool
    ) -> tuple[float, float, float, float]:
        """Cost, grams, cost of the power, and the charge for want of room, per hour."""
        pool = self.pool(hub, work.model)
        assert pool is not None
        kw = work.gpus * self.kw_per_gpu(pool)
        own = self.own_share(hub, step, kw)
        grid_g = self.grid_g(hub, step)
        grams = kw * (own * self.hub(hub).onsite_g_per_kwh + (1 - own) * grid_g)
        power = grams + kw * (1 - own) * (self.grid_cost(hub, step) - grid_g)
        cost = power + kw * self.scarcity.get(hub, [0.0] * STEPS)[step]
        cost += work.gpus * self.room_price.get(pool.key, [0.0] * STEPS)[step]
        free = self.free[pool.key][step]
        if hosts and free < work.gpus + self.for_hosts(work, hub, step):
            cost += BORROWED_PAY_SHARE * kw * grid_g
        short = free < work.gpus - 1e-6 + (pool.gpus_kept if keeps else 0)
        return cost, grams, power, NO_ROOM_G_PER_GPU_HOUR * work.gpus if short else 0.0

    def window(self, work: FlexibleWork, hub: str, start: int, *, keeps: bool) -> tuple[float, float, float, float]:
        """Over the hours that it lasts; beyond the horizon the last step goes on."""
        lasts = work.hours_left / self.outlook.step_h
        hosts = any(
            self.for_hosts(work, one, step) > 0
            for one in work.hubs
            if self.pool(one, work.model) is not None
            for step in range(STEPS)
        )
        sums = [0.0, 0.0, 0.0, 0.0]
        step = start
        while lasts > 0:
            values = self.hourly(work, hub, min(step, STEPS - 1), keeps=keeps, hosts=hosts)
            for place, value in enumerate(values):
                sums[place] += min(lasts, 1.0) * value * self.outlook.step_h
            step, lasts = step + 1, lasts - 1
        return sums[0], sums[1], sums[2], sums[3]

    def swing(self, work: FlexibleWork) -> float:
        swings = []
        for name in work.hubs:
            pool = self.pool(name, work.model)
            if pool is None:
                continue
            hub = self.hub(name)
            costs = [self.grid_cost(name, step) for step in range(STEPS)]
            cleanest = min(costs)
            if max(hub.onsite_kw) > FLAT_SHARE * self.kw_per_gpu(pool) * pool.gpus:
                cleanest = min(cleanest, hub.onsite_g_per_kwh)
            swing = max(costs) - cleanest
            swings.append(swing if swing > FLAT_SHARE * max(costs) else 0.0)
        return max(swings)


HUBS = ("a", "b", "c")
SERIES = st.lists(st.sampled_from([0.0, 4.0, 10.0, 40.0]), min_size=STEPS, max_size=STEPS).map(np.array)
GRAMS = st.lists(st.sampled_from([0.0, 50.0, 400.0, 420.0]), min_size=STEPS, max_size=STEPS).map(np.array)


@st.composite
def outlooks(draw: st.DrawFn) -> PowerOutlook:
    hubs = tuple(
        HubHours(
            hub=name,
            grid_g_per_kwh=draw(GRAMS),
            onsite_kw=draw(SERIES),
            onsite_sd_kw=draw(st.none() | SERIES),
            onsite_g_per_kwh=draw(st.sampled_from([0.0, 20.0, 500.0])),
            pue=draw(st.sampled_from([1.0, 1.5])),
            transmission_loss=draw(st.sampled_from([0.0, 0.1])),
            price_per_mwh=draw(st.none() | SERIES),
        )
        for name in HUBS
    )
    pools = tuple(
        Pool(
            name, model, draw(st.sampled_from([4, 16, 64])), draw(st.sampled_from([0.5, 1.0])), draw(st.integers(0, 2))
        )
        for name in HUBS
        for model in ("x", "y")
        if name != "c" or model == "x"
    )
    aims = Aims(draw(st.sampled_from([0.0, 0.0, 3.0])))
    return PowerOutlook(hubs, pools, aims, draw(st.sampled_from([1.0, 0.5, 2.0])))


@st.composite
def class_plans(draw: st.DrawFn, outlook: PowerOutlook) -> ClassPlan:
    keys = [ClassKey(frozenset(hubs), "x", wait) for hubs in ("a", "ab", "c") for wait in (False, True)]
    some = draw(st.lists(st.sampled_from(keys), unique=True, max_size=3))
    return ClassPlan(
        quotas={(key, hub): draw(SERIES) / 8 for key in some for hub in sorted(key.hubs) if draw(st.booleans())},
        hub_g_per_kwh={hub: draw(GRAMS) - 50.0 for hub in HUBS},
        pool_g_per_gpu_hour={pool.key: draw(GRAMS) for pool in outlook.pools if draw(st.booleans())},
        to_come={key: 0.5 for key in some if draw(st.booleans())},
        gpus_expected={key: draw(st.sampled_from([0.0, 2.4, 4.0, 20.0])) for key in some},
    )


@st.composite
def jobs(draw: st.DrawFn) -> FlexibleWork:
    return FlexibleWork(
        id="job",
        hubs=draw(st.sampled_from([frozenset("a"), frozenset("ab"), frozenset("abc")])),
        model="x",
        gpus=draw(st.sampled_from([0.5, 1, 4, 12, 60])),
        hours_left=draw(st.sampled_from([0.25, 0.5, 1.0, 2.5, 3.0, 20.0])),
    )


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_windows_are_the_sums_of_a_naive_book_whatever_was_planned_and_entered(data: st.DataObject) -> None:
    outlook = data.draw(outlooks())
    busy = np.array([data.draw(SERIES) / 4 for _ in HUBS])
    free = {pool.key: np.full(STEPS, float(pool.gpus)) for pool in outlook.pools}
    book = CapacityLedger(outlook, busy, free)
    naive = NaiveLedger(
        outlook, {key: list(gpus) for key, gpus in free.items()}, dict(zip(HUBS, busy.tolist(), strict=True))
    )
    work = data.draw(jobs())
    if data.draw(st.booleans()):
        book.windows(work, starts=1)  # what it keeps for work like this must not outlive a plan
    if data.draw(st.booleans()):
        plan = data.draw(class_plans(outlook))
        book.heed(plan)
        naive.heed(plan)
    for _ in range(data.draw(st.integers(0, 3))):
        other, start = data.draw(jobs()), data.draw(st.integers(0, STEPS - 1))
        sign = data.draw(st.sampled_from([1, 1, -1]))
        book.enter(other, "a", start, sign=sign)
        naive.enter(other, "a", start, sign)
    starts, keeps = data.draw(st.integers(1, STEPS)), data.draw(st.booleans())
    windows = book.windows(work, starts=starts, keeps=keeps)
    assert windows is not None
    assert windows.hubs == tuple(sorted(work.hubs))
    assert windows.step_h == outlook.step_h
    assert windows.swing_g_per_kwh == pytest.approx(naive.swing(work))
    assert windows.cost_g.shape == (len(work.hubs), starts)
    for row, hub in enumerate(windows.hubs):
        pool = naive.pool(hub, work.model)
        assert pool is not None
        assert windows.kwh[row] == pytest.approx(work.gpus * naive.kw_per_gpu(pool) * work.hours_left)
        assert book.grid_g_per_kwh(hub) == pytest.approx(naive.grid_g(hub, 0))
        for start in range(starts):
            cost, grams, power, no_room = naive.window(work, hub, start, keeps=keeps)
            assert windows.grams[row, start] == pytest.approx(grams, abs=1e-6)
            assert windows.power_g[row, start] == pytest.approx(power, abs=1e-6)
            assert windows.no_room_g[row, start] == pytest.approx(no_room, abs=1e-6)
            assert windows.cost_g[row, start] == pytest.approx(cost, abs=1e-6)
            assert windows.room[row, start] == (no_room == 0)


def flat_hub(name: str, onsite_kw: float = 0.0, **more: object) -> HubHours:
    return HubHours(
        hub=name,
        grid_g_per_kwh=np.full(STEPS, 400.0),
        onsite_kw=np.full(STEPS, onsite_kw),
        **more,  # type: ignore[arg-type]
    )


def book_of(outlook: PowerOutlook, free: float | None = None) -> CapacityLedger:
    gpus = {pool.key: np.full(STEPS, float(pool.gpus) if free is None else free) for pool in outlook.pools}
    return CapacityLedger(outlook, np.zeros((len(outlook.hubs), STEPS)), gpus)


def work(hubs: str = "a", gpus: float = 4, hours: float = 1.0, model: str = "x") -> FlexibleWork:
    return FlexibleWork(id="job", hubs=frozenset(hubs), model=model, gpus=gpus, hours_left=hours)


class TestByHand:
    def test_own_power_is_free_of_grid_grams_as_far_as_it_goes(self) -> None:
        outlook = PowerOutlook((flat_hub("a", 3.0, onsite_g_per_kwh=40.0),), (Pool("a", "x", 8, 1.0),))
        windows = book_of(outlook).windows(work(), starts=1)
        assert windows is not None
        assert windows.grams[0, 0] == pytest.approx(3 * 40 + 1 * 400, rel=0.005)
        assert windows.kwh[0] == 4.0

    def test_room_is_there_for_exactly_as_many_gpus_as_are_free_and_not_kept(self) -> None:
        outlook = PowerOutlook((flat_hub("a"),), (Pool("a", "x", 8, 1.0, gpus_kept=2),))
        for gpus, keeps, room in ((6, True, True), (7, True, False), (8, False, True), (9, False, False)):
            windows = book_of(outlook).windows(work(gpus=gpus), starts=1, keeps=keeps)
            assert windows is not None
            assert bool(windows.room[0, 0]) is room
            assert windows.no_room_g[0, 0] == (0.0 if room else NO_ROOM_G_PER_GPU_HOUR * gpus)

    def test_a_hub_without_such_gpus_is_left_out_and_no_hub_at_all_is_none(self) -> None:
        outlook = PowerOutlook((flat_hub("a"), flat_hub("b")), (Pool("a", "x", 8, 1.0), Pool("b", "y", 8, 1.0)))
        windows = book_of(outlook).windows(work("ab"), starts=1)
        assert windows is not None
        assert windows.hubs == ("a",)
        assert book_of(outlook).windows(work("b"), starts=1) is None

    def test_what_is_entered_and_taken_out_again_leaves_nothing(self) -> None:
        outlook = PowerOutlook((flat_hub("a", 3.0),), (Pool("a", "x", 8, 1.0),))
        book = book_of(outlook)
        before = book.windows(work(), starts=STEPS)
        book.enter(work(gpus=8, hours=2.5), "a", 1)
        between = book.windows(work(), starts=STEPS)
        book.enter(work(gpus=8, hours=2.5), "a", 1, sign=-1)
        after = book.windows(work(), starts=STEPS)
        assert before is not None
        assert between is not None
        assert after is not None
        assert between.room.tolist() == [[True, False, False, True, True, True]]
        assert np.allclose(before.cost_g, after.cost_g)
        assert np.allclose(before.no_room_g, after.no_room_g)

    def test_a_plan_that_failed_or_has_no_prices_is_not_heeded(self) -> None:
        outlook = PowerOutlook((flat_hub("a"),), (Pool("a", "x", 8, 1.0),))
        key = ClassKey(frozenset("a"), "x", False)
        quotas = {(key, "a"): np.full(STEPS, 8.0)}
        prices = {"a": np.full(STEPS, 100.0)}
        for plan, heeded in (
            (ClassPlan(quotas=quotas, hub_g_per_kwh=prices), True),
            (ClassPlan(quotas=quotas, hub_g_per_kwh=prices, failure="no solver"), False),
            (ClassPlan(quotas=quotas), False),
        ):
            book = book_of(outlook)
            book.heed(plan)
            windows = book.windows(work(), starts=1)
            assert windows is not None
            assert bool(windows.room[0, 0]) is not heeded

    def test_urgent_work_that_is_to_come_is_kept_room_for_in_full_where_nothing_else_is_known(self) -> None:
        outlook = PowerOutlook((flat_hub("a"),), (Pool("a", "x", 8, 1.0),))
        key, prices = ClassKey(frozenset("a"), "x", False), {"a": np.zeros(STEPS)}
        quotas = {(key, "a"): np.full(STEPS, 4.0)}
        for to_come, gpus, room in (({}, 4, True), ({}, 5, False), ({key: 0.5}, 6, True), ({key: 0.5}, 7, False)):
            book = book_of(outlook)
            book.heed(ClassPlan(quotas=quotas, hub_g_per_kwh=prices, to_come=to_come))
            windows = book.windows(work(gpus=gpus), starts=1)
            assert windows is not None
            assert bool(windows.room[0, 0]) is room

    def test_a_pool_of_one_gpu_that_its_hosts_need_is_theirs(self) -> None:
        outlook = PowerOutlook((flat_hub("a"), flat_hub("b")), (Pool("a", "x", 1, 1.0), Pool("b", "x", 64, 1.0)))
        book = book_of(outlook)
        key = ClassKey(frozenset("a"), "x", True)
        book.heed(ClassPlan(hub_g_per_kwh={"a": np.zeros(STEPS)}, gpus_expected={key: 1.0}))
        windows = book.windows(work("ab", 0.5), starts=1)
        assert windows is not None
        assert windows.cost_g[0, 0] > windows.power_g[0, 0]

    @pytest.mark.parametrize(("onsite_kw", "swing"), [(0.8, 0.0), (0.81, 380.0)])
    def test_own_plants_count_once_they_are_more_than_a_tenth_of_the_pool(self, onsite_kw: float, swing: float) -> None:
        hub = flat_hub("a", onsite_kw, onsite_g_per_kwh=20.0)
        windows = book_of(PowerOutlook((hub,), (Pool("a", "x", 8, 1.0),))).windows(work(), starts=1)
        assert windows is not None
        assert windows.swing_g_per_kwh == swing

    @pytest.mark.parametrize(("cleanest", "swing"), [(360.0, 0.0), (359.0, 41.0)])
    def test_a_grid_that_changes_by_a_tenth_is_flat(self, cleanest: float, swing: float) -> None:
        grid = np.full(STEPS, 400.0)
        grid[3] = cleanest
        hub = HubHours(hub="a", grid_g_per_kwh=grid, onsite_kw=np.zeros(STEPS))
        windows = book_of(PowerOutlook((hub,), (Pool("a", "x", 8, 1.0),))).windows(work(), starts=1)
        assert windows is not None
        assert windows.swing_g_per_kwh == swing

    def dear(self, work_: FlexibleWork, expected: float, *, free: float) -> bool:
        """Whether GPUs at `a` are dear to it, where `expected` of 64 are used by work that may run at `a` only."""
        outlook = PowerOutlook((flat_hub("a"), flat_hub("b")), (Pool("a", "x", 64, 1.0), Pool("b", "x", 64, 1.0)))
        book = book_of(outlook, free)
        key = ClassKey(frozenset("a"), "x", True)
        book.heed(ClassPlan(hub_g_per_kwh={"a": np.zeros(STEPS)}, gpus_expected={key: expected}))
        windows = book.windows(work_, starts=1)
        assert windows is not None
        extra = float(windows.cost_g[0, 0] - windows.power_g[0, 0])
        assert extra in (0.0, pytest.approx(BORROWED_PAY_SHARE * work_.gpus * 400.0))
        return extra > 0

    @pytest.mark.parametrize(("free", "dear"), [(20.0, False), (19.9, True)])
    def test_work_that_may_go_elsewhere_pays_for_the_last_quarter_of_a_pool_that_others_need(
        self, free: float, dear: bool
    ) -> None:
        assert self.dear(work("ab", 4), 1.0, free=free) is dear

    def test_work_that_may_run_nowhere_else_pays_nothing(self) -> None:
        assert not self.dear(work("a", 4), 60.0, free=4.0)

    @pytest.mark.parametrize(("free", "dear"), [(57.0, True), (63.0, True)])
    def test_where_hosts_need_most_of_a_pool_all_that_they_are_expected_to_use_is_theirs(
        self, free: float, dear: bool
    ) -> None:
        assert self.dear(work("ab", 12), 60.0, free=free) is dear
        assert self.dear(work("ab", 12), 38.0, free=free) is not dear


def test_what_runs_and_what_is_announced_draws_power_and_gpus_for_as_long_as_it_lasts() -> None:
    hubs = (flat_hub("a", pue=1.5), flat_hub("b"))
    outlook = PowerOutlook(hubs, (Pool("a", "x", 8, 2.0), Pool("b", "x", 8, 1.0)), step_h=0.5)
    running = [
        FlexibleWork(id="r1", hubs=frozenset("a"), model="x", gpus=2, hours_left=1.25, running_at="a"),
        FlexibleWork(id="r2", hubs=frozenset("a"), model="x", gpus=1, hours_left=9.0, running_at="a"),
        FlexibleWork(id="r3", hubs=frozenset("a"), model="x", gpus=5, hours_left=9.0),
    ]
    announced = [
        Announced("b", "x", 3, 1, 0.75),
        Announced("b", "x", 1, 0, 0.5),
        Announced("b", "x", 7, STEPS, 1.0),
        Announced("b", "x", 7, -1, 1.0),
    ]
    busy_kw, free = booked(outlook, running, announced)
    held_a = [3.0, 3.0, 2.0, 1.0, 1.0, 1.0]
    held_b = [1.0, 3.0, 1.5, 0.0, 0.0, 0.0]
    assert busy_kw.tolist() == [[gpus * 2.0 * 1.5 for gpus in held_a], held_b]
    assert free["a", "x"].tolist() == [8 - gpus for gpus in held_a]
    assert free["b", "x"].tolist() == [8 - gpus for gpus in held_b]
