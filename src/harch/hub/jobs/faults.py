"""What made this hub fail, and what is kept from it now? A fault is an error that nobody foresaw.

After a fault the job machine is rebuilt from disk, so nothing that was half done remains. What caused it would do it
again: the same event rests before it is tried again, longer each time, and work that a round failed on waits aside, so
that the round goes on without it. All of this is memory: a hub that starts tries everything once more.
"""

# harch: pure

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.hub.jobs import events as ev
from harch.hub.jobs.registry import request_digest

REST_S, REST_S_MAX = 1.0, 60.0  # of an event that failed for the second time, doubled with each further one
HOLD_S, HOLD_S_MAX = 30.0, 3600.0  # of work that a round failed on, doubled with each further fault
CAUSES_MAX = 1000  # remembered; the oldest is forgotten first
HELD_MAX = 1000


@dataclass(slots=True)
class Fault:
    """`error` names the kind of error only: its text may hold what others wrote. The log has all of it."""

    error: str
    times: int = 0
    until_s: float = 0.0  # of the boot clock: not tried before


class FaultBook:
    """Of one hub, for as long as its process lives."""

    def __init__(self) -> None:
        self.total = 0  # faults that the process survived, of whatever kind
        self._causes: OrderedDict[str, Fault] = OrderedDict()
        self._held: OrderedDict[str, Fault] = OrderedDict()  # by workload; also those that are tried again

    # Events

    def failed(self, event: ev.Event, error: Exception, boot_s: float) -> Fault:
        """The first time it may be tried again at once: most faults have to do with the moment."""
        self.total += 1
        fault = _noted(self._causes, cause_of(event), kind_of(error), CAUSES_MAX)
        fault.until_s = boot_s + (min(REST_S * 2.0 ** min(fault.times - 2, 30), REST_S_MAX) if fault.times > 1 else 0.0)
        return fault

    @property
    def has_causes(self) -> bool:
        """False, as mostly: no event rests, and none is to be noted when it went well."""
        return bool(self._causes)

    def went_well(self, event: ev.Event) -> None:
        if self._causes:
            self._causes.pop(cause_of(event), None)

    def times(self, event: ev.Event) -> int:
        """How often it has failed since it last went well."""
        fault = self._causes.get(cause_of(event)) if self._causes else None
        return 0 if fault is None else fault.times

    def rest_s(self, event: ev.Event, boot_s: float) -> float:
        """How long it is not to be tried; 0: it may be."""
        fault = self._causes.get(cause_of(event)) if self._causes else None
        return 0.0 if fault is None else max(0.0, fault.until_s - boot_s)

    # Work

    def hold(self, workload_id: str, error: Exception, boot_s: float) -> Fault:
        """A round failed on it: it waits aside for a while."""
        fault = _noted(self._held, workload_id, kind_of(error), HELD_MAX)
        fault.until_s = boot_s + min(HOLD_S * 2.0 ** min(fault.times - 1, 30), HOLD_S_MAX)
        return fault

    def held(self, workload_id: str, boot_s: float) -> Fault | None:
        """Why it waits aside now, if it does."""
        fault = self._held.get(workload_id)
        return fault if fault is not None and fault.until_s > boot_s else None

    def forget(self, workload_id: str) -> None:
        """It has ended, or is another now."""
        self._held.pop(workload_id, None)


def _noted(book: OrderedDict[str, Fault], key: str, error: str, most: int) -> Fault:
    fault = book.pop(key, None) or Fault(error)
    fault.error, fault.times = error, fault.times + 1
    book[key] = fault
    if len(book) > most:
        book.popitem(last=False)
    return fault


def kind_of(error: Exception) -> str:
    return error.code if isinstance(error, HarchError) else type(error).__name__


def words_of(event: ev.Event) -> str:
    """For the history: `PlacementDue` is `placement due`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(event).__name__).lower()


def cause_of(event: ev.Event) -> str:
    """Equal for what would fail alike."""
    return f"{type(event).__name__} {_subject(event)}"


def _subject(event: ev.Event) -> str:
    match event:
        case ev.Submitted():
            return f"{event.tenant} {request_digest(event.spec, event.annotations)}"
        case ev.TaskStartSeen(key):
            return f"{key.workload_id} {key.attempt} {key.rank}"
        case ev.TaskEndSeen():
            return f"{event.end.key.workload_id} {event.end.key.attempt} {event.end.key.rank}"
        case ev.AgentJoined():
            return event.hello.agent_id
        case ev.PeerMessageReceived(hub_id, message):
            return f"{hub_id} {type(message).__name__}"
        case ev.DataAdded():
            return event.entry.object.id
        case _:
            names = ("workload_id", "object_id", "agent_id", "node_id", "hub_id", "kind", "subject")
            return " ".join(str(getattr(event, name)) for name in names if hasattr(event, name))
