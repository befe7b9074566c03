"""Who is let in, who gives way, and what is counted: the gate without a single socket."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.base.listen.gate import (
    DESCRIPTORS_RESERVED,
    ConnectionGate,
    Gates,
    ListenLimits,
    Ticket,
    limits_from_env,
    network_of,
)

MANY_DESCRIPTORS = 100_000


def gate_of(connections: int, per_address: int, now_s: list[float] | None = None) -> ConnectionGate:
    limits = ListenLimits(connections_max=connections, connections_per_address_max=per_address)
    clock = now_s or [0.0]
    return ConnectionGate("test", limits, descriptors=MANY_DESCRIPTORS, now_s=lambda: clock[0])


def served(gate: ConnectionGate, address: str) -> Ticket:
    ticket = gate.admit(address, lambda: pytest.fail("one that is served must not be evicted"))
    assert ticket is not None
    ticket.served()
    return ticket


def test_a_full_gate_refuses_and_lets_in_again_once_somebody_has_left() -> None:
    gate = gate_of(8, 6)
    first = [served(gate, f"10.0.0.{number}") for number in range(8)]
    assert gate.admit("10.0.0.9", lambda: None) is None
    assert gate.refused == {"connections": 1}
    first[0].release()
    first[0].release()  # twice counts once
    assert gate.open == 7
    assert gate.admit("10.0.0.9", lambda: None) is not None


def test_one_address_cannot_take_all_the_room() -> None:
    gate = gate_of(8, 1000)
    for _ in range(6):
        served(gate, "10.0.0.1")
    assert gate.admit("10.0.0.1", lambda: None) is None
    assert gate.refused == {"address": 1}
    assert gate.admit("10.0.0.2", lambda: None) is not None


def test_who_has_owed_something_for_longest_gives_way_to_a_new_one() -> None:
    gate = gate_of(8, 3)
    gone: list[int] = []
    tickets = [gate.admit("10.0.0.1", lambda number=number: gone.append(number)) for number in range(3)]
    tickets[0].served()
    assert gate.admit("10.0.0.1", lambda: None) is not None
    assert gone == [1]
    tickets[0].waits()  # idle again, and now the newest of those that wait
    assert gate.admit("10.0.0.1", lambda: None) is not None
    assert gone == [1, 2]
    assert gate.refused == {"evicted": 2}


def test_a_full_address_evicts_none_of_other_addresses() -> None:
    gate = gate_of(8, 2)
    assert gate.admit("10.0.0.2", lambda: pytest.fail("another address")) is not None
    served(gate, "10.0.0.1")
    served(gate, "10.0.0.1")
    assert gate.admit("10.0.0.1", lambda: None) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["in", "served", "waits", "out"])), max_size=200))
def test_the_books_of_a_gate_add_up_whatever_happens(steps: list[tuple[int, str]]) -> None:
    gate = gate_of(6, 4)
    held: list[Ticket] = []
    for number, step in steps:
        if step == "in":
            ticket = gate.admit(f"10.0.0.{number}", lambda: None)
            held += [ticket] if ticket is not None else []
        elif held:
            ticket = held[number % len(held)]
            {"served": ticket.served, "waits": ticket.waits, "out": ticket.release}[step]()
        assert 0 <= gate.open <= gate.connections_max
        assert sum(gate.by_address.values()) == gate.open
        assert all(0 < count <= gate.per_address_max for count in gate.by_address.values())
        assert len(gate.pending) <= gate.open
    for ticket in held:
        ticket.release()
    assert (gate.open, dict(gate.by_address), gate.pending) == (0, {}, {})


def test_an_attack_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    gate = gate_of(8, 8, now_s)
    with caplog.at_level(logging.WARNING, "harch.listen"):
        for _ in range(1000):
            gate.refuse("head_large", "10.0.0.1")
        now_s[0] = 11.0
        gate.refuse("head_large", "10.0.0.1")
    assert len(caplog.records) == 2
    assert "1001 times" in caplog.text


def test_connections_leave_descriptors_for_files() -> None:
    limits = ListenLimits(connections_max=4096, connections_per_address_max=4096)
    assert limits.within(1024) == (1024 - DESCRIPTORS_RESERVED, 576)
    assert limits.within(64) == (32, 24)
    assert limits.within(MANY_DESCRIPTORS) == (4096, 3072)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense:", "nonsense:"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_operators_set_limits_by_variables() -> None:
    found = limits_from_env({"HARCH_LISTEN_HEAD_S_MAX": "2.5", "HARCH_LISTEN_CONNECTIONS_MAX": "50", "PATH": "/"})
    assert (found.head_s_max, found.connections_max) == (2.5, 50)
    assert Gates(found).gate("api").connections_max == 50


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HARCH_LISTEN_HEADS_MAX", "1"),
        ("HARCH_LISTEN_HEAD_S_MAX", "soon"),
        ("HARCH_LISTEN_HEAD_S_MAX", "nan"),
        ("HARCH_LISTEN_CONNECTIONS_MAX", "0"),
        ("HARCH_LISTEN_CONNECTIONS_MAX", "2.5"),
        ("HARCH_LISTEN_CONNECTIONS_MAX", "9" * 40),
    ],
)
def test_a_limit_that_cannot_be_is_named(variable: str, value: str) -> None:
    with pytest.raises(HarchError, match=variable) as caught:
        limits_from_env({variable: value})
    assert caught.value.code == "E0201"


def test_a_slow_body_gets_more_time_with_each_byte_but_not_for_ever() -> None:
    limits = ListenLimits(body_s_grace=10, body_bytes_per_s_min=100, body_s_max=60)
    assert [limits.body_s_allowed(size) for size in (0, 1000, 10_000)] == [10, 20, 60]
