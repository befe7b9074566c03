"""The emulated WAN with real packets and processes: delay, loss, cuts, order, and that nothing survives its owner.

The machine may be busy: a packet is never early, but it may be late, so upper bounds are generous or taken from the
best of many. How exact it is when the machine is quiet is measured by `bench/wan.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from harch.testing.wan import Wan, WanError

pytestmark = pytest.mark.needs("wan")

PORT = 9000
QUIET_S = 0.4  # nothing has come for that long: nothing will (the links of these tests take 10 ms)


class Station:
    """A UDP socket inside a hub's namespace, held by the test."""

    def __init__(self, wan: Wan, name: str) -> None:
        self.wan, self.name = wan, name
        self._socket = wan.inside(name, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind((wan.address(name), PORT))

    def send(self, name: str, text: str) -> None:
        self._socket.sendto(text.encode(), (self.wan.address(name), PORT))

    def receive(self, timeout_s: float = 10.0) -> str:
        self._socket.settimeout(timeout_s)
        return self._socket.recv(2000).decode()

    def receive_all(self) -> list[str]:
        """What comes until it is quiet."""
        received = []
        with contextlib.suppress(TimeoutError):
            while True:
                received.append(self.receive(QUIET_S))
        return received

    def hears(self, other: Station) -> bool:
        other.send(self.name, "hello")
        return self.receive_all() == ["hello"]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def wan() -> Iterator[Wan]:
    with Wan(["a", "b", "c"], rtt_ms=20) as running:
        yield running


@pytest.fixture
def stations(wan: Wan) -> Iterator[list[Station]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Station(wan, name))) for name in wan.names]


def one_way_ms(sender: Station, receiver: Station, count: int = 20) -> list[float]:
    delays = []
    for number in range(count):
        start = time.perf_counter()
        sender.send(receiver.name, str(number))
        assert receiver.receive() == str(number)
        delays.append((time.perf_counter() - start) * 1000)
    return delays


def test_a_packet_takes_the_delay_of_its_own_link() -> None:
    with (
        Wan(["a", "b", "c"], rtt_ms={("a", "b"): 8, ("c", "a"): 45, ("b", "c"): 90}) as wan,
        contextlib.ExitStack() as ends,
    ):
        a, b, c = (ends.enter_context(contextlib.closing(Station(wan, name))) for name in wan.names)
        for sender, receiver, delay_ms in ((a, b, 4), (b, a, 4), (a, c, 22.5), (c, a, 22.5), (c, b, 45)):
            delays = one_way_ms(sender, receiver)
            assert min(delays) >= delay_ms
            assert min(delays) < delay_ms + 15  # below the delay of the next slower link


def test_a_link_can_be_changed_while_it_is_used(wan: Wan, stations: list[Station]) -> None:
    a, b, c = stations
    wan.set_link("a", "b", delay_ms=60, one_way=True)
    assert min(one_way_ms(a, b, 5)) >= 60
    assert 10 <= min(one_way_ms(b, a)) < 50
    assert 10 <= min(one_way_ms(a, c)) < 50


def test_the_share_of_lost_packets_is_within_99_percent_bounds(wan: Wan, stations: list[Station]) -> None:
    a, b, _ = stations
    wan.set_link("a", "b", loss=0.1)
    sent, received = 3000, 0
    for number in range(sent):
        a.send("b", "x" * 100)
        if number % 100 == 99:
            time.sleep(0.002)  # no buffer but the link shall lose any
    received = len(b.receive_all())
    deviation = (sent * 0.1 * 0.9) ** 0.5
    assert abs(sent - received - sent * 0.1) < 2.576 * deviation
    counters = wan.statistics().links["a", "b"]
    assert (counters.packets_sent, counters.packets_lost) == (sent, sent - received)


def test_packets_of_a_link_keep_their_order_whatever_the_jitter(wan: Wan, stations: list[Station]) -> None:
    a, b, _ = stations
    wan.set_link("a", "b", delay_ms=20, jitter_ms=20)
    for number in range(300):
        a.send("b", str(number))
    assert b.receive_all() == [str(number) for number in range(300)]


def test_a_rate_holds_packets_back(wan: Wan, stations: list[Station]) -> None:
    a, b, _ = stations
    wan.set_link("a", "b", rate_mbps=1)
    start = time.perf_counter()
    for number in range(20):
        a.send("b", f"{number:01222}")  # with its headers 1250 bytes: 10 ms each
    last = [b.receive() for _ in range(20)][-1]
    assert int(last) == 19
    assert (time.perf_counter() - start) * 1000 >= 20 * 10 + 10


def test_nothing_passes_a_cut_until_it_is_healed(wan: Wan, stations: list[Station]) -> None:
    a, b, c = stations
    wan.cut("a", "b")
    assert not b.hears(a)
    assert not a.hears(b)
    assert c.hears(a)
    assert b.hears(c)
    wan.heal("a", "b")
    assert b.hears(a)
    assert a.hears(b)


def test_a_one_way_cut_lets_answers_pass(wan: Wan, stations: list[Station]) -> None:
    a, b, _ = stations
    wan.cut("a", "b", one_way=True)
    assert not b.hears(a)
    assert a.hears(b)
    wan.cut("a", "b")
    wan.heal("b", "a", one_way=True)
    assert not b.hears(a)
    assert a.hears(b)


