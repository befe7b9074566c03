"""Two ACT workers, one ledger and sinks that lose answers, on simulated time; every await is a place to die or to wait.

Workers are plain coroutines that are moved on by hand: the next one to run, and whether it dies there, comes from the
seed. What the sinks carried out is written down with the time and the ledger's state, and judged at the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Collection, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from harch.pipelines.act import ledger
from harch.pipelines.act.attempt import ActCounters, Requests, Worker
from harch.pipelines.act.guards import Guards
from harch.pipelines.act.ledger import ActionCommand, CommandState, CommandStep, LedgerEntry, digest, make_command
from harch.pipelines.act.settings import ActionSettings, Mode, RetrySettings
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SendGate, SinkOutcome, SinkRequest
from harch.pipelines.act.stage import Agenda
from harch.pipelines.act.store import LedgerConflict, StoredEntry
from harch.sovereignty.audit.chain import Draft

START_MS = 1_000_000
TIMEOUT_S, SETTLE_MS = 1.0, 500
TTL_S = 30.0


class _Turn(Awaitable[None]):
    """Gives the turn back to the world."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class SimStore:
    """Compare-and-set in memory. What was not durable may be gone when the worker that wrote it dies."""

    def __init__(self) -> None:
        self.rows: dict[str, StoredEntry] = {}
        self.revision = 0
        self.writes = 0

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        await _Turn()
        current = self.rows.get(entry.cmd_id)
        if (current.revision if current else 0) != revision:
            raise LedgerConflict
        self.revision += 1
        self.writes += 1
        self.rows[entry.cmd_id] = StoredEntry(entry, self.revision)
        stored = self.rows[entry.cmd_id]
        await _Turn()  # written, and the writer may die before it hears so
        return stored

    async def get(self, cmd_id: str) -> StoredEntry | None:
        await _Turn()
        return self.rows.get(cmd_id)

    async def scan(self, states: Collection[CommandState], limit: int = 1000) -> list[StoredEntry]:
        return [row for row in self.rows.values() if row.entry.state in states and not row.entry.closed][:limit]

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        return 0

    async def set_stop(self, reason: str) -> None: ...

    def stopped(self) -> str:
        return ""

    async def close(self) -> None: ...


@dataclass
class Effected:
    key: str
    device: str
    sent_ms: int
    args: dict[str, Any]
    undo: bool


@dataclass(kw_only=True)
class SimSink:
    """A device. Requests may be refused, executed with a lost answer, or obeyed until `SETTLE_MS` after the timeout."""

    world: World
    keeps_keys: bool
    reads_back: bool
    timeout_s: float = TIMEOUT_S
    last_only: bool = False  # a look finds only what was done last to the device
    effects: list[Effected] = field(default_factory=list)
    under_way: list[tuple[int, int, SinkRequest]] = field(default_factory=list)

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        await _Turn()
        if self.world.random.random() < self.world.trouble / 3:
            return PreparedRequest("not reachable")
        return PreparedRequest(undo={"value": 0})

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        await _Turn()  # connecting
        self.world.pass_ms(self.world.random.randrange(100))
        if reason := gate():
            return SinkOutcome(Effect.NO, reason)
        chance = self.world.random.random()
        if chance > self.world.trouble:
            self._carry_out(order, self.world.now_ms)
            await _Turn()  # carried out, and the worker may die before it hears so
            return SinkOutcome(Effect.YES)
        kind = self.world.random.randrange(4)
        if kind == 0:
            return SinkOutcome(Effect.NO, "refused")
        if kind == 1:
            self._carry_out(order, self.world.now_ms)
        elif kind == 2:  # late: after the caller has stopped waiting
            late_ms = round(TIMEOUT_S * 1000) + self.world.random.randrange(SETTLE_MS)
            self.under_way.append((self.world.now_ms + late_ms, self.world.now_ms, order))
        await _Turn()
        self.world.pass_ms(round(order.timeout_s * 1000))
        return SinkOutcome(Effect.MAYBE, "no answer")

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        await _Turn()
        if self.world.random.random() < self.world.trouble / 3:
            return SinkOutcome(Effect.MAYBE, "no answer")
        seen = [one.key for one in self.effects if one.device == order.device]
        return SinkOutcome(Effect.YES if order.key in (seen[-1:] if self.last_only else seen) else Effect.NO)

    async def close(self) -> None: ...

    def arrive(self) -> None:
        for one in [one for one in self.under_way if one[0] <= self.world.now_ms]:
            self.under_way.remove(one)
            self._carry_out(one[2], one[1])

    def _carry_out(self, order: SinkRequest, sent_ms: int) -> None:
        if self.keeps_keys and any(one.key == order.key for one in self.effects):
            return
        self.world.judge_send(order)
        self.effects.append(Effected(order.key, order.device, sent_ms, dict(order.args), order.undo))


