"""Quotas by example: the words of each "no", and who is not affected."""

from __future__ import annotations

import msgspec
import pytest

from harch.placement.queueing.queue import TurnQueue
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.workloads.spec import Resources, SchedulingClass
from unit.turns.turn_fixtures import INFERENCE, TRAINING, ask, room_of


def queue_of(quota: Quota) -> TurnQueue:
    return TurnQueue(QueueSettings(tenant_quotas={"a": quota}), room_of())


def test_gpus_over_the_quota_are_refused_with_the_smallest_change_that_helps() -> None:
    queue = queue_of(Quota(gpus_held_max=8))
    queue.holds("running", ask("running", tenant="a", gpus=6), 1, 0.0)
    no = queue.quota_rejection(ask("next", tenant="a", gpus=4))
    assert no is not None
    assert (no.subject, no.rule) == ("next", "quota")
    assert no.detail == "tenant a holds 6 of at most 8 GPUs; this requests 4 more"
    assert no.nearest_fix == "starts when 2 of its GPUs are released, or have the quota raised"
    assert queue.quota_rejection(ask("small", tenant="a", gpus=2)) is None
    assert queue.quota_rejection(ask("other", tenant="b", gpus=8)) is None
    queue.released("running", 1.0)
    assert queue.quota_rejection(ask("next", tenant="a", gpus=4)) is None


def test_a_gang_counts_with_the_tasks_that_it_really_gets() -> None:
    queue = queue_of(Quota(tasks_held_max=3))
    gang = ask("gang", tenant="a", tasks=4)
    assert queue.quota_rejection(gang) is not None
    assert queue.quota_rejection(gang, tasks=3) is None
    queue.holds("gang", gang, 3, 0.0)
    no = queue.quota_rejection(ask("next", tenant="a"))
    assert no is not None
    assert no.nearest_fix == "starts when 1 of its running tasks end, or have the quota raised"


def test_a_quota_of_one_class_leaves_the_others_alone() -> None:
    settings = QueueSettings(class_quotas={("a", TRAINING): Quota(gpus_held_max=1)})
    queue = TurnQueue(settings, room_of())
    no = queue.quota_rejection(ask("t", TRAINING, tenant="a", gpus=2))
    assert no is not None
    assert "tenant a in class training" in no.detail
    assert no.nearest_fix == "request less, or have the quota raised"
    assert queue.quota_rejection(ask("i", INFERENCE, tenant="a", gpus=2)) is None


def test_too_many_waiting_or_too_large_for_ever_is_refused_at_the_door() -> None:
    queue = queue_of(Quota(gpus_held_max=4, workloads_waiting_max=1))
    large = queue.rejection_to_wait(ask("large", tenant="a", gpus=8))
    assert large is not None
    assert "this alone requests 8" in large.detail
    assert queue.rejection_to_wait(ask("one", tenant="a")) is None
    queue.add(ask("one", tenant="a"), 0.0)
    assert queue.rejection_to_wait(ask("two", tenant="a")) is not None
    queue.holds("one", ask("one", tenant="a"), 1, 0.0)
    assert queue.rejection_to_wait(ask("two", tenant="a")) is None


@pytest.mark.parametrize(
    ("held", "wants", "detail", "fix"),
    [
        (4, 4, None, None),  # all of it
        (
            5,
            4,
            "tenant a holds 5 of at most 8 GPUs; this requests 4 more",
            "starts when 1 of its GPUs are released, or have the quota raised",
        ),
        (
            4,
            8,
            "tenant a holds 4 of at most 8 GPUs; this requests 8 more",
            "starts when 4 of its GPUs are released, or have the quota raised",
        ),
        (
            3,
            9,
            "tenant a holds 3 of at most 8 GPUs; this requests 9 more",
            "request less, or have the quota raised",
        ),
    ],
)
def test_a_quota_of_gpus_ends_at_its_last_one(held: int, wants: int, detail: str | None, fix: str | None) -> None:
    queue = queue_of(Quota(gpus_held_max=8))
    for number in range(held):
        queue.holds(f"r{number}", ask(f"r{number}", tenant="a"), 1, 0.0)
    no = queue.quota_rejection(ask("next", tenant="a", tasks=wants))
    assert (no and no.detail, no and no.nearest_fix) == (detail, fix)


