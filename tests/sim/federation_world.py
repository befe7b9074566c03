"""A federation on a simulated network and clock: cuts, losses, crashes, skewed clocks, and what must never happen.

Checked after every event: nothing runs at two places, no GPU serves two, no rule about countries or data is broken.
Checked in the end: nothing acknowledged is lost, everything has ended, nobody holds anything any more.
"""

from __future__ import annotations

import random

from harch.federation.gossip.messages import GossipAck, Push, Syn, SynAck
from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet
from harch.hub.jobs import events as ev
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.sovereignty.tags import Classification, DataKind, DataObject, Tag
from harch.testing.clock import START
from harch.testing.network import SimLink, SimNetwork
from harch.workloads.spec import Gang, Resources, RestartPolicy, WorkloadSpec, WorkloadType
from sim.federation_hub import SimHub

COUNTRIES = ("MA", "MA", "MA", "SN", "CI")
ROUGH = SimLink(delay_s=0.015, jitter_s=0.010, loss=0.02, duplication=0.03, reordering=0.05)

_HEAD = """\
name = "sim"

[gpu_models.h100-80gb]
memory_gb = 80
power_w = 700
nvlink_gb_per_s = 900
pcie_gb_per_s = 128

[node_kinds.h100-4]
gpu_model = "h100-80gb"
gpus = 4
nvlink_island_size = 4
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 512
storage_gb = 8000
host_power_w = 1200
"""

_HUB = """
[[hubs]]
name = "{name}"
country = "{country}"
grid_zone = "{country}"
latitude = 20.0
longitude = -10.0
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 60

[[hubs.racks]]
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{{ kind = "h100-4", count = {nodes} }}]
"""

_LINK = """
[[links]]
between = ["{one}", "{two}"]
rtt_ms = 20
bandwidth_gbps = 100
countries_crossed = {crossed}
"""


def sim_fleet(size: int) -> Fleet:
    """`size` hubs in three countries, of one to three nodes with four GPUs each, all linked."""
    names = [f"Hub{number:02d}" for number in range(size)]
    countries = [COUNTRIES[number % len(COUNTRIES)] for number in range(size)]
    text = _HEAD + "".join(
        _HUB.format(name=name, country=country, nodes=1 + number % 3)
        for number, (name, country) in enumerate(zip(names, countries, strict=True))
    )
    for one in range(size):
        for two in range(one + 1, size):
            crossed = list(dict.fromkeys((countries[one], countries[two])))
            text += _LINK.format(one=names[one], two=names[two], crossed=str(crossed).replace("'", '"'))
    return parse_fleet(text, "sim.toml")


_FLEETS: dict[int, tuple[Fleet, Rules]] = {}


def _ground(size: int) -> tuple[Fleet, Rules]:
    if size not in _FLEETS:
        fleet = sim_fleet(size)
        _FLEETS[size] = fleet, Rules(terrain_of(fleet, jurisdictions_in_force()))
    return _FLEETS[size]


def _describe(message: object) -> str:
    text = repr(message)
    return text if len(text) < 160 else f"{text[:160]} …"


