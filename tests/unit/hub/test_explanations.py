"""`harch why` says what the scheduler does: each cause of waiting by its name, never "about to be placed" in vain."""

from __future__ import annotations

import pytest

from harch.hub.explain import explain, pending_reason
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import ConditionKind
from harch.placement.explanation import Explanation, Verdict
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import Gang, Level, Resources, Topology, WorkloadSpec
from unit.hub.conftest import Bench

H100 = "h100-80gb"
ABOUT_TO_BE_PLACED = "is about to be placed"


def spec(
    name: str, *, gpus: int = 8, tasks: int = 1, model: str | None = H100, hours: float = 1.0, **fields: object
) -> WorkloadSpec:
    resources = fields.pop("resources", None) or Resources(gpus=gpus, gpu_model=model)
    return WorkloadSpec(name=name, tasks=tasks, modelled_duration_s=hours * 3600, resources=resources, **fields)  # type: ignore[arg-type]


def submit(bench: Bench, name: str, **fields: object) -> Workload:
    bench.count += 1
    return bench.submit_spec(spec(name, **fields))  # type: ignore[arg-type]


def why(bench: Bench, workload: Workload) -> Explanation:
    return explain(bench.machine, bench.context, bench.machine.state.request(workload), [], workload)


def plan(bench: Bench, asked: WorkloadSpec, tenant: str = "t") -> Explanation:
    return explain(
        bench.machine,
        bench.context,
        PlacementRequest.of(asked.name, asked, tenant=tenant, submitted_s=bench.context.now_s),
        [],
        None,
    )


def failed(told: Explanation) -> list[str]:
    return [rule.rule for rule in told.hubs[0].rules if not rule.passed]


def test_what_the_next_round_places_is_about_to_be_placed(bench: Bench) -> None:
    waiting = submit(bench, "next")
    told = why(bench, waiting)
    assert (told.verdict, failed(told)) == (Verdict.FITS_NOW, [])
    assert ABOUT_TO_BE_PLACED in told.sentence
    bench.place()
    assert waiting.is_placed


def test_a_look_at_the_next_round_changes_nothing(bench: Bench) -> None:
    waiting = submit(bench, "next")
    state = bench.machine.state
    for _ in range(2):
        why(bench, waiting)
    assert not state.scheduler.running
    assert waiting.id in state.scheduler.queue
    assert len(bench.place()) == 1


def test_shared_cooling_is_named(bench: Bench) -> None:
    """Each node alone would have cooling enough; both together have not."""
    zone = bench.hub.cooling_zones[0].id
    bench.handle(ev.HardwareChanged(ConditionKind.COOLING_KW, zone, 30, "pump failed"))
    gang = submit(bench, "gang", tasks=2)
    assert bench.place() == []
    told = why(bench, gang)
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["power_and_cooling"])
    assert f"cooling zone {zone} has 9.2 kW free" in told.sentence
    assert "11.2 kW" in told.sentence


def test_the_feed_of_a_rack_is_named() -> None:
    bench = Bench()
    bench.join()
    room = bench.machine.state.scheduler.room
    room.rack_power_w_free[:] -= 9000  # what the fleet file does not say: half of each feed has failed
    room.power_can_bind = True
    waits = [submit(bench, f"job-{n}") for n in range(3)]
    bench.place()
    last = next(workload for workload in waits if not workload.is_placed)
    told = why(bench, last)
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["power_and_cooling"])
    assert "feed of rack dakhla-r0" in told.sentence


def test_the_reservation_of_another_is_named(bench: Bench) -> None:
    """The gang keeps the nodes; what would stay longer than they are kept waits, though GPUs are free."""
    first = submit(bench, "first", tasks=3, hours=2)
    bench.place()
    gang = submit(bench, "gang", tasks=4, hours=2)
    bench.place()
    behind = submit(bench, "behind", gpus=8, hours=20, preemptible=False)
    bench.place()
    assert first.is_placed
    assert not gang.is_placed
    assert not behind.is_placed
    told = why(bench, behind)
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["kept_free"])
    assert gang.id in told.sentence
    assert gang.id in told.kept_free
    assert "capacity" in failed(why(bench, gang))


