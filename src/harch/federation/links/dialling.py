"""How does one connection to a peer come about? Connect, TLS, greetings both ways; or a reason why not."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import msgspec

from harch.base.clock import Clock
from harch.federation.identity.members import Address
from harch.federation.links import sockets
from harch.federation.links.connection import SHUTDOWN_WITHIN_S, Connection, LinkIdentity
from harch.federation.links.control import Control, Hello, Parted, Pong, Refused, decode_control, refusal
from harch.federation.links.frames import Kind

# Below the second after which the kernel would repeat a lost SYN: dialling again is quicker. Every eighth attempt is
# more patient, for links of very long delay and for machines that are very busy.
CONNECT_WITHIN_S, CONNECT_PATIENTLY_S, PATIENT_EVERY = 0.5, 1.2, 8
GREETED_WITHIN_S = 5.0
RTT_SAMPLES = 15  # their median is shown: a ping that waited out a cut says nothing about the distance


class DialFailed(Exception):
    """Why there is no connection, in words for people."""


@dataclass(eq=False)
class Dialled:
    """A connection that this hub has dialled and greeted. It ends for a reason that `why` tells."""

    hub_id: str
    clock: Clock
    on_writable: Callable[[], None]
    on_closed: Callable[[], None]
    generation: int
    why: str = ""
    features: tuple[str, ...] = ()
    rtts_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RTT_SAMPLES))
    connection: Connection = field(init=False)
    greeting: asyncio.Future[Hello | DialFailed] = field(init=False)
    parted: asyncio.Future[bool] = field(init=False)
    pinged_s: dict[int, float] = field(default_factory=dict)
    opened_s: float = 0.0
    answered_s: float = 0.0

    def __post_init__(self) -> None:
        self.connection = Connection(self)
        self.greeting = asyncio.get_running_loop().create_future()
        self.parted = asyncio.get_running_loop().create_future()
        self.opened_s = self.answered_s = self.clock.monotonic_s()

    @property
    def rtt_ms(self) -> float | None:
        return median(self.rtts_ms) if self.rtts_ms else None

    # Called by the connection

    def opened(self, connection: Connection) -> None:
        """The dialler speaks first, and does so in `dial`."""

    def received(self, connection: Connection, kind: int, body: bytes) -> None:
        try:
            message = decode_control(body) if kind == Kind.CONTROL else None
        except msgspec.DecodeError:
            message = None
        self._control(message)

    def writable(self, connection: Connection) -> None:
        self.on_writable()

    def closed(self, connection: Connection, why: str) -> None:
        self.why = self.why or why
        if not self.greeting.done():
            # A hub that does not like a certificate ends the connection inside TLS, where it cannot give its reason.
            known = self.why.startswith("refused")
            self.greeting.set_result(DialFailed(self.why if known else f"no greeting: {self.why}"))
        if not self.parted.done():
            self.parted.set_result(False)
        self.on_closed()

    def _control(self, message: Control | None) -> None:
        match message:
            case Hello() if not self.greeting.done():
                self.greeting.set_result(message)
            case Pong(number) if number in self.pinged_s:
                self._answered(number)
            case Refused(_, reason):
                self.why = f"refused: {reason}"
                self.connection.close(self.why)
            case Parted() if not self.parted.done():
                self.parted.set_result(True)
            case _:
                self.connection.abort(f"{self.hub_id} sent something that is no answer")

    def _answered(self, number: int) -> None:
        self.answered_s = self.clock.monotonic_s()
        self.rtts_ms.append((self.answered_s - self.pinged_s.pop(number)) * 1000)


async def dial(
    hub_id: str,
    address: Address,
    *,
    identity: LinkIdentity,
    hello: Callable[[], Hello],
    clock: Clock,
    attempt: int,
    hurry: asyncio.Event,
    on_writable: Callable[[], None],
    on_closed: Callable[[], None],
) -> Dialled:
    """A greeted connection to exactly this hub. Raises `DialFailed`; `hurry` ends an attempt that has no answer yet."""
    dialled = Dialled(hub_id, clock, on_writable, on_closed, identity.generation)
    patient = attempt % PATIENT_EVERY == PATIENT_EVERY - 1
    sock = await _connect(address, CONNECT_PATIENTLY_S if patient else CONNECT_WITHIN_S, hurry)
    try:
        async with asyncio.timeout(GREETED_WITHIN_S):
            await asyncio.get_running_loop().create_connection(
                lambda: dialled.connection,
                sock=sock,
                ssl=identity.client_context(),
                server_hostname="",
                ssl_handshake_timeout=GREETED_WITHIN_S,
                ssl_shutdown_timeout=SHUTDOWN_WITHIN_S,
            )
            dialled.connection.say(hello())
            answer = await dialled.greeting
            if isinstance(answer, DialFailed):
                raise answer
    except TimeoutError:
        raise _failed(dialled, f"{address} accepts the connection, but greets nobody") from None
    except ssl.SSLCertVerificationError as error:
        raise _failed(dialled, f"the certificate of {address} is refused: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise _failed(dialled, f"TLS with {address} failed: {error.reason or error}") from None
    except OSError as error:
        raise _failed(dialled, _words(address, error)) from None
    except asyncio.CancelledError:
        dialled.connection.abort("no longer wanted")
        raise
    certificate = dialled.connection.certificate
    refused = refusal(answer, own=identity.name, certified=certificate.name if certificate else None, expected=hub_id)
    why = refused.reason if refused else identity.refusal(hub_id, answer.introduction)
    if why:
        raise _failed(dialled, why)
    dialled.features = answer.features
    dialled.connection.accept_large_frames()
    return dialled


async def _connect(address: Address, within_s: float, hurry: asyncio.Event) -> socket.socket:
    connecting, hurried = asyncio.ensure_future(sockets.connect(address)), asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait({connecting, hurried}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise DialFailed(f"{address} does not answer")
        return connecting.result()
    except OSError as error:
        raise DialFailed(_words(address, error)) from None
    finally:
        connecting.cancel()
        hurried.cancel()


def _words(address: Address, error: OSError) -> str:
    """Without the address twice, which the event loops put into their messages."""
    return f"{address}: {os.strerror(error.errno) if error.errno and error.errno > 0 else error}"


def _failed(dialled: Dialled, why: str) -> DialFailed:
    dialled.connection.abort(why)
    return DialFailed(why)
