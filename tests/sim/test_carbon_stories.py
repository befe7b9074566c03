"""Plans send work to cleaner hubs, move it and hold it back; nothing runs twice, is lost, or waits for too long."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from harch.federation.offers import BidRequest, Grants
from harch.hub.carbon.snapshot import KnownPower
from harch.hub.jobs.carbon_plan import Intent
from harch.hub.jobs.carbon_routing import candidates
from harch.hub.jobs.events import JobLimits
from harch.testing.network import SimLink
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import CarbonPreferences, Resources, Resumes, WorkloadSpec
from sim.carbon_world import CarbonWorld, plan_at, told_power

CALM = SimLink(delay_s=0.010)
BLOCK = 4


def seeds() -> range:
    usual = "0:5000" if os.environ.get("HARCH_SOAK") else "0:16"
    first, last = os.environ.get("HARCH_SIM_SEEDS", usual).split(":")
    return range(int(first), int(last))


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A story lasts a minute: what ran for a second may be moved."""
    monkeypatch.setattr(candidates, "RUN_S_MIN", 1.0)


@pytest.mark.parametrize("first", seeds()[::BLOCK])
def test_random_stories_of_five_hubs_that_plan(first: int) -> None:
    for seed in range(first, min(first + BLOCK, seeds().stop)):
        world = CarbonWorld(5, seed)
        world.live(20)
        world.settle()


# Single rules


def calm(seed: int = 1) -> CarbonWorld:
    world = CarbonWorld(5, seed, CALM)
    world.end_chance = 0.0
    return world


def plan(world: CarbonWorld, grams: dict[str, float], owner: str = "hub00") -> None:
    hub = world.hubs[owner]
    plan_at(
        hub, KnownPower(powers={name: told_power(name, g, hub) for name, g in grams.items()}, forecasts={}, intents={})
    )


def job(world: CarbonWorld, name: str = "job", **fields: object) -> Workload:
    wishes = fields.pop("carbon", CarbonPreferences(aware=True, duration_s=3600))
    spec = WorkloadSpec(
        name=name,
        command=("true",),
        resources=Resources(gpus=1),
        stop_grace_s=0.0,
        carbon=wishes,  # type: ignore[arg-type]
        **fields,  # type: ignore[arg-type]
    )
    workload_id = world.submit(world.hubs["hub00"], spec)
    assert workload_id is not None
    return world.hubs["hub00"].machine.state.registry.workloads[workload_id]


def where(world: CarbonWorld, workload: Workload) -> list[str]:
    return [
        name for name, hub in world.hubs.items() if any(key.workload_id == workload.id for key in hub.agent.running)
    ]


def test_work_goes_to_the_cleaner_hub_although_home_has_room() -> None:
    world = calm()
    plan(world, {"hub00": 600, "hub01": 500, "hub03": 100})
    work = job(world)
    world.run_for(3.0)
    assert where(world, work) == ["hub03"]
    assert (work.leased, work.runner_hub, work.state) == (True, "hub03", State.RUNNING)


def test_work_that_says_nothing_about_carbon_stays_at_home_by_default() -> None:
    world = calm()
    plan(world, {"hub00": 600, "hub03": 100})
    world.hubs["hub00"].limits = JobLimits()
    work = job(world, carbon=CarbonPreferences())
    world.run_for(3.0)
    assert (where(world, work), work.carbon) == (["hub00"], None)


@pytest.mark.parametrize("fields", [{"countries_allowed": ("MA",)}, {"data": ("records",)}, {"stay_home": True}])
def test_no_gram_buys_a_way_around_the_law(fields: dict[str, object]) -> None:
    world = calm()
    heard: list[tuple[str, object]] = []
    send = world.network.send

    def listening(source: str, target: str, message: object) -> None:
        heard.append((target, message))
        send(source, target, message)

    world.network.send = listening  # type: ignore[method-assign]
    plan(world, {"hub00": 900, "hub01": 800, "hub02": 700, "hub03": 1, "hub04": 1})
    work = job(world, **fields)
    world.run_for(3.0)
    (runs,) = where(world, work)
    assert world.hubs[runs].hub.country == "MA"
    asked = {name for name, message in heard if isinstance(message, BidRequest | Grants)}
    assert all(world.hubs[name].hub.country == "MA" for name in asked)
    if "stay_home" in fields:
        assert (runs, asked) == ("hub00", set())