def test_quota_is_named() -> None:
    bench = Bench()
    bench.machine = JobMachine(tiny_fleet(), bench.hub, QueueSettings(quota_default=Quota(gpus_held_max=8)))
    bench.join()
    submit(bench, "one")
    two = submit(bench, "two")
    bench.place()
    told = why(bench, two)
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["quota"])
    assert "tenant t holds 8 of at most 8 GPUs" in told.sentence
    never = plan(bench, spec("more", gpus=8, tasks=2))
    assert (never.verdict, failed(never)[0]) == (Verdict.NEVER_FITS, "quota_limit")


def test_a_gang_that_may_shrink_starts_within_its_quota() -> None:
    bench = Bench()
    bench.machine = JobMachine(tiny_fleet(), bench.hub, QueueSettings(quota_default=Quota(gpus_held_max=16)))
    bench.join()
    gang = submit(bench, "gang", tasks=4, gang=Gang(tasks_min=2, degrade_after_s=30))
    bench.place()
    assert failed(why(bench, gang)) == ["quota"]
    bench.later(seconds=31)
    bench.place()
    assert len(gang.placement) == 2


def test_work_behind_its_like_says_whose_turn_it_is(bench: Bench) -> None:
    """Both promise durations of one order, but only the second is over before the nodes are kept for the gang."""
    submit(bench, "first", tasks=3, hours=2)
    bench.place()
    gang = submit(bench, "gang", tasks=4, hours=2)
    bench.place()
    long = submit(bench, "long", hours=2.2, preemptible=False)
    short = submit(bench, "short", hours=1.5, preemptible=False)
    bench.place()
    assert not gang.is_placed
    assert failed(why(bench, long)) == ["kept_free"]
    told = why(bench, short)
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["turn"])
    assert long.id in told.sentence


def test_what_is_not_in_the_queue_is_not_about_to_be_placed(bench: Bench) -> None:
    lost = submit(bench, "lost")
    bench.machine.state.scheduler.withdraw(lost.id)
    told = why(bench, lost)
    assert told.verdict is Verdict.MUST_WAIT
    assert "not in the queue" in told.sentence


def test_a_closed_hub_places_nothing(bench: Bench) -> None:
    bench.handle(ev.HubClosed(1, "inspection"))
    told = why(bench, submit(bench, "patient"))
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["accepting"])


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (spec("model", model="b200"), "gpu_model"),
        (spec("shape", gpus=9), "node_shape"),
        (spec("size", tasks=5), "size"),
        (spec("domain", tasks=3, topology=Topology(required=Level.RACK)), "domain"),
        (spec("abroad", countries_allowed=("SN",)), "residency"),
    ],
)
def test_what_an_empty_hub_would_not_take_never_fits(bench: Bench, asked: WorkloadSpec, rule: str) -> None:
    told = plan(bench, asked)
    assert (told.verdict, failed(told)[0]) == (Verdict.NEVER_FITS, rule)
    assert told.hubs[0].never
    assert "can never run it" in told.sentence


def test_a_gang_that_may_shrink_to_what_the_hub_holds_is_not_refused_for_ever(bench: Bench) -> None:
    asked = spec("gang", tasks=5, gang=Gang(tasks_min=4, degrade_after_s=30))
    assert plan(bench, asked).verdict is Verdict.MUST_WAIT
    gang = submit(bench, "gang", tasks=5, gang=Gang(tasks_min=4, degrade_after_s=30))
    bench.later(seconds=31)
    bench.place()
    assert len(gang.placement) == 4


def test_weak_cooling_is_no_reason_for_never(bench: Bench) -> None:
    zone = bench.hub.cooling_zones[0].id
    bench.handle(ev.HardwareChanged(ConditionKind.COOLING_KW, zone, 21, "pump failed"))
    told = plan(bench, spec("gang", tasks=4))
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["power_and_cooling"])
    assert not told.hubs[0].never