@pytest.mark.parametrize(
    ("held", "wants", "fix"),
    [
        (1, 2, None),
        (2, 2, "starts when 1 of its running tasks end, or have the quota raised"),
        (2, 3, "starts when 2 of its running tasks end, or have the quota raised"),
        (1, 4, "request less, or have the quota raised"),
    ],
)
def test_a_quota_of_tasks_ends_at_its_last_one(held: int, wants: int, fix: str | None) -> None:
    queue = queue_of(Quota(tasks_held_max=3))
    queue.holds("running", ask("running", tenant="a", gpus=0, tasks=held), held, 0.0)
    no = queue.quota_rejection(ask("next", tenant="a", gpus=0, tasks=wants))
    assert (no and no.nearest_fix) == fix
    if no is not None:
        assert no.detail == f"tenant a runs {held} of at most 3 tasks; this requests {wants} more"


def test_work_without_gpus_is_not_refused_for_gpus() -> None:
    queue = queue_of(Quota(gpus_held_max=0))
    assert queue.quota_rejection(ask("cpus", tenant="a", gpus=0)) is None
    assert queue.quota_rejection(ask("gpu", tenant="a", gpus=1)) is not None


def test_what_is_given_back_is_no_longer_held() -> None:
    queue = queue_of(Quota(gpus_held_max=4, tasks_held_max=4))
    gang = ask("gang", tenant="a", tasks=4)
    queue.holds("gang", gang, 3, 0.0)
    assert queue.quota_rejection(ask("one", tenant="a")) is None
    assert queue.quota_rejection(ask("two", tenant="a", tasks=2)) is not None
    queue.released("gang", 1.0)
    assert queue.quota_rejection(gang) is None
    queue.holds("gang", gang, 4, 2.0)
    assert queue.quota_rejection(ask("one", tenant="a")) is not None


def test_the_quota_of_those_who_are_not_named_is_the_default() -> None:
    settings = QueueSettings(quota_default=Quota(gpus_held_max=1), tenant_quotas={"a": Quota(tasks_held_max=9)})
    queue = TurnQueue(settings, room_of())
    assert queue.quota_rejection(ask("r", tenant="a", gpus=8)) is None
    no = queue.quota_rejection(ask("r", tenant="", gpus=2))
    assert no is not None
    assert no.detail == "this tenant holds 0 of at most 1 GPUs; this requests 2 more"


def waits_too_many(queue: TurnQueue, turn_class: SchedulingClass = TRAINING, **also: object) -> str | None:
    no = queue.rejection_to_wait(ask("next", turn_class, tenant="a", **also))  # type: ignore[arg-type]
    return no and no.detail


def test_a_tenant_keeps_so_many_waiting_in_all_and_in_one_class() -> None:
    settings = QueueSettings(
        tenant_quotas={"a": Quota(workloads_waiting_max=3)},
        class_quotas={("a", TRAINING): Quota(workloads_waiting_max=2)},
    )
    queue = TurnQueue(settings, room_of())
    for number, turn_class in enumerate((TRAINING, TRAINING)):
        assert waits_too_many(queue) is None
        queue.add(ask(f"r{number}", turn_class, tenant="a"), 0.0)
    queue.add(ask("r0", TRAINING, tenant="a"), 0.0)  # waits already
    assert waits_too_many(queue) == "tenant a in class training has 2 of at most 2 workloads waiting"
    assert waits_too_many(queue, INFERENCE) is None
    queue.add(ask("r2", INFERENCE, tenant="a"), 0.0)
    assert waits_too_many(queue, INFERENCE) == "tenant a has 3 of at most 3 workloads waiting"
    queue.remove("r2")
    queue.remove("r2")
    assert waits_too_many(queue, INFERENCE) is None
    queue.remove("r0")
    assert waits_too_many(queue) is None


