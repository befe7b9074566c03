"""A federation that plans for power: random figures of every hub, random wishes of work, plans at random moments.

Beside all that a federation must keep, nobody is held back beyond what was promised, whatever crashes meanwhile.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from harch.carbon.planning.settings import AppliesTo, PlanningEntry, PlanSettings
from harch.carbon.values import Signal
from harch.hub.carbon.snapshot import KnownPower, make_plan, take
from harch.hub.jobs import events as ev
from harch.hub.summary import summarise
from harch.hub.views import PeerView
from harch.testing.clock import START
from harch.testing.network import SimLink
from harch.wire.carbon import Figure, ForecastHour, GridForecast, HubPower
from harch.workloads.spec import CarbonPreferences, Resumes, SchedulingClass, WorkloadSpec
from sim.federation_hub import SimHub
from sim.federation_world import ROUGH, FederationWorld

SETTINGS = PlanSettings(
    PlanningEntry(applies_to=AppliesTo.ALL, step_s=1.0, moves_per_hour=1000, move_again_after_s=2.0)
)
TICK = timedelta(seconds=2)  # how often hubs look


def told_power(hub_id: str, g_per_kwh: float, hub: SimHub, *, onsite_kw: float = 0.0) -> HubPower:
    grid = Figure(
        signal=Signal.GRID_AVERAGE_LIFECYCLE, value=g_per_kwh, evidence="measured", source="meter", at=hub.now
    )
    return HubPower(hub_id=hub_id, country="", grid_zone="", at=hub.now, onsite_kw=onsite_kw, readings=(grid,))


def plan_at(hub: SimHub, told: KnownPower) -> None:
    """As the running hub does it: a snapshot, a plan, an event."""
    state, hub.limits = hub.machine.state, ev.JobLimits(carbon=SETTINGS)
    summary = summarise(state, not_ready="", version="", started_at=START, now=hub.now, url="")
    own = PeerView(hub_id=hub.name, url="", reachable=True, age_s=0.0, summary=summary, own=True)
    snapshot = take(state, hub.context(), hub.fleet, [own, *state.lending.peers.values()], told)
    made, again = make_plan(snapshot), make_plan(snapshot)
    if made is not None:
        assert again is not None
        assert made.decisions == again.decisions, "equal snapshots give equal plans"
        hub.handle(ev.CarbonPlanned(made))


class CarbonWorld(FederationWorld):
    _lives: dict[tuple[str, int], datetime]

    def __init__(self, size: int, seed: int, link: SimLink = ROUGH) -> None:
        self._lives = {}
        super().__init__(size, seed, link)

    STEPS = (*FederationWorld.STEPS, "plan", "plan", "plan", "plan")

    def _spec(self, hub: SimHub) -> WorkloadSpec:
        spec, dice = super()._spec(hub), self.dice
        if spec.turn_class is not SchedulingClass.TRAINING or dice.random() < 0.2:
            return spec
        wishes = CarbonPreferences(
            aware=True,
            slack_s=dice.choice([0.0, 2.0, 8.0, 20.0]),
            duration_s=dice.choice([2.0, 6.0, 60.0]),
            resumes=dice.choice(list(Resumes)),
            g_per_kwh_max=dice.choice([None, None, None, 400.0]),
        )
        return replace(spec, carbon=wishes)

    def plan(self) -> None:
        for hub in self.hubs.values():
            if hub.alive and self.dice.random() < 0.7:
                plan_at(hub, self._told(hub))

    def _told(self, hub: SimHub) -> KnownPower:
        """Figures that may be wrong, old or missing: a plan may be bad, and nothing else may be."""
        dice = self.dice
        known = [name for name in self.hubs if dice.random() < 0.9]
        powers = {
            name: told_power(name, dice.choice([20.0, 300.0, 600.0]), hub, onsite_kw=dice.choice([0.0, 50.0]))
            for name in known
        }
        forecasts = {
            name: GridForecast(
                hub_id=name,
                grid_zone="",
                made_at=hub.now,
                model="dice",
                hours=tuple(_hour(hub, number, dice.choice([20.0, 600.0])) for number in range(3)),
            )
            for name in known
            if dice.random() < 0.7
        }
        return KnownPower(powers=powers, forecasts=forecasts, intents={})

    def check(self) -> None:
        super().check()
        for hub in self.hubs.values():
            for workload_id in hub.machine.state.carbon.held if hub.alive else ():
                choice = hub.machine.state.registry.workloads[workload_id].carbon
                assert choice is not None
                assert choice.release_at is not None, f"{workload_id} is held without an end"
                late = hub.now - max(choice.release_at, self._began(hub))
                assert late <= TICK, f"{workload_id} is held {late} too long: {choice}"

    def _began(self, hub: SimHub) -> datetime:
        """When this process of the hub was first seen: before, nobody could let anything go."""
        return self._lives.setdefault((hub.name, hub.life), hub.now)


def _hour(hub: SimHub, number: int, g_per_kwh: float) -> ForecastHour:
    at = hub.now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=number)
    return ForecastHour(at=at, g_per_kwh=g_per_kwh, low=0, high=900, low_half=0, high_half=900)
