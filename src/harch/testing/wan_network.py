"""What is an emulated WAN made of?

Links that delay, lose, limit and cut packets, decided without I/O; and namespaces with TUN devices whose packets we
carry.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import ParamSpec, TypeVar

# What happens to a packet between two hubs? Delay, jitter, loss, a rate, a cut: decided here, without any I/O.
#
# A link is one direction. Packets of one link never overtake each other. Whoever drives it asks `accept` when a
# packet is
# sent (it answers when the packet is due, or nothing) and `arrives` when that moment has come: a packet that was on its
# way while the link was cut does not arrive, even when the link was healed before it was due.


IN_FLIGHT_BYTES_MAX = 16 << 20  # 1 Gbit/s at 130 ms; more is dropped, as a router would
QUEUE_MS_MAX = 200.0  # what a rate limit may hold back before it drops
NS_PER_MS = 1_000_000


@dataclass(slots=True)
class LinkCounters:
    """What one link has carried since it was created. Bytes are those of whole IP packets."""

    packets_sent: int = 0
    bytes_sent: int = 0
    packets_delivered: int = 0
    bytes_delivered: int = 0
    packets_lost: int = 0  # by chance
    packets_cut: int = 0  # by a cut, those on their way at that moment included
    packets_overflowed: int = 0  # by a limit of a queue


class OneWayLink:
    """The way from one hub to another, with chances of its own: traffic of other links does not shift them."""

    __slots__ = (
        "_chance",
        "_delay_ns",
        "_free_ns",
        "_in_flight_bytes",
        "_is_cut",
        "_jitter_ns",
        "_last_due_ns",
        "_loss",
        "_ns_per_byte",
        "counters",
        "cut_count",
    )

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed).random  # noqa: S311 - chances of an experiment, not secrets
        self._delay_ns = self._jitter_ns = 0
        self._loss = self._ns_per_byte = 0.0
        self._is_cut = False
        self._free_ns = self._last_due_ns = self._in_flight_bytes = 0
        self.cut_count = 0
        self.counters = LinkCounters()

    def shape(
        self,
        *,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
        loss: float | None = None,
        rate_mbps: float | None = None,
    ) -> None:
        """Changes what is given, for packets sent from now on. A rate of infinity is no limit."""
        if delay_ms is not None:
            self._delay_ns = round(delay_ms * NS_PER_MS)
        if jitter_ms is not None:
            self._jitter_ns = round(jitter_ms * NS_PER_MS)
        if loss is not None:
            self._loss = loss
        if rate_mbps is not None:
            self._ns_per_byte = 8_000 / rate_mbps

    def cut(self) -> None:
        self._is_cut = True
        self.cut_count += 1

    def heal(self) -> None:
        self._is_cut = False

    def accept(self, packet_bytes: int, now_ns: int) -> int | None:
        """When the packet that was sent now is due, or None if it is dropped on the spot."""
        counters = self.counters
        counters.packets_sent += 1
        counters.bytes_sent += packet_bytes
        # Both chances are drawn for every packet: what happens to packet 100 depends on the seed, not on the 99 others.
        is_lost, jitter = self._chance() < self._loss, self._chance() * 2 - 1
        if self._is_cut:
            counters.packets_cut += 1
            return None
        if is_lost:
            counters.packets_lost += 1
            return None
        sent_ns = now_ns
        if self._ns_per_byte:
            start_ns = max(now_ns, self._free_ns)
            sent_ns = start_ns + round(packet_bytes * self._ns_per_byte)
            if start_ns - now_ns > QUEUE_MS_MAX * NS_PER_MS:
                counters.packets_overflowed += 1
                return None
        if self._in_flight_bytes + packet_bytes > IN_FLIGHT_BYTES_MAX:
            counters.packets_overflowed += 1
            return None
        self._free_ns = sent_ns
        self._in_flight_bytes += packet_bytes
        due_ns = sent_ns + max(0, self._delay_ns + round(jitter * self._jitter_ns))
        self._last_due_ns = max(due_ns, self._last_due_ns)
        return self._last_due_ns

    def arrives(self, packet_bytes: int, cut_count_when_sent: int) -> bool:
        """Whether an accepted packet, now due, comes out at the other end."""
        self._in_flight_bytes -= packet_bytes
        if cut_count_when_sent != self.cut_count:
            self.counters.packets_cut += 1
            return False
        self.counters.packets_delivered += 1
        self.counters.bytes_delivered += packet_bytes
        return True


# How does a hub get a network of its own? A namespace without a name, with a TUN device whose packets we carry.
#
# Nothing is left in /run/netns: a namespace lives as long as a process is inside or a descriptor is open, so the kernel
# removes it after any crash, and parallel runs cannot collide. Linux only; needs CAP_SYS_ADMIN and CAP_NET_ADMIN.


DEVICE = "wan0"
MTU_BYTES = 1500
_NETMASK = "255.255.255.0"
_TUN_PATH = "/dev/net/tun"
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_QUEUED_PACKETS_MAX = 4000  # a burst that comes while the emulator handles another one
_KILL_ROUNDS_MAX = 200  # a process may fork while it is being killed
_KILL_ROUND_S = 0.01

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943

P = ParamSpec("P")
T = TypeVar("T")


@cache
def why_not_permitted() -> str | None:
    """Why this process cannot emulate a WAN, in one sentence for `pytest.skip`; None where it can."""
    if sys.platform != "linux":
        return f"an emulated WAN needs network namespaces: Linux only, this is {sys.platform}"
    if not os.path.exists(_TUN_PATH):
        return f"an emulated WAN needs {_TUN_PATH}: load the kernel module `tun`, or give the container this device"
    reasons: list[str] = []

    def probe() -> None:
        try:
            for descriptor in enter_new_namespace("10.77.0.1"):
                os.close(descriptor)
        except OSError as error:
            reason = f"{error.filename or 'namespace'}: {(error.strerror or str(error)).lower()}"
            reasons.append(f"an emulated WAN needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN ({reason})")

    thread = threading.Thread(
        target=probe, name="wan-probe"
    )  # it stays in the new namespace, so it must be another one
    thread.start()
    thread.join()
    return reasons[0] if reasons else None


def enter_new_namespace(address: str) -> tuple[int, int]:
    """Moves the calling thread into a new namespace; descriptors of the namespace and of its device, which is up."""
    _call_libc("unshare", _CLONE_NEWNET)
    namespace = os.open(_OWN_NAMESPACE, os.O_RDONLY)
    try:
        device = os.open(_TUN_PATH, os.O_RDWR | os.O_NONBLOCK)
        try:
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _TUN_WITHOUT_HEADER))
            _configure(address)
        except BaseException:
            os.close(device)
            raise
    except BaseException:
        os.close(namespace)
        raise
    return namespace, device


def own_namespace() -> int:
    """A descriptor of the namespace that the calling thread is in."""
    return os.open(_OWN_NAMESPACE, os.O_RDONLY)


def enter_namespace(namespace: int) -> None:
    """Moves the calling thread, and no other, into a namespace."""
    _call_libc("setns", namespace, _CLONE_NEWNET)


class NamespaceThread:
    """Runs functions inside a namespace. What they create stays there: sockets, processes and their children.

    One thread, so keep the functions short: connect a socket outside, after it was created inside.
    """

    def __init__(self, name: str, namespace: int) -> None:
        self._executor = ThreadPoolExecutor(1, f"wan-{name}", enter_namespace, (namespace,))

    def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return self._executor.submit(function, *arguments, **named).result()

    def close(self) -> None:
        self._executor.shutdown()


def kill_processes_inside(namespaces: Iterable[int]) -> None:
    """Kills (-9) whatever runs in these namespaces, this process excepted, until nothing is left."""
    identities = {(status.st_dev, status.st_ino) for status in map(os.fstat, namespaces)}
    for _ in range(_KILL_ROUNDS_MAX):
        if not sum(_kill_if_inside(pid, identities) for pid in _other_processes()):
            return
        time.sleep(_KILL_ROUND_S)


def _other_processes() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid())


def _kill_if_inside(pid: int, identities: set[tuple[int, int]]) -> bool:
    # A zombie has left its namespace, and a process that has gone meanwhile raises: neither counts.
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)  # first, so that a number given anew is never hit
        try:
            status = os.stat(f"/proc/{pid}/ns/net")
            if (status.st_dev, status.st_ino) in identities:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def _configure(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anchor:  # any socket: it says which namespace is meant
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, _NETMASK)):
            fcntl.ioctl(anchor, request, struct.pack("16sHH4s16x", *_internet(value)))
        fcntl.ioctl(anchor, _SIOCSIFMTU, struct.pack("16si20x", DEVICE.encode(), MTU_BYTES))
        fcntl.ioctl(anchor, _SIOCSIFTXQLEN, struct.pack("16si20x", DEVICE.encode(), _QUEUED_PACKETS_MAX))
        for name in ("lo", DEVICE):
            answer = fcntl.ioctl(anchor, _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
            (flags,) = struct.unpack_from("H", answer, 16)
            fcntl.ioctl(anchor, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags | _IFF_UP))


def _internet(address: str) -> tuple[bytes, int, int, bytes]:
    return DEVICE.encode(), socket.AF_INET, 0, socket.inet_aton(address)


def _call_libc(function: str, *arguments: int) -> None:
    """`os.setns` and `os.unshare` exist from Python 3.12 on."""
    if getattr(_libc(), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
