"""Quotas by example: the words of each "no", and who is not affected."""

from __future__ import annotations

from harch.placement.queueing.queue import TurnQueue
from harch.placement.queueing.settings import QueueSettings, Quota
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
