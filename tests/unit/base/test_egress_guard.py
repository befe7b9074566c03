"""A guard resolves once, judges every address, and gives out only what may be connected to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harch.base.egress import ADDRESSES_MAX, EgressGuard, NotPermitted, tls_for


def answering(*addresses: str) -> Any:
    return lambda host, port: [(2, 1, 6, "", (address, port)) for address in addresses]


def only(*allowed: str) -> Any:
    return lambda address: "" if address in allowed else f"{address} is elsewhere"


def test_of_several_addresses_only_permitted_ones_are_given_out() -> None:
    guard = EgressGuard(only("10.1.0.5"), resolve=answering("10.77.0.1", "10.1.0.5", "::ffff:10.77.0.2"))
    assert guard.addresses("valves.example", 80) == ["10.1.0.5"]


def test_without_a_permitted_address_nothing_is_given_out_and_somebody_is_told() -> None:
    said: list[str] = []
    guard = EgressGuard(only("10.1.0.5"), resolve=answering("10.77.0.1", "::ffff:10.77.0.2"), on_refused=said.append)
    with pytest.raises(NotPermitted, match=r"elsewhere; .* is elsewhere"):
        guard.addresses("valves.example", 80)
    assert len(said) == 1


def test_an_address_is_looked_up_nowhere() -> None:
    def fails(host: str, port: int) -> Any:
        raise AssertionError("an address needs no resolver")

    guard = EgressGuard(only("10.1.0.5"), resolve=fails)
    assert guard.addresses("::ffff:10.1.0.5", 80) == ["10.1.0.5"]
    assert asyncio.run(guard.addresses_soon("10.1.0.5", 80)) == ["10.1.0.5"]


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "fe80::1%eth0", "a b", "", "bücher.example", "x" * 300])
def test_a_host_that_could_be_read_in_two_ways_is_refused(host: str) -> None:
    with pytest.raises(NotPermitted):
        EgressGuard(lambda address: "", resolve=answering("127.0.0.1")).addresses(host, 80)


def test_an_endless_answer_has_an_end() -> None:
    many = [f"10.1.{number // 256}.{number % 256}" for number in range(1000)]
    assert (
        len(EgressGuard(lambda address: "", resolve=answering(*many)).addresses("valves.example", 80)) == ADDRESSES_MAX
    )


def test_a_link_local_address_with_a_zone_is_not_judged_and_not_used() -> None:
    guard = EgressGuard(lambda address: "", resolve=answering("fe80::1%eth0"))
    with pytest.raises(NotPermitted, match="no address"):
        guard.addresses("valves.example", 80)


def test_tls_asks_for_the_name_and_not_for_the_address() -> None:
    context = tls_for("broker.example")
    assert (context.server_name, context.check_hostname) == ("broker.example", True)
