"""Do hubs that share a log tell people once? Two desks, one clock, messages that are late or lost."""

from __future__ import annotations

import random

import pytest

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.machine import PEER_DELAY_MS, AlertMachine
from harch.sentinel.alerts.shared_state import SharedState, decode_records, encode_records
from harch.sentinel.alerts.silences import acknowledge
from harch.sentinel.model.labels import labels

T0, SECOND, MINUTE = 1_767_261_600_000, 1_000, 60_000
CONFIG = """
route: {receiver: team, group_by: [alertname], group_wait: 10s, group_interval: 1m, repeat_interval: 30m}
receivers: [{name: team, webhook_configs: [{url: 'http://127.0.0.1:1/'}]}]
"""


class Hubs:
    """Desks that hear the same alerts and tell each other what changed. Messages take up to `delay_s_max` and are
    lost at a rate; everything is told again every `retell_s`. A cut link loses all of them."""

    def __init__(self, hubs: int, *, seed: int, delay_s_max: int = 2, loss: float = 0.2, retell_s: int = 5) -> None:
        self.random = random.Random(seed)
        self.desks = [AlertMachine(parse_config(CONFIG), SharedState()) for _ in range(hubs)]
        self.told_up_to = [0] * hubs
        self.under_way: list[tuple[int, int, bytes]] = []  # when, to whom, records
        self.now_ms, self.delay_s_max, self.loss, self.retell_s = T0, delay_s_max, loss, retell_s
        self.alive, self.cut = [True] * hubs, False
        self.told: list[tuple[int, int, str]] = []

    def fire(self, *, ends_min: int = 60) -> None:
        alert = Alert(
            labels=labels({"alertname": "Down"}),
            starts_at_ms=self.now_ms,
            ends_at_ms=self.now_ms + ends_min * MINUTE,
            updated_at_ms=self.now_ms,
        )
        for machine in self.desks:
            machine.put([alert], now_ms=self.now_ms)

    def restart(self, place: int) -> None:
        """With what was on disk, and numbers that begin anew."""
        before = self.desks[place]
        machine = AlertMachine(before.config, SharedState())
        machine.shared.load(before.shared.export_changes()[0], now_ms=self.now_ms)
        machine.restore(before.alerts.values(), now_ms=self.now_ms)
        self.desks[place] = machine
        self.told_up_to[place] = 0

    def run(self, duration_ms: int) -> list[tuple[int, int, str]]:
        before = len(self.told)
        for _ in range(duration_ms // SECOND):
            for place, machine in enumerate(self.desks):
                if self.alive[place]:
                    self._tick(place, machine)
                    self._tell(place, machine)
            self._arrive()
            self.now_ms += SECOND
        return self.told[before:]

    def _tick(self, place: int, machine: AlertMachine) -> None:
        position = place if not self.cut else 0  # a hub that sees nobody thinks that it is the first
        for delivery in machine.tick(self.now_ms, position=position):
            self.told.append((self.now_ms, place, delivery.notice.status))
            machine.delivered(delivery, now_ms=self.now_ms)

    def _tell(self, place: int, machine: AlertMachine) -> None:
        if (self.now_ms - T0) // SECOND % self.retell_s == 0:
            self.told_up_to[place] = 0
        news, self.told_up_to[place] = machine.shared.export_changes(self.told_up_to[place])
        for other in range(len(self.desks)):
            if news and other != place and not self.cut and self.random.random() >= self.loss:
                at_ms = self.now_ms + self.random.randint(0, self.delay_s_max) * SECOND
                self.under_way.append((at_ms, other, encode_records(news)))

    def _arrive(self) -> None:
        arrived = [one for one in self.under_way if one[0] <= self.now_ms]
        self.under_way = [one for one in self.under_way if one[0] > self.now_ms]
        for _, place, records in arrived:
            if self.alive[place]:
                self.desks[place].shared.merge(decode_records(records), now_ms=self.now_ms)


@pytest.mark.parametrize("seed", range(4))
def test_three_hubs_tell_fires_repeats_and_ends_once(seed: int):
    hubs = Hubs(3, seed=seed)
    hubs.fire(ends_min=45)
    told = hubs.run(60 * MINUTE)
    assert [status for _, _, status in told] == ["firing", "firing", "resolved"]
    assert {place for _, place, _ in told} == {0}


def test_when_the_first_hub_is_gone_the_second_tells_after_its_wait():
    hubs = Hubs(3, seed=1)
    hubs.alive[0] = False
    hubs.fire()
    told = hubs.run(10 * MINUTE)
    assert told == [(T0 + 10 * SECOND + PEER_DELAY_MS, 1, "firing")]


def test_hubs_that_are_cut_off_from_each_other_all_tell_and_none_is_silent():
    hubs = Hubs(2, seed=1)
    hubs.cut = True
    hubs.fire(ends_min=600)
    assert {place for _, place, _ in hubs.run(5 * MINUTE)} == {0, 1}
    hubs.cut = False
    assert hubs.run(20 * MINUTE) == []


def test_a_hub_that_dies_after_telling_leaves_the_log_to_the_others():
    hubs = Hubs(2, seed=3)
    hubs.fire(ends_min=600)
    assert len(hubs.run(MINUTE)) == 1
    hubs.alive[0] = False
    assert hubs.run(25 * MINUTE) == []
    repeated = hubs.run(10 * MINUTE)
    assert [place for _, place, _ in repeated] == [1]


def test_a_hub_that_restarts_is_believed_and_believes():
    hubs = Hubs(3, seed=5)
    hubs.fire(ends_min=600)
    hubs.run(2 * MINUTE)
    for place in (0, 1, 2):
        hubs.restart(place)
        assert hubs.run(5 * MINUTE) == []
    acknowledge(hubs.desks[2].shared, next(iter(hubs.desks[2].alerts.values())), by="a", why="", now_ms=hubs.now_ms)
    assert hubs.run(90 * MINUTE) == []  # nobody repeats what one of them acknowledged
