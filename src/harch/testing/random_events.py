"""What may happen to a hub? Random events of every kind: people, agents, a peer, hardware, power, time.

Each is one that could come: agents report what they were told to run, the peer answers what it was asked. A test
compares `DRAWS` with the events that there are, so that a new one cannot be forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.carbon.planning.outlook import HubHours, Pool, RestsOn
from harch.execution.protocol import HubMessage, TaskEnded, TaskKey, TaskStarted
from harch.federation import offers as o
from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet, Hub
from harch.hub.audit import drafts
from harch.hub.carbon.snapshot import STEPS, HubOutlook, Snapshot, make_plan
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_plan import ForecastBasis
from harch.hub.jobs.carbon_routing.candidates import CPU, waiting_work
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.state import Closed
from harch.hub.store.records import CatalogEntry, ConditionKind
from harch.hub.summary import summarise
from harch.hub.views import PeerView
from harch.placement.query import apply_query
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, parse_tag
from harch.testing.agents import SimAgent
from harch.testing.clock import SimClock
from harch.testing.random_peer import RandomPeer
from harch.testing.samples import DATA, TINY_FLEET_TOML, random_spec
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, WorkloadSpec

UNFINISHED_MAX = 60
TENANTS = ("t", "u")
# Bids live two seconds, leases a minute or more, retries ten minutes: time passes at every scale.
TICKS_S = (0.0, 0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 20.0, 90.0, 400.0)
TICK_WEIGHTS = (8, 8, 8, 8, 4, 4, 2, 2, 1, 1)

_SAFE = 'pue = 1.2\n[hubs.safeguards]\nencrypts_at_rest = true\nkeys_in = ["MA"]\nframeworks = ["gdpr"]\n'


def safe_fleet() -> Fleet:
    """The tiny fleet with a hub that may hold data."""
    return parse_fleet(TINY_FLEET_TOML.replace("pue = 1.2\n", _SAFE))


class RandomEvents:
    """The world around the first hub of the tiny fleet. `draw` lets time pass and says what happens next."""

    def __init__(self, random: Random, clock: SimClock) -> None:
        self.random, self.clock = random, clock
        self.fleet = safe_fleet()
        self.hub: Hub = self.fleet.hubs[0]
        self.rules = Rules(terrain_of(self.fleet, shipped_jurisdictions()))
        nodes = [node.id for node in self.hub.nodes]
        self.agents = {
            name: SimAgent(name, self.hub.country, tuple(some), process_slots=slots)
            for name, some, slots in (("one", nodes[:3], 12), ("two", nodes[3:], 40))
        }
        self.connected: dict[str, int] = {}
        self.peer = RandomPeer(random, self.fleet.hubs[1].id, self.hub.id)
        # Some hubs are crowded and others nearly empty: where little ends, much waits.
        ends, self._hunger = random.choice((0.05, 0.3, 1.0)), random.choice((0.1, 0.7))
        self._weights = [weight * (ends if kind in ENDS else 1.0) for kind, (weight, _) in DRAWS.items()]
        self._sessions = self._submitted = 0
        self._data: list[str] = []
        self._specs: list[WorkloadSpec] = []

    # What the hub does

    def sent(self, agent_id: str, message: HubMessage) -> None:
        if agent_id in self.connected:
            self.agents[agent_id].receive(message, now=self.clock.now())

    def sent_peer(self, hub_id: str, message: o.LendingMessage) -> None:
        if hub_id == self.peer.hub_id:
            self.peer.receive(message)

    def cut_off(self, _why: str = "") -> None:
        """The hub has dropped its agents."""
        self.connected.clear()

    # What happens to it

    def draw(self, machine: JobMachine) -> ev.Event:
        self.clock.jump(self.random.choices(TICKS_S, TICK_WEIGHTS)[0])
        for agent in self.agents.values():
            agent.tick(self.clock.now())
        if len(self.connected) < len(self.agents) and self.random.random() < 0.3:
            joined = self.agent_joined(machine)  # an agent that was dropped is soon back
            if joined is not None:
                return joined
        while True:
            kind = self.random.choices(list(DRAWS), self._weights)[0]
            event = DRAWS[kind][1](self, machine)
            if event is not None:
                return event

    def submitted(self, machine: JobMachine) -> ev.Event | None:
        unfinished = [one for one in machine.state.registry.workloads.values() if not one.state.is_final]
        if len(unfinished) >= UNFINISHED_MAX:
            return ev.StopRequested(self.random.choice(unfinished).id, "too many", hide=self.random.random() < 0.3)
        self._submitted += 1
        if self._specs and self.random.random() < 0.05:
            spec = self.random.choice(self._specs)  # a retry, or a name that is taken
        else:
            spec = self._spec(f"job-{self._submitted}")
            self._specs = [*self._specs[-20:], spec]
        key = f"key-{self.random.randrange(200)}" if self.random.random() < 0.1 else None
        return ev.Submitted(f"wl_{self._submitted:06d}", self.random.choice(TENANTS), spec, {}, key)

    def _spec(self, name: str) -> WorkloadSpec:
        while True:
            fixed: dict[str, object] = {}
            if self.random.random() < self._hunger:
                fixed = {"command": (), "resources": Resources(gpus=self.random.choice((1, 1, 2, 4, 8)))}
            try:
                return apply_query(random_spec(self.random, name, **fixed))
            except HarchError:  # the query contradicts another field: refused before it would come here
                continue

    def spec_replaced(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine)
        return None if workload is None else ev.SpecReplaced(workload.id, self._spec(workload.spec.name), {"a": "b"})

    def relabelled(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine)
        return None if workload is None else ev.Relabelled(workload.id, {"label": str(self.random.randrange(3))})

    def stopped(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine, finished_too=True)
        return None if workload is None else ev.StopRequested(workload.id, "asked", hide=self.random.random() < 0.3)

    def paused(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine)
        return None if workload is None else ev.PauseRequested(workload.id)

    def resumed(self, machine: JobMachine) -> ev.Event | None:
        paused = [one for one in machine.state.registry.workloads.values() if one.state is State.PAUSED]
        workload = self.random.choice(paused) if paused else self._some(machine)
        return None if workload is None else ev.ResumeRequested(workload.id)

    def restarted(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine)
        return None if workload is None else ev.RestartRequested(workload.id, "again")

    def wished(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine)
        return None if workload is None else ev.CarbonPreferencesChanged(workload.id, self._spec("wish").carbon)

    def room_requested(self, machine: JobMachine) -> ev.Event | None:
        workload = self._some(machine)
        return None if workload is None else ev.DefragmentationRequested(workload.id)

    # Data

    def data_added(self, _machine: JobMachine) -> ev.Event | None:
        if len(self._data) >= 200:
            return None
        object_id, is_code = f"data_{len(self._data)}", self.random.random() < 0.2
        self._data.append(object_id)
        now = self.clock.now()
        data = DataObject(
            id=object_id,
            kind=DataKind.CODE if is_code else DataKind.DATASET,
            name="code-1" if is_code else self.random.choice((*DATA, object_id)),
            tenant=self.random.choice(TENANTS),
            tag=self._tag(),
            hubs=(self.hub.id,),
        )
        content = "ab" * 32 if is_code else self.random.choice(("", "cd" * 32))
        return ev.DataAdded(CatalogEntry(object=data, created_at=now, updated_at=now, content=content))

    def data_retagged(self, _machine: JobMachine) -> ev.Event | None:
        return ev.DataRetagged(self.random.choice(self._data), self._tag()) if self._data else None

    def data_removed(self, machine: JobMachine) -> ev.Event | None:
        found = list(machine.state.catalog.entries)
        return ev.DataRemoved(self.random.choice(found)) if found else None

    def data_kept(self, machine: JobMachine) -> ev.Event | None:
        found = list(machine.state.catalog.entries)
        until = self.random.choice((None, self.clock.now()))
        return ev.DataKept(self.random.choice(found), until) if found else None

    def data_moved(self, machine: JobMachine) -> ev.Event | None:
        found = [*machine.state.catalog.entries, "data_unknown"]
        hub = self.random.choice(self.fleet.hubs).id
        return ev.DataMoved(self.random.choice(found), hub, self.random.random() < 0.5)

    def copies_reported(self, machine: JobMachine) -> ev.Event | None:
        entries = machine.state.catalog.entries
        chosen = self.random.sample(list(entries), self.random.randint(0, min(3, len(entries))))
        changed = tuple(
            replace(entries[one].object, tag=self._tag(), tag_revision=self.random.randint(1, 5)) for one in chosen[:2]
        )
        return ev.CopiesReported(self.fleet.hubs[1].id, changed, tuple(chosen[2:]))

    def _tag(self) -> Tag:
        countries = self.random.choices((["MA", "SN"], ["MA"], ["SN"]), (6, 6, 1))[0]
        fields: dict[str, object] = {"process_in": countries, "rest_in": countries}
        return parse_tag(fields | {"may_cross_borders": len(countries) > 1}, shipped_jurisdictions())

    # Agents

    def agent_joined(self, _machine: JobMachine) -> ev.Event | None:
        away = sorted(self.agents.keys() - self.connected.keys())
        if not away:
            return None
        agent_id = self.random.choice(away)
        self._sessions += 1
        self.connected[agent_id] = self._sessions
        return ev.AgentJoined(self.agents[agent_id].hello(now=self.clock.now()), self._sessions)

    def agent_left(self, _machine: JobMachine) -> ev.Event | None:
        if not self.connected:
            return None
        agent_id = self.random.choice(sorted(self.connected))
        return ev.AgentLeft(agent_id, self.connected.pop(agent_id), "cut")

    def agent_barred(self, _machine: JobMachine) -> ev.Event | None:
        agent_id = self.random.choice(sorted(self.agents))
        refusal = HarchError("E0115", f"the key of agent `{agent_id}` shows belongs to another")
        return ev.AgentBarred(agent_id, drafts.agent_refused(agent_id, self.hub.country, refusal))

    def reported(self, _machine: JobMachine) -> ev.Event | None:
        for agent_id in sorted(self.connected):
            agent = self.agents[agent_id]
            if agent.outbox:
                message = agent.outbox.pop(0)
                if isinstance(message, TaskStarted):
                    return ev.TaskStartSeen(message.key)
                if isinstance(message, TaskEnded):
                    return ev.TaskEndSeen(agent_id, message)
        return None

    def started_late(self, machine: JobMachine) -> ev.Event | None:
        """A report that comes again, or of an attempt that is over."""
        workload = self._some(machine, finished_too=True)
        if workload is None:
            return None
        attempt = max(0, workload.attempt - self.random.choice((0, 0, 1)))
        ranks = [task.rank for task in workload.placement] or [0]
        return ev.TaskStartSeen(TaskKey(workload.id, attempt, self.random.choice(ranks)))

    def ended(self, _machine: JobMachine) -> ev.Event | None:
        """Something that runs ends; it is reported in its turn."""
        running = [(agent, key) for agent in self.agents.values() for key in agent.running]
        if not running:
            return None
        agent, key = self.random.choice(running)
        reason = self.random.choices(list(ExitReason), [20] + [1] * (len(ExitReason) - 1))[0]
        agent.end(key, reason, now=self.clock.now(), exit_code=self.random.choice((0, 0, 0, 1)))
        return ev.TaskEndSeen(agent.agent_id, agent.ended[key]) if agent.agent_id in self.connected else None

    # Other hubs

    def peers_seen(self, machine: JobMachine) -> ev.Event | None:
        now, status = self.clock.now(), self.random.choice(("ready", "ready", "error"))
        own = summarise(machine.state, not_ready="", version="", started_at=now, now=now, url="")
        there = replace(own, hub_id=self.peer.hub_id, country="SN", status=status)
        view = PeerView(hub_id=self.peer.hub_id, url="", reachable=self.random.random() < 0.9, age_s=0.0, summary=there)
        return ev.PeersSeen((view,))

    def peer_message(self, _machine: JobMachine) -> ev.Event | None:
        message = self.peer.speak(self.clock.now(), self._spec)
        return None if message is None else ev.PeerMessageReceived(self.peer.hub_id, message)

    def peer_back(self, _machine: JobMachine) -> ev.Event | None:
        return ev.PeerBack(self.peer.hub_id)

    # Power

    def planned(self, machine: JobMachine) -> ev.Event | None:
        state, now = machine.state, self.clock.now()
        context = ev.EventContext(now=now, boot_s=self.clock.boot_s())
        pools = {
            (hub.id, model): Pool(hub.id, model, 8, 1.0) for hub in self.fleet.hubs for model in (*hub.gpu_models, CPU)
        }
        held = [state.registry.workloads[key] for key in sorted(state.carbon.held) if self.random.random() < 0.8]
        hours = tuple(
            HubOutlook(
                HubHours(
                    hub=hub.id,
                    grid_g_per_kwh=np.array([self.random.uniform(10, 800) for _ in range(STEPS)]),
                    onsite_kw=np.zeros(STEPS),
                    pue=hub.pue,
                    rests_on=RestsOn("drawn"),
                ),
                ForecastBasis("drawn", now),
            )
            for hub in self.fleet.hubs
        )
        snapshot = Snapshot(
            at=now,
            step_s=3600.0,
            hubs=hours,
            pools=tuple(pools.values()),
            waiting=tuple(waiting_work(state, context, one, pools, planned=True) for one in held),
            running=(),
            announced=(),
            attempts={},
        )
        plan = make_plan(snapshot)
        return None if plan is None else ev.CarbonPlanned(plan)

    # Hardware

    def changed(self, _machine: JobMachine) -> ev.Event | None:
        kind = self.random.choice([one for one in ConditionKind if one is not ConditionKind.CLOSED])
        node = self.random.choice(self.hub.nodes)
        subject = {
            ConditionKind.UNHEALTHY: self.random.choice(node.gpus).id,
            ConditionKind.COOLING_KW: self.random.choice(self.hub.cooling_zones).id,
            ConditionKind.UPLINK: self.random.choice(self.hub.racks).id,
        }.get(kind, node.id)
        value = self.random.choice((None, None, 0.5, 1.0, 30.0 if kind is ConditionKind.COOLING_KW else 7.0))
        return ev.HardwareChanged(kind, self.random.choice((subject, subject, subject, "nothing")), value)

    def drained(self, _machine: JobMachine) -> ev.Event | None:
        return ev.NodeDrained(self.random.choice(self.hub.nodes).id)

    def closed(self, machine: JobMachine) -> ev.Event | None:
        if machine.state.closed:
            return ev.HubClosed(Closed.OPEN)
        closes = self.random.random() < 0.1
        return ev.HubClosed(self.random.choice((Closed.CORDONED, Closed.DRAINING))) if closes else None

    def _some(self, machine: JobMachine, *, finished_too: bool = False) -> Workload | None:
        found = [one for one in machine.state.registry.workloads.values() if finished_too or not one.state.is_final]
        return self.random.choice(found) if found else None


ENDS = (ev.StopRequested, ev.TaskEndSeen, ev.NodeDrained, ev.AgentLeft)
Drawn = Callable[[RandomEvents, JobMachine], "ev.Event | None"]

# How often each kind comes, by its weight. `TaskEndSeen` and `TaskStartSeen` also come from `reported`.
DRAWS: Mapping[object, tuple[int, Drawn]] = {
    ev.Submitted: (60, RandomEvents.submitted),
    ev.SpecReplaced: (6, RandomEvents.spec_replaced),
    ev.Relabelled: (3, RandomEvents.relabelled),
    ev.StopRequested: (10, RandomEvents.stopped),
    ev.PauseRequested: (6, RandomEvents.paused),
    ev.ResumeRequested: (10, RandomEvents.resumed),
    ev.RestartRequested: (5, RandomEvents.restarted),
    ev.DataAdded: (4, RandomEvents.data_added),
    ev.DataRetagged: (2, RandomEvents.data_retagged),
    ev.DataRemoved: (1, RandomEvents.data_removed),
    ev.DataKept: (1, RandomEvents.data_kept),
    ev.DataMoved: (1, RandomEvents.data_moved),
    ev.CopiesReported: (1, RandomEvents.copies_reported),
    ev.TagsDue: (3, lambda _world, _machine: ev.TagsDue()),
    ev.AgentJoined: (20, RandomEvents.agent_joined),
    ev.AgentLeft: (3, RandomEvents.agent_left),
    ev.AgentBarred: (1, RandomEvents.agent_barred),
    ev.TaskStartSeen: (2, RandomEvents.started_late),
    ev.TaskEndSeen: (40, RandomEvents.ended),
    "reports": (120, RandomEvents.reported),
    ev.PlacementDue: (80, lambda _world, _machine: ev.PlacementDue()),
    ev.PeersSeen: (10, RandomEvents.peers_seen),
    ev.PeerMessageReceived: (80, RandomEvents.peer_message),
    ev.PeerBack: (4, RandomEvents.peer_back),
    ev.LendingDue: (60, lambda _world, _machine: ev.LendingDue()),
    ev.CarbonPreferencesChanged: (5, RandomEvents.wished),
    ev.CarbonPlanned: (2, RandomEvents.planned),
    ev.CarbonDue: (10, lambda _world, _machine: ev.CarbonDue()),
    ev.HardwareChanged: (6, RandomEvents.changed),
    ev.NodeDrained: (1, RandomEvents.drained),
    ev.HubClosed: (10, RandomEvents.closed),
    ev.DefragmentationRequested: (4, RandomEvents.room_requested),
    ev.Noted: (1, lambda _world, _machine: ev.Noted("test.noted", "hub", "something")),
    ev.FaultSeen: (1, lambda _world, _machine: ev.FaultSeen("drawn", "ValueError")),
}
