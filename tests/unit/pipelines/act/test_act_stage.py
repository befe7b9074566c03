"""The stage around the workers: what it takes, what it writes how, what it finds at a poll, and how it keeps time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.act import ledger
from harch.pipelines.act.decisions import DecisionBatch
from harch.pipelines.act.guards import Guards
from harch.pipelines.act.ledger import COMMAND_BYTES_MAX, ActionCommand, CommandState, CommandStep, LedgerEntry
from harch.pipelines.act.settings import ActSettings, Mode
from harch.pipelines.act.sinks.base import Effect, SinkOutcome
from harch.pipelines.act.stage import ActStage, FirstLook, unmade
from harch.pipelines.act.store import LedgerConflict, StoredEntry
from harch.testing.clock import SimClock
from unit.pipelines.act.act_builders import MA, SN, Chain, MemoryLedger, RecordingSink, act, batch, command

S = CommandState


class Written(MemoryLedger):
    """Remembers what was asked of it; `fails` names what does not work now."""

    def __init__(self) -> None:
        super().__init__()
        self.durable: list[tuple[CommandState, bool]] = []
        self.scans: list[tuple[tuple[CommandState, ...], int]] = []
        self.prunes: list[tuple[int, int]] = []
        self.dropped = 0
        self.fails: set[str] = set()

    def _check(self, name: str) -> None:
        if name in self.fails:
            raise HarchError("E0775", "the ledger did not answer")

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        self._check("put")
        stored = await super().put(entry, revision=revision, durable=durable)
        self.durable.append((entry.state, durable))
        return stored

    async def get(self, cmd_id: str) -> StoredEntry | None:
        self._check("get")
        return await super().get(cmd_id)

    async def scan(self, states: Collection[CommandState], limit: int = 1000) -> list[StoredEntry]:
        self._check("scan")
        self.scans.append((tuple(states), limit))
        return await super().scan(states, limit)

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        self._check("prune")
        self.prunes.append((closed_before_ms, letters_max))
        return self.dropped


class Site:
    """A stage on simulated time."""

    def __init__(self, settings: ActSettings, *, store: Written | None = None, **options: Any) -> None:
        self.clock, self.chain, self.valve = SimClock(), Chain(), RecordingSink()
        self.store = store or Written()
        self.closed: list[LedgerEntry] = []
        self.stage = ActStage(
            settings,
            store=self.store,
            sinks={"valve": self.valve},
            clock=self.clock,
            worker="w1",
            audit=self.chain,
            local_bit=MA,
            country_bits={"MA": MA, "SN": SN},
            on_closed=self.closed.append,
            **options,
        )

    @property
    def now_ms(self) -> int:
        return round(self.clock.now().timestamp() * 1000)

    def batch(self, *scores: float, **changes: Any) -> DecisionBatch:
        return batch(*scores, **{"at_ms": self.now_ms, **changes})

    def states(self) -> list[CommandState]:
        return [row.entry.state for row in self.store.rows.values()]

    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self.stage.counters.as_dict().items() if count}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.stage.run())
        await self.clock.advance(0)
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


# The first look


def first_look(settings: ActSettings, **changes: Any) -> LedgerEntry:
    bits = {"MA": MA, "SN": SN}
    stopped, now_ms = changes.pop("stopped", ""), changes.pop("now_ms", 1_000)
    look = FirstLook(settings, Guards(), bits, lambda _: stopped)
    return look.entry(command(**{"juris_mask": MA, **changes}), now_ms=now_ms)


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({}, S.AUTHORISED, ""),
        ({"mode": Mode.CONFIRM}, S.AWAIT_CONFIRM, ""),
        ({"now_ms": 29_999}, S.AUTHORISED, ""),
        ({"now_ms": 30_000}, S.EXPIRED, "expired before it was sent"),
        ({"stopped": "fire drill"}, S.REJECTED, "stop: all actions are halted: fire drill"),
    ],
)
def test_a_new_command_may_go_on_waits_or_is_refused(changes: dict[str, Any], state: CommandState, reason: str) -> None:
    entry = first_look(act(), **changes)
    assert (entry.state, entry.reason, entry.closed) == (state, reason, bool(reason))
    assert entry.changed_ms == changes.get("now_ms", 1_000)


def test_a_sink_is_spoken_to_only_where_the_data_may_go() -> None:
    def at(country: str, mask: int) -> LedgerEntry:
        sinks = {"valve": {"kind": "http", "url": "http://127.0.0.1:1/x", "honours_key": True, "country": country}}
        return first_look(act(sinks=sinks), juris_mask=mask, stopped="asked too early")

    assert at("SN", MA).reason == "residency: sink `valve` is in SN, which mask 1 does not hold"
    assert at("FR", 255).reason == "residency: sink `valve` is in FR, which mask ff does not hold", "no bit: not known"
    for country, mask in (("SN", SN), ("SN", MA | SN), ("", MA)):
        assert at(country, mask).reason.startswith("stop: "), "residency is looked at first"


def test_a_command_has_so_many_bytes_of_arguments_and_not_one_more() -> None:
    def sized(size: int) -> LedgerEntry:
        half = CommandStep("valve", {"a": "x" * (size // 2 - 1)})
        return first_look(act(), steps=(half, CommandStep("valve", {"bb": "x" * (size - size // 2 - 2)})))

    assert sized(COMMAND_BYTES_MAX).state is S.AUTHORISED
    large = sized(COMMAND_BYTES_MAX + 1)
    assert large.state is S.REJECTED
    assert large.reason == f"size: {COMMAND_BYTES_MAX + 1} bytes of arguments, at most {COMMAND_BYTES_MAX}"


def test_what_could_not_be_made_is_a_letter() -> None:
    entry = unmade(command(), "no output `level`", now_ms=7)
    assert (entry.state, entry.letter, entry.maybe_sent, entry.closed) == (S.DEAD, True, False, True)
    assert (entry.reason, entry.changed_ms) == ("could not create a command: no output `level`", 7)


# In


async def test_a_batch_is_counted_once_and_what_comes_again_is_known() -> None:
    site = Site(act())
    taken = await site.stage.submit(site.batch(0.9, 0.2, 0.6, float("nan")))
    assert (taken.commands, taken.duplicates, taken.refused) == (2, 0, None)
    again = await site.stage.submit(site.batch(0.9, 0.2, 0.6, 0.7))
    assert (again.commands, again.duplicates) == (1, 2)
    assert site.counts() == {"rows": 8, "rows_unfit": 1, "proposed": 5, "duplicates": 2}
    assert len(site.stage.agenda) == 3


async def test_what_ends_at_the_first_look_is_audited_once_and_counted() -> None:
    site = Site(act(ttl_s=5, args={"value": "{level}"}))
    late = site.batch(0.9, at_ms=site.now_ms - 5_000)
    for _ in range(2):
        await site.stage.submit(late)
    assert site.states() == [S.DEAD]
    assert site.counts() == {"rows": 2, "unmade": 2, "proposed": 2, "duplicates": 1, "ended_dead": 1}
    site = Site(act(ttl_s=5))
    late = site.batch(0.9, at_ms=site.now_ms - 5_000)
    taken = [await site.stage.submit(late) for _ in range(2)]
    assert [(one.commands, one.duplicates) for one in taken] == [(1, 0), (0, 1)]
    (cmd_id,) = site.store.rows
    assert site.chain.kinds(cmd_id) == ["action.outcome refused"]
    assert site.counts()["ended_expired"] == 1
    assert len(site.stage.agenda) == 0


@pytest.mark.parametrize(
    ("action", "durable"),
    [
        ({}, True),
        ({"mode": "confirm-and-execute"}, True),
        ({"mode": "fire-and-forget"}, False),
        ({"mode": "fire-and-forget", "args": {"value": "{level}"}}, True),  # a letter
    ],
)
async def test_only_what_is_fired_and_forgotten_is_written_behind(action: dict[str, Any], durable: bool) -> None:
    site = Site(act(**action))
    await site.stage.submit(site.batch(0.9))
    assert [kept for _, kept in site.store.durable] == [durable]


async def test_a_stage_works_on_its_own_devices_and_not_on_what_waits_for_a_person() -> None:
    def owns(one: ActionCommand) -> bool:
        return one.device == "d1"

    site = Site(act(), owns=owns)
    await site.stage.submit(site.batch(0.9, 0.9))
    assert len(site.stage.agenda) == 1
    assert len(site.store.rows) == 2
    site = Site(act(mode="confirm-and-execute"))
    await site.stage.submit(site.batch(0.9))
    assert len(site.stage.agenda) == 0


async def test_a_batch_that_may_not_be_here_is_refused_with_both_masks() -> None:
    site = Site(act())
    taken = await site.stage.submit(site.batch(0.9, mask=254))
    assert taken.refused is not None
    assert (taken.commands, taken.duplicates) == (0, 0)
    assert taken.refused.detail == "mask fe does not include this hub's bit (1)"
    assert site.counts() == {"foreign": 1}


async def test_without_waiting_a_batch_is_taken_up_to_the_last_place() -> None:
    site = Site(act(queue_max=20))
    await site.stage.submit(site.batch(*[0.9] * 18), wait=False)
    with pytest.raises(HarchError) as caught:
        await site.stage.submit(site.batch(0.9, window=2), wait=False)
    assert (caught.value.code, caught.value.message) == ("E0777", "18 actions are pending")
    assert site.counts() == {"rows": 19, "proposed": 18, "refused_full": 1}
    await site.stage.submit(site.batch(0.2, window=2), wait=False)  # nothing to be done is never too much


async def test_room_for_commands_that_are_being_written_is_not_given_twice() -> None:
    class Slow(Written):
        def __init__(self) -> None:
            super().__init__()
            self.go = asyncio.Event()

        async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
            await self.go.wait()
            return await super().put(entry, revision=revision, durable=durable)

    store = Slow()
    site = Site(act(queue_max=20), store=store)
    first = asyncio.create_task(site.stage.submit(site.batch(*[0.9] * 10)))
    await site.clock.advance(0)
    with pytest.raises(HarchError):
        await site.stage.submit(site.batch(*[0.9] * 9, window=2), wait=False)
    second = asyncio.create_task(site.stage.submit(site.batch(*[0.9] * 8, window=2), wait=False))
    await site.clock.advance(0)
    store.go.set()
    await asyncio.gather(first, second)
    assert len(site.stage.agenda) == 18


async def test_a_failed_write_gives_its_room_back() -> None:
    site = Site(act(queue_max=20))
    site.store.fails = {"put"}
    with pytest.raises(HarchError):
        await site.stage.submit(site.batch(*[0.9] * 18))
    site.store.fails = set()
    async with asyncio.timeout(5):
        await site.stage.submit(site.batch(*[0.9] * 18, window=2))
    assert len(site.stage.agenda) == 18


async def test_who_waits_for_room_hears_of_a_write_that_failed() -> None:
    class Fails(Written):
        def __init__(self) -> None:
            super().__init__()
            self.go = asyncio.Event()

        async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
            if entry.command.window == 1:
                await self.go.wait()
                raise HarchError("E0775", "the ledger did not answer")
            return await super().put(entry, revision=revision, durable=durable)

    store = Fails()
    site = Site(act(queue_max=20), store=store)
    first = asyncio.create_task(site.stage.submit(site.batch(*[0.9] * 18)))
    await site.clock.advance(0)
    second = asyncio.create_task(site.stage.submit(site.batch(0.9, window=2)))
    await site.clock.advance(0)
    assert not second.done()
    store.go.set()
    with pytest.raises(HarchError):
        await first
    taken = await asyncio.wait_for(second, 5)
    assert taken.commands == 1


# The loop


async def test_the_ledger_is_read_once_a_second_however_much_is_done() -> None:
    site = Site(act())
    async with site.running():
        before = len(site.store.scans)
        for window in range(4):
            await site.stage.submit(site.batch(0.9, window=window))
            await site.clock.advance(0.2)
        assert len(site.valve.orders) == 4
        assert len(site.store.scans) == before
        await site.clock.advance(1.0)
        assert len(site.store.scans) == before + 3


async def test_who_wants_to_know_hears_of_every_end_once() -> None:
    site = Site(act())
    async with site.running():
        await site.stage.submit(site.batch(0.9, 0.8))
        await site.stage.drain()
    assert [(one.state, one.command.device) for one in site.closed] == [(S.DONE, "d0"), (S.DONE, "d1")]


async def test_at_the_start_what_is_in_the_ledger_goes_on_and_intervals_hold() -> None:
    store = Written()
    site = Site(act(interlocks={"min_interval_s": 10}), store=store)
    done = ledger.proposed(command(0, issued_ms=site.now_ms), now_ms=site.now_ms - 4_000)
    store.rows["done"] = StoredEntry(structs.replace(done, state=S.DONE, closed=True), 1)
    begun = ledger.proposed(command(1, issued_ms=site.now_ms), now_ms=site.now_ms - 4_000)
    store.rows[begun.cmd_id] = StoredEntry(structs.replace(begun, state=S.UNKNOWN, due_ms=site.now_ms + 10**6), 1)
    async with site.running():
        assert store.scans == [
            ((S.INTENT, S.SENT, S.UNKNOWN), 10_000),
            ((S.INTENT, S.SENT, S.UNKNOWN, S.FAILED), 10_000),
            ((S.AUTHORISED,), 10_000),
            ((S.AWAIT_CONFIRM,), 10_000),
            ((S.INTENT, S.SENT, S.UNKNOWN, S.FAILED), 1_001),
            ((S.AUTHORISED,), 1_001),
            ((S.AWAIT_CONFIRM,), 1_000),
        ], "all of it before anybody works, and then at every poll beside what is known"
        await site.stage.submit(site.batch(0.9, 0.9, 0.9, window=2))
        await site.clock.advance(0.1)
    rejected = [row.entry for row in store.rows.values() if row.entry.state is S.REJECTED]
    assert [one.command.device for one in rejected] == ["d0", "d1"]
    assert [order.device for order in site.valve.orders] == ["d2"]


async def test_a_ledger_that_cannot_be_read_is_read_again_at_the_next_poll() -> None:
    site = Site(act())
    await site.stage.submit(site.batch(0.9))
    other = Site(act(), store=site.store)
    other.store.fails = {"scan"}
    async with other.running():
        assert other.counts() == {"store_failures": 2}, "at the start and at the first poll"
        await other.clock.advance(0.9)
        assert other.counts() == {"store_failures": 2}
        other.store.fails = set()
        await other.clock.advance(0.2)
    assert [order.device for order in other.valve.orders] == ["d0"]


async def test_a_poll_takes_what_is_open_its_own_and_fits() -> None:
    """Others wrote: one approved, one that still waits for a person, one overdue, one of another's devices."""
    store = Written()
    site = Site(act(queue_max=10, mode="confirm-and-execute"), store=store, owns=lambda one: one.device != "d9")
    async with site.running():
        for number, (state, ttl_s) in enumerate([(S.AUTHORISED, 60), (S.AWAIT_CONFIRM, 60), (S.AWAIT_CONFIRM, 0.5)]):
            made = command(number, mode=Mode.CONFIRM, issued_ms=site.now_ms, ttl_s=ttl_s)
            entry = ledger.proposed(made, now_ms=site.now_ms)
            store.rows[made.cmd_id] = StoredEntry(structs.replace(entry, state=state, approved_digest=entry.digest), 1)
        foreign = ledger.proposed(command(9, issued_ms=site.now_ms), now_ms=site.now_ms)
        store.rows[foreign.cmd_id] = StoredEntry(structs.replace(foreign, state=S.AUTHORISED), 1)
        await site.clock.advance(0.9)
        assert site.valve.orders == []
        await site.clock.advance(0.2)
        assert [row.entry.state for row in store.rows.values()] == [S.DONE, S.AWAIT_CONFIRM, S.EXPIRED, S.AUTHORISED]
    assert [order.device for order in site.valve.orders] == ["d0"]


