"""How do processes share what they have loaded? They are forked from one that has loaded it, instead of started anew.

A fork server has a single thread, no event loop and nothing open but its sockets, so that a child may become anything.
Children belong to the nearest process above that adopts orphans (`PR_SET_CHILD_SUBREAPER`), not to the server. Who may
ask holds a socket that was handed to it: there is no name that anybody else could connect to.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from harch.base.ids import forget_drawn_noise
from harch.base.process_title import set_arguments

MESSAGE_BYTES_MAX = 128 * 1024  # fits into the buffer of a socket
_ADOPTED_LOOK_S = 0.0005
_ADMISSION_LOOK_S = 0.2
_NEWCOMER = b"+"  # comes with the socket of somebody who may ask


class ForkRequest(Struct, frozen=True, kw_only=True):
    """What the new process is to be: the words of a `harch` command, all of its environment, where it says errors.

    `wants_next`: it is given a socket to the next server, which has more loaded; `NEXT_SERVER` names its descriptor.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    errors: str
    wants_next: bool = False


class _Reply(Struct, frozen=True, kw_only=True):
    pid: int = 0
    error: str = ""


NEXT_SERVER = "HARCH_FORK_SERVER"


class ForkServerGone(Exception):
    """It cannot be asked, or it cannot fork: start the process by itself."""


class ForkServer:
    """`owner` is its first client; the server ends when that one hangs up. `next_`: to the server with more loaded."""

    def __init__(self, owner: socket.socket, next_: socket.socket | None = None) -> None:
        self._owner, self._next = owner, next_
        if next_ is not None:
            next_.setblocking(False)  # one that is busy must not hold up this one
        self._clients = selectors.DefaultSelector()
        self._clients.register(owner, selectors.EVENT_READ)

    def serve(self) -> ForkRequest | None:
        """Returns in every child, with what it is to be; in the server itself at its end, with None."""
        while True:
            for key, _ in self._clients.select():
                client = cast(socket.socket, key.fileobj)
                message = self._received(client)
                if message is None and client is self._owner:
                    return None
                if message is None:
                    self._clients.unregister(client)
                    client.close()
                elif message != _NEWCOMER:
                    request = self._answered(client, message)
                    if request is not None:
                        return request

    def admit_until(self, is_over: Callable[[], bool]) -> bool:
        """Lets newcomers in meanwhile, so that none waits at a full socket. False once the owner has hung up."""
        while not is_over():
            readable, _, _ = select.select([self._owner], [], [], _ADMISSION_LOOK_S)
            if readable and self._received(self._owner) is None:
                return False
        return True

    def _received(self, client: socket.socket) -> bytes | None:
        try:
            message, descriptors, _, _ = socket.recv_fds(client, MESSAGE_BYTES_MAX, 1)
        except OSError:
            return None
        for descriptor in descriptors:
            self._clients.register(socket.socket(fileno=descriptor), selectors.EVENT_READ)
        return message or None

    def _answered(self, client: socket.socket, message: bytes) -> ForkRequest | None:
        """In the child: what it is to be."""
        try:
            request = msgspec.json.decode(message, type=ForkRequest)
            pid = self._forked(request)
        except (OSError, msgspec.MsgspecError) as error:
            reply = _Reply(error=str(error))
        else:
            if pid == 0:
                return request
            reply = _Reply(pid=pid)
        with contextlib.suppress(OSError):  # whoever asked is gone; the process is adopted, and ends with its parent
            client.send(msgspec.json.encode(reply))
        return None

    def _forked(self, request: ForkRequest) -> int:
        """Forks twice, so that the process is an orphan at once. Its pid; in the process itself 0."""
        ours, theirs = self._next_pair() if request.wants_next else (None, None)
        read_end, write_end = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            pid = os.fork()
            if pid:
                os.write(write_end, str(pid).encode())
                os._exit(0)
            os.close(read_end)
            os.close(write_end)
            self._leave(ours)
            _become(request, between, theirs)
            return 0
        os.close(write_end)
        if theirs is not None:
            theirs.close()
        with open(read_end, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(between, 0)
        if not answer:
            raise OSError("the kernel has no room for another process")
        return int(answer)

    def _next_pair(self) -> tuple[socket.socket | None, socket.socket | None]:
        """A connection to the next server, made and announced to it; the end for the child comes second."""
        if self._next is None:
            return None, None
        there, here = socket_pair()
        try:
            socket.send_fds(self._next, [_NEWCOMER], [there.fileno()])
        except OSError:  # it is gone, or too busy to listen: the child starts such processes by itself
            here.close()
            return None, None
        finally:
            there.close()
        return None, here

    def _leave(self, *others: socket.socket | None) -> None:
        """In the child: nothing of the server stays open."""
        for key in list(self._clients.get_map().values()):
            cast(socket.socket, key.fileobj).close()
        self._clients.close()
        for one in (self._next, *others):
            if one is not None:
                one.close()


def _become(request: ForkRequest, between: int, next_: socket.socket | None) -> None:
    os.setsid()
    forget_drawn_noise()
    set_arguments((sys.executable, "-m", "harch", *request.arguments))
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    with open(request.errors, "wb") as errors:
        os.dup2(errors.fileno(), 2)
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ.pop(NEXT_SERVER, None)
    if next_ is not None:
        os.environ[NEXT_SERVER] = str(next_.detach())
    while os.getppid() == between:  # it looks at who its parent is
        time.sleep(_ADOPTED_LOOK_S)


def freeze_loaded() -> None:
    """Before forking: a child whose collector looked at what is loaded would copy all of it."""
    gc.collect()
    gc.freeze()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Keeps messages apart, tells when the other end is gone, and is not inherited by programs."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ForkClient:
    """Asks a fork server, one request at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection: socket.socket | None = connection
        self._turn = asyncio.Lock()

    async def fork(
        self, arguments: Iterable[str], environment: dict[str, str], errors: Path, *, wants_next: bool = False
    ) -> int:
        """The pid of the new process. Raises ForkServerGone."""
        request = ForkRequest(
            arguments=tuple(arguments), environment=environment, errors=str(errors), wants_next=wants_next
        )
        async with self._turn:
            connection, loop = self._connection, asyncio.get_running_loop()
            if connection is None:
                raise ForkServerGone("it has ended")
            self._connection = None  # whoever is cancelled leaves an answer behind that nobody must take for his own
            try:
                await loop.sock_sendall(connection, msgspec.json.encode(request))
                answer = await loop.sock_recv(connection, MESSAGE_BYTES_MAX)
                reply = msgspec.json.decode(answer, type=_Reply)
            except (OSError, msgspec.MsgspecError) as error:
                connection.close()
                raise ForkServerGone(str(error)) from error
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        if not reply.pid:
            raise ForkServerGone(reply.error)
        return reply.pid

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def next_server() -> ForkClient | None:
    """The one that this process was given a socket to, if any; nothing that it starts inherits that."""
    descriptor = os.environ.pop(NEXT_SERVER, "")
    return ForkClient(socket.socket(fileno=int(descriptor))) if descriptor.isdecimal() else None
