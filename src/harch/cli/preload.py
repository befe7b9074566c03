"""What do the processes of `harch up` share? What all of them load: it is loaded once, and they are forked from that.

`python -m harch.cli.preload DESCRIPTOR ROOM` serves the socket with this number; ROOM is there for the names of forked
processes. There are two servers. The first has what
hubs and agents need. The second is forked from it and loads SENTINEL and its kernels, while hubs start already.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib import import_module

from harch.api.sentinel_process import is_kept
from harch.base.compile_once import is_compiled
from harch.base.fork_server import ForkServer, freeze_loaded, socket_pair
from harch.base.process_title import set_arguments

_SELF = (sys.executable, "-m", "harch.cli.preload")
_HUBS_AND_AGENTS = (
    "harch.api.process",
    "harch.cli.main",
    "harch.cli.verbs.operate.agent",
    "harch.cli.verbs.operate.hub",
    "harch.execution.agent_process",
    "uvloop",
)
_SENTINEL = ("harch.sentinel.http.server", "harch.cli.verbs.fleet.sentinel")


def main() -> None:
    owner = socket.socket(fileno=int(sys.argv[1]))
    set_arguments((*_SELF, "hub"))
    _load_hubs_and_agents()
    server = _with_sentinel(owner) if is_kept() else ForkServer(owner)
    if server is None:
        return
    freeze_loaded()
    request = server.serve()
    if request is not None:
        from harch.cli.main import root

        root.main(list(request.arguments))


def _with_sentinel(owner: socket.socket) -> ForkServer | None:
    """The first server, connected to the second; in the process of the second that one. None: it is not needed."""
    first_end, second_end = socket_pair()
    freeze_loaded()
    if os.fork():
        second_end.close()
        return ForkServer(owner, first_end)
    owner.close()
    first_end.close()
    set_arguments((*_SELF, "sentinel"))
    server = ForkServer(second_end)
    return server if _load_sentinel(server) else None


def _load_hubs_and_agents() -> None:
    for module in _HUBS_AND_AGENTS:
        import_module(module)
    from harch.hub.kernels import load_if_compiled
    from harch.placement.policy import kernels_available

    if kernels_available():
        load_if_compiled()


def _load_sentinel(server: ForkServer) -> bool:
    """False if the owner is gone before it is done. Compiling is for another process: a compiler needs 300 MB."""
    from harch.cli.verbs.fleet.sentinel import keep_out_unneeded
    from harch.sentinel.jit import SOURCES

    if not is_compiled("sentinel", SOURCES):
        with subprocess.Popen([sys.executable, "-m", "harch.sentinel.warmup"], stdin=subprocess.DEVNULL) as compiler:
            if not server.admit_until(lambda: compiler.poll() is not None):
                compiler.kill()
                return False
    keep_out_unneeded()
    for module in _SENTINEL:
        import_module(module)
    from harch.sentinel.warmup import warm_for_forks

    warm_for_forks()
    return True


if __name__ == "__main__":
    main()