def test_home_takes_it_when_the_cleaner_hub_does_not_answer() -> None:
    world = calm()
    plan(world, {"hub00": 600, "hub03": 100})
    world.network.partition(["hub03"], [name for name in world.hubs if name != "hub03"])
    work = job(world)
    world.run_for(3.0)
    assert where(world, work) == []
    world.run_for(6.0)
    assert where(world, work) == ["hub00"]


def test_a_crowd_does_not_follow_one_another_to_the_same_hub() -> None:
    """hub03 has own power for a little: each job that is sent there makes it dearer for the next."""
    world = calm()
    hub = world.hubs["hub00"]
    powers = {name: told_power(name, 500.0, hub) for name in ("hub00", "hub01")}
    powers["hub03"] = told_power("hub03", 700.0, hub, onsite_kw=2.6)
    plan_at(hub, KnownPower(powers=powers, forecasts={}, intents={}))
    works_ = [job(world, f"job-{number}", carbon=CarbonPreferences(aware=True, duration_s=1)) for number in range(4)]
    chosen = [one.carbon.hub_id for one in works_ if one.carbon is not None]
    assert chosen == ["hub03", "hub03", "hub03", "hub00"]  # 2.6 kW are enough for two, and most of a third


def test_what_others_announced_is_planned_around() -> None:
    def chosen(intents: dict[str, tuple[Intent, ...]]) -> str:
        world = calm()
        hub = world.hubs["hub00"]
        powers = {"hub00": told_power("hub00", 500.0, hub), "hub03": told_power("hub03", 700.0, hub, onsite_kw=2.0)}
        plan_at(hub, KnownPower(powers=powers, forecasts={}, intents=intents))
        choice = job(world, carbon=CarbonPreferences(aware=True, duration_s=1)).carbon
        assert choice is not None
        return choice.hub_id

    said = Intent("hub03", "h100-80gb", calm().hubs["hub00"].now + timedelta(seconds=0.5), 3.0, 2.0)
    assert chosen({}) == "hub03"
    assert chosen({"hub01": (said,)}) == "hub00"


def test_running_work_moves_to_a_much_cleaner_hub_and_goes_on_there() -> None:
    world = calm()
    plan(world, {"hub00": 100, "hub03": 100})
    work = job(world, carbon=CarbonPreferences(aware=True, duration_s=36000, resumes=Resumes.ANYWHERE))
    world.run_for(3.0)
    assert where(world, work) == ["hub00"]
    plan(world, {"hub00": 800, "hub03": 20})
    world.run_for(4.0)
    assert where(world, work) == ["hub03"]
    assert work.carbon is not None
    assert (work.carbon.moves, work.attempt) == (1, 2)
    assert work.carbon.ran_s > 0
    plan(world, {"hub00": 20, "hub03": 800})  # and back again, from a peer
    world.run_for(6.0)
    assert where(world, work) == ["hub00"]


@pytest.mark.parametrize("resumes", [Resumes.NO, Resumes.HERE])
def test_work_that_cannot_go_on_elsewhere_is_not_moved(resumes: Resumes) -> None:
    world = calm()
    plan(world, {"hub00": 100, "hub03": 100})
    work = job(world, carbon=CarbonPreferences(aware=True, duration_s=36000, resumes=resumes))
    world.run_for(3.0)
    plan(world, {"hub00": 800, "hub03": 20})
    world.run_for(4.0)
    assert (where(world, work), work.attempt) == (["hub00"], 1)