def test_what_takes_the_place_of_another_is_one_more_only_in_another_class() -> None:
    settings = QueueSettings(
        tenant_quotas={"a": Quota(workloads_waiting_max=1)},
        class_quotas={
            ("a", TRAINING): Quota(workloads_waiting_max=1),
            ("a", INFERENCE): Quota(workloads_waiting_max=0),
        },
    )
    queue = TurnQueue(settings, room_of())
    before = ask("r", TRAINING, tenant="a")
    queue.add(before, 0.0)
    assert queue.rejection_to_wait(ask("r", TRAINING, tenant="a", gpus=2), before) is None
    no = queue.rejection_to_wait(ask("r", INFERENCE, tenant="a"), before)
    assert no is not None
    assert no.detail == "tenant a in class inference has 0 of at most 0 workloads waiting"
    assert no.nearest_fix == "submit it again once one of them starts, or have the quota raised"


@pytest.mark.parametrize(
    ("tasks", "tasks_min", "detail"),
    [
        (4, 4, None),
        (9, 4, None),  # it would start with four
        (5, 5, "tenant a may hold at most 8 GPUs; this alone requests 10"),
    ],
)
def test_what_is_larger_than_the_whole_quota_would_wait_in_vain(tasks: int, tasks_min: int, detail: str | None) -> None:
    queue = queue_of(Quota(gpus_held_max=8))
    gang = msgspec.structs.replace(ask("gang", tenant="a", gpus=2, tasks=tasks), tasks_min=tasks_min)
    for no in (queue.rejection_to_wait(gang), queue.quota_rejection_for_ever(gang)):
        assert (no and no.detail) == detail
        assert (no and no.nearest_fix) == (detail and "request at most 8, or have the quota raised")
    few = queue_of(Quota(tasks_held_max=4))
    no = few.quota_rejection_for_ever(gang)
    assert (no and no.detail) == (detail and "tenant a may hold at most 4 tasks; this alone requests 5")


def test_a_share_counts_as_what_it_takes() -> None:
    queue = queue_of(Quota(gpus_held_max=1))
    needs = Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=40.0)  # half of a GPU, by its memory
    share = msgspec.structs.replace(ask("share", tenant="a"), needs=needs)
    queue.holds("first", share, 1, 0.0)
    assert queue.quota_rejection(share) is None
    queue.holds("second", share, 1, 0.0)
    assert queue.quota_rejection(share) is not None


@pytest.mark.parametrize("named", [False, True])
def test_uses_are_counted_per_tenant_and_class_also_where_nothing_is_limited(named: bool) -> None:
    settings = QueueSettings(
        tenant_quotas={"idle": Quota(tasks_held_max=3)} if named else {},
        class_quotas={("a", INFERENCE): Quota(gpus_held_max=1.0)} if named else {},
        tenant_weights={"a": 2.0},
    )
    queue = TurnQueue(settings, room_of())
    queue.holds("one", ask("one", TRAINING, tenant="a", gpus=4, tasks=2), 2, 0.0)
    queue.holds("two", ask("two", INFERENCE, tenant="a", gpus=1), 1, 0.0)
    queue.add(ask("three", TRAINING, tenant="b"), 0.0)
    queue.add(ask("four", TRAINING, tenant="b"), 0.0)
    uses = {(one.tenant, one.turn_class): one for one in queue.quota_uses()}
    whole = uses["a", None]
    assert (whole.gpus_held, whole.tasks_held, whole.pending, whole.weight) == (9.0, 3, 0, 2.0)
    assert (uses["a", TRAINING].gpus_held, uses["a", INFERENCE].gpus_held) == (8.0, 1.0)
    assert (uses["b", None].pending, uses["b", TRAINING].pending, uses["b", None].weight) == (2, 2, 1.0)
    assert uses["a", INFERENCE].quota.gpus_held_max == (1.0 if named else None)
    assert (("idle", None) in uses) is named, "who has a quota of its own is listed, whatever it does"
    queue.released("one", 1.0)
    queue.remove("three")
    queue.remove("four")
    assert {(one.tenant, one.turn_class) for one in queue.quota_uses()} - {("idle", None)} == {
        ("a", None),
        ("a", INFERENCE),
    }
