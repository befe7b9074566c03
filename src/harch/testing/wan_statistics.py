"""What has the emulated WAN carried, and how well did it keep time?"""

from __future__ import annotations

from dataclasses import dataclass

from harch.testing.wan_links import LinkCounters


@dataclass(frozen=True, slots=True)
class WanStatistics:
    """Counted since the start. Take two and subtract for what happened in between."""

    links: dict[tuple[str, str], LinkCounters]  # (from, to)
    late_ms_sum: float  # by how much packets were delivered after they were due
    late_ms_max: float
    cpu_s: float  # of the emulator

    @property
    def packets_delivered(self) -> int:
        return sum(counters.packets_delivered for counters in self.links.values())

    @property
    def late_ms_mean(self) -> float:
        return self.late_ms_sum / max(1, self.packets_delivered)

    def bytes_sent(self, name: str) -> int:
        """Whole IP packets that this hub has sent to others, those that were dropped on the way included."""
        return sum(counters.bytes_sent for (sender, _), counters in self.links.items() if sender == name)

    def bytes_received(self, name: str) -> int:
        return sum(counters.bytes_delivered for (_, receiver), counters in self.links.items() if receiver == name)