class World:
    """One story. `trouble`: the share of requests that go wrong; `deaths`: the share of awaits where a worker dies."""

    def __init__(self, seed: int, *, mode: Mode, keeps_keys: bool, reads_back: bool, steps: int = 1) -> None:
        self.random = random.Random(seed)
        self.trouble, self.deaths = self.random.choice((0.0, 0.3, 0.9)), self.random.choice((0.0, 0.02, 0.1))
        self.now_ms, self.turn_ms_max = START_MS, self.random.choice((30, 300, 1000))
        self.store = SimStore()
        self.sinks = {
            f"sink{index}": SimSink(world=self, keeps_keys=keeps_keys, reads_back=reads_back) for index in range(steps)
        }
        self.action = ActionSettings(
            name="open", when="True", ttl_s=TTL_S, mode=mode, sink="sink0", retries=RetrySettings(base_s=0.5, max_s=4.0)
        )
        self.drafts: list[Draft] = []
        self.problems: list[str] = []
        self.running: dict[str, tuple[str, Coroutine[Any, Any, StoredEntry]]] = {}
        self.workers: dict[str, Worker] = {}
        self.names = iter(range(10_000))
        for _ in range(2):
            self.start_worker()

    def start_worker(self) -> None:
        name = f"worker-{next(self.names)}"
        counters = ActCounters()
        requests = Requests(
            sinks=self.sinks, now_ms=lambda: self.now_ms, stopped=lambda _: "", settle_ms=SETTLE_MS, counters=counters
        )
        self.workers[name] = Worker(
            name=name,
            store=self.store,
            requests=requests,
            actions={"open": self.action},
            guards=Guards(),
            now_ms=lambda: self.now_ms,
            audit=self._hear,
            counters=counters,
        )

    async def _hear(self, draft: Draft) -> None:
        self.drafts.append(draft)
        await _Turn()

    def pass_ms(self, count: int) -> None:
        self.now_ms += count

    def command(self, number: int) -> ActionCommand:
        steps = tuple(CommandStep(name, {"value": number + index}) for index, name in enumerate(self.sinks))
        return make_command(
            pipeline="p", device=f"d{number}", action="open", steps=steps, window=number, mode=self.action.mode,
            issued_ms=self.now_ms, ttl_s=TTL_S,
        )  # fmt: skip

    def judge_send(self, order: SinkRequest) -> None:
        """What must hold in the moment a device obeys."""
        if order.undo:
            return
        entry = self.store.rows[order.cmd_id].entry
        index = int(order.key.rsplit(":", 1)[1])
        if entry.command.steps[index].args != order.args or digest(entry.command) != entry.digest:
            self.problems.append(f"{order.key}: altered")
        if entry.command.mode is Mode.CONFIRM and entry.approved_digest != entry.digest:
            self.problems.append(f"{order.key}: not approved")

    def deliver(self, command: ActionCommand) -> None:
        """A delivery: the first makes the entry, every other finds it."""
        if command.cmd_id not in self.store.rows:
            self.store.revision += 1
            entry = ledger.authorised(ledger.proposed(command, now_ms=self.now_ms), now_ms=self.now_ms)
            self.store.rows[command.cmd_id] = StoredEntry(entry, self.store.revision)

    def approve(self, cmd_id: str) -> None:
        row = self.store.rows[cmd_id]
        if row.entry.state is CommandState.AWAIT_CONFIRM and not row.entry.command.expired(self.now_ms):
            self.store.revision += 1
            entry = ledger.approved(row.entry, row.entry.digest, "amina", now_ms=self.now_ms)
            self.store.rows[cmd_id] = StoredEntry(entry, self.store.revision)

    def turn(self) -> None:
        """One worker moves on by one await, starts something, or dies."""
        for sink in self.sinks.values():
            sink.arrive()
        self.pass_ms(self.random.randrange(self.turn_ms_max))
        name = self.random.choice(sorted(self.workers))
        if name not in self.running:
            open_rows = [cmd_id for cmd_id, row in self.store.rows.items() if not row.entry.closed]
            if not open_rows:
                return
            cmd_id = self.random.choice(open_rows)
            self.running[name] = (cmd_id, self.workers[name].advance(self.store.rows[cmd_id]))
        cmd_id, coroutine = self.running[name]
        if self.random.random() < self.deaths:
            coroutine.close()
            del self.running[name], self.workers[name]
            self.start_worker()
            return
        try:
            coroutine.send(None)
        except StopIteration:
            del self.running[name]

    def finish(self, turns_max: int = 20_000) -> None:
        """No more trouble and no more deaths: everything has to come to an end."""
        self.trouble, self.deaths = 0.0, 0.0
        for _ in range(turns_max):
            if all(row.entry.closed for row in self.store.rows.values()) and not self.running:
                break
            self.pass_ms(20)
            self.turn()
        for _, coroutine in self.running.values():
            coroutine.close()
        self.pass_ms(60_000)
        for sink in self.sinks.values():
            sink.arrive()

    def judge(self) -> None:
        """Everything that must hold at the end of any story."""
        self.problems += [f"{cmd_id}: {row.entry.state}, not closed" for cmd_id, row in self.store.rows.items()
                          if not row.entry.closed]  # fmt: skip
        for sink in self.sinks.values():
            counts = Counter(one.key for one in sink.effects if not one.undo)
            self.problems += [f"{key}: carried out {count} times" for key, count in counts.items() if count > 1]
            for one in sink.effects:
                entry = self.store.rows[one.key.split(":")[0]].entry
                if not one.undo and one.sent_ms >= entry.command.expires_ms:
                    self.problems.append(f"{one.key}: sent after its time")
        for cmd_id, row in self.store.rows.items():
            self._judge_end(cmd_id, row.entry)

    def _judge_end(self, cmd_id: str, entry: LedgerEntry) -> None:
        done = [
            any(one.key == entry.command.key(index) for one in self.sinks[step.sink].effects)
            for index, step in enumerate(entry.command.steps)
        ]
        undone = [
            any(one.key == entry.command.key(index, undo=True) for one in self.sinks[step.sink].effects)
            for index, step in enumerate(entry.command.steps)
        ]
        outcomes = [draft for draft in self.drafts if draft.subject == cmd_id and draft.kind == "action.outcome"]
        if not outcomes:
            self.problems.append(f"{cmd_id}: {entry.state}, and the audit chain does not know")
        if entry.state is CommandState.DONE and not all(done):
            self.problems.append(f"{cmd_id}: done, but the device knows nothing of it")
        if entry.state in (CommandState.EXPIRED, CommandState.REJECTED) and any(done):
            self.problems.append(f"{cmd_id}: {entry.state}, but the device obeyed")
        if entry.state is CommandState.DEAD and not entry.maybe_sent:
            left = [index for index, was in enumerate(done) if was and not undone[index]]
            if left and "not undone" not in entry.reason:  # a person is told so
                self.problems.append(f"{cmd_id}: dead ({entry.reason}), but steps {left} stand")


