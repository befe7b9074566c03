"""The process that carries the packets of an emulated WAN: one loop, so that a test's own loop cannot make it late.

`Wan` starts it (`python -m harch.testing.wan_emulator`) with one end of a socket: it creates the namespaces, sends
their descriptors, then answers one line of JSON per command. It ends when the socket is closed or `Wan`'s process
has gone, however that went, and leaves nothing running in its namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from harch.testing.wan_network import (
    MTU_BYTES,
    NS_PER_MS,
    LinkCounters,
    OneWayLink,
    enter_namespace,
    enter_new_namespace,
    kill_processes_inside,
    own_namespace,
)

NETWORK = "10.77.0"
READY = b"ready\n"
COMMAND_BYTES_MAX = 1 << 20
PACKETS_PER_READ_MAX = 64  # then due packets go out first, or a burst would delay those of others
WAKE_UP_NS_MAX = 200_000  # the longest that the loop may spin for one packet
_NETWORK_BYTES = socket.inet_aton(f"{NETWORK}.0")[:3]
_IPV4_HEADER_BYTES = 20


def hub_address(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


class Emulator:
    """Hubs are numbers here; their devices are what packets come from and go to."""

    def __init__(self, control: socket.socket, devices: list[int], seed: str) -> None:
        self._control, self._devices = control, devices
        hubs = range(len(devices))
        self._links = {(a, b): OneWayLink(f"{seed}:{a}>{b}") for a in hubs for b in hubs if a != b}
        # (due, order of arrival, link, its cuts when the packet was sent, receiving device, packet)
        self._under_way: list[tuple[int, int, OneWayLink, int, int, bytes]] = []
        self._order = 0
        self._late_ns_sum = self._late_ns_max = 0
        self._partial_command = b""
        self._is_running = True
        self._timer = Timer()

    def run(self) -> None:
        """Carries packets until the owner closes the socket or has gone."""
        hub_of = {device: number for number, device in enumerate(self._devices)}
        owner = os.pidfd_open(os.getppid())  # beside the socket, which a fork of the owner would keep open
        poll = select.epoll()
        for descriptor in (*self._devices, self._control.fileno(), self._timer.descriptor, owner):
            poll.register(descriptor, select.EPOLLIN)
        while self._is_running:
            for descriptor, _ in poll.poll():
                hub = hub_of.get(descriptor)
                if hub is not None:
                    self._take_packets(hub)
                elif descriptor == self._control.fileno():
                    self._obey()
                elif descriptor == owner:
                    self._is_running = False
                elif descriptor == self._timer.descriptor:
                    self._timer.learn(time.monotonic_ns())
            self._deliver_due_packets()
            self._timer.set(self._under_way[0][0] if self._under_way else 0, time.monotonic_ns())

    def _take_packets(self, sender: int) -> None:
        device, last = self._devices[sender], len(self._devices)
        for _ in range(PACKETS_PER_READ_MAX):
            try:
                packet = os.read(device, MTU_BYTES)
            except BlockingIOError:
                return
            if len(packet) < _IPV4_HEADER_BYTES or packet[0] >> 4 != 4 or packet[16:19] != _NETWORK_BYTES:
                continue
            receiver = packet[19] - 1
            if not 0 <= receiver < last or receiver == sender:
                continue
            link = self._links[sender, receiver]
            due_ns = link.accept(len(packet), time.monotonic_ns())
            if due_ns is not None:
                self._order += 1
                entry = (due_ns, self._order, link, link.cut_count, self._devices[receiver], packet)
                heapq.heappush(self._under_way, entry)

    def _deliver_due_packets(self) -> None:
        under_way = self._under_way
        now_ns = time.monotonic_ns()
        while under_way and under_way[0][0] <= now_ns:
            due_ns, _, link, cut_count, device, packet = heapq.heappop(under_way)
            if link.arrives(len(packet), cut_count):
                with contextlib.suppress(OSError):  # a device that someone took down swallows packets, as real ones do
                    os.write(device, packet)
                self._late_ns_sum += now_ns - due_ns
                self._late_ns_max = max(self._late_ns_max, now_ns - due_ns)

    def _obey(self) -> None:
        received = self._control.recv(1 << 16)
        *commands, self._partial_command = (self._partial_command + received).split(b"\n")
        if not received or len(self._partial_command) > COMMAND_BYTES_MAX:
            self._is_running = False
        for line in commands:
            command = json.loads(line)
            answer = self._perform(command.pop("do"), command.pop("links", []), command)
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _perform(self, verb: str, pairs: list[tuple[int, int]], settings: dict[str, float]) -> dict[str, Any]:
        if verb == "statistics":
            return self._statistics()
        for sender, receiver in pairs:
            link = self._links[sender, receiver]
            if verb == "shape":
                link.shape(**settings)
            elif verb == "cut":
                link.cut()
            elif verb == "heal":
                link.heal()
        return {}

    def _statistics(self) -> dict[str, Any]:
        # By hand, because `dataclasses.astuple` copies deeply: with 20 hubs it would hold up packets for milliseconds.
        names = LinkCounters.__slots__
        counters = [[*pair, *(getattr(link.counters, name) for name in names)] for pair, link in self._links.items()]
        return {
            "links": counters,
            "late_ms_sum": self._late_ns_sum / NS_PER_MS,
            "late_ms_max": self._late_ns_max / NS_PER_MS,
            "cpu_s": time.process_time(),
        }


class Timer:
    """Wakes an epoll loop to a tenth of a millisecond; epoll's own timeout counts whole ones and rounds up.

    An idle machine needs some time to wake up. The timer learns how much and is set that much earlier; what is left
    until the packet is due passes in the loop, which then finds the timer to be over.
    """

    class _Times(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)  # `os.timerfd_create` exists from Python 3.13 on
        self.descriptor: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._wanted_ns = self._set_ns = 0
        self._wake_up_ns = 0
        self._is_learning = False

    def set(self, wanted_ns: int, now_ns: int) -> None:
        """Readable shortly before this moment of the monotonic clock; never if 0. Setting it ends being readable."""
        if wanted_ns == self._wanted_ns:
            return
        self._wanted_ns = wanted_ns
        self._set_ns = max(1, wanted_ns - self._wake_up_ns) if wanted_ns else 0
        self._is_learning = self._set_ns > now_ns
        times = self._Times(0, 0, *divmod(self._set_ns, 1_000_000_000))
        absolute = 1
        if self._libc.timerfd_settime(self.descriptor, absolute, ctypes.byref(times), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def learn(self, now_ns: int) -> None:
        """It is readable: how late is the loop?"""
        if self._is_learning:
            self._is_learning = False
            late_ns = min(now_ns - self._set_ns, WAKE_UP_NS_MAX)
            self._wake_up_ns += (late_ns - self._wake_up_ns) // 8


def main() -> None:
    control, hub_count, seed = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everyone; the owner decides what ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    home = own_namespace()
    namespaces: list[int] = []
    devices: list[int] = []
    try:
        for number in range(hub_count):
            namespace, device = enter_new_namespace(hub_address(number))
            namespaces.append(namespace)
            devices.append(device)
        enter_namespace(home)
        _claim_the_processor()
        socket.send_fds(control, [READY], namespaces)
        Emulator(control, devices, seed).run()
    finally:
        kill_processes_inside(namespaces)


def _claim_the_processor() -> None:
    """A real fibre does not slow down when the hubs at its ends are busy."""
    gc.disable()  # the loop makes no cycles, and a collection would make packets late
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        with contextlib.suppress(OSError):
            os.nice(-20)


if __name__ == "__main__":
    main()
