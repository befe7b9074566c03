"""kill -9 while content is stored, held, released, collected: nothing acknowledged is lost, nothing is leaked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harch.content.frames import unpack_chunk
from integration.content_store_victim import holder_of, open_victim, tenant_of, tree_of

ROUNDS = 200 if os.environ.get("HARCH_SOAK") else 6
VICTIM = Path(__file__).with_name("content_store_victim.py")
Name = tuple[int, int]  # writer and number


class Account:
    """What the store must hold, and what it may hold."""

    def __init__(self) -> None:
        self.held: set[Name] = set()
        self.maybe: set[Name] = set()  # was being held, or released, when the kill came
        self.acknowledged = 0

    def note(self, word: str, name: Name) -> None:
        self.acknowledged += word in ("held", "released")
        if word == "held":
            self.held.add(name)
        elif word == "releasing":
            self.held.discard(name)
        if word in ("holding", "releasing"):
            self.maybe.add(name)
        else:
            self.maybe.discard(name)

    @property
    def next_number(self) -> int:
        return max((number for _, number in self.held | self.maybe), default=-1) + 1


@pytest.mark.timeout(1200)
def test_nothing_acknowledged_is_lost_to_kill_9_and_nothing_is_leaked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(20_261_120)
    account = Account()
    environment = os.environ | {"PYTHONPATH": str(VICTIM.parents[1])}
    command = [sys.executable, str(VICTIM), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as victims:
        for _ in range(ROUNDS):
            _one_life(victims, account, rng.choice([0, 1, rng.randint(2, 60), rng.randint(20, 200)]))
            _compare(tmp_path, account)
        assert victims.stdin is not None
        victims.stdin.close()
    print(f"{ROUNDS} kills, {account.acknowledged} holds and releases were acknowledged")
    assert account.acknowledged > ROUNDS
    _end(tmp_path, account)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def _one_life(victims: subprocess.Popen[str], account: Account, acknowledged_max: int) -> None:
    """Starts a process, and kills it after so many acknowledgements: wherever its other threads are."""
    assert victims.stdin is not None
    assert victims.stdout is not None
    victims.stdin.write(f"{account.next_number}\n")
    victims.stdin.flush()
    process, acknowledged = 0, 0
    for line in victims.stdout:
        word, first, second = line.split()
        if word == "end":
            assert first == "-9"
            return
        assert word != "wrong", "a chunk was read that is not what was stored"
        if word == "life":
            process = int(first)
        else:
            account.note(word, (int(first), int(second)))
            acknowledged += word in ("held", "released")
        if process and acknowledged >= acknowledged_max:
            os.kill(process, signal.SIGKILL)  # what is in the pipe by now was acknowledged too
            process = 0
    raise AssertionError("the victims' process ended by itself")


def _compare(folder: Path, account: Account) -> None:
    store = open_victim(folder)
    try:
        found = {(hold.tenant, hold.holder): hold.digest for hold in store.holders()}
        expected = {name: (tenant_of(*name), holder_of(*name)) for name in account.held | account.maybe}
        for name in account.held:
            assert found[expected[name]] == tree_of(*name).digest, name
        assert set(found) <= set(expected.values())
        account.held |= {name for name in account.maybe if expected[name] in found}
        account.maybe.clear()
        for name in account.held:
            tree = tree_of(*name)
            frames = store.read(tenant_of(*name), tree.ids)
            assert [unpack_chunk(frame) for frame in frames] == list(tree.raw.values()), name
        checked = store.check()
        assert (checked.damaged, checked.missing) == ([], [])
        store.collect(grace_s=0)
        needed = {(tenant_of(*name), chunk) for name in account.held for chunk in tree_of(*name).ids}
        assert sum(usage.chunks for usage in store.usage()) == len(needed)
        assert not store.has_lost_holders
    finally:
        store.close()


def _end(folder: Path, account: Account) -> None:
    """When everything is given up nothing is left but keys and an empty index."""
    store = open_victim(folder)
    for name in account.held:
        store.release(tenant_of(*name), holder_of(*name))
    store.collect(grace_s=0)
    assert store.totals() == (0, 0)
    store.close()
    assert list((folder / "packs").iterdir()) == []
    assert not (folder / "quarantine").exists()
    assert len(list((folder / "keys").iterdir())) <= 2
