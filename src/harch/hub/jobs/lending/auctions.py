"""Who takes work that waits here? Peers are asked, bid, and the best bid is taken.

What may leave is decided before anything does: by the tags of its data, its countries, and whether it wants to stay.
"""

# harch: pure

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from harch.federation.bidding import PeerOffer, best_offer, peers_to_invite
from harch.federation.offers import NEEDS_PER_REQUEST_MAX, BidRequest, Bids, DropBids, Grant, Grants, Need
from harch.hub.audit import data_drafts
from harch.hub.jobs import effects as fx
from harch.hub.jobs.admission import published_facts
from harch.hub.jobs.leases import Auction
from harch.hub.jobs.lending.owner import lend
from harch.hub.jobs.state import may_leave
from harch.hub.jobs.transaction import Transaction
from harch.placement.checks import first_rejection
from harch.workloads.lifecycle import State, Workload

ANSWER_WITHIN_S = 0.5  # whoever has not answered by then does not take part
RTT_UNKNOWN_MS = 1000.0

_UNASKED = "no hub that may run it has room, as far as it is known"


def offer_waiting(tx: Transaction) -> None:
    """Asks peers about what waits here, a bounded number at a time."""
    lending = tx.state.lending
    bid_requests: dict[str, list[tuple[str, Need]]] = defaultdict(list)
    for workload_id in lending.take_due(tx.boot_s, NEEDS_PER_REQUEST_MAX):
        workload = tx.state.registry.workloads.get(workload_id)
        if workload is None or not _waits(tx, workload):
            lending.settled(workload_id)
            continue
        if workload_id in lending.auctions:
            continue
        tx.subject = workload_id
        request = tx.state.request(workload)
        peers = _peers_for(tx, workload)
        if not peers:
            lending.try_later(workload_id, tx.boot_s)
            continue
        lending.auctions[workload_id] = Auction(set(peers), tx.boot_s + ANSWER_WITHIN_S)
        for hub_id in peers:
            may_queue = not workload.home_fits
            need = Need.of(
                len(bid_requests[hub_id]), request, now_s=tx.now_s, may_queue=may_queue, trace=workload.trace
            )
            bid_requests[hub_id].append((workload_id, need))
    for hub_id, offered in bid_requests.items():
        number = lending.number()
        lending.bid_requests[hub_id, number] = tuple(workload_id for workload_id, _ in offered)
        tx.emit(fx.SendPeer(hub_id, BidRequest(number, tuple(need for _, need in offered))))


def bids_came(tx: Transaction, hub_id: str, answer: Bids) -> None:
    lending = tx.state.lending
    if answer.busy_s > 0:
        lending.busy_until_s[hub_id] = tx.boot_s + min(answer.busy_s, 60.0)
    offered = lending.bid_requests.pop((hub_id, answer.number), None)
    if offered is None:  # too late
        _drop(tx, {hub_id: [bid.bid_id for bid in answer.bids]})
        return
    unwanted: list[str] = []
    for bid in answer.bids:
        workload_id = offered[bid.ref] if 0 <= bid.ref < len(offered) else ""
        auction = lending.auctions.get(workload_id)
        workload = tx.state.registry.workloads.get(workload_id)
        if auction is None or workload is None or hub_id not in auction.waits_for:
            unwanted.append(bid.bid_id)
        else:
            auction.offers.append(PeerOffer(hub_id, bid, _has_data(tx, workload, hub_id), _rtt_ms(tx, hub_id)))
    for ref, why in answer.refusals.items():
        if 0 <= ref < len(offered) and offered[ref] in lending.auctions:
            lending.answers.setdefault(offered[ref], {})[hub_id] = why[:200]
    _drop(tx, {hub_id: unwanted})
    ready = []
    for workload_id in offered:
        auction = lending.auctions.get(workload_id)
        if auction is not None:
            auction.waits_for.discard(hub_id)
            if not auction.waits_for:
                ready.append(workload_id)
    close(tx, ready)


def close_overdue(tx: Transaction) -> None:
    lending = tx.state.lending
    late = [workload_id for workload_id, auction in lending.auctions.items() if auction.ends_s <= tx.boot_s]
    close(tx, late)
    if not lending.auctions:
        lending.bid_requests.clear()  # answers to these come too late