def test_what_is_under_way_at_a_cut_is_lost_though_the_link_is_healed_at_once(
    wan: Wan, stations: list[Station]
) -> None:
    a, b, _ = stations
    wan.set_link("a", "b", delay_ms=1000)
    a.send("b", "before")
    assert eventually(lambda: wan.statistics().links["a", "b"].packets_sent == 1)
    wan.cut("a", "b")
    wan.heal("a", "b")
    a.send("b", "after")
    assert b.receive() == "after"
    assert wan.statistics().links["a", "b"].packets_cut == 1


def test_a_partition_separates_groups_and_only_these(wan: Wan, stations: list[Station]) -> None:
    a, b, c = stations
    wan.partition(["a", "b"], ["c"])
    assert b.hears(a)
    assert not c.hears(a)
    assert not b.hears(c)
    wan.heal_all()
    assert c.hears(a)
    assert b.hears(c)


def test_a_server_inside_is_reached_from_outside_and_from_its_own_hub_alone(wan: Wan, tmp_path: Path) -> None:
    (tmp_path / "page").write_text("served inside\n" * 100_000)
    words = [sys.executable, "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    wan.popen("a", words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{wan.expose('a', 8000)}/page"
    assert eventually(lambda: httpx.get(url).status_code == 200)
    assert httpx.get(url).text == "served inside\n" * 100_000
    with wan.connect("a", 8000) as connection:
        connection.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200")
    with pytest.raises(ConnectionRefusedError):
        wan.connect("b", 8000)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 8000))
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{wan.expose('b', 8000)}/page")


def test_tcp_passes_a_lossy_link_whole(wan: Wan) -> None:
    wan.set_link("a", "b", loss=0.02, jitter_ms=2)
    listener = wan.inside("b", socket.create_server, (wan.address("b"), PORT))
    data = os.urandom(300_000)
    with listener, wan.connect("a", PORT, host=wan.address("b")) as sender:
        receiver, _ = listener.accept()
        with receiver:
            sender.sendall(data[:100_000])
            sender.settimeout(30)
            received = bytearray()
            sender.sendall(data[100_000:])
            sender.shutdown(socket.SHUT_WR)
            receiver.settimeout(30)
            while piece := receiver.recv(1 << 16):
                received += piece
    assert received == data


def test_a_process_inside_is_a_child_like_any_other(wan: Wan) -> None:
    shown = wan.run(
        "b", [sys.executable, "-c", f"import socket; socket.create_server(('{wan.address('b')}', 1)); print('own')"]
    )
    assert shown.stdout == "own\n"
    with pytest.raises(subprocess.CalledProcessError):
        wan.run("b", ["false"])
    process = wan.popen("b", ["sleep", "100"])
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


def test_two_wans_do_not_meet() -> None:
    with Wan(["a", "b"], rtt_ms=2) as one, Wan(["a", "b"], rtt_ms=2) as other:
        assert one.address("a") == other.address("a")
        stations = [Station(one, "a"), Station(one, "b"), Station(other, "a"), Station(other, "b")]
        assert stations[1].hears(stations[0])
        assert stations[3].receive_all() == []
        for station in stations:
            station.close()


def test_what_was_started_inside_ends_with_the_wan_children_included(wan: Wan) -> None:
    with Wan(["a"], rtt_ms=1) as short:
        shell = short.popen("a", ["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
    assert shell.returncode == -signal.SIGKILL
    assert eventually(lambda: has_ended(child))
    shell.stdout.close()
    assert wan.run("a", ["true"]).returncode == 0  # that of another one is left alone


OWNER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been started in the background
import sys, subprocess, time
from harch.testing.wan import Wan
with Wan(["a", "b"], rtt_ms=2) as wan:
    inside = wan.popen("b", ["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    print(inside.pid, inside.stdout.readline().strip(), wan.emulator_pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_an_owner_that_dies(number: signal.Signals) -> None:
    words = [sys.executable, "-c", OWNER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) == 3
        assert not any(has_ended(process) for process in processes)
        owner.send_signal(number)
        owner.wait(20)
    assert eventually(lambda: all(has_ended(process) for process in processes))


def test_an_emulator_that_was_killed_is_reported_not_waited_for() -> None:
    with Wan(["a", "b"], rtt_ms=2) as wan:
        process = wan.popen("a", ["sleep", "100"])
        os.kill(wan.emulator_pid, signal.SIGKILL)
        with pytest.raises(WanError, match="emulator"):
            wan.cut("a", "b")
    assert process.returncode == -signal.SIGKILL


def test_unknown_hubs_and_impossible_links_are_refused(wan: Wan) -> None:
    with pytest.raises(ValueError, match="no hub `d`"):
        wan.cut("a", "d")
    for settings in ({"loss": 1.5}, {"delay_ms": -1.0}, {"rate_mbps": 0.0}):
        with pytest.raises(ValueError, match="not a link"):
            wan.set_link("a", "b", **settings)


def eventually(holds: Callable[[], bool], within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            if holds():
                return True
        time.sleep(0.02)
    return False


def has_ended(pid: int) -> bool:
    """Gone, or a zombie: whose parent died waits for whoever adopted it to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
