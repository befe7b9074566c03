"""Does bulk traffic find out what a way carries, and leave no queue on it? A bottleneck on simulated time."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from statistics import mean, median

import pytest

from harch.federation.bulk.limits import UNLIMITED, TransferClass
from harch.federation.bulk.pacing import (
    FLOOR_BYTES_PER_S,
    QUEUE_MS_MAX,
    START_BYTES_PER_S,
    DelayControl,
    Pace,
    Sending,
)

STEP_S = 0.01
MB = 1e6


@dataclass
class Way:
    """One bottleneck with a queue in front of it. What is acknowledged is seen one round trip later."""

    bytes_per_s: float
    rtt_ms: float = 45.0
    jitter_ms: float = 0.0
    queue_bytes: float = 0.0
    others_bytes_per_s: float = 0.0
    stalled_s: float = 0.0
    queues_ms: list[float] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def carry(self, offered: float) -> float:
        """What of `offered` bytes per second comes out in one step."""
        if self.stalled_s > 0:
            self.stalled_s -= STEP_S
            self.queue_bytes += offered * STEP_S
            return 0.0
        total = offered + self.others_bytes_per_s
        arriving = self.queue_bytes + total * STEP_S
        # A machine that stood still catches up at once; a link does not.
        carried = min(arriving, self.bytes_per_s * STEP_S)
        self.queue_bytes = arriving - carried
        return carried * (offered / total if total else 0.0)

    @property
    def queue_ms(self) -> float:
        return 1000 * self.queue_bytes / self.bytes_per_s

    def reading_ms(self) -> float:
        return self.rtt_ms + self.queue_ms + self.rng.uniform(-1, 1) * self.jitter_ms


@dataclass
class Sender:
    """Some connections that send what they may, or what their receivers take."""

    pace: Pace
    way: Way
    connections: int = 4
    takes_bytes_per_s: float = float("inf")
    now_s: float = 0.0
    _acknowledged: float = 0.0
    _under_way: deque[float] = field(default_factory=deque)
    rates: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    _rate: float = 0.0

    def __post_init__(self) -> None:
        self._under_way.extend([0.0] * round(self.way.rtt_ms / 1000 / STEP_S))
        self._rate = self.pace.join(0, self._sending()) * self.connections

    def _sending(self) -> dict[int, Sending]:
        rtt_ms, each = self.way.reading_ms(), int(self._acknowledged / self.connections)
        return {n: Sending(b"a", TransferClass.CONTENT, rtt_ms, each) for n in range(self.connections)}

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            # Congestion control never has more than twice as much on the way as is carried in a round trip.
            is_full = self.way.queue_ms > self.way.rtt_ms
            self._under_way.append(self.way.carry(0.0 if is_full else min(self._rate, self.takes_bytes_per_s)))
            self._acknowledged += self._under_way.popleft()
            if self.now_s >= self.pace.next_s:
                self._rate = sum(self.pace.update(self.now_s, self._sending()).values())
            self.way.queues_ms.append(self.way.queue_ms)
            self.rates.append(self._rate)
            self.sent.append(self._under_way[-1] / STEP_S)

    def mean_sent(self, seconds: float) -> float:
        return mean(self.sent[-round(seconds / STEP_S) :])


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


@pytest.mark.parametrize("megabytes_per_s", [12.5, 125.0, 1250.0])
@pytest.mark.parametrize("rtt_ms", [8.0, 45.0, 180.0])
def test_it_finds_what_a_way_carries_and_keeps_its_queue_short(megabytes_per_s: float, rtt_ms: float) -> None:
    way = Way(megabytes_per_s * MB, rtt_ms)
    sender = Sender(Pace(), way)
    sender.run(30)
    way.queues_ms.clear()
    sender.run(60)
    assert sender.mean_sent(60) > 0.9 * way.bytes_per_s
    allowed_ms = max(QUEUE_MS_MAX, 0.04 * rtt_ms)
    assert quantile(way.queues_ms, 0.5) < allowed_ms / 2
    assert quantile(way.queues_ms, 0.95) < 3 * allowed_ms


def test_a_link_with_a_limit_is_used_up_to_it_and_not_beyond() -> None:
    sender = Sender(Pace(40 * MB), Way(125 * MB))
    sender.run(20)
    assert max(sender.rates) <= 40 * MB * 1.001
    assert sender.mean_sent(10) == pytest.approx(40 * MB, rel=0.01)


def test_when_the_way_becomes_narrower_the_queue_is_gone_within_seconds_and_used_again_when_it_widens() -> None:
    way = Way(100 * MB)
    sender = Sender(Pace(), way)
    sender.run(20)
    way.bytes_per_s = 30 * MB
    sender.run(3)
    way.queues_ms.clear()
    sender.run(10)
    assert quantile(way.queues_ms, 0.9) < 3 * QUEUE_MS_MAX
    assert sender.mean_sent(5) > 0.85 * 30 * MB
    way.bytes_per_s = 100 * MB
    sender.run(20)
    assert sender.mean_sent(3) > 0.85 * 100 * MB


def test_it_makes_room_for_others_and_takes_what_they_leave() -> None:
    way = Way(100 * MB)
    sender = Sender(Pace(), way)
    sender.run(20)
    way.others_bytes_per_s = 60 * MB
    sender.run(3)
    way.queues_ms.clear()
    sender.run(10)
    assert sender.mean_sent(5) < 42 * MB
    assert quantile(way.queues_ms, 0.9) < 3 * QUEUE_MS_MAX


def test_round_trips_that_vary_by_themselves_do_not_stop_it() -> None:
    sender = Sender(Pace(), Way(100 * MB, jitter_ms=5.0))
    sender.run(60)
    assert sender.mean_sent(20) > 0.85 * 100 * MB


def test_a_way_that_has_become_longer_does_not_stop_it() -> None:
    way = Way(50 * MB)
    sender = Sender(Pace(), way)
    sender.run(20)
    way.rtt_ms = 80.0
    sender.run(30)
    assert sender.mean_sent(10) > 0.85 * 50 * MB


def test_a_hiccup_does_not_cost_speed() -> None:
    """A machine on the way stands still for a moment, every second, and then has caught up at once."""
    way = Way(1000 * MB)
    sender = Sender(Pace(60 * MB), way)
    sender.run(10)
    for _ in range(20):
        way.stalled_s = 0.05
        sender.run(1)
    assert sender.mean_sent(10) > 0.9 * 60 * MB


def test_hiccups_on_a_full_way_do_not_cost_much() -> None:
    way = Way(100 * MB)
    sender = Sender(Pace(), way)
    sender.run(20)
    for _ in range(20):
        way.stalled_s = 0.05
        sender.run(1)
    assert sender.mean_sent(15) > 0.7 * 100 * MB


def test_a_queue_that_never_shrinks_leaves_a_little_speed() -> None:
    way = Way(100 * MB)
    sender = Sender(Pace(), way)
    sender.run(10)
    rising = iter(range(10_000))
    way.reading_ms = lambda: 100.0 + 10 * next(rising)
    sender.run(60)
    assert min(sender.rates) >= FLOOR_BYTES_PER_S


def test_what_the_receivers_do_not_take_is_not_held_against_the_way() -> None:
    """A transfer with a slow disk at its end, and later a quick one: the rate was not driven up meanwhile."""
    way = Way(100 * MB)
    sender = Sender(Pace(), way, takes_bytes_per_s=5 * MB)
    sender.run(20)
    assert sender.pace.bytes_per_s <= START_BYTES_PER_S
    sender.takes_bytes_per_s = float("inf")
    sender.run(10)
    assert sender.mean_sent(2) > 0.85 * 100 * MB


def test_a_later_transfer_starts_about_where_the_last_one_ended() -> None:
    way = Way(100 * MB)
    pace = Pace()
    Sender(pace, way).run(20)
    pace.control.resume()
    assert 0.8 * 100 * MB < pace.bytes_per_s < 100 * MB
    untried = Pace()
    untried.control.bytes_per_s = 500 * MB  # never saw a queue: nothing is known of that way
    untried.control.resume()
    assert untried.bytes_per_s == START_BYTES_PER_S


def test_connections_share_by_the_class_of_their_transfer_and_idle_ones_leave_theirs() -> None:
    pace = Pace(90 * MB)
    pace.control.bytes_per_s = 90 * MB

    def reading(state: int, content: int) -> dict[int, Sending]:
        return {
            0: Sending(b"s", TransferClass.STATE, 45.0, state),
            1: Sending(b"c", TransferClass.CONTENT, 45.0, content),
        }

    assert pace.update(0.0, reading(0, 0)) == pytest.approx({0: 60 * MB, 1: 30 * MB})
    used = pace.update(1.0, reading(int(60 * MB), int(1 * MB)))
    assert used[1] == pytest.approx(90 * MB * 0.25 / 2)
    assert used[0] == pytest.approx(90 * MB - used[1])
    assert median(used.values()) <= 90 * MB


def reading(rtt_ms: float, acknowledged: int) -> Sending:
    return Sending(b"a", TransferClass.CONTENT, rtt_ms, acknowledged)


def test_what_a_change_does_is_waited_for_before_the_next_one() -> None:
    pace = Pace()
    assert pace.next_s < 0
    pace.update(10.0, {0: reading(20.0, 0), 1: reading(90.0, 0)})
    assert pace.next_s == pytest.approx(10.1)
    pace.update(20.0, {0: reading(200.0, 0), 1: reading(400.0, 0)})
    assert pace.next_s == pytest.approx(20.3)
    pace.update(30.0, {})
    assert pace.next_s == pytest.approx(30.1)


def test_only_connections_that_send_tell_of_the_way_and_the_quickest_of_them_counts() -> None:
    """The others tell of how it was when they last sent; and delay that only one sees is its own."""
    pace = Pace()
    for step in range(12):
        sent = step * 2_000_000
        pace.update(step / 10, {0: reading(45.0, sent), 1: reading(45.0, sent), 2: reading(45.0, 0)})
    before = pace.bytes_per_s
    assert before > START_BYTES_PER_S
    pace.update(1.3, {0: reading(45.0, 26_000_000), 1: reading(99.0, 26_000_000), 2: reading(5.0, 0)})
    assert pace.bytes_per_s >= before
    pace.update(1.4, {0: reading(99.0, 28_000_000), 1: reading(99.0, 28_000_000), 2: reading(5.0, 0)})
    assert pace.bytes_per_s < before


def test_a_connection_that_comes_between_two_readings_has_its_share_at_once() -> None:
    pace = Pace(8 * MB)
    pace.control.bytes_per_s = 8 * MB
    assert pace.join(7, {3: reading(45.0, 0), 7: Sending(b"b", TransferClass.CONTENT, 45.0, 0)}) == 4 * MB


def test_a_queue_is_short_or_long_by_the_length_of_the_way() -> None:
    for rtt_ms, slows_down in ((20.0, True), (200.0, False)):
        control = DelayControl()
        for step in range(5):
            control.read(step / 10, START_BYTES_PER_S, rtt_ms, UNLIMITED)
        before = control.bytes_per_s
        control.read(0.5, before, rtt_ms + 6.0, UNLIMITED)
        assert (control.bytes_per_s < before) == slows_down