async def test_a_full_agenda_leaves_in_the_ledger_what_a_poll_finds() -> None:
    store = Written()
    site = Site(act(queue_max=10), store=store)
    for number in range(12):
        entry = ledger.proposed(command(number, issued_ms=site.now_ms), now_ms=site.now_ms + number)
        store.rows[entry.cmd_id] = StoredEntry(structs.replace(entry, state=S.FAILED, due_ms=site.now_ms + 5_000), 1)
    async with site.running():
        assert len(site.stage.agenda) == 9, "the last place is for what is urgent"


async def test_somebody_who_knows_of_a_change_need_not_wait_for_the_poll() -> None:
    store = Written()
    site = Site(act(), store=store)
    async with site.running():
        entry = ledger.proposed(command(1, issued_ms=site.now_ms), now_ms=site.now_ms)
        store.rows[entry.cmd_id] = StoredEntry(structs.replace(entry, state=S.AUTHORISED), 1)
        await site.clock.advance(0.1)
        assert site.valve.orders == []
        site.stage.wake()
        await site.clock.advance(0)
        assert len(site.valve.orders) == 1


async def test_what_is_due_is_worked_on_at_its_time_and_not_at_the_next_poll() -> None:
    site = Site(act(retries={"attempts": 3, "base_s": 0.3, "jitter": 0}))
    site.valve.answers = [SinkOutcome(Effect.NO, "busy")]
    async with site.running():
        await site.stage.submit(site.batch(0.9))
        await site.clock.advance(0.29)
        assert len(site.valve.orders) == 1
        await site.clock.advance(0.02)
        assert len(site.valve.orders) == 2


