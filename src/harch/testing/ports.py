"""Which ports may a test listen on? Ports that nobody else takes: no other test, and no other run on this machine.

- They lie below the ports that the kernel hands out, so that neither a `bind` to port 0 nor an outgoing connection, of
  whatever process, takes one between the moment it is chosen and the moment something listens on it.
- They are taken in blocks of a hundred. A block belongs to the process that has bound its first number for UDP: the TCP
  ports of the block stay free for what is tested, the kernel arbitrates between processes and users, and the block is
  free again however the process ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from harch.base.config import GANG_PORTS_OFFSET, GANG_PORTS_PER_HUB
from harch.pipelines.engine import server as engine_ports

HOST = "127.0.0.1"
BLOCK = 100
# Up to those that hubs give to their message engines. Few kernels are set to hand out ports below.
FIRST_PORT, END_PORT = 10_000, engine_ports.FIRST_PORT
HUBS_MAX = 5
FEDERATIONS_HELD_MAX = 3  # of a size, per process; then the one that was taken first and is silent comes again
SINGLE_BLOCKS_HELD_MAX = 8


@dataclass(slots=True)
class _Taken:
    """What this process holds: the guards of the blocks live as long as it does."""

    guards: list[socket.socket] = field(default_factory=list)
    federations: dict[int, deque[int]] = field(default_factory=dict)  # hubs -> bases, the longest ago first
    fresh: deque[int] = field(default_factory=deque)  # single ports that were not given out yet
    used: deque[int] = field(default_factory=deque)  # those that were, the longest ago first
    single_blocks: int = 0


_taken = _Taken()


def free_port_base(hubs: int = HUBS_MAX) -> int:
    """A value for HARCH_PORT_BASE: all ports of so many hubs from there on are this process's own."""
    offsets = (0, *range(GANG_PORTS_OFFSET, GANG_PORTS_OFFSET + hubs * GANG_PORTS_PER_HUB, BLOCK))
    held = _taken.federations.setdefault(hubs, deque())
    if len(held) >= FEDERATIONS_HELD_MAX:
        for base in held:
            if all(_is_silent(base + offset + port) for offset in offsets for port in range(BLOCK)):
                held.remove(base)
                held.append(base)
                return base
    try:
        held.append(_take_blocks(offsets))
    except OSError:  # many runs at a time: where nobody listens is enough for gangs, which hardly any test has
        held.append(_take_blocks(offsets[:1]))
    return held[-1]


def free_ports(count: int) -> list[int]:
    """Single ports, each of them free now and not given out again for as long as possible."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    if not _taken.fresh and _taken.single_blocks < SINGLE_BLOCKS_HELD_MAX:
        base = _take_blocks((0,))
        _taken.fresh.extend(range(base, base + BLOCK))
        _taken.single_blocks += 1
    for queue in (_taken.fresh, _taken.used):
        for _ in range(len(queue)):
            port = queue.popleft()
            _taken.used.append(port)
            if _is_silent(port):
                return port
    raise OSError("all ports that this process holds are listened on")


def _take_blocks(offsets: Sequence[int]) -> int:
    """The base of blocks that were nobody's; from now on they are this process's."""
    bases = range(FIRST_PORT, END_PORT - max(offsets), BLOCK)
    start = os.getpid() * 17 % len(bases)  # processes that start together look in different places first
    for number in range(len(bases)):
        base = bases[(start + number) % len(bases)]
        with contextlib.ExitStack() as stack:
            try:
                guards = [stack.enter_context(_bound(socket.SOCK_DGRAM, base + offset)) for offset in offsets]
                for offset in offsets:
                    for port in range(BLOCK):
                        _bound(socket.SOCK_STREAM, base + offset + port).close()
            except OSError:
                continue
            _taken.guards += guards
            stack.pop_all()
            return base
    raise OSError(f"no free ports between {FIRST_PORT} and {END_PORT}: other runs of tests hold them")


def _is_silent(port: int) -> bool:
    try:
        _bound(socket.SOCK_STREAM, port).close()
    except OSError:
        return False
    return True


def _bound(kind: socket.SocketKind, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    try:
        if kind is socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are over do not count
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made
