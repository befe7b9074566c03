"""How much IT energy does a job take where nothing measures it? The plates of what it holds, times time.

Running work is taken at the plate, which overstates most work and never flatters it; idle GPUs at a tenth or so of it.
The hub's meter, where there is one, shrinks what is too much (`account`).
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from harch.carbon.ledger.charge import not_negative

METHOD = "modelled GPU and host power x share of the allocation"
IDLE_SHARE = 0.12  # of the plate; assumed, not measured here
HOST_IDLE_SHARE = 0.5  # assumed likewise: memory, fans and network hardly rest


class Held(Struct, frozen=True, kw_only=True):
    """What a job holds, or what nobody does: its share of GPUs and of their hosts, all tasks together."""

    gpu_power_w: float  # plates of its GPUs, a shared one in part
    host_power_w: float = 0.0  # plates of the hosts, by its share of each

    def __post_init__(self) -> None:
        not_negative("GPU power", self.gpu_power_w)
        not_negative("host power", self.host_power_w)

    def running_it_kwh(self, duration: timedelta) -> float:
        return (self.gpu_power_w + self.host_power_w) / 1000 * _hours(duration)

    def idle_it_kwh(self, duration: timedelta) -> float:
        """While suspended with its GPUs kept, or free."""
        idle_w = self.gpu_power_w * IDLE_SHARE + self.host_power_w * HOST_IDLE_SHARE
        return idle_w / 1000 * _hours(duration)


def _hours(duration: timedelta) -> float:
    return duration.total_seconds() / 3600