async def test_after_a_failed_write_a_command_rests_for_a_second_and_is_read_again() -> None:
    site = Site(act())
    await site.stage.submit(site.batch(0.9))
    site.store.fails = {"put", "get"}
    async with site.running():
        await site.clock.advance(0.1)
        assert site.counts()["store_failures"] == 2, "the write and the look after it"
        site.store.fails = set()
        await site.clock.advance(0.85)
        assert site.states() == [S.AUTHORISED]
        await site.clock.advance(0.1)
        assert site.states() == [S.DONE]
    assert len(site.valve.orders) == 1


async def test_after_a_failed_write_the_ledger_says_what_is_true() -> None:
    site = Site(act())
    await site.stage.submit(site.batch(0.9))
    (row,) = site.store.rows.values()
    theirs = structs.replace(row.entry, state=S.DONE, closed=True, worker="w2")
    site.store.rows[row.entry.cmd_id] = StoredEntry(theirs, 5)
    site.store.fails = {"put"}
    async with site.running():
        assert len(site.stage.agenda) == 0
    assert [one.worker for one in site.closed] == ["w2"]
    assert site.valve.orders == []


async def test_every_minute_what_ended_long_ago_is_forgotten() -> None:
    site = Site(structs.replace(act(), retention_s=200_000.0, letters_max=7))
    site.store.dropped = 3
    started_ms = site.now_ms
    async with site.running():
        await site.clock.advance(59.9)
        assert site.store.prunes == []
        await site.clock.advance(0.2)
        assert site.store.prunes == [(started_ms + 60_000 - 200_000_000, 7)]
        assert site.counts()["letters_dropped"] == 3
        site.store.fails = {"prune"}
        await site.clock.advance(60)
        assert site.counts()["store_failures"] == 1
        site.store.fails = set()
        await site.clock.advance(60)
        assert site.counts()["letters_dropped"] == 6


