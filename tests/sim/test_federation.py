"""Hubs that lend each other work: whatever the network, the clocks and the crashes do, nothing runs twice or is lost.

The stories are random, by seed; a seed that fails prints what happened and fails again:
`HARCH_SIM_SEEDS=4711:4712 pytest tests/sim/test_federation.py -k random`. `make soak` runs twenty thousand.
"""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from harch.execution.protocol import TaskKey
from harch.federation.offers import BidRequest, Bids, Grant, Grants, LeaseRenewed, LeaseTerms, Need, WorkLease
from harch.hub.jobs import events as ev
from harch.hub.jobs.lending import borrowed
from harch.hub.jobs.state import Closed
from harch.testing.network import SimLink
from harch.workloads.lifecycle import ExitReason, State
from harch.workloads.spec import Resources, RestartPolicy, WorkloadSpec
from sim.federation_hub import TERMS, SimHub
from sim.federation_world import FederationWorld

STEPS = 15
BLOCK = 10
CALM = SimLink(delay_s=0.010)
FOREVER = 0.0  # chance that a task ends


def seeds() -> range:
    usual = "0:20000" if os.environ.get("HARCH_SOAK") else "0:200"
    first, last = os.environ.get("HARCH_SIM_SEEDS", usual).split(":")
    return range(int(first), int(last))


@pytest.mark.parametrize("first", seeds()[::BLOCK])
def test_random_stories_of_five_hubs(first: int) -> None:
    for seed in range(first, min(first + BLOCK, seeds().stop)):
        world = FederationWorld(5, seed)
        world.live(STEPS)
        world.settle()


@pytest.mark.parametrize("seed", seeds()[::60])
def test_random_stories_of_twenty_hubs(seed: int) -> None:
    world = FederationWorld(20, seed)
    world.live(STEPS)
    world.settle()


# Single rules


def lent(world: FederationWorld, **spec: object) -> tuple[str, SimHub, SimHub]:
    """A workload of hub00 (4 GPUs, all taken) that runs at another hub until somebody ends it."""
    world.end_chance = FOREVER
    owner = world.hubs["hub00"]
    blocker = WorkloadSpec(name="blocker", command=("true",), resources=Resources(gpus=4), stay_home=True)
    world.submit(owner, blocker)
    world.run_for(0.5)
    fields: dict[str, object] = {"resources": Resources(gpus=4), "stop_grace_s": 0.0, **spec}
    workload_id = world.submit(owner, WorkloadSpec(name="guest", command=("true",), **fields))  # type: ignore[arg-type]
    assert workload_id is not None
    world.run_for(2.0)
    workload = owner.machine.state.registry.workloads[workload_id]
    assert workload.state is State.RUNNING, workload
    return workload_id, owner, world.hubs[workload.runner_hub]


def runs_at(world: FederationWorld, workload_id: str) -> list[str]:
    return [
        name for name, hub in world.hubs.items() if any(key.workload_id == workload_id for key in hub.agent.running)
    ]


def test_work_stays_at_home_while_it_has_room() -> None:
    world = FederationWorld(5, 1, CALM)
    world.end_chance = FOREVER
    owner = world.hubs["hub00"]
    first = world.submit(owner, WorkloadSpec(name="a", command=("true",), resources=Resources(gpus=4)))
    world.run_for(2.0)
    assert first is not None
    assert runs_at(world, first) == ["hub00"]


def test_work_of_a_full_hub_runs_at_another_and_its_owner_tells_where() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    assert runs_at(world, workload_id) == [runner.name]
    workload = owner.machine.state.registry.workloads[workload_id]
    assert workload.runner_placement[0].node_id.startswith(runner.name)
    assert workload.epoch == 1


def test_nothing_about_work_for_one_country_is_said_to_a_hub_of_another() -> None:
    world = FederationWorld(5, 1, CALM)
    heard: list[tuple[str, object]] = []
    send = world.network.send

    def listening(source: str, target: str, message: object) -> None:
        heard.append((target, message))
        send(source, target, message)

    world.network.send = listening  # type: ignore[method-assign]
    workload_id, _, runner = lent(world, countries_allowed=("MA",))
    asked = {name for name, message in heard if isinstance(message, BidRequest | Grants)}
    assert runner.hub.country == "MA"
    assert asked, "somebody was asked"
    assert all(world.hubs[name].hub.country == "MA" for name in asked)
    assert runs_at(world, workload_id) == [runner.name]


