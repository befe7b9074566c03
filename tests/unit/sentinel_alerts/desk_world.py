"""A desk with a clock of its own, and receivers that remember what they heard."""

from __future__ import annotations

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.shared_state import Match, SharedState, Silence
from harch.sentinel.alerts.silences import set_silence
from harch.sentinel.model.labels import labels

T0 = 1_767_261_600_000  # 2026-01-01T10:00:00Z, a Thursday
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

CONFIG = """
route:
  receiver: team
  group_by: [alertname]
  group_wait: 30s
  group_interval: 5m
  repeat_interval: 4h
receivers:
- name: team
  webhook_configs:
  - url: http://127.0.0.1:1/
"""


class DeskWorld:
    """Ticks every second of simulated time; `works` says whether receivers can be reached."""

    def __init__(self, config: str = CONFIG, *, now_ms: int = T0, position: int = 0) -> None:
        self.machine = AlertMachine(parse_config(config), SharedState(), external_url="https://sentinel.example")
        self.now_ms, self.position = now_ms, position
        self.heard: list[tuple[int, Delivery]] = []
        self.works = True

    def fire(self, *, minutes: int = 600, annotations: dict[str, str] | None = None, **own: str) -> Alert:
        alert = Alert(
            labels=labels(own),
            annotations=annotations or {},
            starts_at_ms=self.now_ms,
            ends_at_ms=self.now_ms + minutes * MINUTE,
            updated_at_ms=self.now_ms,
        )
        assert self.machine.put([alert], now_ms=self.now_ms) == []
        return self.machine.alerts[alert.fingerprint]

    def resolve(self, **own: str) -> None:
        known = next(alert for alert in self.machine.alerts.values() if alert.labels == labels(own))
        ended = Alert(
            labels=known.labels,
            starts_at_ms=known.starts_at_ms,
            ends_at_ms=self.now_ms,
            updated_at_ms=self.now_ms,
        )
        assert self.machine.put([ended], now_ms=self.now_ms) == []

    def silence(self, minutes: int = 60, **own: str) -> Silence:
        wanted = Silence(
            id="",
            matches=tuple(Match(name, value) for name, value in own.items()),
            starts_at_ms=self.now_ms,
            ends_at_ms=self.now_ms + minutes * MINUTE,
            updated_at_ms=self.now_ms,
            created_by="amina",
            comment="planned work",
        )
        return set_silence(
            self.machine.shared, wanted, new_id=f"s{len(self.machine.shared.silences())}", now_ms=self.now_ms
        )

    def run(self, duration_ms: int) -> list[Delivery]:
        """Moves time on; answers what was told on the way."""
        before = len(self.heard)
        end_ms = self.now_ms + duration_ms
        while True:
            for delivery in self.machine.tick(self.now_ms, position=self.position):
                if self.works:
                    self.heard.append((self.now_ms, delivery))
                    self.machine.delivered(delivery, now_ms=self.now_ms)
                else:
                    self.machine.not_delivered(delivery)
            if self.now_ms >= end_ms:
                return [delivery for _, delivery in self.heard[before:]]
            self.now_ms = min(end_ms, self.now_ms + SECOND)


def told(delivery: Delivery) -> tuple[str, list[str]]:
    """The status of a notification, and the instances it names with their own status."""
    notice = delivery.notice
    return notice.status, [
        f"{dict(alert.labels).get('instance', '?')}:{'resolved' if alert.is_resolved(notice.now_ms) else 'firing'}"
        for alert in notice.alerts
    ]