def test_room_that_those_before_it_are_about_to_take_is_not_promised_again(bench: Bench) -> None:
    for number in range(4):
        submit(bench, f"job-{number}")
    told = plan(bench, spec("fifth"))
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["capacity"])


def test_a_gang_of_shares_inside_one_island_is_admitted_and_starts(bench: Bench) -> None:
    shares = Resources(gpus=1, gpu_fraction=0.25)
    gang = submit(bench, "shares", tasks=32, resources=shares, topology=Topology(required=Level.ISLAND))
    bench.place()
    assert len({task.node_id for task in gang.placement}) == 1
    too_many = plan(bench, spec("more", tasks=33, resources=shares, topology=Topology(required=Level.ISLAND)))
    assert (too_many.verdict, failed(too_many)[0]) == (Verdict.NEVER_FITS, "domain")
    full = plan(bench, spec("again", tasks=32, resources=shares, topology=Topology(required=Level.ISLAND)))
    assert full.verdict is Verdict.FITS_NOW, "three more islands of eight are free"


def test_shares_are_told_with_their_memory_and_wait_for_it(bench: Bench) -> None:
    needs = Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=60, gpu_model=H100)
    gpus = sum(len(node.gpus) for node in bench.hub.nodes if node.gpu_model.name == H100)
    held = [submit(bench, f"share-{number}", resources=needs) for number in range(gpus)]
    bench.place()
    assert len({gpu for workload in held for task in workload.placement for gpu in task.gpu_ids}) == gpus
    told = plan(bench, spec("one-more", resources=needs))
    assert (told.verdict, failed(told)) == (Verdict.MUST_WAIT, ["capacity"])
    assert plan(bench, spec("less", resources=Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=20))).verdict == (
        Verdict.FITS_NOW
    )
    never = plan(bench, spec("large", resources=Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=81)))
    assert (never.verdict, failed(never)[0]) == (Verdict.NEVER_FITS, "gpu_model")


class TestPendingReason:
    """What a list says of work that waits."""

    def reason(self, bench: Bench, workload: Workload) -> str:
        return pending_reason(bench.machine.state, workload, bench.context.now_s)

    def test_free_resources_or_its_turn_among_its_like(self, bench: Bench) -> None:
        bench.run(submit(bench, "full", tasks=4))
        first, second = submit(bench, "first"), submit(bench, "second")
        bench.place()
        assert self.reason(bench, first) == "waits for free resources"
        assert self.reason(bench, second) == "waits for its turn"

    def test_what_does_not_wait_has_no_reason(self, bench: Bench) -> None:
        workload = submit(bench, "runs")
        bench.run(workload)
        assert self.reason(bench, workload) == ""
        bench.handle(ev.StopRequested(workload.id, "enough"))
        bench.end(workload)
        assert self.reason(bench, workload) == ""

    def test_a_quota_a_closed_hub_and_a_fault(self, bench: Bench) -> None:
        bench.machine = JobMachine(tiny_fleet(), bench.hub, QueueSettings(quota_default=Quota(gpus_held_max=8)))
        bench.handle(ev.AgentJoined(bench.agent.hello(), 1))
        bench.run(submit(bench, "holds"))
        over = submit(bench, "over")
        bench.place()
        assert self.reason(bench, over) == "tenant t holds 8 of at most 8 GPUs; this requests 8 more"
        bench.handle(ev.HubClosed(1, "works on its power"))
        assert self.reason(bench, over) == f"{bench.machine.state.hub.name} is cordoned"
        bench.machine.state.set_aside.add(over.id)
        assert self.reason(bench, over) == "set aside: the hub failed while placing it"

    def test_what_only_another_hub_can_run(self, bench: Bench) -> None:
        workload = submit(bench, "elsewhere")
        workload.home_fits = False
        assert self.reason(bench, workload) == "waits for another hub"
