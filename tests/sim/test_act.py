"""Whatever dies, races, comes late or gets lost: an action happens once or not at all, in time, approved, unaltered."""

from __future__ import annotations

import os

import pytest

from harch.pipelines.act.ledger import ActionCommand, CommandState
from harch.pipelines.act.settings import Mode
from sim.act_world import DeviceWorld, World

STORIES = 2000 if os.environ.get("HARCH_SOAK") else 60
COMMANDS, TURNS = 4, 400

SINKS = [
    pytest.param(True, False, id="keeps-keys"),
    pytest.param(False, True, id="reads-back"),
    pytest.param(True, True, id="both"),
]


def story(seed: int, *, mode: Mode, keeps_keys: bool, reads_back: bool, steps: int = 1) -> World:
    return tell(World(seed, mode=mode, keeps_keys=keeps_keys, reads_back=reads_back, steps=steps))


def tell(world: World) -> World:
    mode = world.action.mode
    commands: list[ActionCommand] = []
    for turn in range(TURNS):
        if turn % (TURNS // COMMANDS) == 0:
            commands.append(world.command(len(commands)))
        world.deliver(world.random.choice(commands))  # again and again
        if mode is Mode.CONFIRM and world.random.random() < 0.02:
            world.approve(world.random.choice(list(world.store.rows)))
        world.turn()
    world.finish()
    world.judge()
    return world


@pytest.mark.parametrize(("keeps_keys", "reads_back"), SINKS)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_transaction_happens_once_or_not_at_all(keeps_keys: bool, reads_back: bool, steps: int) -> None:
    ends: set[CommandState] = set()
    for seed in range(STORIES):
        world = story(seed, mode=Mode.TRANSACTIONAL, keeps_keys=keeps_keys, reads_back=reads_back, steps=steps)
        assert world.problems == [], f"seed {seed}"
        ends |= {row.entry.state for row in world.store.rows.values()}
    assert {CommandState.DONE, CommandState.DEAD, CommandState.EXPIRED} <= ends, (
        "the stories are too tame to prove anything"
    )


@pytest.mark.parametrize(("keeps_keys", "reads_back"), [*SINKS, pytest.param(False, False, id="neither")])
def test_nothing_is_sent_that_no_person_approved(keeps_keys: bool, reads_back: bool) -> None:
    ends: set[CommandState] = set()
    for seed in range(STORIES):
        world = story(seed, mode=Mode.CONFIRM, keeps_keys=keeps_keys, reads_back=reads_back)
        assert world.problems == [], f"seed {seed}"
        ends |= {row.entry.state for row in world.store.rows.values()}
    assert {CommandState.DONE, CommandState.EXPIRED} <= ends


@pytest.mark.parametrize(("keeps_keys", "reads_back"), [*SINKS, pytest.param(False, False, id="neither")])
def test_what_is_fired_and_forgotten_is_tried_once(keeps_keys: bool, reads_back: bool) -> None:
    for seed in range(STORIES):
        world = story(seed, mode=Mode.FIRE_AND_FORGET, keeps_keys=keeps_keys, reads_back=reads_back)
        assert world.problems == [], f"seed {seed}"
        assert all(row.entry.attempts <= 1 for row in world.store.rows.values())


def test_devices_that_show_only_their_last_value_are_not_commanded_twice_either() -> None:
    ends: set[CommandState] = set()
    for seed in range(3 * STORIES):
        world = tell(DeviceWorld(seed))
        assert world.problems == [], f"seed {seed}"
        ends |= {row.entry.state for row in world.store.rows.values()}
    assert {CommandState.DONE, CommandState.DEAD} <= ends


def test_without_holding_back_other_commands_such_a_device_would_be_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a device in doubt that takes other commands hides what became of the one in doubt."""
    monkeypatch.setattr("harch.pipelines.act.stage.unresolved", lambda _: False)
    problems = [problem for seed in range(3 * STORIES) for problem in tell(DeviceWorld(seed)).problems]
    assert any("times" in problem for problem in problems)


def test_the_simulation_finds_a_ledger_that_sends_again_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: take the question away, and the world must see a device obey twice."""

    async def send_again(self: object, stored: object, action: object) -> object:
        from harch.pipelines.act import ledger
        from harch.pipelines.act.store import StoredEntry

        assert isinstance(stored, StoredEntry)
        now_ms = self.now_ms()  # type: ignore[attr-defined]
        again = ledger.failed(stored.entry, "", now_ms=now_ms, due_ms=now_ms)
        return await self._put(stored, again)  # type: ignore[attr-defined]

    monkeypatch.setattr("harch.pipelines.act.attempt.Worker._find_out", send_again)
    problems = [
        problem
        for seed in range(STORIES)
        for problem in story(seed, mode=Mode.TRANSACTIONAL, keeps_keys=False, reads_back=True).problems
    ]
    assert any("times" in problem for problem in problems)
