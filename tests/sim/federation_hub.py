"""One hub of a simulated federation: the real gossip and job machines, a disk that may lose its last writes, agents.

As in the real program, memory changes at once, the disk a moment later, and only then does anything leave the hub.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from harch.base.errors import HarchError
from harch.execution.protocol import HubMessage, TaskEnded, TaskStarted
from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.messages import Message, Outgoing
from harch.federation.gossip.state import GossipSettings
from harch.federation.offers import LeaseTerms
from harch.fleet.model import Fleet, Hub
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import CatalogEntry, Condition, ConditionKind
from harch.hub.summary import summarise
from harch.hub.views import PeerView
from harch.sovereignty.compiled import Rules
from harch.testing.agents import SimAgent
from harch.testing.clock import START
from harch.testing.network import SimNetwork
from harch.wire.hubs import HubSummary
from harch.workloads.lifecycle import ExitReason, State, Workload
from sim.gossip_world import HashSigner, HashVerifier

TERMS = LeaseTerms(batch_s=20.0, service_s=8.0, margin_s=1.0)
GOSSIP = GossipSettings(interval_s=1.0)
COMMIT_S_MAX = 0.02
_encode = msgspec.json.encode
_workload = msgspec.json.Decoder(Workload).decode
_entry = msgspec.json.Decoder(CatalogEntry).decode
_summary = msgspec.json.Decoder(HubSummary).decode


class Disk:
    """What survives a crash."""

    def __init__(self) -> None:
        self.workloads: dict[str, bytes] = {}
        self.data: dict[str, bytes] = {}
        self.conditions: dict[tuple[str, str], Condition] = {}
        self.events: list[str] = []
        self.generation = 0

    def write(self, effects: list[tuple[str, str, bytes | Condition | None]]) -> None:
        for table, key, value in effects:
            if table == "workload" and isinstance(value, bytes):
                self.workloads[key] = value
            elif table == "data" and isinstance(value, bytes):
                self.data[key] = value
            elif table == "condition" and isinstance(value, Condition):
                self.conditions[value.kind, value.subject] = value
            elif table == "event":
                self.events.append(key)

    def owned(self) -> dict[str, Workload]:
        found = (_workload(body) for body in self.workloads.values())
        return {workload.id: workload for workload in found if not workload.borrowed}


class SimHub:
    """`send_agent` and the network outlive the process; `start` after `crash` is a new process on the same disk."""

    def __init__(self, fleet: Fleet, hub: Hub, rules: Rules, network: SimNetwork, seed: int) -> None:
        self.fleet, self.hub, self.rules, self.network = fleet, hub, rules, network
        self.name = hub.id
        self.dice = random.Random(seed)
        self.disk = Disk()
        self.boot_rate = 1 + self.dice.uniform(-1, 1) * 4e-4
        self.boot_offset_s = self.dice.uniform(0, 1e5)
        self.wall_skew = timedelta(seconds=self.dice.uniform(-120, 120))
        self.agent = SimAgent(
            f"{hub.id}-agent",
            hub.country,
            tuple(node.id for node in hub.nodes),
            boot_offset_s=self.dice.uniform(0, 1e5),
            boot_rate=1 + self.dice.uniform(-1, 1) * 4e-4,
        )
        self.agent_connected = False
        self.alive = False
        self.life = 0
        self.sessions = 0
        self._agent_hears_s = 0.0
        self.start()

    # Clocks

    @property
    def now_s(self) -> float:
        return self.network.now_s

    @property
    def world_now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    @property
    def now(self) -> datetime:
        return self.world_now + self.wall_skew

    @property
    def boot_s(self) -> float:
        return self.boot_offset_s + self.boot_rate * self.now_s

    # The process

    limits = ev.JobLimits()

    def start(self) -> None:
        self.life += 1
        self.alive = True
        self._writes: list[tuple[list[tuple[str, str, bytes | Condition | None]], list[fx.Send | fx.SendPeer]]] = []
        self._commit_planned = False
        self.disk.generation += 1
        self.gossip = Gossip(
            self.name,
            generation=self.disk.generation,
            members=[hub.id for hub in self.fleet.hubs],
            signer=HashSigner(self.name),
            verifier=HashVerifier(),
            dice=random.Random(self.dice.random()),
            now_s=self.now_s,
            settings=GOSSIP,
        )
        self.machine = JobMachine(self.fleet, self.hub, rules=self.rules, leases=TERMS)
        effects = self.machine.restore(
            [_workload(body) for body in self.disk.workloads.values()],
            (),
            self.disk.conditions.values(),
            [_entry(body) for body in self.disk.data.values()],
            context=self.context(),
            lifetime=f"{self.name}{self.life}",
        )
        self.published = b""
        self.network.attach(self.name, self._hears)
        self._carry_out(effects)
        steps = ((0.1, self._spill), (0.1, self._place), (0.5, self._publish), (0.2, self._gossip), (0.5, self._carbon))
        for every_s, step in steps:
            self._repeat(every_s, step)

    def crash(self) -> None:
        """What was not on disk yet is gone, and so is what would have been sent after it."""
        self.alive = False
        self._writes = []
        self.agent_connected = False
        self.network.detach(self.name)

    def _repeat(self, every_s: float, step: Callable[[], None]) -> None:
        life = self.life

        def again() -> None:
            if self.alive and self.life == life:
                step()
                self.network.after(every_s, again)

        self.network.after(self.dice.random() * every_s, again)

    # Events in

    def context(self) -> EventContext:
        return EventContext(now=self.now, boot_s=self.boot_s, limits=self.limits)

    def handle(self, event: ev.Event) -> None:
        if self.alive:
            self._carry_out(self.machine.apply(event, self.context()))

    def _hears(self, source: str, message: object) -> None:
        if isinstance(message, Message):
            self._send_gossip(self.gossip.receive(source, message, self.now_s))
        else:
            self.handle(ev.PeerMessageReceived(source, message))  # type: ignore[arg-type]

    def _place(self) -> None:
        if self.machine.state.scheduler.queue:
            self.handle(ev.PlacementDue())

    def _spill(self) -> None:
        if self.machine.is_lending_due(self.boot_s):
            self.handle(ev.LendingDue())

    def _carbon(self) -> None:
        if self.machine.is_carbon_due(self.now, self.boot_s):
            self.handle(ev.CarbonDue())

    def _gossip(self) -> None:
        self._send_gossip(self.gossip.tick(self.now_s))
        self.gossip.take_news()

    def _publish(self) -> None:
        summary = summarise(self.machine.state, not_ready="", version="", started_at=START, now=START, url="")
        value = _encode(summary)
        if value != self.published:
            self.published = value
            self._send_gossip(self.gossip.set("summary", value))
        peers = []
        for hub_id, view in self.gossip.views(self.now_s).items():
            if hub_id != self.name:
                raw = view.values.get("summary")
                peers.append(
                    PeerView(
                        hub_id=hub_id,
                        url="",
                        reachable=view.is_alive,
                        age_s=view.age_s,
                        summary=_summary(raw) if raw else None,
                    )
                )
        self.handle(ev.PeersSeen(tuple(peers)))

    def _send_gossip(self, outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            self.network.send(self.name, one.to, one.message)

    # The disk

    def _carry_out(self, effects: list[fx.Effect]) -> None:
        rows: list[tuple[str, str, bytes | Condition | None]] = []
        sends: list[fx.Send | fx.SendPeer] = []
        for effect in effects:
            match effect:
                case fx.Save(workload):
                    rows.append(("workload", workload.id, _encode(workload)))
                case fx.SaveData(entry):
                    rows.append(("data", entry.object.id, _encode(entry)))
                case fx.SaveCondition(kind, subject, value, why):
                    condition = Condition(kind=ConditionKind(kind), subject=subject, value=value, why=why)
                    rows.append(("condition", subject, condition))
                case fx.Record(kind):
                    rows.append(("event", f"{kind} {effect.subject} {effect.message}", None))
                case fx.Send() | fx.SendPeer():
                    sends.append(effect)
                case _:
                    pass
        if rows or sends:
            self._writes.append((rows, sends))
            self._plan_commit()

    def _plan_commit(self) -> None:
        """One after another, like the one writer of the real store."""
        if self._commit_planned:
            return
        self._commit_planned = True
        life = self.life

        def commit() -> None:
            if self.alive and self.life == life:
                self._commit_planned = False
                batch, self._writes = self._writes, []
                for rows, _ in batch:
                    self.disk.write(rows)
                for _, sends in batch:
                    for send in sends:
                        self._send(send)

        self.network.after(self.dice.random() * COMMIT_S_MAX, commit)

    def _send(self, send: fx.Send | fx.SendPeer) -> None:
        if isinstance(send, fx.SendPeer):
            self.network.send(self.name, send.hub_id, send.message)
        elif self.agent_connected:
            self._to_agent(send.message)

    # The agent of its nodes; it lives on when the hub dies

    def _to_agent(self, message: HubMessage) -> None:
        life = self.life

        def deliver() -> None:
            if self.life == life and self.agent_connected:
                self.agent.receive(message, now=self.world_now)
                self._hear_agent()

        self._agent_hears_s = max(self._agent_hears_s, self.now_s + self.dice.random() * 0.005)  # in order, like TCP
        self.network.at(self._agent_hears_s, deliver)

    def connect_agent(self) -> None:
        if self.alive and not self.agent_connected:
            self.sessions += 1
            self.agent_connected = True
            hello = self.agent.hello(now=self.world_now)
            self.handle(ev.AgentJoined(hello, self.sessions))
            self._hear_agent()

    def cut_agent(self) -> None:
        if self.agent_connected:
            self.agent_connected = False
            self.handle(ev.AgentLeft(self.agent.agent_id, self.sessions, "cut"))

    def run_agent(self, end_chance: float) -> None:
        """Time passes for its tasks, whatever happens to the hub."""
        now = self.world_now
        self.agent.tick(now)
        for key in list(self.agent.running):
            if self.dice.random() < end_chance:
                reason = self.dice.choices([ExitReason.EXITED, ExitReason.LOST], [19, 1])[0]
                self.agent.end(key, reason, now=now, exit_code=0 if self.dice.random() < 0.9 else 1)
        if self.agent_connected and self.alive:
            self.machine.note_agent_clock(self.agent.agent_id, self.agent.boot_s(), boot_s=self.boot_s)
            self._hear_agent()

    def _hear_agent(self) -> None:
        if not (self.agent_connected and self.alive):
            return
        for message in self.agent.take_outbox():
            if isinstance(message, TaskStarted):
                self.handle(ev.TaskStartSeen(message.key))
            elif isinstance(message, TaskEnded):
                self.handle(ev.TaskEndSeen(self.agent.agent_id, message))

    # What somebody asks

    def ask(self, event: ev.Event) -> bool:
        """False: refused, as it may be by then."""
        try:
            self.handle(event)
        except HarchError:
            return False
        return True

    def unfinished(self) -> list[Workload]:
        return [
            workload
            for workload in self.machine.state.registry.workloads.values()
            if not workload.state.is_final and not workload.borrowed
        ]

    def is_idle(self) -> bool:
        state = self.machine.state
        lending = state.lending
        busy = lending.given or lending.borrowed or lending.unbooked or lending.bids or lending.auctions
        return not (busy or state.scheduler.running or self.unfinished() or self.agent.running)

    @property
    def states(self) -> dict[str, State]:
        return {workload.id: workload.state for workload in self.disk.owned().values()}
