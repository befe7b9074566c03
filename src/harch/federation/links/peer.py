"""How does a hub keep one peer within reach? It dials, redials, measures, sends, and renews the connection in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from harch.base.clock import Clock
from harch.federation.identity.members import Address
from harch.federation.links.connection import BUFFERED_BYTES_MAX, LinkIdentity
from harch.federation.links.control import Bye, Hello, Ping
from harch.federation.links.dialling import DialFailed, Dialled, dial
from harch.federation.links.outbox import Outbox

PING_EVERY_S = 1.0
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
        hello: Callable[[], Hello],
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
            link.connection.say(Ping(self._pings))

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
            self._outbox.clear()  # old news; whoever is told of the end decides what to say anew
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
        nap = asyncio.ensure_future(self._clock.sleep(max(delay_s, 0)))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({nap, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nap.cancel()
            woken.cancel()
            self._wake.clear()
