"""Who may fetch what? A ticket is random, opens one transfer for one hub, and expires."""

# harch: pure

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct

from harch.base.errors import HarchError
from harch.federation.bulk.limits import TransferClass

TICKET_BYTES = 32
TICKETS_MAX = 1024  # of all peers: a transfer is a large thing
TICKETS_PER_PEER_MAX = 128
VALID_FOR = timedelta(hours=1)


class BulkGrant(Struct, frozen=True, kw_only=True):
    """What one transfer may read: chunks of one tenant, as one class of traffic."""

    tenant: str
    ids: frozenset[bytes]
    transfer_class: TransferClass = TransferClass.CONTENT


class _Ticket(Struct, frozen=True):
    hub_id: str
    grant: BulkGrant
    expires_at: datetime


class TicketRegistry:
    """The tickets that this hub has issued and that still hold. Not for several threads at once.

    Nobody says when a transfer has ended for good, so where there are too many, the one that was not shown for longest
    goes: first of the same hub, then of the hub that has most. A transfer that goes on needs another one then.
    """

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._tickets: dict[bytes, _Ticket] = {}  # by their last use

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, hub_id: str, grant: BulkGrant, *, now: datetime, valid_for: timedelta = VALID_FOR) -> bytes:
        for name in [name for name, ticket in self._tickets.items() if now >= ticket.expires_at]:
            del self._tickets[name]
        owned = Counter(ticket.hub_id for ticket in self._tickets.values())
        if owned[hub_id] >= TICKETS_PER_PEER_MAX:
            self._drop_one_of(hub_id)
        elif len(self._tickets) >= TICKETS_MAX:
            self._drop_one_of(owned.most_common(1)[0][0])
        name = self._entropy(TICKET_BYTES)
        self._tickets[name] = _Ticket(hub_id, grant, now + valid_for)
        return name

    def open(self, hub_id: str, name: bytes, *, now: datetime) -> BulkGrant:
        """What the ticket permits. Raises E1140, in the same words for one that never was and one of another hub."""
        ticket = self._tickets.get(name)
        if ticket is None or ticket.hub_id != hub_id or now >= ticket.expires_at:
            raise HarchError("E1140", f"{hub_id} shows a ticket that does not hold", hint="request a new one")
        self._tickets[name] = self._tickets.pop(name)
        return ticket.grant

    def revoke(self, name: bytes) -> None:
        """The transfer has ended, or may not go on."""
        self._tickets.pop(name, None)

    def _drop_one_of(self, hub_id: str) -> None:
        del self._tickets[next(name for name, ticket in self._tickets.items() if ticket.hub_id == hub_id)]
