"""Where does a request stand in the queue? One value, and the words for people who ask."""

from __future__ import annotations

from dataclasses import dataclass

from harch.workloads.spec import SchedulingClass


@dataclass(frozen=True, slots=True)
class Position:
    """Where a request stands, for explanations. Virtual times are hub-seconds per weight; smaller goes first."""

    turn_class: SchedulingClass
    tenant: str
    class_weight: float  # with the floor, if that raises it now
    class_v: float
    tenant_weight: float
    tenant_v: float
    place_in_flow: int  # 1 is next of its class and tenant
    waiting_in_flow: int
    classes_ahead: tuple[SchedulingClass, ...]  # that wait, and are served before its class as things stand
    tenants_ahead: int  # of its class
    waited_s: float
    aged_in_s: float  # 0: it is in the lane of the aged
    aged_ahead: int  # who is in that lane and has waited longer

    def describe(self) -> str:
        text = (
            f"{self.place_in_flow} of {self.waiting_in_flow} that wait as {self.turn_class} of "
            f"{self.tenant or 'this hub'}"
        )
        if self.tenants_ahead:
            text += f"; {self.tenants_ahead} tenants of its class had less and come first"
        if self.classes_ahead:
            text += f"; before it: {', '.join(self.classes_ahead)}"
        return text if self.aged_in_s else f"{text}; it has waited long, so {self.aged_ahead} are before it at most"
