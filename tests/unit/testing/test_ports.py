"""Do tests get ports that stay theirs, also beside other runs on the same machine?"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harch.base.config import PORT_STRIDE_DEFAULT, Ports
from harch.pipelines.engine import server as engine_ports
from harch.testing import ports

TAKE = """
import sys
from harch.testing.ports import free_port_base, free_ports
print(free_port_base(1), *free_ports(5), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[ports._Taken]:
    """As in a process that has taken nothing yet."""
    fresh = ports._Taken()
    monkeypatch.setattr(ports, "_taken", fresh)
    yield fresh
    for guard in fresh.guards:
        guard.close()


def listening(port: int) -> contextlib.closing[socket.socket]:
    return contextlib.closing(socket.create_server(("127.0.0.1", port)))


def used_by(base: int, hubs: int) -> set[int]:
    """All ports of so many hubs that start with this base."""
    made = Ports(base)
    listened = {of(hub) for hub in range(hubs) for of in (made.api, made.telemetry, made.peer)}
    gangs = {port for hub in range(hubs) for port in range(made.gang_range(hub)[0], made.gang_range(hub)[1] + 1)}
    return listened | gangs


def test_processes_that_choose_at_the_same_time_get_different_ports() -> None:
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(4)
        ]
        given = []
        for process in running:
            assert process.stdout is not None
            base, *single = map(int, process.stdout.readline().split())
            given.append(used_by(base, 1) | set(single))
        assert len(set.union(*given)) == sum(map(len, given)), "nothing is listened on yet, and nothing is given twice"
        for process in running:
            process.communicate("")


def test_ports_are_outside_of_those_that_the_kernel_and_message_engines_get(taken: ports._Taken) -> None:
    given = used_by(ports.free_port_base(), 5) | set(ports.free_ports(200))
    kernels = engine_ports.first_kernel_port()
    assert max(given) < min(kernels, engine_ports.FIRST_PORT) or kernels < engine_ports.FIRST_PORT


def test_what_somebody_listens_on_is_not_given(taken: ports._Taken) -> None:
    base = ports.free_port_base(1)
    for guard in taken.guards:
        guard.close()
    taken.federations.clear()
    with listening(base + PORT_STRIDE_DEFAULT + 1):  # as by a program that knows nothing of blocks
        assert base not in {ports.free_port_base(1) for _ in range(3)}


def test_the_ports_of_ended_federations_are_given_again_and_those_of_running_ones_are_not(taken: ports._Taken) -> None:
    first, second, third = (ports.free_port_base(1) for _ in range(3))
    assert len({first, second, third}) == 3
    with listening(first + 1):
        assert [ports.free_port_base(1) for _ in range(3)] == [second, third, second]
        with listening(second + 1), listening(third + 1):
            assert ports.free_port_base(1) not in (first, second, third)


def test_single_ports_come_again_only_when_all_others_were_given(taken: ports._Taken) -> None:
    everything = ports.BLOCK * ports.SINGLE_BLOCKS_HELD_MAX
    given = ports.free_ports(everything)
    assert len(set(given)) == everything
    with listening(given[0]):
        assert ports.free_ports(2) == given[1:3]


@pytest.mark.parametrize(("kernels", "is_outside"), [("32768\t60999\n", True), ("1024\t65535\n", False)])
def test_engines_get_ports_that_the_kernel_does_not_hand_out_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernels: str, is_outside: bool
) -> None:
    (tmp_path / "range").write_text(kernels)
    monkeypatch.setattr(engine_ports, "_KERNEL_PORTS", tmp_path / "range")
    found = engine_ports.free_ports(50)
    assert len(set(found)) == 50
    if is_outside:
        assert all(engine_ports.FIRST_PORT <= port < engine_ports.END_PORT for port in found)


def test_where_many_runs_hold_ports_a_federation_still_gets_a_base_of_its_own(
    taken: ports._Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ports._take_blocks

    def scarce(offsets: Sequence[int]) -> int:
        if len(offsets) > 1:
            raise OSError("no free ports")
        return take(offsets)

    monkeypatch.setattr(ports, "_take_blocks", scarce)
    assert len({ports.free_port_base() for _ in range(3)}) == 3
