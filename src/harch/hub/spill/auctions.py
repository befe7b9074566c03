"""Who takes work that waits here? Peers are asked, bid, and the best bid is taken.

What may leave is decided before anything does: by the tags of its data, its countries, and whether it wants to stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from harch.federation.bidding import PeerOffer, best_offer, peers_to_ask
from harch.federation.offers import NEEDS_PER_ASK_MAX, Ask, Bids, Drop, Grant, Grants, Need
from harch.hub import happenings as h
from harch.hub.audit import data_drafts
from harch.hub.desk import Desk, may_leave
from harch.hub.peer_facts import published_facts
from harch.hub.spill.board import Auction
from harch.hub.spill.owner import lend
from harch.placement.checks import first_rejection
from harch.workloads.lifecycle import State, Workload

ANSWER_WITHIN_S = 0.5  # whoever has not answered by then does not take part
RTT_UNKNOWN_MS = 1000.0

_UNASKED = "no hub that may run it has room, as far as it is known"


def offer_waiting(desk: Desk) -> None:
    """Asks peers about what waits here, a bounded number at a time."""
    board = desk.spill
    asks: dict[str, list[tuple[str, Need]]] = defaultdict(list)
    for workload_id in board.take_due(desk.boot_s, NEEDS_PER_ASK_MAX):
        workload = desk.registry.workloads.get(workload_id)
        if workload is None or not _waits(desk, workload):
            board.settled(workload_id)
            continue
        if workload_id in board.auctions:
            continue
        desk.subject = workload_id
        request = desk.request(workload)
        peers = _peers_for(desk, workload)
        if not peers:
            board.try_later(workload_id, desk.boot_s)
            continue
        board.auctions[workload_id] = Auction(set(peers), desk.boot_s + ANSWER_WITHIN_S)
        for hub_id in peers:
            may_queue = not workload.home_fits
            need = Need.of(len(asks[hub_id]), request, now_s=desk.now_s, may_queue=may_queue, trace=workload.trace)
            asks[hub_id].append((workload_id, need))
    for hub_id, asked in asks.items():
        number = board.number()
        board.asks[hub_id, number] = tuple(workload_id for workload_id, _ in asked)
        desk.emit(h.SendPeer(hub_id, Ask(number, tuple(need for _, need in asked))))


def bids_came(desk: Desk, hub_id: str, answer: Bids) -> None:
    board = desk.spill
    if answer.busy_s > 0:
        board.busy_until_s[hub_id] = desk.boot_s + min(answer.busy_s, 60.0)
    asked = board.asks.pop((hub_id, answer.number), None)
    if asked is None:  # too late
        _drop(desk, {hub_id: [bid.bid_id for bid in answer.bids]})
        return
    unwanted: list[str] = []
    for bid in answer.bids:
        workload_id = asked[bid.ref] if 0 <= bid.ref < len(asked) else ""
        auction = board.auctions.get(workload_id)
        workload = desk.registry.workloads.get(workload_id)
        if auction is None or workload is None or hub_id not in auction.waits_for:
            unwanted.append(bid.bid_id)
        else:
            auction.offers.append(PeerOffer(hub_id, bid, _has_data(desk, workload, hub_id), _rtt_ms(desk, hub_id)))
    for ref, why in answer.refusals.items():
        if 0 <= ref < len(asked) and asked[ref] in board.auctions:
            board.answers.setdefault(asked[ref], {})[hub_id] = why[:200]
    _drop(desk, {hub_id: unwanted})
    ready = []
    for workload_id in asked:
        auction = board.auctions.get(workload_id)
        if auction is not None:
            auction.waits_for.discard(hub_id)
            if not auction.waits_for:
                ready.append(workload_id)
    close(desk, ready)


def close_overdue(desk: Desk) -> None:
    board = desk.spill
    late = [workload_id for workload_id, auction in board.auctions.items() if auction.ends_s <= desk.boot_s]
    close(desk, late)
    if not board.auctions:
        board.asks.clear()  # answers to these come too late


def close(desk: Desk, workload_ids: Iterable[str]) -> None:
    """Takes the best bid of each, lets the others go."""
    board = desk.spill
    grants: dict[str, list[Grant]] = defaultdict(list)
    drops: dict[str, list[str]] = defaultdict(list)
    for workload_id in workload_ids:
        desk.subject = workload_id
        auction = board.auctions.pop(workload_id)
        workload = desk.registry.workloads.get(workload_id)
        best = best_offer(auction.offers, _clean(workload))
        if workload is None or not _waits(desk, workload):  # it got its place at home meanwhile
            best = None
            board.settled(workload_id)
        elif best is None:
            board.try_later(workload_id, desk.boot_s)
        for offer in auction.offers:
            if offer is not best:
                drops[offer.hub_id].append(offer.bid.bid_id)
        if best is not None and workload is not None:
            grants[best.hub_id].append(lend(desk, workload, best))
    _drop(desk, drops)
    for hub_id, given in grants.items():
        desk.emit(h.SendPeer(hub_id, Grants(tuple(given))))


def _waits(desk: Desk, workload: Workload) -> bool:
    if workload.state is not State.PENDING or workload.leased or workload.guest or workload.stop_as:
        return False
    if workload.id in desk.carbon.held or workload.id in desk.set_aside:
        return False
    return workload.id in desk.scheduler.queue or workload.id in desk.carbon.routes or not workload.home_fits


def _peers_for(desk: Desk, workload: Workload) -> tuple[str, ...]:
    """Sovereignty first: of hubs that may not run it, nothing else is even looked at."""
    board = desk.spill
    if not may_leave(workload.spec):
        return ()
    if not board.terms.covers_grace(workload.spec):
        board.answers[workload.id] = {"": "it stays at home: its stop_grace_s is longer than a lease can cover"}
        return ()
    open_peers = [hub_id for hub_id, peer in board.peers.items() if peer.reachable and peer.summary is not None]
    verdict = desk.guard.before_offer(workload, open_peers)
    if board.is_first_try(workload.id) and (workload.data_ids or verdict.rejections):
        country = desk.hub.country
        desk.audit(data_drafts.offered(workload, verdict, country, policy_version=desk.policy_version))
    request = desk.request(workload)
    answers: dict[str, str] = {}
    candidates = []
    route = desk.carbon.routes.get(workload.id)
    for hub_id in verdict.eligible:
        peer = board.peers[hub_id]
        if route is not None and hub_id not in route.hubs:
            continue  # home is better for its power, and comes next
        if peer.summary is None or desk.boot_s < board.busy_until_s.get(hub_id, 0.0):
            continue
        rejection = first_rejection(
            request, published_facts(peer.summary, peer, request), permanent_only=not workload.home_fits
        )
        if rejection is not None or peer.summary.status != "ready":
            answers[hub_id] = f"{rejection.rule}: {rejection.detail}" if rejection else peer.summary.status
            continue
        candidates.append((hub_id, _has_data(desk, workload, hub_id), peer.summary.gpus_free, _rtt_ms(desk, hub_id)))
    if not candidates:
        board.answers[workload.id] = answers or {"": _UNASKED}
    return peers_to_ask(candidates, first=route.hubs if route is not None else ())


def _clean(workload: Workload | None) -> dict[str, float]:
    """What a kWh of it would emit where it was weighed, by its newest plan."""
    options = workload.carbon.options if workload is not None and workload.carbon is not None else ()
    return {one.hub_id: one.grams / one.kwh for one in options if one.kwh > 0}


def _has_data(desk: Desk, workload: Workload, hub_id: str) -> bool:
    return all(hub_id in data.hubs for data in desk.guard.ask_of(workload).reads) if workload.data_ids else True


def _rtt_ms(desk: Desk, hub_id: str) -> float:
    peer = desk.spill.peers.get(hub_id)
    return peer.rtt_ms if peer is not None and peer.rtt_ms is not None else RTT_UNKNOWN_MS


def _drop(desk: Desk, bids: dict[str, list[str]]) -> None:
    for hub_id, bid_ids in bids.items():
        if bid_ids:
            desk.emit(h.SendPeer(hub_id, Drop(tuple(bid_ids))))
