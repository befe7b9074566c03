"""How does an export arrive, in order and nothing of it lost, over a link that may be cut at any moment? No I/O.

The sender numbers what is under way from 1, within a session; the receiver takes only the next number of the newest
session, and says how far it is. After silence the sender begins a new session with the first that was not received.
What was taken twice so is recognised by whoever takes it: it is the same window of the same partition.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from msgspec import Struct

UNDER_WAY_MAX = 32
RESEND_AFTER_S = 1.5
RESEND_AFTER_S_MAX = 15.0
_SALT_BITS = 16


class Numbered(Struct, frozen=True):
    """One message of a session. `place` is where it stands at the sender, who goes on after it."""

    session: int
    number: int
    place: int
    body: bytes


class LaneSender:
    """Offer bodies while there is `room`; send what is `due`; tell it what was `received`."""

    def __init__(self, began: int, salt: int) -> None:
        """`began` should be greater than in earlier lives: milliseconds of the clock. A clock may be set back, so that
        `salt`, a random number of 16 bits, makes every session of this life one that no other life had."""
        self.session = began << _SALT_BITS | salt
        self._salt = salt
        self.received_place = 0  # everything up to here has arrived
        self._waiting: deque[tuple[int, bytes]] = deque()  # place and body; not yet known to have arrived
        self._sent = 0  # how many of those were sent in this session
        self._first = 1  # number of the first that waits
        self._silent_since_s: float | None = None
        self._patience_s = RESEND_AFTER_S

    @property
    def room(self) -> int:
        return UNDER_WAY_MAX - len(self._waiting)

    def offer(self, place: int, body: bytes) -> None:
        self._waiting.append((place, body))

    def due(self, now_s: float) -> list[Numbered]:
        """What to send now: what was not sent yet, or all of it again after silence."""
        if self._silent_since_s is not None and now_s - self._silent_since_s > self._patience_s:
            self._patience_s = min(2 * self._patience_s, RESEND_AFTER_S_MAX)
            self._begin(self.session)
        found = [
            Numbered(self.session, self._first + index, *self._waiting[index])
            for index in range(self._sent, len(self._waiting))
        ]
        self._sent = len(self._waiting)
        if found and self._silent_since_s is None:
            self._silent_since_s = now_s
        return found

    def received(self, session: int, number: int, now_s: float) -> bool:
        """The receiver has everything of that session up to that number. True if that is news."""
        if session > self.session:  # of an earlier life, by a clock that was ahead
            self._begin(session)
            return False
        news = False
        while session == self.session and self._waiting and self._first <= number and self._sent:
            self.received_place = self._waiting.popleft()[0]
            self._first += 1
            self._sent -= 1
            news = True
        if news:
            self._patience_s = RESEND_AFTER_S
            self._silent_since_s = now_s if self._sent else None
        return news

    def _begin(self, after: int) -> None:
        """A session after that one, with everything that waits under way again."""
        self.session = (after >> _SALT_BITS) + 1 << _SALT_BITS | self._salt
        self._first, self._sent, self._silent_since_s = 1, 0, None


class Fate(Enum):
    TAKE = auto()
    TELL = auto()  # it was taken before: say again how far we are
    PASS = auto()  # something before it is missing, or its session is over


class LaneReceiver:
    """Ask for the `fate` of each message in the order of arrival; after one was taken, `taken`."""

    def __init__(self) -> None:
        self.session = 0
        self.number = 0  # the last one that was taken

    def fate(self, session: int, number: int) -> Fate:
        if session > self.session:
            return Fate.TAKE if number == 1 else Fate.PASS
        if session < self.session:
            return Fate.TELL
        if number == self.number + 1:
            return Fate.TAKE
        return Fate.TELL if number <= self.number else Fate.PASS

    def taken(self, session: int, number: int) -> None:
        self.session, self.number = session, number
