"""One link of the emulated WAN, driven by hand: no packet overtakes, chances come from the seed, a cut loses all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.testing.wan_network import IN_FLIGHT_BYTES_MAX, NS_PER_MS, QUEUE_MS_MAX, OneWayLink

MS = NS_PER_MS


def shaped(seed: str = "seed", **settings: float) -> OneWayLink:
    link = OneWayLink(seed)
    link.shape(**settings)
    return link


def test_a_packet_is_due_after_the_delay() -> None:
    assert shaped(delay_ms=22.5).accept(100, 7 * MS) == 29.5 * MS


@given(
    st.lists(st.integers(0, 20 * MS), min_size=1), st.floats(0, 50), st.floats(0, 50), st.sampled_from([0.5, 10, 1e9])
)
def test_packets_never_overtake_and_keep_within_the_jitter(
    gaps_ns: list[int], delay_ms: float, jitter_ms: float, rate_mbps: float
) -> None:
    link = shaped(delay_ms=delay_ms, jitter_ms=jitter_ms, rate_mbps=rate_mbps)
    now_ns = last_ns = 0
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        due_ns = link.accept(500, now_ns)
        if due_ns is not None:
            assert due_ns >= last_ns
            assert due_ns >= now_ns + max(0.0, delay_ms - jitter_ms) * MS - 2
            last_ns = due_ns


def test_what_is_lost_follows_from_the_seed_whatever_else_happens() -> None:
    def lost(link: OneWayLink) -> list[bool]:
        return [link.accept(100, number * MS) is None for number in range(1000)]

    usual = lost(shaped("a", loss=0.1))
    assert lost(shaped("a", loss=0.1, delay_ms=30, jitter_ms=9)) == usual
    assert lost(shaped("b", loss=0.1)) != usual
    assert 50 < sum(usual) < 150


def test_a_packet_under_way_at_a_cut_is_lost_even_if_the_link_is_healed_first() -> None:
    link = shaped(delay_ms=10)
    link.accept(100, 0)
    cuts_before = link.cut_count
    link.cut()
    assert link.accept(100, 1) is None
    link.heal()
    assert not link.arrives(100, cuts_before)
    assert link.accept(100, 2) is not None
    assert link.arrives(100, link.cut_count)
    assert (link.counters.packets_sent, link.counters.packets_cut, link.counters.packets_delivered) == (3, 2, 1)


def test_a_rate_spaces_packets_and_drops_what_would_wait_too_long() -> None:
    link = shaped(rate_mbps=8)  # 1000 bytes take 1 ms
    due_ns = [link.accept(1000, 0) for _ in range(1000)]
    passed = [due for due in due_ns if due is not None]
    assert passed == [(number + 1) * MS for number in range(len(passed))]
    assert len(passed) == QUEUE_MS_MAX + 1
    assert link.counters.packets_overflowed == 1000 - len(passed)


def test_what_is_under_way_is_limited() -> None:
    link = shaped(delay_ms=1000)
    accepted = [link.accept(1 << 20, 0) for _ in range(20)]
    assert sum(due is not None for due in accepted) == IN_FLIGHT_BYTES_MAX >> 20
    assert link.arrives(1 << 20, 0)
    assert link.accept(1 << 20, 0) is not None
