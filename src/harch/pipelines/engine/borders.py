"""What may pass between the engines of two hubs in different countries? What one offers, the other wants, and both
permit. Snapshot in, plan out: each side makes the same plan from what both say of themselves. No I/O.

A border is a server of its own, without streams, beside the engine of a hub. Two of them are joined by one leaf link,
on which exactly the subjects of the plan may pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from harch.pipelines.engine.layout import BorderLink, Domain, Layout, Server
from harch.pipelines.engine.users import EngineUser, export_root, inbox_of, received_root
from harch.sovereignty.tags import Tag

SAID_KEY = "pipelines.border"  # of the gossip between hubs
OFFERS_MAX = 256
SAID_BYTES_MAX = 32 * 1024
USER = "border"
_WORD = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?\Z")
_COUNTRY = re.compile(r"[A-Z]{2}\Z")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}\Z")
_KEY = re.compile(r"U[A-Z2-7]{55}\Z")


class Offer(Struct, frozen=True, kw_only=True):
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
    offers: tuple[Offer, ...] = ()
    wants: tuple[Want, ...] = ()


class Lane(Struct, frozen=True, order=True):
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
    out: tuple[Lane, ...]
    into: tuple[Lane, ...]


def heard_border(said: bytes) -> HubBorder | None:
    """None for what is no border, or has words in it that could leave their place in a subject."""
    if len(said) > SAID_BYTES_MAX:
        return None
    try:
        found = msgspec.msgpack.decode(said, type=HubBorder)
    except msgspec.DecodeError:
        return None
    words = [word for offer in found.offers for word in (offer.pipeline, offer.export, *offer.hubs)]
    words += [word for want in found.wants for word in (want.hub, want.pipeline, want.export)]
    fits = _COUNTRY.match(found.country) and _HOST.match(found.host) and _KEY.match(found.key)
    is_sound = fits and 0 < found.port < 65_536 and len(found.offers) <= OFFERS_MAX and len(found.wants) <= OFFERS_MAX
    return found if is_sound and all(_WORD.match(word) for word in words) else None


def said_border(border: HubBorder) -> bytes:
    return msgspec.msgpack.encode(border)


def plan_links(
    hub: str,
    own: HubBorder,
    heard: Mapping[str, HubBorder],
    may_receive: Callable[[Lane, Tag], bool],
) -> tuple[LinkPlan, ...]:
    """Links to all peers abroad with which something passes. `may_receive` is this hub's own word on what would come
    in; what goes out was proved before it was offered."""
    plans = []
    for peer, border in sorted(heard.items()):
        if peer == hub or border.country == own.country or not _WORD.match(peer):
            continue
        out = tuple(lane for lane, _ in lanes_between(hub, own, peer, border))
        into = tuple(lane for lane, tag in lanes_between(peer, border, hub, own) if may_receive(lane, tag))
        if out or into:
            plans.append(LinkPlan(peer=peer, border=border, dials=peer < hub, out=out, into=into))
    return tuple(plans)


def lanes_between(source: str, sends: HubBorder, target: str, takes: HubBorder) -> list[tuple[Lane, Tag]]:
    """What one hub offers to another that wants it."""
    wanted = {(want.pipeline, want.export) for want in takes.wants if want.hub == source}
    return sorted(
        (Lane(sends.country, source, takes.country, target, offer.pipeline, offer.export), offer.tag)
        for offer in sends.offers
        if target in offer.hubs and (offer.pipeline, offer.export) in wanted
    )


def border_layout(
    hub: str, own: HubBorder, server: Server, plans: Iterable[LinkPlan], doors: Mapping[str, int]
) -> Layout:
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
                acceptor_url=f"127.0.0.1:{doors.get(plan.peer, 0) if plan.dials else server.border_port}",
                public_key=own.key if plan.dials else plan.border.key,
                dialler_sends=out if plan.dials else back,
                acceptor_sends=back if plan.dials else out,
            )
        )
    return Layout(domains=tuple(domains), links=tuple(links))


def _sends(plan: LinkPlan) -> tuple[str, ...]:
    return (*(lane.subject for lane in plan.out), *(lane.receipts for lane in plan.into))


def _takes(plan: LinkPlan) -> tuple[str, ...]:
    return (*(lane.subject for lane in plan.into), *(lane.receipts for lane in plan.out))