class DeviceWorld(World):
    """One worker that dies and comes back, several commands at a time, and devices that show only their last value."""

    DEVICES, AT_A_TIME = 2, 3

    def __init__(self, seed: int) -> None:
        super().__init__(seed, mode=Mode.TRANSACTIONAL, keeps_keys=False, reads_back=True)
        self.sinks["sink0"].last_only = True
        self.begin()

    def begin(self) -> None:
        """A new process: what the ledger says is all it knows."""
        self.workers.clear()
        self.running.clear()
        self.start_worker()
        self.agenda = Agenda(1000)
        rows = [row for row in self.store.rows.values() if not row.entry.closed]
        for row in sorted(rows, key=lambda row: not ledger.unresolved(row.entry)):
            self.agenda.add(row, now_ms=self.now_ms)

    def command(self, number: int) -> ActionCommand:
        return make_command(
            pipeline="p", device=f"d{number % self.DEVICES}", action="open",
            steps=(CommandStep("sink0", {"value": number}),),
            window=number, mode=Mode.TRANSACTIONAL, issued_ms=self.now_ms, ttl_s=TTL_S,
        )  # fmt: skip

    def deliver(self, command: ActionCommand) -> None:
        new = command.cmd_id not in self.store.rows
        super().deliver(command)
        if new:
            self.agenda.add(self.store.rows[command.cmd_id], now_ms=self.now_ms)

    def turn(self) -> None:
        for sink in self.sinks.values():
            sink.arrive()
        self.pass_ms(self.random.randrange(self.turn_ms_max))
        if self.random.random() < self.deaths:
            for _, coroutine in self.running.values():
                coroutine.close()
            self.begin()
            return
        self.agenda.ripen(now_ms=self.now_ms)
        (worker,) = self.workers.values()
        if len(self.running) < self.AT_A_TIME and (stored := self.agenda.take()) is not None:
            self.running[stored.entry.cmd_id] = (stored.entry.cmd_id, worker.advance(stored))
        if not self.running:
            return
        cmd_id, coroutine = self.running[self.random.choice(sorted(self.running))]
        try:
            coroutine.send(None)
        except StopIteration as end:
            del self.running[cmd_id]
            self.agenda.settle(end.value, now_ms=self.now_ms)
