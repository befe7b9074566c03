"""Who may fetch what? A ticket is random, opens one transfer for one hub, and expires."""

# harch: pure

from __future__ import annotations

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
    """The tickets that this hub has issued and that still hold. Not for several threads at once."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._tickets: dict[bytes, _Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, hub_id: str, grant: BulkGrant, *, now: datetime, valid_for: timedelta = VALID_FOR) -> bytes:
        """Raises E1140 if there are too many already."""
        self._expire(now)
        of_peer = sum(ticket.hub_id == hub_id for ticket in self._tickets.values())
        if len(self._tickets) >= TICKETS_MAX or of_peer >= TICKETS_PER_PEER_MAX:
            raise HarchError(
                "E1140",
                f"{hub_id} has {of_peer} transfers under way, all hubs together {len(self._tickets)}",
                hint="try again when some have ended",
                retry_after_s=30,
            )
        name = self._entropy(TICKET_BYTES)
        self._tickets[name] = _Ticket(hub_id, grant, now + valid_for)
        return name

    def open(self, hub_id: str, name: bytes, *, now: datetime) -> BulkGrant:
        """What the ticket permits. Raises E1140, in the same words for one that never was and one of another hub."""
        ticket = self._tickets.get(name)
        if ticket is None or ticket.hub_id != hub_id or now >= ticket.expires_at:
            raise HarchError("E1140", f"{hub_id} shows a ticket that does not hold", hint="request a new one")
        return ticket.grant

    def revoke(self, name: bytes) -> None:
        """The transfer has ended, or may not go on."""
        self._tickets.pop(name, None)

    def _expire(self, now: datetime) -> None:
        for name in [name for name, ticket in self._tickets.items() if now >= ticket.expires_at]:
            del self._tickets[name]
