"""Whose turn is it? Open commands by urgency and time, one per device at a time, within a limit. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

from harch.pipelines.act.ledger import unresolved
from harch.pipelines.act.store import Stored

URGENT_MAX = 1  # priorities 0 and 1


class Agenda:
    """What one worker has to look at. A command is ready, waits for its time, or is being worked on."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._stored: dict[str, Stored] = {}
        self._ready: list[tuple[int, int, int, str]] = []  # priority, issued, order of arrival, id
        self._arrivals = count()
        self._later: list[tuple[int, str]] = []  # due, id
        self._held: dict[str, list[str]] = {}  # ready commands of a device that is not free
        self._working: dict[str, str] = {}  # device to the command whose turn it is
        self._unresolved: dict[str, set[str]] = {}  # device to the commands that have to be cleared up first

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, cmd_id: str) -> bool:
        return cmd_id in self._stored

    def room(self, priority: int) -> int:
        """How many more fit. The last tenth is kept for what is urgent, so that a flood of the rest cannot block it."""
        kept = 0 if priority <= URGENT_MAX else self.limit // 10
        return max(0, self.limit - kept - len(self._stored))

    @property
    def next_due_ms(self) -> int | None:
        return self._later[0][0] if self._later else None

    def depths(self) -> dict[int, int]:
        """How many are open, by priority."""
        return dict(Counter(stored.entry.command.priority for stored in self._stored.values()))

    def oldest_issued_ms(self) -> int | None:
        """When the oldest open command was decided; its age is the stage's lag."""
        return min((stored.entry.command.issued_ms for stored in self._stored.values()), default=None)

    def add(self, stored: Stored, *, now_ms: int) -> None:
        """Takes a command on, or its newer state; one that is being worked on stays as it is."""
        entry = stored.entry
        if self._working.get(entry.command.device) == entry.cmd_id:
            return
        known = entry.cmd_id in self._stored
        self._keep(stored)
        if not known:
            self._schedule(stored, now_ms)

    def ripen(self, *, now_ms: int) -> int:
        """Moves what is due to what is ready."""
        ripe = 0
        while self._later and self._later[0][0] <= now_ms:
            _, cmd_id = heapq.heappop(self._later)
            self._push(self._stored[cmd_id])
            ripe += 1
        return ripe

    def take(self) -> Stored | None:
        """The most urgent command whose device is free; the device is not, until `settle`."""
        while self._ready:
            _, _, _, cmd_id = heapq.heappop(self._ready)
            stored = self._stored[cmd_id]
            device = stored.entry.command.device
            if device in self._working or cmd_id not in self._unresolved.get(device, (cmd_id,)):
                self._held.setdefault(device, []).append(cmd_id)
                continue
            self._working[device] = cmd_id
            return stored
        return None

    def settle(self, stored: Stored, *, now_ms: int) -> None:
        """The turn is over: a closed command leaves, any other comes back when it is due."""
        self.forget(stored)
        if not stored.entry.closed:
            self._keep(stored)
            self._schedule(stored, now_ms)

    def forget(self, stored: Stored) -> None:
        """The turn is over, and the next is somebody else's, e.g. a person's."""
        cmd_id, device = stored.entry.cmd_id, stored.entry.command.device
        self._working.pop(device, None)
        self._stored.pop(cmd_id, None)
        others = self._unresolved.pop(device, set()) - {cmd_id}
        if others:
            self._unresolved[device] = others
        for held in self._held.pop(device, ()):  # those that must still wait are held again when they are taken
            self._push(self._stored[held])

    def _keep(self, stored: Stored) -> None:
        self._stored[stored.entry.cmd_id] = stored
        if unresolved(stored.entry):
            self._unresolved.setdefault(stored.entry.command.device, set()).add(stored.entry.cmd_id)

    def _schedule(self, stored: Stored, now_ms: int) -> None:
        due_ms = max(stored.entry.due_ms, stored.entry.busy_until_ms)
        if due_ms > now_ms:
            heapq.heappush(self._later, (due_ms, stored.entry.cmd_id))
        else:
            self._push(stored)

    def _push(self, stored: Stored) -> None:
        command = stored.entry.command
        heapq.heappush(self._ready, (command.priority, command.issued_ms, next(self._arrivals), command.cmd_id))