def test_work_that_only_another_country_may_run_goes_there_at_once() -> None:
    world = FederationWorld(5, 1, CALM)
    world.end_chance = FOREVER
    spec = WorkloadSpec(name="a", command=("true",), resources=Resources(gpus=1), countries_allowed=("SN",))
    workload_id = world.submit(world.hubs["hub00"], spec)
    world.run_for(2.0)
    assert workload_id is not None
    assert [world.hubs[name].hub.country for name in runs_at(world, workload_id)] == ["SN"]


def test_where_only_a_full_hub_may_run_it_work_waits_in_that_hubs_own_queue() -> None:
    world = FederationWorld(5, 1, CALM)
    world.end_chance = FOREVER
    (dakar,) = (hub for hub in world.hubs.values() if hub.hub.country == "SN")
    gpus = sum(len(node.gpus) for node in dakar.hub.nodes)
    blockers = [
        world.submit(dakar, WorkloadSpec(name=f"b{n}", command=("true",), resources=Resources(gpus=4), stay_home=True))
        for n in range(gpus // 4)
    ]
    world.run_for(1.0)
    spec = WorkloadSpec(name="a", command=("true",), resources=Resources(gpus=4), countries_allowed=("SN",))
    workload_id = world.submit(world.hubs["hub00"], spec)
    world.run_for(3.0)
    assert workload_id is not None
    assert workload_id in dakar.machine.state.scheduler.queue
    dakar.handle(ev.StopRequested(str(blockers[0]), "done"))
    world.run_for(1.0)
    assert runs_at(world, workload_id) == [dakar.name]


def test_a_cut_shorter_than_the_lease_disturbs_nobody() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    world.network.partition([owner.name], [name for name in world.hubs if name != owner.name])
    world.run_for(TERMS.batch_s / 2)
    assert runs_at(world, workload_id) == [runner.name], "suspicion evicts nothing"
    world.heal()
    world.run_for(TERMS.batch_s * 2)
    assert runs_at(world, workload_id) == [runner.name]
    assert owner.machine.state.registry.workloads[workload_id].epoch == 1


def test_after_a_longer_cut_the_runner_has_stopped_before_the_owner_starts_it_again() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    world.network.partition([runner.name], [name for name in world.hubs if name != runner.name])
    world.run_for(TERMS.batch_s * 3)  # `check` looks for two places after every event
    (place,) = runs_at(world, workload_id)
    assert place != runner.name
    assert owner.machine.state.registry.workloads[workload_id].epoch == 2
    assert any("federation.lease_ended" in event for event in owner.disk.events)
    world.heal()
    world.run_for(5.0)
    assert runs_at(world, workload_id) == [place]


def test_a_renewal_counts_from_when_it_was_asked_for_not_from_when_the_answer_came() -> None:
    """Answers that take longer than the owner's margin, and then none at all."""
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    world.network.set_link(owner.name, runner.name, SimLink(delay_s=6.0), both=False)
    world.run_for(TERMS.batch_s * 2)
    world.network.cut(runner.name, owner.name, both=False)
    world.run_for(TERMS.batch_s * 2)
    assert owner.machine.state.registry.workloads[workload_id].epoch >= 2


def test_a_grant_that_comes_after_its_bid_has_expired_starts_nothing() -> None:
    world = FederationWorld(2, 1, CALM)
    owner, runner = world.hubs.values()
    world.end_chance = FOREVER
    blocker = WorkloadSpec(name="b", command=("true",), resources=Resources(gpus=4), stay_home=True)
    world.submit(owner, blocker)
    world.run_for(1.0)
    send = world.network.send

    def slow_grants(source: str, target: str, message: object) -> None:
        if isinstance(message, Grants):
            world.network.after(3.0, lambda: send(source, target, message))
        else:
            send(source, target, message)

    world.network.send = slow_grants  # type: ignore[method-assign]
    workload_id = world.submit(owner, WorkloadSpec(name="a", command=("true",), resources=Resources(gpus=4)))
    world.run_for(20.0)
    assert workload_id is not None
    assert runs_at(world, workload_id) == []
    assert owner.machine.state.registry.workloads[workload_id].epoch > 1
    owner.handle(ev.StopRequested(workload_id, "enough"))
    world.run_for(5.0)
    assert not runner.machine.state.scheduler.running, "what was held for it is free again"


def test_a_grant_for_nodes_whose_agent_has_left_starts_nothing_there() -> None:
    world = FederationWorld(2, 1, CALM)
    owner, runner = world.hubs.values()
    world.end_chance = FOREVER
    world.submit(owner, WorkloadSpec(name="b", command=("true",), resources=Resources(gpus=4), stay_home=True))
    world.run_for(1.0)
    send = world.network.send

    def leaves_before_grants(source: str, target: str, message: object) -> None:
        if isinstance(message, Grants) and runner.machine.state.agents.agents:
            runner.handle(ev.AgentLeft(runner.agent.agent_id, runner.sessions, "cut"))
        send(source, target, message)

    world.network.send = leaves_before_grants  # type: ignore[method-assign]
    gang = WorkloadSpec(name="a", command=("true",), tasks=2, resources=Resources(gpus=1))
    workload_id = world.submit(owner, gang)
    world.run_for(1.0)
    assert workload_id is not None
    assert not runner.machine.state.agents.agents
    assert runs_at(world, workload_id) == []
    assert not runner.machine.state.scheduler.running, "what was held for it is free again"


def test_a_grant_that_was_refused_stays_refused_even_if_a_copy_comes_when_nothing_is_in_the_way() -> None:
    world = FederationWorld(2, 1, CALM)
    workload_id, owner, runner = lent(world)
    grant = Grant(
        bid_id="",
        lease=WorkLease(workload_id, 2),
        lease_s=TERMS.batch_s,
        attempt=2,
        tenant="t",
        spec=runner.machine.state.registry.workloads[workload_id].spec,
        created_at=runner.now,
    )
    send = world.network.send
    world.network.send = lambda *m: None if isinstance(m[2], Bids) else send(*m)  # type: ignore[method-assign]
    need = Need(ref=0, turn_class=grant.spec.turn_class, needs=grant.spec.resources, runs_process=True, may_queue=True)
    runner.handle(ev.PeerMessageReceived(owner.name, BidRequest(7, (need,))))
    bid_id = next(iter(runner.machine.state.lending.bids))
    copy = ev.PeerMessageReceived(owner.name, Grants((replace(grant, bid_id=bid_id),)))
    runner.handle(copy)  # refused: epoch 1 still runs here
    runner.agent.end(TaskKey(workload_id, 1, 0), ExitReason.EXITED, now=runner.world_now, exit_code=0)
    world.run_for(1.0)  # epoch 1 has ended, and its owner knows
    runner.handle(copy)
    world.run_for(0.2)
    assert runs_at(world, workload_id) == []


def test_a_restarted_runner_renews_before_anything_starts_and_what_runs_goes_on() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    runner.crash()
    world.run_for(2.0)
    world._restart(runner)
    world.run_for(TERMS.batch_s * 2)
    assert runs_at(world, workload_id) == [runner.name]
    assert owner.machine.state.registry.workloads[workload_id].attempt == 1


def test_a_restarted_owner_waits_a_whole_lease_again() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    world.network.partition([runner.name], [name for name in world.hubs if name != runner.name])
    world.run_for(TERMS.batch_s * 0.5)
    owner.crash()
    owner.start()
    owner.connect_agent()
    world.run_for(TERMS.batch_s * 0.9)
    assert len(runs_at(world, workload_id)) <= 1
    assert owner.machine.state.registry.workloads[workload_id].leased
    world.run_for(TERMS.batch_s)
    assert owner.machine.state.registry.workloads[workload_id].epoch == 2


def test_an_end_that_is_told_late_counts_unless_the_work_was_started_again() -> None:
    world = FederationWorld(2, 1, CALM)
    owner, runner = world.hubs.values()
    workload_id, owner, runner = lent(world)
    world.network.partition([owner.name], [runner.name])
    runner.agent.end(TaskKey(workload_id, 1, 0), ExitReason.EXITED, now=runner.world_now, exit_code=0)
    world.run_for(TERMS.batch_s * 2)
    workload = owner.machine.state.registry.workloads[workload_id]
    assert workload.state is State.PENDING, "its lease has ended, and its hub is still full"
    world.heal()
    world.run_for(3.0)
    assert workload.state is State.COMPLETED
    assert any("federation.reconciled" in event for event in owner.disk.events)


def test_work_that_must_not_be_restarted_fails_when_its_runner_is_lost() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world, restart=RestartPolicy.NEVER)
    runner.crash()
    world.run_for(TERMS.batch_s * 2)
    workload = owner.machine.state.registry.workloads[workload_id]
    assert workload.state is State.FAILED
    assert runner.name in workload.error_message


