"""Is anybody left in the dark by crashes? One hub that dies at any moment, with what was on disk and no more."""

from __future__ import annotations

import random

import pytest

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.shared_state import Record, SharedState, decode_record, encode_record
from harch.sentinel.model.labels import labels

T0, SECOND, MINUTE = 1_767_261_600_000, 1_000, 60_000
CONFIG = """
route: {receiver: team, group_by: [alertname], group_wait: 10s, group_interval: 30s, repeat_interval: 12h}
receivers: [{name: team, webhook_configs: [{url: 'http://127.0.0.1:1/'}, {url: 'http://127.0.0.1:2/'}]}]
"""
NAMES = ("A", "B", "C")
RECEIVERS = 2


class CrashingHub:
    """Sends take time, fail, or are cut short by a crash before or after the receiver heard them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk: dict[tuple[str, str], bytes] = {}
        self.alerts_on_disk: dict[str, Alert] = {}
        self.now_ms = T0
        self.firing: dict[str, int] = {}  # since when, by name
        self.heard: list[tuple[str, str, tuple[str, ...]]] = []  # receiver, group, what fires
        self.believes: dict[tuple[str, str], bool] = {}  # what each receiver thinks: does the alert fire?
        self.crashes = self.doubles = 0
        self._start()

    def _start(self) -> None:
        shared = SharedState()
        records: list[Record] = [decode_record(body) for body in self.disk.values()]
        shared.load(records, now_ms=self.now_ms)
        self.machine = AlertMachine(parse_config(CONFIG), shared)
        self.machine.restore(self.alerts_on_disk.values(), now_ms=self.now_ms)
        self.under_way: list[tuple[int, Delivery]] = []

    def _save(self) -> None:
        for address, record in self.machine.shared.take_unsaved().items():
            if record is None:
                self.disk.pop(address, None)
            else:
                self.disk[address] = encode_record(record)
        for fingerprint, alert in self.machine.take_unsaved().items():
            if alert is None:
                self.alerts_on_disk.pop(fingerprint, None)
            else:
                self.alerts_on_disk[fingerprint] = alert

    def _crash(self) -> None:
        self.crashes += 1
        self.now_ms += self.random.randint(1, 90) * SECOND
        self._start()

    def second(self) -> None:
        self.now_ms += SECOND
        self._rules()
        for delivery in self.machine.tick(self.now_ms):
            self.under_way.append((self.now_ms + self.random.randint(0, 5) * SECOND, delivery))
        self._save()
        for due_ms, delivery in list(self.under_way):
            if due_ms <= self.now_ms:
                self.under_way.remove((due_ms, delivery))
                if not self._deliver(delivery):
                    return
        if self.random.random() < 0.004:
            self._crash()

    def _rules(self) -> None:
        """Rules tell what fires every 15 seconds, and what has ended for a while."""
        if self.now_ms // SECOND % 15:
            return
        for name in NAMES:
            since_ms = self.firing.get(name)
            known = next((a for a in self.machine.alerts.values() if a.name == name), None)
            if since_ms is None and (known is None or known.is_resolved(self.now_ms)):
                continue
            alert = Alert(
                labels=labels({"alertname": name}),
                starts_at_ms=since_ms or (known.starts_at_ms if known else self.now_ms),
                ends_at_ms=self.now_ms + 4 * MINUTE if since_ms else self.now_ms,
                updated_at_ms=self.now_ms,
            )
            assert self.machine.put([alert], now_ms=self.now_ms) == []
        self._save()

    def _deliver(self, delivery: Delivery) -> bool:
        """False: the hub died on the way."""
        chance = self.random.random()
        if chance < 0.05:
            self._crash()
            return False
        if chance < 0.15:
            self.machine.not_delivered(delivery)
            return True
        group = delivery.notice.group_key
        before = self.believes.get((delivery.receiver, group), False)
        is_firing = bool(delivery.notice.firing)
        self.doubles += before == is_firing
        self.believes[delivery.receiver, group] = is_firing
        if chance < 0.2:
            self._crash()  # the receiver heard it, and the log did not
            return False
        self.machine.delivered(delivery, now_ms=self.now_ms)
        self._save()
        return True


@pytest.mark.parametrize("seed", range(12))
def test_every_receiver_learns_what_fires_and_what_is_over_whatever_dies(seed: int):
    hub = CrashingHub(seed)
    for _ in range(12):
        for name in NAMES:
            if hub.random.random() < 0.5:
                if name in hub.firing:
                    del hub.firing[name]
                else:
                    hub.firing[name] = hub.now_ms
        for _ in range(60):
            hub.second()
    hub.random.seed(0)
    hub.random.random = lambda: 0.9  # no more crashes and failures: what is left must be told now
    for _ in range(300):
        hub.second()
    for name in NAMES:
        group = f'{{}}:{{alertname="{name}"}}'
        told = [hub.believes.get((f"team/webhook[{place}]", group), False) for place in range(RECEIVERS)]
        assert told == [name in hub.firing] * RECEIVERS, (name, hub.crashes)
    assert hub.doubles <= hub.crashes * len(NAMES) * RECEIVERS
