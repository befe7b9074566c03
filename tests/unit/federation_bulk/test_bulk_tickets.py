"""Whose ticket opens what, and until when?"""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest

from harch.base.errors import HarchError
from harch.federation.bulk.limits import TransferClass
from harch.federation.bulk.tickets import (
    TICKETS_MAX,
    TICKETS_PER_PEER_MAX,
    VALID_FOR,
    BulkGrant,
    TicketRegistry,
)
from harch.testing.clock import START

GRANT = BulkGrant(tenant="mine", ids=frozenset([bytes(32)]), transfer_class=TransferClass.STATE)


def registry() -> TicketRegistry:
    numbers = count()
    return TicketRegistry(lambda size: next(numbers).to_bytes(size, "big"))


def refused(tickets: TicketRegistry, hub_id: str, name: bytes, after: timedelta = timedelta(0)) -> str:
    with pytest.raises(HarchError) as caught:
        tickets.open(hub_id, name, now=START + after)
    assert caught.value.code == "E1140"
    return caught.value.message.replace(hub_id, "HUB")


def test_a_ticket_opens_its_grant_for_its_hub_as_often_as_it_has_connections() -> None:
    tickets = registry()
    name = tickets.issue("dakar", GRANT, now=START)
    assert len(name) == 32
    assert tickets.open("dakar", name, now=START) == GRANT
    assert tickets.open("dakar", name, now=START + VALID_FOR - timedelta(seconds=1)) == GRANT


def test_nobody_learns_whether_a_ticket_exists() -> None:
    tickets = registry()
    name = tickets.issue("dakar", GRANT, now=START)
    of_another = refused(tickets, "abidjan", name)
    assert of_another == refused(tickets, "dakar", b"x" * 32) == refused(tickets, "dakar", name, VALID_FOR)


def test_a_revoked_ticket_opens_nothing() -> None:
    tickets = registry()
    name = tickets.issue("dakar", GRANT, now=START)
    tickets.revoke(name)
    tickets.revoke(name)
    refused(tickets, "dakar", name)


def test_of_a_hub_with_too_many_tickets_the_one_goes_that_was_not_shown_for_longest() -> None:
    tickets = registry()
    names = [tickets.issue("dakar", GRANT, now=START) for _ in range(TICKETS_PER_PEER_MAX)]
    of_another = tickets.issue("abidjan", GRANT, now=START)
    tickets.open("dakar", names[0], now=START)
    newest = tickets.issue("dakar", GRANT, now=START)
    refused(tickets, "dakar", names[1])
    for name in (names[0], names[2], newest):
        assert tickets.open("dakar", name, now=START) == GRANT
    assert tickets.open("abidjan", of_another, now=START) == GRANT


def test_with_too_many_tickets_in_all_the_hub_with_most_loses_one() -> None:
    tickets = registry()
    greedy = [tickets.issue("dakar", GRANT, now=START) for _ in range(TICKETS_PER_PEER_MAX)]
    for number in range(TICKETS_MAX - TICKETS_PER_PEER_MAX):
        tickets.issue(f"hub-{number % 20}", GRANT, now=START)
    modest = tickets.issue("abidjan", GRANT, now=START)
    assert len(tickets) == TICKETS_MAX
    refused(tickets, "dakar", greedy[0])
    assert tickets.open("abidjan", modest, now=START) == GRANT


def test_expired_tickets_do_not_count() -> None:
    tickets = registry()
    for _ in range(3):
        tickets.issue("dakar", GRANT, now=START)
    tickets.issue("dakar", GRANT, now=START + VALID_FOR)
    assert len(tickets) == 1
