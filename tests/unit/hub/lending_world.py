"""One hub of two, driven by hand: whatever its peer says, stale, hostile or wrong, comes from the test."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from msgspec.structs import replace

from harch.execution.protocol import StartTask
from harch.federation.offers import (
    BidRequest,
    Bids,
    CapacityBid,
    Grant,
    Granted,
    Grants,
    LeaseTerms,
    LendingMessage,
    Need,
    WorkLease,
)
from harch.fleet.file import parse_fleet
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import CatalogEntry
from harch.hub.summary import summarise
from harch.hub.views import PeerView
from harch.placement.queueing.settings import QueueSettings
from harch.placement.request import PlacementRequest
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, parse_tag
from harch.testing.agents import SimAgent
from harch.testing.clock import START
from harch.testing.samples import TINY_FLEET_TOML
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import Resources, WorkloadSpec

SAFEGUARDS = '[hubs.safeguards]\nencrypts_at_rest = true\nkeys_in = ["MA"]\n'
FLEET = parse_fleet(TINY_FLEET_TOML.replace("pue = 1.2\n", f"pue = 1.2\n{SAFEGUARDS}"))
RULES = Rules(terrain_of(FLEET, shipped_jurisdictions()))
MOROCCO, SENEGAL = "dakhla", "dakar"
TERMS = LeaseTerms(batch_s=100.0, service_s=30.0, margin_s=5.0)
BOOT_S = 1000.0  # the hub's boot clock at the start; that of its agent reads `AGENT_BOOT_S` then
AGENT_BOOT_S = 50.0
M = TypeVar("M")


def tag_for(*countries: str) -> Tag:
    places = list(countries)
    loose = {"encrypt_at_rest": False, "encrypt_in_transit": False, "may_cross_borders": True, "transit_in": ["MR"]}
    return parse_tag({"process_in": places, "rest_in": places, **loose}, shipped_jurisdictions())


def data_object(name: str, tag: Tag | None, *, at: str = MOROCCO) -> DataObject:
    return DataObject(id=f"data_{name}", kind=DataKind.DATASET, name=name, tenant="t", tag=tag, hubs=(at,))


class LendingHub:
    """`sent` and `sent_to_agent` are what the last event made it say."""

    def __init__(self, hub_id: str, settings: QueueSettings | None = None, *, join: bool = True) -> None:
        hub = FLEET.hub(hub_id)
        assert hub is not None
        self.hub, self.peer = hub, SENEGAL if hub_id == MOROCCO else MOROCCO
        self.machine = JobMachine(FLEET, hub, settings, RULES, leases=TERMS)
        self.state = self.machine.state
        self.boot_s = BOOT_S
        self.effects: list[fx.Effect] = []
        self.count = 0
        self.agent = SimAgent("agent", hub.country, boot_offset_s=AGENT_BOOT_S)
        if join:
            self.join()

    def join(self) -> None:
        self.handle(ev.AgentJoined(self.agent.hello(), 1))

    def restore(self, workload: Workload) -> None:
        """A new process that finds this on its disk."""
        self.machine.restore([workload], (), context=self.context(), lifetime="second")

    # Time and events

    def later(self, seconds: float) -> None:
        self.boot_s += seconds

    def handle(self, event: ev.Event) -> None:
        self.effects = self.machine.apply(event, self.context())

    def context(self) -> ev.EventContext:
        now = START + timedelta(seconds=self.boot_s - BOOT_S)
        return ev.EventContext(now=now, boot_s=self.boot_s, policy_version="builtin-1")

    def receive(self, message: LendingMessage, *, from_hub: str = "") -> None:
        self.handle(ev.PeerMessageReceived(from_hub or self.peer, message))

    def sent(self, kind: type[M]) -> list[M]:
        return [one.message for one in self.effects if isinstance(one, fx.SendPeer) and isinstance(one.message, kind)]

    def sent_to_agent(self, kind: type[M]) -> list[M]:
        return [one.message for one in self.effects if isinstance(one, fx.Send) and isinstance(one.message, kind)]

    # Work

    def submit(self, gpus: int = 1, **fields: object) -> Workload:
        self.count += 1
        spec = WorkloadSpec(name=f"job-{self.count}", command=("true",), resources=Resources(gpus=gpus), **fields)  # type: ignore[arg-type]
        self.handle(ev.Submitted(f"wl_{self.count}", "t", spec))
        return self.state.registry.workloads[f"wl_{self.count}"]

    def place(self) -> None:
        self.handle(ev.PlacementDue())

    def work(self, workload_id: str) -> Workload | None:
        return self.state.registry.workloads.get(workload_id)

    def submit_on(self, data: DataObject) -> Workload:
        self.add_data(data)
        return self.submit(data=(data.name,))

    def add_data(self, data: DataObject) -> None:
        self.handle(ev.DataAdded(CatalogEntry(object=data, created_at=START, updated_at=START)))

    # As the owner

    def meet_peer(self) -> None:
        other = LendingHub(self.peer)
        summary = summarise(other.state, not_ready="", version="", started_at=START, now=START, url="")
        self.handle(ev.PeersSeen((PeerView(hub_id=self.peer, url="", reachable=True, age_s=0.0, summary=summary),)))

    def offer(self) -> Grant | None:
        """Whatever waits is offered to the peer, which bids; what it is granted."""
        self.later(20.0)
        self.handle(ev.LendingDue())
        grants: list[Grant] = []
        for request in self.sent(BidRequest):
            bids = tuple(CapacityBid(ref=need.ref, bid_id=f"bid{request.number}-{need.ref}") for need in request.needs)
            self.receive(Bids(number=request.number, bids=bids))
            grants += [grant for message in self.sent(Grants) for grant in message.grants]
        return grants[0] if grants else None

    def lend(self, **fields: object) -> Workload:
        """Work for which there is no room at home, granted to the peer: epoch 1, as of this moment."""
        self.meet_peer()
        self.submit(8, stay_home=True)
        self.place()
        workload = self.submit(8, **fields)
        assert self.offer() is not None
        assert (workload.leased, workload.epoch) == (True, 1)
        return workload

    def lend_again(self, workload: Workload) -> None:
        """The peer refuses epoch 1, and takes part again: epoch 2."""
        self.receive(Granted(refused=((WorkLease(workload.id, 1), "no room after all"),)))
        assert self.offer() is not None
        assert (workload.leased, workload.epoch) == (True, 2)

    # As the runner

    def bid(self, spec: WorkloadSpec) -> str:
        """The id of this hub's bid for a shape like that of `spec`."""
        request = PlacementRequest.of("shape", spec, submitted_s=START.timestamp())
        need = Need.of(0, request, now_s=START.timestamp(), may_queue=True)
        self.receive(BidRequest(1, (need,)))
        (answer,) = self.sent(Bids)
        return answer.bids[0].bid_id

    def grant(self, spec: WorkloadSpec, **fields: object) -> Grant:
        """A grant for what this hub bids for it now; valid, but for `fields`."""
        valid = Grant(
            bid_id=self.bid(spec),
            lease=WorkLease("wl_theirs", 1),
            lease_s=TERMS.batch_s,
            attempt=1,
            tenant="t",
            spec=spec,
            created_at=START,
        )
        return replace(valid, **fields)

    def take(self, grant: Grant) -> str:
        """Why this hub refuses the grant, or nothing. What it refuses it does not start."""
        self.receive(Grants((grant,)))
        (answer,) = self.sent(Granted)
        assert not answer.refused or not self.sent_to_agent(StartTask)
        return answer.refused[0][1] if answer.refused else ""