def close(tx: Transaction, workload_ids: Iterable[str]) -> None:
    """Takes the best bid of each, lets the others go."""
    lending = tx.state.lending
    grants: dict[str, list[Grant]] = defaultdict(list)
    drops: dict[str, list[str]] = defaultdict(list)
    for workload_id in workload_ids:
        tx.subject = workload_id
        auction = lending.auctions.pop(workload_id)
        workload = tx.state.registry.workloads.get(workload_id)
        best = best_offer(auction.offers, _clean(workload))
        if workload is None or not _waits(tx, workload):  # it got its place at home meanwhile
            best = None
            lending.settled(workload_id)
        elif best is None:
            lending.try_later(workload_id, tx.boot_s)
        for offer in auction.offers:
            if offer is not best:
                drops[offer.hub_id].append(offer.bid.bid_id)
        if best is not None and workload is not None:
            grants[best.hub_id].append(lend(tx, workload, best))
    _drop(tx, drops)
    for hub_id, given in grants.items():
        tx.emit(fx.SendPeer(hub_id, Grants(tuple(given))))


def _waits(tx: Transaction, workload: Workload) -> bool:
    if workload.state is not State.PENDING or workload.leased or workload.borrowed or workload.stop_as:
        return False
    if workload.id in tx.state.carbon.held or workload.id in tx.state.set_aside:
        return False
    return workload.id in tx.state.scheduler.queue or workload.id in tx.state.carbon.routes or not workload.home_fits


def _peers_for(tx: Transaction, workload: Workload) -> tuple[str, ...]:
    """Sovereignty first: of hubs that may not run it, nothing else is even looked at."""
    lending = tx.state.lending
    if not may_leave(workload.spec):
        return ()
    if not lending.terms.covers_grace(workload.spec):
        lending.answers[workload.id] = {"": "it stays at home: its stop_grace_s is longer than a lease can cover"}
        return ()
    open_peers = [hub_id for hub_id, peer in lending.peers.items() if peer.reachable and peer.summary is not None]
    verdict = tx.state.guard.before_offer(workload, open_peers)
    if lending.is_first_try(workload.id) and (workload.data_ids or verdict.rejections):
        country = tx.state.hub.country
        tx.audit(data_drafts.offered(workload, verdict, country, policy_version=tx.policy_version))
    request = tx.state.request(workload)
    answers: dict[str, str] = {}
    candidates = []
    needed = _capabilities_needed(tx, workload)
    route = tx.state.carbon.routes.get(workload.id)
    for hub_id in verdict.eligible:
        peer = lending.peers[hub_id]
        if route is not None and hub_id not in route.hubs:
            continue  # home is better for its power, and comes next
        if peer.summary is None or tx.boot_s < lending.busy_until_s.get(hub_id, 0.0):
            continue
        lacking = [word for word in needed if word not in peer.summary.capabilities]
        if lacking:
            answers[hub_id] = f"its nodes cannot prepare {', '.join(lacking)}"
            continue
        rejection = first_rejection(
            request, published_facts(peer.summary, peer, request), permanent_only=not workload.home_fits
        )
        if rejection is not None or peer.summary.status != "ready":
            answers[hub_id] = f"{rejection.rule}: {rejection.detail}" if rejection else peer.summary.status
            continue
        candidates.append((hub_id, _has_data(tx, workload, hub_id), peer.summary.gpus_free, _rtt_ms(tx, hub_id)))
    if not candidates:
        lending.answers[workload.id] = answers or {"": _UNASKED}
    return peers_to_invite(candidates, first=route.hubs if route is not None else ())


def _capabilities_needed(tx: Transaction, workload: Workload) -> list[str]:
    """What the nodes of a peer must be able to prepare. A hub of an earlier version would run it without its code."""
    spec = workload.spec
    wanted = {
        "content": bool(spec.code or spec.artifacts) or bool(tx.state.guard.contents_of(workload)),
        "environments": spec.environment is not None,
        "images": spec.image is not None and spec.runs_process,
    }
    return [word for word, is_needed in wanted.items() if is_needed]


def _clean(workload: Workload | None) -> dict[str, float]:
    """What a kWh of it would emit where it was weighed, by its newest plan."""
    options = workload.carbon.options if workload is not None and workload.carbon is not None else ()
    return {one.hub_id: one.grams / one.kwh for one in options if one.kwh > 0}


def _has_data(tx: Transaction, workload: Workload, hub_id: str) -> bool:
    return all(hub_id in data.hubs for data in tx.state.guard.reads_of(workload).reads) if workload.data_ids else True


def _rtt_ms(tx: Transaction, hub_id: str) -> float:
    peer = tx.state.lending.peers.get(hub_id)
    return peer.rtt_ms if peer is not None and peer.rtt_ms is not None else RTT_UNKNOWN_MS


def _drop(tx: Transaction, bids: dict[str, list[str]]) -> None:
    for hub_id, bid_ids in bids.items():
        if bid_ids:
            tx.emit(fx.SendPeer(hub_id, DropBids(tuple(bid_ids))))