@pytest.mark.parametrize("reachable", [True, False])
def test_stopping_lent_work_stops_it_there_or_waits_until_its_lease_has_ended(reachable: bool) -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    if not reachable:
        world.network.partition([runner.name], [name for name in world.hubs if name != runner.name])
    owner.handle(ev.StopRequested(workload_id, "no longer needed"))
    world.run_for(2.0)
    workload = owner.machine.state.registry.workloads[workload_id]
    assert (workload.state is State.CANCELLED) is reachable
    world.run_for(TERMS.batch_s * 2)
    assert workload.state is State.CANCELLED
    assert runs_at(world, workload_id) == []


def test_a_drained_hub_gives_guests_back_sends_its_own_work_away_and_takes_none() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world)
    own = world.submit(runner, WorkloadSpec(name="own", command=("true",), resources=Resources(gpus=1)))
    world.run_for(1.0)
    runner.handle(ev.HubClosed(int(Closed.DRAINING)))
    world.run_for(10.0)
    assert own is not None
    assert not runner.agent.running
    assert runner.name not in runs_at(world, workload_id) + runs_at(world, own)
    assert len(runs_at(world, own)) == 1
    assert owner.machine.state.registry.workloads[workload_id].epoch >= 1


def test_a_tag_tightened_at_home_stops_and_scrubs_the_work_at_its_runner() -> None:
    world = FederationWorld(5, 1, CALM)
    workload_id, owner, runner = lent(world, data=("records",), countries_allowed=("MA",))
    entry = owner.machine.state.catalog.entries[f"data_{owner.name}"]
    assert entry.object.tag is not None
    nowhere = replace(entry.object.tag, process_in=())
    owner.handle(ev.DataRetagged(entry.object.id, nowhere))
    world.run_for(2.0)
    assert runs_at(world, workload_id) == []
    assert owner.machine.state.registry.workloads[workload_id].state is State.CANCELLED
    assert runner.machine.state.registry.workloads[workload_id].scrub


# The simulation can fail


def test_an_owner_that_does_not_wait_for_the_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseTerms, "owner_waits_s", lambda self, length_s: length_s * 0.5)
    world = FederationWorld(5, 1, CALM)
    _, _, runner = lent(world)
    world.network.partition([runner.name], [name for name in world.hubs if name != runner.name])
    with pytest.raises(AssertionError, match="runs at"):
        world.run_for(TERMS.batch_s * 2)


def test_a_runner_that_counts_from_the_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = borrowed.renewed

    def from_receipt(tx, owner, answer: LeaseRenewed) -> None:  # type: ignore[no-untyped-def]
        asked = tx.state.lending.renewals.get(answer.number)
        if asked is not None:
            tx.state.lending.renewals[answer.number] = (asked[0], tx.boot_s, asked[2])
        original(tx, owner, answer)

    monkeypatch.setattr(borrowed, "renewed", from_receipt)
    with pytest.raises(AssertionError, match="runs at"):
        test_a_renewal_counts_from_when_it_was_asked_for_not_from_when_the_answer_came()
