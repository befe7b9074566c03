"""How exact is the emulated WAN? Round trips on a quiet and on an oversubscribed machine, losses, and TCP.

Round trips are those of ICMP echoes, which the kernel at the other end answers: two ways through the emulator, and the
wake-up of the measuring process, which is counted as an error too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from harch.testing.wan import Wan, why_not_permitted
from verdict import Verdict, conditions

RTT_MS = {("a", "b"): 8.0, ("a", "c"): 24.0, ("b", "c"): 45.0}
ECHOES = 300
DATAGRAMS = 40_000
LOSSES = (0.01, 0.1)
TCP_BYTES = 200 << 20
STANDARD_DEVIATIONS_99_PERCENT = 2.576


def main() -> None:
    if reason := why_not_permitted():
        raise SystemExit(reason)
    verdict = Verdict("wan")
    print(f"conditions: {conditions()}; load average {os.getloadavg()[0]:.1f}")
    with Wan(["a", "b", "c"], rtt_ms=RTT_MS) as wan:
        errors = [print_round_trips(wan, a, b) for a, b in RTT_MS]
        verdict.goal("round trip, median error of the worst link", "<= 0.5", max(errors), "ms")
        with busy_processors(2 * (os.cpu_count() or 1)):
            print("the same with two busy processes per core, for whose turns the measuring process waits, too:")
            before = wan.statistics()
            for a, b in RTT_MS:
                print_round_trips(wan, a, b)
            after = wan.statistics()
            late_ms = (after.late_ms_sum - before.late_ms_sum) / (after.packets_delivered - before.packets_delivered)
            print(f"the emulator alone was late by {late_ms:.2f} ms per packet meanwhile")
        wan.set_link("a", "b", delay_ms=0)
        for loss in LOSSES:
            lost = lost_datagrams(wan, loss)
            deviations = abs(lost - DATAGRAMS * loss) / (DATAGRAMS * loss * (1 - loss)) ** 0.5
            print(f"loss {loss:.0%}: {lost:,} of {DATAGRAMS:,}, {deviations:.2f} standard deviations off")
            wanted = f"<= {STANDARD_DEVIATIONS_99_PERCENT}"
            verdict.goal(f"loss of {loss:.0%}, within 99 % bounds", wanted, deviations, "standard deviations")
        print(f"TCP through one link without delay: {tcp_bytes_per_s(wan) / 1e6:.0f} MB/s")
        told = wan.statistics()
        print(f"emulator: {told.packets_delivered:,} packets in {told.cpu_s:.1f} s of CPU")
        print(f"emulator: late by {told.late_ms_mean:.2f} ms on average, by {told.late_ms_max:.1f} ms at most")
    verdict.print()


def print_round_trips(wan: Wan, a: str, b: str) -> float:
    """Returns the error of the median in ms."""
    trips = sorted(round_trips_ms(wan, a, b))
    median_ms, p99_ms = statistics.median(trips), trips[int(len(trips) * 0.99)]
    wanted_ms = RTT_MS[a, b]
    print(f"round trip of {wanted_ms:g} ms: median {median_ms:.2f}, p99 {p99_ms:.2f}, max {trips[-1]:.2f} ms")
    return abs(median_ms - wanted_ms)


def round_trips_ms(wan: Wan, a: str, b: str) -> Iterator[float]:
    with wan.inside(a, socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as echoes:
        echoes.settimeout(5)
        for number in range(ECHOES):
            start_ns = time.perf_counter_ns()
            echoes.sendto(echo_request(number), (wan.address(b), 0))
            while not is_reply(echoes.recv(200), number):
                pass
            yield (time.perf_counter_ns() - start_ns) / 1e6


def echo_request(number: int) -> bytes:
    """The checksum of an otherwise zero message: type 8 in the upper byte, and the number."""
    total = 0x0800 + number
    return struct.pack("!BBHHH", 8, 0, ~((total >> 16) + (total & 0xFFFF)) & 0xFFFF, 0, number)


def is_reply(packet: bytes, number: int) -> bool:
    kind, _, _, _, answered = struct.unpack_from("!BBHHH", packet, 20)
    return bool(kind == 0 and answered == number)


def lost_datagrams(wan: Wan, loss: float) -> int:
    """As seen by the receiver, not by the emulator's own counters."""
    wan.set_link("a", "b", loss=loss)
    with (
        wan.inside("a", socket.socket, socket.AF_INET, socket.SOCK_DGRAM) as sender,
        wan.inside("b", socket.socket, socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind((wan.address("b"), 9000))
        receiver.setblocking(False)
        received = 0
        for number in range(DATAGRAMS):
            sender.sendto(b"x", (wan.address("b"), 9000))
            if number % 50 == 49:  # emptied often, so that only the link loses any
                time.sleep(0.002)
                received += available(receiver)
        time.sleep(0.5)
        received += available(receiver)
    wan.set_link("a", "b", loss=0)
    return DATAGRAMS - received


def available(receiver: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while receiver.recv(10):
            count += 1
    return count


def tcp_bytes_per_s(wan: Wan) -> float:
    with wan.inside("b", socket.create_server, (wan.address("b"), 9001)) as listener:
        sender = wan.connect("a", 9001, host=wan.address("b"))
        receiver, _ = listener.accept()
        with sender, receiver:
            sending = threading.Thread(target=sender.sendall, args=(bytes(TCP_BYTES),))
            start = time.perf_counter()
            sending.start()
            left = TCP_BYTES
            while left:
                left -= len(receiver.recv(1 << 20))
            sending.join()
            return TCP_BYTES / (time.perf_counter() - start)


@contextlib.contextmanager
def busy_processors(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
