"""Tricks to learn of single series from what may be told abroad. Each is one that works where nobody remembers."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from owner_world import Owner, gpu, rule, steady, values

from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import Requester
from harch.sentinel.model.histograms import BucketSpan, NativeHistogram
from harch.sentinel.model.labels import Labels
from harch.testing.federated_telemetry import MARKS, Points, attack, victim

K = 5


def fleet(count: int = 20, **odd: str) -> dict[Labels, Points]:
    """GPUs of one model; the last one has other labels."""
    series = {gpu(number, model="a100", zone="north"): steady(100.0 * number) for number in range(count - 1)}
    series[gpu(count - 1, **{"model": "a100", "zone": "north", **odd})] = steady(4242.0)
    return series


def test_a_small_group_is_left_out_and_counted() -> None:
    told = Owner(fleet(zone="south")).ask("sum by (zone) (load)")
    assert values(told) == {}
    assert told.suppressed == 2, "of the large group, too: the total less it would be the small one"


def test_the_total_may_be_told_and_later_questions_do_not_lose_it() -> None:
    owner = Owner(fleet(zone="south"))
    owner.ask("sum by (zone) (load)")
    assert list(values(owner.ask("count(load)")).values()) == [[20.0]]


@pytest.mark.parametrize("first", ["sum(load)", 'sum(load{zone="north"})'])
def test_all_and_all_but_one_are_not_both_told(first: str) -> None:
    owner = Owner(fleet(zone="south"))
    owner.ask(first)
    assert values(owner.ask('sum(load{zone!="south"})')) == {}
    assert values(owner.ask('sum(load{zone=~"n.*"})')) == {}


def test_three_groupings_that_isolate_one_by_addition_and_subtraction_are_not_all_told() -> None:
    """a+b, b+c and a+c are each large; together they tell a, b and c."""
    series = {}
    for zone, count in (("a", 4), ("b", 4), ("c", 4)):
        for number in range(count):
            series[gpu(len(series), zone=zone, model="m")] = steady(100.0 * number)
    owner = Owner(series)
    told = [bool(values(owner.ask(f'sum(load{{zone=~"{pair}"}})'))) for pair in ("a|b", "b|c", "a|c")]
    assert sum(told) == 0, "what is left of the total is small each time"
    assert values(owner.ask("sum(load)")), "all of them are told together"


def test_crossing_groups_are_told_only_as_long_as_every_crossing_is_large() -> None:
    series = {}
    for model, zone, count in (("x", "n", 6), ("x", "s", 6), ("y", "n", 6), ("y", "s", 2)):
        for _ in range(count):
            series[gpu(len(series), model=model, zone=zone)] = steady(10.0 * len(series))
    owner = Owner(series)
    assert set(values(owner.ask("sum by (model) (load)"))) == {"x", "y"}
    assert values(owner.ask("sum by (zone) (load)")) == {}, "y in the south are two"
    assert values(owner.ask('sum(load{model="x", zone="n"})')), "x has six on both sides"


def test_a_series_that_comes_hides_the_sum_until_others_have_changed_as_well() -> None:
    series = {**fleet(19), gpu(99, model="a100", zone="north"): steady(5000.0, begin_s=3600)}
    told = Owner(series).ask("sum(load)", at_min=40, until_min=100)
    (one,) = told.series
    hidden = sorted(set(range(61)) - set(one.at))
    assert hidden[0] in (20, 21), "it comes after an hour"
    assert 15 <= len(hidden) <= 30
    assert told.suppressed == 1


def test_a_series_that_goes_hides_the_sum_for_as_long() -> None:
    series = {**fleet(19), gpu(99, model="a100", zone="north"): steady(5000.0, end_s=3600)}
    (one,) = Owner(series).ask("count(load)", at_min=40, until_min=110).series
    before = [value for at, value in zip(one.at, one.values, strict=True) if at <= 20]
    after = [(at, value) for at, value in zip(one.at, one.values, strict=True) if value == 19.0]
    assert set(before) == {20.0}
    assert after[0][0] >= 35


def test_the_later_time_asked_first_does_not_open_a_way_around() -> None:
    series = {**fleet(19), gpu(99, model="a100", zone="north"): steady(5000.0, begin_s=3600)}
    owner = Owner(series)
    assert values(owner.ask("sum(load)", at_min=66))
    assert values(owner.ask("sum(load)", at_min=59)) == {}
    assert values(owner.ask("sum(load)", at_min=30)), "long before, nothing was told with it"


def test_a_range_over_the_birth_of_a_series_is_not_told() -> None:
    series = {**fleet(19), gpu(99, model="a100", zone="north"): steady(5000.0, begin_s=3600)}
    owner = Owner(series)
    assert values(owner.ask("sum(avg_over_time(load[10m]))", at_min=65)) == {}
    assert values(owner.ask("sum(avg_over_time(load[10m]))", at_min=90))


def test_series_that_are_scraped_rarely_would_change_one_at_a_time() -> None:
    slow = {gpu(number, model="m"): steady(1.0 * number, every_s=300, offset_s=number * 13) for number in range(20)}
    told = Owner(slow).ask("sum(load)", at_min=60, until_min=70)
    assert values(told) == {}
    assert told.suppressed == 1


@pytest.mark.parametrize("at_min", [120.0, 119.9999, 125.0])
def test_what_is_not_over_yet_is_not_told(at_min: float) -> None:
    """Asked every second, it would show each sample as it comes in."""
    told = Owner(fleet()).ask("sum(load)", at_min=at_min)
    assert told.refused is not None or not told.series


def test_steps_that_are_not_over_are_named_as_such_and_not_as_small_groups() -> None:
    told = Owner(fleet()).ask("sum(load)", at_min=115, until_min=120)
    assert [len(one.at) for one in told.series] == [5]
    assert told.suppressed == 0
    assert any("recent" in text for text in told.warnings)


@pytest.mark.parametrize(
    ("expression", "broken"),
    [
        ("load", "aggregate"),
        ("topk(3, load)", "aggregate"),
        ("bottomk(3, load)", "aggregate"),
        ("limitk(3, load)", "aggregate"),
        ("limit_ratio(0.1, load)", "aggregate"),
        ("quantile(0.5, load)", "aggregate"),
        ("min(load)", "aggregate"),
        ("max by (zone) (load)", "aggregate"),
        ('count_values("v", load)', "aggregate"),
        ("absent(load)", "aggregate"),
        ("sum(load) - sum(load)", "aggregate"),
        ("sum(load) > 5", "aggregate"),
        ("info(load)", "aggregate"),
        ("sum without (zone) (load)", "grouping"),
        ("sum by (device) (load)", "labels"),
        ("sum by (__name__) (load)", "labels"),
        ('sum(load{device="gpu-1"})', "labels"),
        ('sum(load{device=~"gpu-1.*"})', "labels"),
        ('sum(load{device!="gpu-1"})', "labels"),
        ('sum({__name__=~"load"})', "metric"),
        ('sum({zone="north"})', "metric"),
        ("sum(load > 500)", "function"),
        ("sum(load == 4242)", "function"),
        ("sum(load > bool 500)", "function"),
        ("sum(load and on () load{zone='north'})", "function"),
        ("sum(load or load)", "function"),
        ("sum(load unless load{zone='south'})", "function"),
        ("sum(load * 1e308)", "function"),  # overflows for the largest alone
        ("sum(load + 1e16)", "function"),  # rounds: a threshold
        ("sum(load ^ 7)", "function"),  # power sums give every value
        ("sum(exp(load))", "function"),
        ("sum(clamp_max(load, 5))", "function"),
        ("sum(topk(1, load))", "function"),
        ("sum(max(load))", "function"),
        ("sum(timestamp(load))", "function"),
        ("sum(irate(load[5m]))", "function"),
        ("sum(max_over_time(load[5m]))", "function"),
        ("sum(quantile_over_time(1, load[5m]))", "function"),
        ("sum(last_over_time(load[1m]))", "function"),
        ("sum(avg_over_time(load[5m:1m]))", "function"),
        ('sum(label_replace(load, "job", "$1", "device", "(.*)"))', "function"),
        ("sum(load @ 100)", "time"),
        ("sum(load @ end())", "time"),
        ("sum(load offset 7s)", "time"),
        ("sum(rate(load[61s]))", "time"),
        ("sum(rate(load[1m] smoothed))", "function"),
        ("sum(", "syntax"),
    ],
)
def test_what_chooses_lists_or_bends_single_values_is_refused(expression: str, broken: str) -> None:
    assert rule(Owner(fleet()).ask(expression)) == broken


@pytest.mark.parametrize(("at_min", "step_s"), [(60.5, 60), (60, 90), (60, 1)])
def test_a_fine_grid_is_refused(at_min: float, step_s: float) -> None:
    assert rule(Owner(fleet()).ask("sum(load)", at_min=at_min, until_min=70, step_s=step_s)) == "time"


def test_buckets_and_statuses_of_one_machine_are_one_source() -> None:
    series = {gpu(1, "wait_bucket", le=str(bound)): steady(float(bound)) for bound in range(20)}
    series |= {gpu(1, "answers", status=str(status)): steady(float(status)) for status in range(200, 220)}
    owner = Owner(series)
    assert values(owner.ask("sum(wait_bucket)")) == {}
    assert values(owner.ask("sum(answers)")) == {}


def test_a_machine_with_a_bucket_of_its_own_is_not_found_by_leaving_the_bucket_out() -> None:
    series = {}
    for number in range(12):
        for bound in ("1", "2") if number else ("2", "3"):
            series[gpu(number, "wait_bucket", le=bound)] = steady(10.0 * number)
    owner = Owner(series)
    assert values(owner.ask("sum(wait_bucket)"))
    assert values(owner.ask('sum(wait_bucket{le=~"1|2"})')) == {}


def test_a_metric_of_floats_and_histograms_is_not_told() -> None:
    """`stddev` passes over histograms: of two floats among them it would tell the distance."""
    one = NativeHistogram(3.0, 5.0, 0, 0.0, 0.0, (BucketSpan(0, 1),), (3.0,))
    series = {gpu(number): [(time_ms, one) for time_ms, _ in steady(0.0)] for number in range(8)}
    series |= {gpu(number): steady(7.0 * number) for number in (20, 21)}
    assert rule(Owner(series).ask("stddev(load)")) == "type"


def test_count_and_buckets_of_a_histogram_share_what_was_told() -> None:
    series = {}
    for number in range(12):
        zone = "south" if number < 6 else "north"
        series[gpu(number, "wait_bucket", le="+Inf", zone=zone, model="x" if number % 6 < 5 else "y")] = steady(1.0)
        series[gpu(number, "wait_count", zone=zone, model="x" if number % 6 < 5 else "y")] = steady(1.0)
    owner = Owner(series)
    assert set(values(owner.ask('sum by (zone) (wait_bucket{le="+Inf"})'))) == {"north", "south"}
    assert values(owner.ask('sum(wait_count{zone="north",model="x"})')) == {}, "one of the north would be left"


def test_who_asks_does_not_matter_abroad_and_a_restart_forgets_nothing() -> None:
    series = fleet(zone="south")
    owner = Owner(series, policy=TelemetryPolicy())
    assert values(owner.ask("sum(load)"))
    kept = owner.memory.take_records()
    again = Memory()
    again.replay(kept)
    after = Owner(series, memory=again)
    abidjan = Requester(hub_id="abidjan", country="CI")
    assert values(after.ask('sum(load{zone="north"})', who=abidjan)) == {}


def test_a_full_memory_tells_nothing_new() -> None:
    owner = Owner(fleet(), memory=Memory(pages_max=8))
    assert values(owner.ask("sum(load)", at_min=30))
    assert values(owner.ask("sum(load)", at_min=100)) == {}
    assert rule(Owner(fleet(), memory=Memory(names_max=3)).ask("sum(load)")) == "memory"


def test_an_operator_can_take_away_what_may_be_asked() -> None:
    owner = Owner(
        fleet(),
        policy=TelemetryPolicy(cross_border_aggregations=frozenset({"sum"}), cross_border_functions=frozenset()),
    )
    assert values(owner.ask("sum(load)"))
    assert rule(owner.ask("stddev(load)")) == "aggregate"
    assert rule(owner.ask("sum(rate(load[5m]))")) == "function"


def test_a_question_that_takes_too_long_to_judge_is_refused() -> None:
    assert rule(Owner(fleet()).ask("sum(avg_over_time(load[1d]))", at_min=60, until_min=1400)) == "size"


def test_errors_of_a_query_show_no_labels_abroad() -> None:
    told = Owner(fleet()).ask("sum(rate(load[5m]))")
    assert told.refused is None
    assert told.warnings == (), "they may name series"


@pytest.mark.parametrize("seed", range(8 if os.environ.get("HARCH_SOAK") else 1))
def test_an_attacker_who_solves_equations_learns_of_no_fewer_than_k(seed: int) -> None:
    gpus = victim(random.Random(seed))
    owner = Owner(store=gpus.store)
    learned = attack(random.Random(seed), gpus.marks, lambda text: owner.ask(text).series, 200)
    matrix, count = learned.matrix, len(gpus.marks)
    assert len(matrix) > 50, "the attacker is told a lot"
    assert np.allclose(matrix @ gpus.values, learned.sums), "and knows who is in which sum"
    assert learned.fewest() >= K
    rank = np.linalg.matrix_rank(matrix)
    chance = np.random.default_rng(seed)
    for size in (1, 2, 3, 4):
        for _ in range(20 if size > 1 else count):
            few = np.zeros(count)
            few[chance.choice(count, size, replace=False)] = chance.uniform(0.5, 2, size)
            assert np.linalg.matrix_rank(np.vstack([matrix, few])) == rank + 1, "no combination gives these few"


def test_the_same_attacker_wins_where_groups_are_large_but_nobody_remembers() -> None:
    """So the test above can fail: each answer alone is harmless, and together they isolate single GPUs."""
    gpus = victim(random.Random(1))
    learned = attack(random.Random(1), gpus.marks, lambda text: Owner(store=gpus.store).ask(text).series, 100)
    assert all(members.sum() >= K for members in learned.members)
    assert learned.fewest() == 1


@pytest.mark.parametrize("seed", range(8 if os.environ.get("HARCH_SOAK") else 2))
def test_no_two_sums_of_nearly_the_same_time_differ_by_fewer_than_k_while_gpus_come_and_go(seed: int) -> None:
    chance = random.Random(seed)
    series, lives = {}, []
    for number in range(40):
        begin_s = chance.randrange(0, 6000) if chance.random() < 0.3 else 0
        end_s = chance.randrange(begin_s, 7200) if chance.random() < 0.3 else 7200
        mark = {name: chance.choice(MARKS[name]) for name in ("model", "zone")}
        points = steady(chance.uniform(0, 1000), begin_s, end_s)
        lives.append((mark, [time_ms / 1000 for time_ms, _ in points]))
        series[gpu(number, **mark)] = points
    owner = Owner(series)
    told: list[tuple[int, int, frozenset[int]]] = []
    for _ in range(150):
        at_s, window_s = 60 * chance.randrange(20, 115), 60 * chance.choice((1, 5, 10))
        zone = chance.choice(("n", "s", "n|s"))
        inner = f'load{{zone=~"{zone}"}}'
        inner = inner if window_s == 60 else f"avg_over_time({inner}[{window_s}s])"
        for one in owner.ask(f"sum by (model) ({inner})", at_min=at_s / 60).series:
            model = dict(one.labels)["model"]
            inside = frozenset(
                number
                for number, (mark, times) in enumerate(lives)
                if mark["model"] == model and mark["zone"] in zone
                if any(at_s - window_s < time_s <= at_s for time_s in times)
            )
            told.append((at_s, window_s, inside))
    assert len(told) > 20
    for at_s, window_s, one_set in told:
        for other_s, other_window_s, other_set in told:
            if at_s - window_s - 900 <= other_s and other_s - other_window_s - 900 <= at_s:
                assert len(one_set ^ other_set) == 0 or len(one_set ^ other_set) >= K


def told_over_time(chance: random.Random, questions: int, *, remembers: bool) -> np.ndarray:
    """`[told, GPU, minute]`: one sample a minute, so every told value is a known linear function of the samples."""
    count, minutes = 24, range(60, 90)
    lives, marks, series = [], [], {}
    for number in range(count):
        born, died = (chance.choice((60, 71)), 90) if number % 6 == 0 else (60, chance.choice((78, 90, 90)))
        mark = {"zone": chance.choice("ns"), "model": chance.choice("ab")}
        lives.append((born, died))
        marks.append(mark)
        offset_s = chance.randrange(1, 60)
        series[gpu(number, **mark)] = [
            (60_000 * (minute - 1) + 1000 * offset_s, chance.uniform(0, 100)) for minute in range(born, died)
        ]
    policy = TelemetryPolicy(settling_s=300)
    owner = Owner(series, policy=policy)
    rows = []
    for _ in range(questions):
        at, window = chance.choice(minutes), chance.choice((1, 2, 3))
        zone = chance.choice(("n", "s", "n|s"))
        inner = f'load{{zone=~"{zone}"}}'
        if window > 1:
            inner = f"{chance.choice(('avg_over_time', 'sum_over_time'))}({inner}[{window}m])"
        asked = owner if remembers else Owner(series, policy=policy)
        for one in asked.ask(f"sum by ({chance.choice(('', 'model', 'zone'))}) ({inner})", at_min=at).series:
            group, row = dict(one.labels), np.zeros((count, len(minutes)))
            for number, (born, died) in enumerate(lives):
                fits = marks[number]["zone"] in zone and group.items() <= marks[number].items()
                for minute in range(max(at - window + 1, 60), at + 1):
                    if fits and born <= minute < died:
                        row[number, minute - 60] = 1 / window if "avg" in inner else 1
            rows.append(row)
    return np.unique(np.array(rows).reshape(len(rows), -1), axis=0).reshape(-1, count, len(minutes))


def gives_away(matrix: np.ndarray, few: list[int]) -> bool:
    """Whether some combination of told values cancels all other GPUs and leaves something of these few."""
    products = np.einsum("aim,bim->iab", matrix, matrix)
    sizes, turned = np.linalg.eigh(products.sum(axis=0) - products[few].sum(axis=0))
    cancelling = turned[:, sizes < 1e-9]
    left: float = np.abs(cancelling.T @ products[few].sum(axis=0) @ cancelling).max(initial=0)
    return left > 1e-6


@pytest.mark.parametrize("seed", range(8 if os.environ.get("HARCH_SOAK") else 1))
def test_equations_over_all_times_and_functions_have_no_solution_for_fewer_than_k_gpus(seed: int) -> None:
    chance = random.Random(seed)
    matrix = told_over_time(chance, 100, remembers=True)
    assert len(matrix) > 15
    several = [chance.sample(range(24), size) for size in (2, 3, 4, 4, 4)]
    assert not any(gives_away(matrix, few) for few in [*([number] for number in range(24)), *several])


def test_the_same_equations_have_solutions_where_nobody_remembers() -> None:
    matrix = told_over_time(random.Random(0), 150, remembers=False)
    assert any(gives_away(matrix, [number]) for number in range(24))
