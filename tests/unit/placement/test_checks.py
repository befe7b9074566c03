"""What each hard check says, word for word: passed or not, why, and the nearest fix."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from harch.placement.checks import HARD_CHECKS, first_rejection, is_never, outcomes
from harch.placement.facts import HubFacts, ModelFacts
from harch.placement.request import PlacementRequest
from harch.workloads.spec import Gang, Level, Resources
from unit.placement.mixed_hub import request_of

BIG = ModelFacts("big", memory_gb=80, total=16, free=9, gpus_per_node_max=8, free_shapes=(1, 0, 0, 0, 0, 0, 0, 1))
SMALL = ModelFacts("small", memory_gb=40, total=4, free=3, gpus_per_node_max=4, free_shapes=(0, 0, 1, 0))


def facts(**changes: Any) -> HubFacts:
    plain: dict[str, Any] = {
        "hub_id": "rabat",
        "country": "MA",
        "accepts_work": True,
        "status_detail": "",
        "models": (BIG, SMALL),
        "cpus_per_node_max": 64.0,
        "memory_gb_per_node_max": 256.0,
        "storage_gb_per_node_max": 80.0,
        "counts_gpu_memory": True,
        "nodes_up": 3,
        "process_slots_total": 10,
        "process_slots_free": 4,
        "slots_empty": 20,
        "slots_now": 5,
        "domain_slots_empty": 8,
        "domain_slots_now": 3,
        "domain_best": "node n0",
        "fits": True,
    }
    return HubFacts(**(plain | changes))


def gang(tasks: int, gpus: int = 1, **fields: Any) -> PlacementRequest:
    return request_of(Resources(gpus=gpus), tasks, **fields)


ONE = gang(1)
CPU = request_of(Resources(cpus=2))
IN_NODE = {"required": Level.NODE}
ELASTIC = Gang(tasks_min=2)

TABLE: list[tuple[str, PlacementRequest, HubFacts, bool, str, str]] = [
    ("residency", ONE, facts(), True, "no country excluded", ""),
    (
        "residency",
        replace(ONE, countries_allowed=("MA", "SN")),
        facts(),
        True,
        "is in MA; allowed: MA, SN",
        "",
    ),
    (
        "residency",
        replace(ONE, countries_allowed=("CI", "SN")),
        facts(),
        False,
        "is in MA; allowed: CI, SN",
        "choose a hub in CI, SN",
    ),
    ("residency", replace(ONE, hubs_allowed=("rabat",)), facts(), True, "no country excluded", ""),
    (
        "residency",
        replace(ONE, hubs_allowed=("dakar", "abidjan"), countries_allowed=("MA",)),
        facts(),
        False,
        "its data tags do not permit rabat; allowed: dakar, abidjan",
        "choose dakar or abidjan",
    ),
    (
        "residency",
        replace(ONE, hubs_allowed=()),
        facts(),
        False,
        "its data tags do not permit rabat; allowed: no hub",
        "contact the owner of the data",
    ),
    (
        "residency",
        replace(ONE, hubs_allowed=("rabat",), countries_allowed=("SN",)),
        facts(),
        False,
        "is in MA; allowed: SN",
        "choose a hub in SN",
    ),
    ("gpu_model", CPU, facts(models=()), True, "requests no GPU", ""),
    (
        "gpu_model",
        ONE,
        facts(),
        True,
        "wants any model; has 16 x big (80 GB), 4 x small (40 GB)",
        "",
    ),
    (
        "gpu_model",
        request_of(Resources(gpus=1, gpu_models=("card", "tiny"), gpu_memory_gb_min=20)),
        facts(),
        False,
        "wants card or tiny of >= 20 GB; has 16 x big (80 GB), 4 x small (40 GB)",
        "request one of these models",
    ),
    (
        "gpu_model",
        request_of(Resources(gpus=1, gpu_memory_gb_min=80)),
        facts(),
        True,
        "wants any model of >= 80 GB; has 16 x big (80 GB), 4 x small (40 GB)",
        "",
    ),
    (
        "gpu_model",
        request_of(Resources(gpus=1, gpu_memory_gb_min=81)),
        facts(),
        False,
        "wants any model of >= 81 GB; has 16 x big (80 GB), 4 x small (40 GB)",
        "request one of these models",
    ),
    (
        "gpu_model",
        request_of(Resources(gpus=1, gpu_fraction=0.5, gpu_memory_gb=20)),
        facts(counts_gpu_memory=False),
        False,
        "runs an earlier version that does not support `gpu_memory_gb`",
        "choose another hub",
    ),
    (
        "gpu_model",
        request_of(Resources(gpus=1, gpu_fraction=0.5)),
        facts(counts_gpu_memory=False),
        True,
        "wants any model; has 16 x big (80 GB), 4 x small (40 GB)",
        "",
    ),
    (
        "node_shape",
        request_of(Resources(gpus=8, cpus=64, memory_gb=256, storage_gb=80)),
        facts(),
        True,
        "a task needs 8 GPUs, 64 CPUs, 256 GB, 80 GB of storage; the largest node has 8 suitable GPUs, 64 CPUs, "
        "256 GB, 80 GB of storage",
        "",
    ),
    (
        "node_shape",
        request_of(Resources(gpus=9)),
        facts(),
        False,
        "a task needs 9 GPUs, 1 CPU, 1 GB; the largest node has 8 suitable GPUs, 64 CPUs, 256 GB",
        "split it into tasks of at most 8 GPUs",
    ),
    (
        "node_shape",
        request_of(Resources(gpus=5, gpu_model="small")),
        facts(),
        False,
        "a task needs 5 GPUs, 1 CPU, 1 GB; the largest node has 4 suitable GPUs, 64 CPUs, 256 GB",
        "split it into tasks of at most 4 GPUs",
    ),
    (
        "node_shape",
        request_of(Resources(gpus=1, gpu_model="card")),
        facts(),
        False,
        "a task needs 1 GPU, 1 CPU, 1 GB; the largest node has 0 suitable GPUs, 64 CPUs, 256 GB",
        "choose a hub that has suitable GPUs",
    ),
    (
        "node_shape",
        request_of(Resources(cpus=64.5)),
        facts(),
        False,
        "a task needs 0 GPUs, 64.5 CPUs, 1 GB; the largest node has 0 suitable GPUs, 64 CPUs, 256 GB",
        "request less per task",
    ),
    (
        "node_shape",
        request_of(Resources(memory_gb=257)),
        facts(),
        False,
        "a task needs 0 GPUs, 1 CPU, 257 GB; the largest node has 0 suitable GPUs, 64 CPUs, 256 GB",
        "request less per task",
    ),
    (
        "node_shape",
        request_of(Resources(storage_gb=81)),
        facts(),
        False,
        "a task needs 0 GPUs, 1 CPU, 1 GB, 81 GB of storage; the largest node has 0 suitable GPUs, 64 CPUs, 256 GB, "
        "80 GB of storage",
        "request less per task",
    ),
    (
        "node_shape",
        request_of(Resources(storage_gb=81)),
        facts(storage_gb_per_node_max=None),
        True,
        "a task needs 0 GPUs, 1 CPU, 1 GB; the largest node has 0 suitable GPUs, 64 CPUs, 256 GB",
        "",
    ),
    (
        "node_shape",
        ONE,
        facts(slots_empty=0),
        False,
        "a task needs 1 GPU, 1 CPU, 1 GB; the largest node has 8 suitable GPUs, 64 CPUs, 256 GB",
        "request less per task",
    ),
    ("size", gang(20), facts(), True, "20 tasks; the empty hub fits 20", ""),
    (
        "size",
        gang(21),
        facts(),
        False,
        "21 tasks; the empty hub fits 20",
        "request at most 20 tasks, or choose a larger hub",
    ),
    (
        "size",
        gang(2),
        facts(slots_empty=1),
        False,
        "2 tasks; the empty hub fits 1",
        "request at most 1 task, or choose a larger hub",
    ),
    ("size", ONE, facts(slots_empty=0), False, "1 task; the empty hub fits 0", "choose another hub"),
    ("size", gang(30, gang=ELASTIC), facts(), True, "30 tasks, at least 2; the empty hub fits 20", ""),
    ("domain", gang(9), facts(), True, "may be anywhere in the hub", ""),
    ("domain", gang(8, **IN_NODE), facts(), True, "8 tasks in one node; the largest node holds 8 when empty", ""),
    (
        "domain",
        gang(9, **IN_NODE),
        facts(),
        False,
        "9 tasks in one node; the largest node holds 8 when empty",
        "request a larger domain than node, or fewer GPUs",
    ),
    (
        "domain",
        gang(9, gang=Gang(tasks_min=8), **IN_NODE),
        facts(),
        True,
        "9 tasks, at least 8 in one node; the largest node holds 8 when empty",
        "",
    ),
    (
        "domain",
        gang(9, **IN_NODE),
        facts(domain_slots_empty=None),
        True,
        "wants one node; not published by this hub",
        "",
    ),
    ("power_limit", ONE, facts(), True, "the empty hub has enough power and cooling", ""),
    ("power_limit", ONE, facts(power_limit="weak"), False, "weak", "request fewer GPUs, or a larger domain"),
    ("process_limit", ONE, facts(), True, "runs no process", ""),
    (
        "process_limit",
        gang(10, command=("x",)),
        facts(),
        True,
        "10 processes; the agents of this hub run at most 10 at a time",
        "",
    ),
    (
        "process_limit",
        gang(11, command=("x",)),
        facts(),
        False,
        "11 processes; the agents of this hub run at most 10 at a time",
        "use at most 10 tasks, or `modelled_duration_s` instead of a command",
    ),
    (
        "process_limit",
        gang(11, command=("x",), gang=ELASTIC),
        facts(),
        True,
        "2 processes; the agents of this hub run at most 10 at a time",
        "",
    ),
    (
        "process_limit",
        gang(11, command=("x",)),
        facts(nodes_up=0),
        True,
        "unknown while no agent is connected",
        "",
    ),
    ("quota_limit", ONE, facts(), True, "within the quota of its tenant", ""),
    ("quota_limit", ONE, facts(quota_limit="over"), False, "over", "request less, or have the quota raised"),
    ("accepting", ONE, facts(), True, "accepts work", ""),
    (
        "accepting",
        ONE,
        facts(accepts_work=False, status_detail="draining"),
        False,
        "draining",
        "wait, or choose another hub",
    ),
    ("nodes_up", ONE, facts(nodes_up=1), True, "1 nodes served by an agent", ""),
    (
        "nodes_up",
        ONE,
        facts(nodes_up=0),
        False,
        "0 nodes served by an agent",
        "start an agent: `harch agent serve`",
    ),
    (
        "nodes_up",
        ONE,
        facts(nodes_up=0, held_back="2 are cordoned"),
        False,
        "no node accepts work; 2 are cordoned",
        "an operator uncordons nodes: `harch node uncordon`",
    ),
    ("nodes_up", ONE, facts(nodes_up=2, held_back="2 are cordoned"), True, "2 nodes served by an agent", ""),
    ("quota", ONE, facts(), True, "within quota", ""),
    (
        "quota",
        ONE,
        facts(quota_rejection="too much"),
        False,
        "too much",
        "wait for other work of this tenant to end, or raise its quota",
    ),
    ("process_slots", gang(9), facts(), True, "needs 0 of 4 free process slots", ""),
    ("process_slots", gang(4, command=("x",)), facts(), True, "needs 4 of 4 free process slots", ""),
    (
        "process_slots",
        gang(6, command=("x",)),
        facts(),
        False,
        "needs 6 of 4 free process slots",
        "starts when 2 more running processes end",
    ),
    (
        "process_slots",
        gang(6, command=("x",)),
        facts(tasks_now=3),
        True,
        "needs 3 of 4 free process slots",
        "",
    ),
    ("capacity", gang(5), facts(), True, "5 tasks wanted, 5 fit now (12 suitable GPUs free)", ""),
    (
        "capacity",
        gang(7, gpus=2),
        facts(),
        False,
        "7 tasks wanted, 5 fit now (12 suitable GPUs free)",
        "starts when 2 x 2 free GPUs on one node come free",
    ),
    (
        "capacity",
        request_of(Resources(gpus=1, gpu_model="small")),
        facts(slots_now=-1),
        False,
        "1 task wanted, 0 fit now (3 suitable GPUs free)",
        "starts when 2 x 1 free GPUs on one node come free",
    ),
    (
        "capacity",
        request_of(Resources(cpus=2), 6),
        facts(),
        False,
        "6 tasks wanted, 5 fit now",
        "starts when 1 x free cpus, memory and storage on one node come free",
    ),
    (
        "capacity",
        gang(7),
        facts(held_back="2 on cordoned", held_back_slots=2),
        False,
        "7 tasks wanted, 5 fit now (12 suitable GPUs free); 2 on cordoned",
        "starts when 2 x 1 free GPUs on one node come free, or an operator uncordons nodes: `harch node uncordon`",
    ),
    (
        "capacity",
        gang(7),
        facts(held_back="one is sick"),
        False,
        "7 tasks wanted, 5 fit now (12 suitable GPUs free); one is sick",
        "starts when 2 x 1 free GPUs on one node come free",
    ),
    (
        "capacity",
        gang(5),
        facts(held_back="one is sick"),
        True,
        "5 tasks wanted, 5 fit now (12 suitable GPUs free)",
        "",
    ),
    ("domain_now", gang(9), facts(), True, "may be anywhere in the hub", ""),
    ("domain_now", gang(9, **IN_NODE), facts(domain_slots_now=None), True, "not published by this hub", ""),
    ("domain_now", gang(3, **IN_NODE), facts(), True, "3 tasks in one node; node n0 takes 3 now", ""),
    (
        "domain_now",
        gang(5, gpus=2, **IN_NODE),
        facts(),
        False,
        "5 tasks in one node; node n0 takes 3 now",
        "with 4 more GPUs free in node n0 it would start",
    ),
    ("power_and_cooling", CPU, facts(power_short="weak"), True, "draws no GPU power", ""),
    ("power_and_cooling", ONE, facts(power_short=None), True, "not published by this hub", ""),
    ("power_and_cooling", ONE, facts(), True, "enough power and cooling", ""),
    (
        "power_and_cooling",
        ONE,
        facts(power_short="weak"),
        False,
        "weak",
        "starts when running work ends or cooling recovers",
    ),
    ("kept_free", ONE, facts(), True, "nothing that it needs is reserved for others", ""),
    (
        "kept_free",
        ONE,
        facts(kept_free="for w1"),
        False,
        "for w1",
        "starts after them; sooner if it ends before (set `max_duration_s`)",
    ),
    ("layout", ONE, facts(), True, "its tasks fit together", ""),
    ("layout", ONE, facts(fits=None), True, "its tasks fit together", ""),
    (
        "layout",
        ONE,
        facts(fits=False),
        False,
        "no layout fits all its tasks together",
        "starts when running work ends",
    ),
    ("layout", ONE, facts(fits=False, kept_free="for w1"), True, "its tasks fit together", ""),
    ("layout", ONE, facts(fits=False, power_short="weak"), True, "its tasks fit together", ""),
    ("layout", gang(9), facts(fits=False), True, "its tasks fit together", ""),
    ("layout", gang(5, command=("x",)), facts(fits=False), True, "its tasks fit together", ""),
    ("turn", ONE, facts(), True, "nothing ahead of it blocks it", ""),
    ("turn", ONE, facts(turn="after w1"), False, "after w1", "starts when running work ends"),
]


@pytest.mark.parametrize(("rule", "request_", "hub", "passed", "detail", "fix"), TABLE)
def test_a_check_says_why_and_what_would_help(
    rule: str, request_: PlacementRequest, hub: HubFacts, passed: bool, detail: str, fix: str
) -> None:
    (found,) = [outcome for outcome in outcomes(request_, hub) if outcome.rule == rule]
    assert (found.passed, found.detail, found.nearest_fix) == (passed, detail, fix)


def test_every_check_is_in_the_table_with_a_yes_and_a_no() -> None:
    for answer in (True, False):
        assert {row[0] for row in TABLE if row[3] is answer} == {check.rule for check in HARD_CHECKS}


def test_residency_is_the_first_no_and_only_permanent_ones_count_for_admission() -> None:
    forbidden = replace(gang(30), countries_allowed=("SN",))
    no = first_rejection(forbidden, facts(accepts_work=False))
    assert no is not None
    assert (no.subject, no.rule, no.nearest_fix) == ("rabat", "residency", "choose a hub in SN")
    waits = facts(accepts_work=False, status_detail="draining", turn="after w1")
    assert first_rejection(ONE, waits, permanent_only=True) is None
    no = first_rejection(ONE, waits)
    assert no is not None
    assert (no.rule, no.detail) == ("accepting", "draining")
    assert first_rejection(ONE, facts()) is None
    no = first_rejection(gang(21), waits, permanent_only=True)
    assert no is not None
    assert no.rule == "size"


def test_only_what_waiting_does_not_cure_is_never() -> None:
    assert is_never(outcomes(gang(21), facts()))
    assert not is_never(outcomes(ONE, facts(accepts_work=False, turn="after w1", fits=False)))
    assert not is_never(outcomes(ONE, facts()))
    assert not is_never(())


@pytest.mark.parametrize(
    ("needs", "models"),
    [
        (Resources(gpus=1), ["big", "small"]),
        (Resources(gpus=1, gpu_model="small"), ["small"]),
        (Resources(gpus=1, gpu_models=("small", "card")), ["small"]),
        (Resources(gpus=1, gpu_memory_gb_min=40), ["big", "small"]),
        (Resources(gpus=1, gpu_memory_gb_min=40.5), ["big"]),
        (Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=41), ["big"]),
        (Resources(gpus=1, gpu_model="small", gpu_memory_gb_min=41), []),
    ],
)
def test_models_are_suitable_by_name_and_memory(needs: Resources, models: list[str]) -> None:
    assert [model.model for model in facts().suitable(request_of(needs))] == models


def test_the_fewest_tasks_that_it_would_start_with_are_wanted() -> None:
    assert facts().wanted(gang(5)) == 5
    assert facts(tasks_now=0).wanted(gang(5)) == 0
    assert facts(tasks_now=3).wanted(gang(5)) == 3


@pytest.mark.parametrize(
    ("rule", "request_", "hub", "margin", "is_near"),
    [
        ("capacity", gang(5), facts(), (5, 5), True),
        ("capacity", gang(4), facts(), (4, 5), False),
        ("capacity", gang(7), facts(), (7, 5), False),  # it says no, which is shown anyway
        ("process_slots", gang(4, command=("x",)), facts(), (4, 4), True),
        ("process_slots", gang(4), facts(), (None, None), False),
        ("residency", ONE, facts(), (None, None), False),
        ("size", gang(20), facts(source="summary"), (20, 20), True),
        ("size", CPU, facts(source="summary", slots_empty=1), (None, None), False),  # a peer publishes GPUs alone
        ("capacity", CPU, facts(source="summary", slots_now=1), (None, None), False),
        ("capacity", CPU, facts(slots_now=1), (1, 1), True),
    ],
)
def test_a_rule_that_compares_quantities_says_how_near_it_is_to_a_no(
    rule: str, request_: PlacementRequest, hub: HubFacts, margin: tuple[float | None, float | None], is_near: bool
) -> None:
    (found,) = [outcome for outcome in outcomes(request_, hub) if outcome.rule == rule]
    assert ((found.needed, found.available), found.is_near) == (margin, is_near)


def test_margins_agree_with_their_rules() -> None:
    for tasks in range(1, 12):
        for command in ((), ("x",)):
            for outcome in outcomes(gang(tasks, command=command), facts()):
                if outcome.needed is not None and outcome.available is not None:
                    assert outcome.passed == (outcome.needed <= outcome.available)
