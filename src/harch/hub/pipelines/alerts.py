"""What do workers want people to hear? Alerts that come over the message engine, told as events, but not in floods."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harch.pipelines.workers.status import Alert

AGAIN_S = 10.0  # one alert of a rule and stage in so long; the others are counted and told with the next
KNOWN_MAX = 1000

Note = Callable[[str, str, str], None]


class Alerts:
    """`hear` takes a message as it came; `now_s` is on a monotonic clock."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}  # when, and how many were held back since

    def hear(self, payload: bytes, now_s: float) -> None:
        try:
            alert = msgspec.json.decode(payload, type=Alert)
        except msgspec.MsgspecError:
            return  # a worker of another release; its log has it
        key = (alert.pipeline, alert.stage, alert.rule)
        at_s, held = self._told.get(key, (-AGAIN_S, 0))
        if now_s - at_s < AGAIN_S:
            self._told[key] = (at_s, held + 1)
            return
        if len(self._told) >= KNOWN_MAX:
            self._told.clear()
        self._told[key] = (now_s, 0)
        more = f"; {held} more before it" if held else ""
        self._note("pipeline.alert", alert.pipeline, f"{alert.worker}: {alert.rule}: {alert.detail[:300]}{more}")