@pytest.mark.parametrize("which", ["of all", "of one action"])
async def test_a_file_that_exists_stops_what_it_is_for(which: str, tmp_path: Path) -> None:
    path = tmp_path / "stop"
    one = {"stop_file": str(path)} if which == "of all" else {"interlocks": {"stop_file": str(path)}}
    site = Site(act(**one))
    await site.stage.submit(site.batch(0.9))
    assert site.states() == [S.AUTHORISED]
    path.symlink_to(tmp_path / "nowhere")  # a link counts, wherever it leads
    await site.stage.submit(site.batch(0.9, window=2))
    assert [row.entry.reason for row in site.store.rows.values()] == [
        "",
        f"stop: all actions are halted: {path} exists",
    ]


@pytest.mark.parametrize(("back_ms", "stands"), [(0, True), (1, True), (10_000, True), (10_001, False)])
async def test_a_clock_that_is_set_back_a_little_stands_still(back_ms: int, stands: bool) -> None:
    site = Site(act())
    settled = site.stage._now_ms()
    assert settled == site.now_ms
    site.clock._elapsed_s -= back_ms / 1000
    assert site.stage._now_ms() == (settled if stands else settled - back_ms)
    site.clock._elapsed_s += 20
    assert site.stage._now_ms() == settled - back_ms + 20_000


async def test_draining_waits_for_what_is_open_and_not_for_people() -> None:
    site = Site(act(retries={"attempts": 3, "base_s": 5, "jitter": 0}))
    site.valve.answers = [SinkOutcome(Effect.NO, "busy")]
    async with site.running():
        await site.stage.submit(site.batch(0.9))
        draining = asyncio.create_task(site.stage.drain())
        await site.clock.advance(4.9)
        assert not draining.done()
        await site.clock.advance(0.2)
        await asyncio.wait_for(draining, 5)
    people = Site(act(mode="confirm-and-execute"))
    async with people.running():
        await people.stage.submit(people.batch(0.9))
        await asyncio.wait_for(people.stage.drain(), 5)


async def test_two_writers_of_one_command_keep_it_once() -> None:
    class Loses(Written):
        async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
            raise LedgerConflict(entry.cmd_id)

    site = Site(act(), store=Loses())
    taken = await site.stage.submit(site.batch(0.9))
    assert (taken.commands, taken.duplicates) == (0, 1)
    assert len(site.stage.agenda) == 0
