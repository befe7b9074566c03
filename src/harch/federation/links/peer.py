"""How does a hub keep one peer within reach?

It dials (TCP, TLS, greetings both ways, or a reason why not), redials, measures, sends, and renews the connection in
time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import msgspec

from harch.base.clock import Clock, sleep_unless
from harch.federation.identity.members import Address
from harch.federation.links import tls_connection
from harch.federation.links.frames import (
    Bye,
    Control,
    FrameKind,
    LinkHello,
    LinkPing,
    LinkPong,
    LinkRefused,
    Outbox,
    Parted,
    decode_control,
    refusal,
)
from harch.federation.links.tls_connection import BUFFERED_BYTES_MAX, SHUTDOWN_WITHIN_S, Connection, LinkIdentity

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
    greeting: asyncio.Future[LinkHello | DialFailed] = field(init=False)
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
            message = decode_control(body) if kind == FrameKind.CONTROL else None
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
            case LinkHello() if not self.greeting.done():
                self.greeting.set_result(message)
            case LinkPong(number) if number in self.pinged_s:
                self._answered(number)
            case LinkRefused(_, reason):
                self.why = f"refused: {reason}"
                self.connection.close(self.why)
            case Parted() if not self.parted.done():
                self.parted.set_result(True)
            case _:
                self.connection.abort(f"{self.hub_id} sent an invalid answer")

    def _answered(self, number: int) -> None:
        self.answered_s = self.clock.monotonic_s()
        self.rtts_ms.append((self.answered_s - self.pinged_s.pop(number)) * 1000)


async def dial(
    hub_id: str,
    address: Address,
    *,
    identity: LinkIdentity,
    hello: Callable[[], LinkHello],
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
        raise _failed(dialled, f"{address} accepts the connection, but sends no greeting") from None
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
    connecting, hurried = asyncio.ensure_future(tls_connection.connect(address)), asyncio.ensure_future(hurry.wait())
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


# How does a hub keep one peer within reach? It dials, redials, measures, sends, and renews the connection in time.


PING_EVERY_S = 2.0  # gossip says sooner that a hub is silent; this measures the link and finds a dead one
PONG_WITHIN_S = 10.0  # only the link is given up; whether the hub is dead is for gossip to say, and earlier
REDIAL_S_MIN, REDIAL_S_MAX = 0.05, 0.5
STEADY_AFTER_S = 5.0  # a link that ends earlier counts as a failed attempt, or two hubs could redial in a tight loop
LINK_AGE_S_MAX = 12 * 3600.0  # then it is made anew, so that both certificates are looked at again
PARTED_WITHIN_S = 5.0

_log = logging.getLogger("harch.links")


class Peer:
    """One peer as seen from here. `run` never ends by itself; `send` never waits."""

    def __init__(
        self,
        hub_id: str,
        address: Address,
        *,
        identity: LinkIdentity,
        hello: Callable[[], LinkHello],
        clock: Clock,
        jitter: Callable[[], float],
        on_up: Callable[[str], None],
        on_down: Callable[[str, str], None],
    ) -> None:
        self.hub_id = hub_id
        self.address = address
        self.trouble = "not dialled yet"
        self.messages_sent = 0
        self.messages_refused = 0
        self._identity = identity
        self._hello = hello
        self._clock = clock
        self._jitter = jitter
        self._on_up = on_up
        self._on_down = on_down
        self._outbox = Outbox()
        self._link: Dialled | None = None
        self._handing_over = False
        self._flush_due = False
        self._wake = asyncio.Event()
        self._attempts = 0
        self._pings = 0
        self._bytes_of_ended = 0

    @property
    def is_up(self) -> bool:
        return self._link is not None

    @property
    def rtt_ms(self) -> float | None:
        return self._link.rtt_ms if self._link else None

    @property
    def features(self) -> tuple[str, ...]:
        return self._link.features if self._link else ()

    @property
    def bytes_sent(self) -> int:
        return self._bytes_of_ended + (self._link.connection.bytes_sent if self._link else 0)

    def send(self, frame: bytes, *, droppable: bool) -> bool:
        if self._link is None:
            return False
        if not self._outbox.put(frame, droppable=droppable):
            self.messages_refused += 1
            return False
        self.messages_sent += 1
        if not self._flush_due:
            # All that is sent in this turn of the event loop leaves in one write.
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        return True

    def dial_now(self) -> None:
        """There is news about this peer: waiting for the next attempt would be a waste."""
        self._wake.set()

    async def run(self) -> None:
        failures = 0
        try:
            while True:
                began_s = self._clock.monotonic_s()
                try:
                    link = await self._dial()
                except DialFailed as error:
                    self._note(str(error))
                    failures += 1
                else:
                    await self._keep(link)
                    steady = self._clock.monotonic_s() - link.opened_s > STEADY_AFTER_S
                    failures = 0 if steady else failures + 1
                # Counted from the start of the attempt: one that timed out has waited already.
                await self._pause(began_s + self._backoff_s(failures) - self._clock.monotonic_s())
        finally:
            if self._link is not None:
                self._link.connection.close("this hub ends the link")
                self._down("this hub ends the link")

    async def _keep(self, link: Dialled) -> None:
        """Until the connection is lost. It may be replaced meanwhile; nobody outside notices that."""
        self._up(link)
        while self._link is not None and not self._link.connection.is_closed:
            self._check(self._link)
            if self._is_due(self._link):
                await self._replace(self._link)
            await self._pause(PING_EVERY_S)
        if self._link is not None:
            self._down(self._link.why)

    def _check(self, link: Dialled) -> None:
        now_s = self._clock.monotonic_s()
        certificate = link.connection.certificate
        refusal = self._identity.refusal(self.hub_id, b"")
        if refusal:
            link.connection.abort(refusal)
        elif certificate is None or self._clock.now() >= certificate.not_after:
            link.connection.abort(f"the certificate of {self.hub_id} has expired")
        elif now_s - link.answered_s > PONG_WITHIN_S:
            link.connection.abort(f"no answer for {PONG_WITHIN_S:g} s")
        else:
            self._pings += 1
            link.pinged_s[self._pings] = now_s
            link.connection.say(LinkPing(self._pings))

    def _is_due(self, link: Dialled) -> bool:
        aged = self._clock.monotonic_s() - link.opened_s > LINK_AGE_S_MAX
        return not link.connection.is_closed and (aged or link.generation != self._identity.generation)

    async def _replace(self, old: Dialled) -> None:
        """A new connection first; then the old one is read to its end before anything is sent on the new one."""
        try:
            fresh = await self._dial()
        except DialFailed as error:
            _log.warning("link to %s cannot be renewed yet: %s", self.hub_id, error)
            return
        self._handing_over = True
        try:
            old.connection.say(Bye())
            async with asyncio.timeout(PARTED_WITHIN_S):
                all_read = await old.parted
        except TimeoutError:
            all_read = False
        except asyncio.CancelledError:
            fresh.connection.abort("no longer wanted")
            raise
        finally:
            self._handing_over = False
        if not all_read:
            self._down(old.why or "it did not confirm the last messages")
            self._up(fresh)
        else:
            self._bytes_of_ended += old.connection.bytes_sent
            fresh.rtts_ms.extend(old.rtts_ms)
            self._link = fresh
            self._flush()
        old.connection.close("replaced")

    def _up(self, link: Dialled) -> None:
        self._link = link
        self.trouble = ""
        _log.info("link to %s is up", self.hub_id)
        self._on_up(self.hub_id)

    def _down(self, why: str) -> None:
        if self._link is not None:
            self._bytes_of_ended += self._link.connection.bytes_sent
            self._link = None
            self._outbox.clear()  # old news; whoever learns of the end decides what to send anew
            self._note(why)
            self._on_down(self.hub_id, why)

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:  # the same reason at every attempt would fill the log
            self.trouble = trouble
            _log.info("no link to %s: %s", self.hub_id, trouble)

    def _flush(self) -> None:
        self._flush_due = False
        link = self._link
        while link is not None and link.connection.can_write and not self._handing_over and len(self._outbox):
            link.connection.write(self._outbox.take(BUFFERED_BYTES_MAX))

    async def _dial(self) -> Dialled:
        self._attempts += 1
        return await dial(
            self.hub_id,
            self.address,
            identity=self._identity,
            hello=self._hello,
            clock=self._clock,
            attempt=self._attempts,
            hurry=self._wake,
            on_writable=self._flush,
            on_closed=self._wake.set,
        )

    def _backoff_s(self, failures: int) -> float:
        """Doubles up to the limit, of which half is random: hubs that lost each other must not dial in step."""
        limit_s = min(REDIAL_S_MIN * float(2 ** min(failures, 10)), REDIAL_S_MAX)
        return limit_s * (0.5 + 0.5 * self._jitter())

    async def _pause(self, delay_s: float) -> None:
        """Until the time is over, the connection ends or there is news."""
        try:
            await sleep_unless(self._wake, self._clock, delay_s)
        finally:
            self._wake.clear()
