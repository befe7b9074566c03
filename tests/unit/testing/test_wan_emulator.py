"""The emulator's commands, without any namespace."""

from __future__ import annotations

import json
import socket
import threading

from harch.testing.wan_emulator import Emulator


def test_commands_may_come_in_pieces_and_several_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        emulator = Emulator(theirs, [], "seed")
        running = threading.Thread(target=emulator.run)
        running.start()
        answers = ours.makefile("rb")
        ours.sendall(b'{"do": "stat')
        ours.sendall(b'istics"}\n{"do": "statistics"}\n{"do": "statistics')
        assert [json.loads(answers.readline())["links"] for _ in range(2)] == [[], []]
        ours.sendall(b'"}\n')
        assert json.loads(answers.readline())["links"] == []
        answers.close()
        ours.close()
        running.join(10)
        assert not running.is_alive()


def test_the_emulator_ends_when_nobody_holds_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        running = threading.Thread(target=Emulator(theirs, [], "seed").run)
        running.start()
        ours.close()
        running.join(10)
        assert not running.is_alive()
