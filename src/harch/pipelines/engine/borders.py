"""What may pass between the engines of two hubs in different countries, and how does it arrive in order with nothing
lost? What one offers, the other wants, and both may. No I/O.
"""

# harch: pure

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto

import msgspec
from msgspec import Struct

from harch.pipelines.engine.layout import (
    BorderLink,
    Domain,
    EngineLayout,
    EngineUser,
    Server,
    export_root,
    inbox_of,
    received_root,
)
from harch.sovereignty.tags import Tag

# What may pass between the engines of two hubs in different countries? What one offers, the other wants, and both
# permit. Snapshot in, plan out: each side makes the same plan from what both say of themselves. No I/O.
#
# A border is a server of its own, without streams, beside the engine of a hub. Two of them are joined by one leaf link,
# on which exactly the subjects of the plan may pass.


BORDER_SIGNAL = "pipelines.border"  # of the gossip between hubs
OFFERS_MAX = 256
BORDER_SIGNAL_BYTES_MAX = 32 * 1024
USER = "border"
_WORD = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?\Z")
_COUNTRY = re.compile(r"[A-Z]{2}\Z")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}\Z")
_KEY = re.compile(r"U[A-Z2-7]{55}\Z")


class BorderOffer(Struct, frozen=True, kw_only=True):
    """An export, what it permits, and the hubs that it was proved for."""

    pipeline: str
    export: str
    tag: Tag
    hubs: tuple[str, ...]


class Want(Struct, frozen=True, order=True):
    """An export of another hub that a pipeline here takes in."""

    hub: str
    pipeline: str
    export: str


class HubBorder(Struct, frozen=True, kw_only=True):
    """What a hub says of its border. `key` opens a link for it, and nothing else."""

    country: str
    host: str
    port: int
    key: str
    offers: tuple[BorderOffer, ...] = ()
    wants: tuple[Want, ...] = ()


class BorderLane(Struct, frozen=True, order=True):
    """One export on its way from one hub to another."""

    country: str  # of the hub that sends
    source: str
    target_country: str
    target: str
    pipeline: str
    export: str

    @property
    def subject(self) -> str:
        words = (export_root(self.country), self.pipeline, self.export, self.source, self.target)
        return ".".join(words)

    @property
    def receipts(self) -> str:
        """Where the receiver says what it has."""
        words = (received_root(self.target_country), self.pipeline, self.export, self.source, self.target)
        return ".".join(words)

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.export} {self.source} -> {self.target}"


class LinkPlan(Struct, frozen=True, kw_only=True):
    """One peer, what goes there and what comes from there. The hub whose name is first accepts, the other dials."""

    peer: str
    border: HubBorder
    dials: bool
    out: tuple[BorderLane, ...]
    into: tuple[BorderLane, ...]


def decode_border(payload: bytes) -> HubBorder | None:
    """None for what is no border, or has words in it that could leave their place in a subject."""
    if len(payload) > BORDER_SIGNAL_BYTES_MAX:
        return None
    try:
        found = msgspec.msgpack.decode(payload, type=HubBorder)
    except msgspec.DecodeError:
        return None
    words = [word for offer in found.offers for word in (offer.pipeline, offer.export, *offer.hubs)]
    words += [word for want in found.wants for word in (want.hub, want.pipeline, want.export)]
    fits = _COUNTRY.match(found.country) and _HOST.match(found.host) and _KEY.match(found.key)
    is_sound = fits and 0 < found.port < 65_536 and len(found.offers) <= OFFERS_MAX and len(found.wants) <= OFFERS_MAX
    return found if is_sound and all(_WORD.match(word) for word in words) else None


def encode_border(border: HubBorder) -> bytes:
    return msgspec.msgpack.encode(border)


def plan_links(
    hub: str,
    own: HubBorder,
    peers: Mapping[str, HubBorder],
    may_receive: Callable[[BorderLane, Tag], bool],
) -> tuple[LinkPlan, ...]:
    """Links to all peers abroad with which something passes. `may_receive` is this hub's own word on what would come
    in; what goes out was proved before it was offered."""
    plans = []
    for peer, border in sorted(peers.items()):
        if peer == hub or border.country == own.country or not _WORD.match(peer):
            continue
        out = tuple(lane for lane, _ in lanes_between(hub, own, peer, border))
        into = tuple(lane for lane, tag in lanes_between(peer, border, hub, own) if may_receive(lane, tag))
        if out or into:
            plans.append(LinkPlan(peer=peer, border=border, dials=peer < hub, out=out, into=into))
    return tuple(plans)