class FederationWorld:
    def __init__(self, size: int, seed: int, link: SimLink = ROUGH) -> None:
        self.fleet, self.rules = _ground(size)
        self.network = SimNetwork(seed, link, describe=_describe, untold=(Syn, SynAck, GossipAck, Push))
        self.dice, self.link = random.Random(seed), link
        self.hubs = {
            hub.id: SimHub(self.fleet, hub, self.rules, self.network, seed * 100 + number)
            for number, hub in enumerate(self.fleet.hubs)
        }
        self.submitted: dict[str, str] = {}  # workload -> owner
        self.end_chance = 0.02
        self._number = 0
        self._checked: list[tuple[int, int]] = []
        self._add_data()
        for hub in self.hubs.values():
            hub.connect_agent()
            self._run_agent(hub)
        self.run_for(3.0)

    def run_for(self, duration_s: float) -> None:
        with self.network.trace_on_failure():
            self.network.run_for(duration_s, self.check)

    def _run_agent(self, hub: SimHub) -> None:
        hub.run_agent(self.end_chance)
        self.network.after(0.25, lambda: self._run_agent(hub))

    def _add_data(self) -> None:
        """At each hub something that may be read in its own country only."""
        for hub in self.hubs.values():
            country = hub.hub.country
            tag = Tag(
                process_in=(country,),
                rest_in=(country,),
                transit_in=(country,),
                may_cross_borders=False,
                frameworks=(),
                classification=Classification.RESTRICTED,
                encrypt_at_rest=False,
                encrypt_in_transit=False,
                key_in=(),
            )
            data = DataObject(
                id=f"data_{hub.name}", kind=DataKind.DATASET, name="records", tenant="t", tag=tag, hubs=(hub.name,)
            )
            hub.handle(ev.DataAdded(CatalogEntry(object=data, created_at=START, updated_at=START)))

    # Steps of a story

    def submit(self, hub: SimHub | None = None, spec: WorkloadSpec | None = None) -> str | None:
        hub = hub or self.dice.choice([hub for hub in self.hubs.values() if hub.alive])
        self._number += 1
        workload_id = f"wl_{self._number:05d}"
        accepted = hub.ask(ev.Submitted(workload_id, "t", spec or self._spec(hub)))
        if not accepted:
            return None
        self.submitted[workload_id] = hub.name
        return workload_id

    def _spec(self, hub: SimHub) -> WorkloadSpec:
        dice = self.dice
        tasks = dice.choice([1, 1, 1, 1, 2, 3])
        return WorkloadSpec(
            name=f"job-{self._number}",
            type=dice.choice([WorkloadType.TRAINING, WorkloadType.BATCH, WorkloadType.INFERENCE]),
            command=("true",),
            tasks=tasks,
            resources=Resources(gpus=dice.choice([1, 1, 2, 4])),
            restart=dice.choice(list(RestartPolicy)),
            restarts_max=20,
            countries_allowed=dice.choice([(), (), (), ("MA",), ("SN", "CI")]),
            data=("records",) if dice.random() < 0.15 else (),
            stay_home=dice.random() < 0.1,
            stop_grace_s=dice.choice([0, 1, 3]),
            gang=Gang(tasks_min=1 if tasks > 1 and dice.random() < 0.3 else None, degrade_after_s=2.0),
        )

    def burst(self) -> None:
        """More than one hub holds."""
        hub = self.dice.choice([hub for hub in self.hubs.values() if hub.alive])
        for _ in range(self.dice.randrange(4, 14)):
            self.submit(hub)

    def meddle(self) -> None:
        """Somebody stops, pauses or resumes something."""
        hub = self.dice.choice([hub for hub in self.hubs.values() if hub.alive])
        waiting = hub.unfinished()
        if waiting:
            workload = self.dice.choice(waiting)
            kind = self.dice.choice([ev.PauseRequested, ev.ResumeRequested, ev.ResumeRequested, None])
            hub.ask(kind(workload.id) if kind else ev.StopRequested(workload.id, "asked"))

    def crash(self) -> None:
        hub = self.dice.choice(list(self.hubs.values()))
        if hub.alive:
            self.network.note(hub.name, "CRASH")
            hub.crash()
            self.network.after(self.dice.choice([0.05, 1.0, 5.0, 40.0]), lambda: self._restart(hub))

    def _restart(self, hub: SimHub) -> None:
        if not hub.alive:
            self.network.note(hub.name, "RESTART")
            hub.start()
            self.network.after(self.dice.random(), hub.connect_agent)

    def cut(self) -> None:
        names = list(self.hubs)
        self.dice.shuffle(names)
        match self.dice.randrange(4):
            case 0:
                middle = self.dice.randrange(1, len(names))
                self.network.partition(names[:middle], names[middle:])
            case 1:
                self.network.cut(names[0], names[1], both=False)
            case 2:
                self.network.partition(names[:1], names[1:])
            case _:
                self.network.cut(names[0], names[1])

    def slow_link(self) -> None:
        """One direction takes seconds, as behind a full buffer: longer than bids live, and than margins are."""
        one, two = self.dice.sample(list(self.hubs), 2)
        slow = SimLink(delay_s=self.dice.choice([0.4, 1.5, 6.0]), jitter_s=0.2, loss=0.02)
        self.network.set_link(one, two, slow, both=False)

    def heal(self) -> None:
        self.network.heal()
        self.network.set_all_links(self.link)
        for one in self.hubs.values():
            for other in self.hubs:
                if one.alive and other != one.name:
                    one.handle(ev.PeerBack(other))

    def cut_agent(self) -> None:
        hub = self.dice.choice(list(self.hubs.values()))
        hub.cut_agent()
        self.network.after(self.dice.choice([0.5, 5.0, 30.0]), hub.connect_agent)

    def close_hub(self) -> None:
        hub = self.dice.choice([hub for hub in self.hubs.values() if hub.alive])
        hub.ask(ev.HubClosed(self.dice.choice([0, 0, 1, 2])))

    STEPS = (
        *("submit", "submit", "burst", "meddle", "crash"),
        *("cut", "slow_link", "heal", "heal", "cut_agent", "close_hub"),
    )

    def live(self, steps: int) -> None:
        """A story of random steps."""
        for _ in range(steps):
            step = self.dice.choice(self.STEPS)
            self.network.note("world", step)
            with self.network.trace_on_failure():
                getattr(self, step)()
            self.run_for(self.dice.choice([0.05, 0.3, 1.0, 3.0, 10.0]))

    def settle(self, within_s: float = 400.0) -> None:
        """All is mended; then everything that was ever accepted must come to its end."""
        self.network.note("world", "MEND")
        self.end_chance = 0.1
        self.heal()
        for hub in self.hubs.values():
            if not hub.alive:
                self._restart(hub)
        self.run_for(2.0)
        for hub in self.hubs.values():
            hub.ask(ev.HubClosed(0))
            hub.connect_agent()
        ends_s = self.network.now_s + within_s
        while self.network.now_s < ends_s:
            for hub in self.hubs.values():
                for workload in hub.unfinished():
                    if workload.state == "paused":
                        hub.ask(ev.ResumeRequested(workload.id))
            self.run_for(5.0)
            if all(hub.is_idle() for hub in self.hubs.values()):
                self.run_for(1.0)
                self.check_end()
                return
        left = {name: [(w.id, w.state, w.leased) for w in hub.unfinished()] for name, hub in self.hubs.items()}
        boards = {name: hub.machine.state.lending for name, hub in self.hubs.items() if not hub.is_idle()}
        raise AssertionError(f"after {within_s:g} s there is left: {left}\n{boards}\n{self.network}")

    # What must always hold

    def check(self) -> None:
        moment = [(len(hub.agent.running), len(hub.agent.starts)) for hub in self.hubs.values()]
        if moment == self._checked:  # nothing has started or ended anywhere since
            return
        self._checked = moment
        runs: dict[str, tuple[str, int]] = {}
        for hub in self.hubs.values():
            gpus: dict[str, str] = {}
            for key, task in hub.agent.running.items():
                place = (hub.name, key.attempt)
                assert runs.setdefault(key.workload_id, place) == place, (
                    f"{key.workload_id} runs at {place} and at {runs[key.workload_id]}"
                )
                assert hub.agent.starts[key] == 1, f"{key} was started twice"
                assert not task.countries_allowed or hub.hub.country in task.countries_allowed, f"{key} at {hub.name}"
                for data in task.data:
                    assert data.tag is not None
                    assert hub.hub.country in data.tag.process_in, f"{data.id} is read at {hub.name}"
                for gpu in task.gpu_ids:
                    assert gpus.setdefault(gpu, key.workload_id) == key.workload_id, f"{gpu} serves two"

    def check_end(self) -> None:
        for workload_id, owner in self.submitted.items():
            states = self.hubs[owner].states
            if workload_id in states:  # else it was never acknowledged: its hub crashed before it was on disk
                assert states[workload_id].is_final, f"{workload_id} is {states[workload_id]}"
        for hub in self.hubs.values():
            assert not hub.machine.state.scheduler.running
        self.run_for(10.0)
        for hub in self.hubs.values():
            for name, other in self.hubs.items():
                known = hub.gossip.view(name, self.network.now_s).values.get("summary")
                assert known == other.published, f"{hub.name} does not know how {name} is"
