"""Which ports does an engine get? Free ones, outside of those that the kernel hands out by itself.

An engine keeps its ports over restarts. One of the kernel's could have become an outgoing connection's in between.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

HOST = "127.0.0.1"
FIRST_PORT, END_PORT = 30_000, 32_768
CHOICE_MIN = 1_000  # with fewer ports to choose from, the kernel chooses
_KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now, in no order that another hub would follow, too."""
    choice = list(range(FIRST_PORT, min(END_PORT, first_kernel_port())))
    if len(choice) < CHOICE_MIN:
        choice = []
    with contextlib.ExitStack() as stack:  # all are held until all are found
        found: list[int] = []
        while len(found) < count:
            port = choice.pop(secrets.randbelow(len(choice))) if choice else 0
            sock = stack.enter_context(socket.socket())
            try:
                sock.bind((HOST, port))
            except OSError:
                if not port:
                    raise
                continue
            found.append(int(sock.getsockname()[1]))
        return found


def first_kernel_port() -> int:
    """From here on the kernel gives ports to whoever asks for any."""
    try:
        return int(_KERNEL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return END_PORT