def lanes_between(source: str, sends: HubBorder, target: str, takes: HubBorder) -> list[tuple[BorderLane, Tag]]:
    """What one hub offers to another that wants it."""
    wanted = {(want.pipeline, want.export) for want in takes.wants if want.hub == source}
    return sorted(
        (BorderLane(sends.country, source, takes.country, target, offer.pipeline, offer.export), offer.tag)
        for offer in sends.offers
        if target in offer.hubs and (offer.pipeline, offer.export) in wanted
    )


def border_layout(
    hub: str, own: HubBorder, server: Server, plans: Iterable[LinkPlan], tunnel_ports: Mapping[str, int]
) -> EngineLayout:
    """What the border server of this hub is configured from. `doors`: the local port behind which each peer is that
    is dialled; the way from there goes through the hubs' own TLS."""
    found = list(plans)
    sends = [subject for plan in found for subject in _sends(plan)]
    takes = [subject for plan in found for subject in _takes(plan)]
    user = EngineUser(
        name=USER,
        public_key=own.key,
        publish=tuple(sends),
        subscribe=(*takes, f"{inbox_of(USER)}.>"),
    )
    domains = [Domain(country=own.country, name=hub, servers=(server,), users=(user,), keeps_streams=False)]
    links = []
    for plan in found:
        there = Server(
            name=f"border-{plan.peer}",
            hub=plan.peer,
            client_port=1,
            monitor_port=1,
            border_port=0 if not plan.dials else 1,
            store="",
            log_file="",
        )
        domains.append(Domain(country=plan.border.country, name=plan.peer, servers=(there,), keeps_streams=False))
        dialler, acceptor = (hub, plan.peer) if plan.dials else (plan.peer, hub)
        out, back = _sends(plan), _takes(plan)
        links.append(
            BorderLink(
                dialler=dialler,
                acceptor=acceptor,
                acceptor_url=f"127.0.0.1:{tunnel_ports.get(plan.peer, 0) if plan.dials else server.border_port}",
                public_key=own.key if plan.dials else plan.border.key,
                dialler_sends=out if plan.dials else back,
                acceptor_sends=back if plan.dials else out,
            )
        )
    return EngineLayout(domains=tuple(domains), links=tuple(links))


def _sends(plan: LinkPlan) -> tuple[str, ...]:
    return (*(lane.subject for lane in plan.out), *(lane.receipts for lane in plan.into))


def _takes(plan: LinkPlan) -> tuple[str, ...]:
    return (*(lane.subject for lane in plan.into), *(lane.receipts for lane in plan.out))


# How does an export arrive, in order and nothing of it lost, over a link that may be cut at any moment? No I/O.
#
# The sender numbers what is under way from 1, within a session; the receiver takes only the next number of the newest
# session, and says how far it is. After silence the sender begins a new session with the first that was not received.
# What was taken twice so is recognised by whoever takes it: it is the same window of the same partition.


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
        self._resend_after_s = RESEND_AFTER_S

    @property
    def room(self) -> int:
        return UNDER_WAY_MAX - len(self._waiting)

    def offer(self, place: int, body: bytes) -> None:
        self._waiting.append((place, body))

    def due(self, now_s: float) -> list[Numbered]:
        """What to send now: what was not sent yet, or all of it again after silence."""
        if self._silent_since_s is not None and now_s - self._silent_since_s > self._resend_after_s:
            self._resend_after_s = min(2 * self._resend_after_s, RESEND_AFTER_S_MAX)
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
            self._resend_after_s = RESEND_AFTER_S
            self._silent_since_s = now_s if self._sent else None
        return news

    def _begin(self, after: int) -> None:
        """A session after that one, with everything that waits under way again."""
        self.session = (after >> _SALT_BITS) + 1 << _SALT_BITS | self._salt
        self._first, self._sent, self._silent_since_s = 1, 0, None


class Fate(Enum):
    TAKE = auto()
    ACKNOWLEDGE = auto()  # it was taken before: say again how far we are
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
            return Fate.ACKNOWLEDGE
        if number == self.number + 1:
            return Fate.TAKE
        return Fate.ACKNOWLEDGE if number <= self.number else Fate.PASS

    def taken(self, session: int, number: int) -> None:
        self.session, self.number = session, number
