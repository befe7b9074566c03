"""What does a network do to messages in a test? `SimNetwork` delays, loses, doubles, reorders and cuts, by a seed.

Any set of machines without I/O can live on it: attach each under a name, let it `send`, put its timers on the same heap
with `at`, and `run_until` a time. The same seed gives the same story, event by event.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harch.testing.clock import SimClock

TRACE_EVENTS_MAX = 200
EVENTS_PER_RUN_MAX = 5_000_000  # a machine that answers every answer would never let time pass

Receive = Callable[[str, object], None]


@dataclass(frozen=True, slots=True)
class SimLink:
    """One direction between two hubs. In order, like TCP, but for the share that `reordering` lets overtake."""

    delay_s: float = 0.010
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0


class SimNetwork:
    """One heap of deliveries and timers, on one simulated clock."""

    def __init__(
        self,
        seed: int,
        link: SimLink | None = None,
        *,
        clock: SimClock | None = None,
        describe: Callable[[object], str] = lambda message: type(message).__name__,
        untold: type | tuple[type, ...] = (),
    ) -> None:
        """`untold` messages are too many for the story."""
        self.seed, self.clock = seed, clock or SimClock()
        self.counts: Counter[str] = Counter()  # sent, delivered, lost, cut, nobody
        self._dice = random.Random(seed)  # noqa: S311  (a simulation, not a secret)
        self._describe, self._untold = describe, untold
        self._link = link or SimLink()
        self._links: dict[tuple[str, str], SimLink] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._receivers: dict[str, Receive] = {}
        self._last_arrival_s: dict[tuple[str, str], float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._trace: deque[tuple[float, str, str, str, object]] = deque(maxlen=TRACE_EVENTS_MAX)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    # Who is there

    def attach(self, name: str, receive: Receive) -> None:
        """From now on messages for `name` go to `receive(source, message)`. A second call replaces the first."""
        self._receivers[name] = receive
        self.note(name, "attached")

    def detach(self, name: str) -> None:
        """`name` is gone, as after kill -9: what is on its way to it is lost."""
        self._receivers.pop(name, None)
        self.note(name, "detached")

    # What the links are like

    def set_link(self, source: str, target: str, link: SimLink, *, both: bool = True) -> None:
        self._links[source, target] = link
        if both:
            self._links[target, source] = link

    def set_all_links(self, link: SimLink) -> None:
        self._link = link
        self._links.clear()

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Nothing passes any more, and what is on its way is lost. `both=False` cuts one direction only."""
        self._cuts.add((source, target))
        if both:
            self._cuts.add((target, source))
        self.note(source, f"{'cut' if both else 'one-way cut'} to {target}")

    def partition(self, *groups: Iterable[str]) -> None:
        """Cuts every link between two of the groups."""
        sides = [tuple(group) for group in groups]
        for number, side in enumerate(sides):
            for other in sides[number + 1 :]:
                for one in side:
                    for two in other:
                        self.cut(one, two)

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Mends both directions between two hubs, or every cut."""
        if source is None or target is None:
            self._cuts.clear()
        else:
            self._cuts -= {(source, target), (target, source)}
        self.note(source or "all", f"healed {target or ''}".strip())

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    # What happens

    def send(self, source: str, target: str, message: object) -> None:
        self.counts["sent"] += 1
        link = self._links.get((source, target), self._link)
        if (source, target) in self._cuts:
            self._record("cut", source, target, message)
            return
        if self._dice.random() < link.loss:
            self._record("lost", source, target, message)
            return
        copies = 2 if self._dice.random() < link.duplication else 1
        for _ in range(copies):
            arrival_s = self.now_s + max(0.0, link.delay_s + link.jitter_s * (2 * self._dice.random() - 1))
            if self._dice.random() < link.reordering:
                arrival_s += link.delay_s * 3 * self._dice.random()  # what is sent after it may overtake it
            else:
                arrival_s = max(arrival_s, self._last_arrival_s.get((source, target), 0.0))
                self._last_arrival_s[source, target] = arrival_s
            self.at(arrival_s, lambda: self._deliver(source, target, message))

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        """Calls back at a time of this network's clock; what is already past is due at once."""
        self._order += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._order, callback))

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, callback)

    def run_until(self, time_s: float, check: Callable[[], None] | None = None) -> None:
        """Everything due up to `time_s`, in order; `check` (an invariant) is called after each event."""
        for _ in range(EVENTS_PER_RUN_MAX):
            if not self._heap or self._heap[0][0] > time_s:
                self._move_to(time_s)
                return
            due_s, _, callback = heapq.heappop(self._heap)
            self._move_to(due_s)
            callback()
            if check is not None:
                check()
        raise RuntimeError(f"more than {EVENTS_PER_RUN_MAX} events before {time_s:g} s: message loop?\n{self}")

    def run_for(self, duration_s: float, check: Callable[[], None] | None = None) -> None:
        self.run_until(self.now_s + duration_s, check)

    # What can be asked of it

    def note(self, subject: str, what: str) -> None:
        """A line in the story: a crash, a step of the test."""
        self._trace.append((self.now_s, subject, "", what, None))

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.now_s:.3f} s, {dict(self.counts)}; the last {len(self._trace)} events:"]
        for time_s, source, target, what, message in self._trace:
            tail = f" -> {target} {what}: {self._describe(message)}" if target else f" {what}"
            lines.append(f"{time_s:10.3f} {source}{tail}")
        return "\n".join(lines)

    @contextmanager
    def trace_on_failure(self) -> Iterator[None]:
        """An error inside carries the seed and the last events."""
        try:
            yield
        except BaseException as error:
            error.add_note(str(self))
            raise

    def _deliver(self, source: str, target: str, message: object) -> None:
        receive = self._receivers.get(target)
        if (source, target) in self._cuts:
            self._record("cut", source, target, message)
        elif receive is None:
            self._record("nobody", source, target, message)
        else:
            self._record("delivered", source, target, message)
            receive(source, message)

    def _record(self, what: str, source: str, target: str, message: object) -> None:
        self.counts[what] += 1
        if not isinstance(message, self._untold):
            self._trace.append((self.now_s, source, target, what, message))

    def _move_to(self, time_s: float) -> None:
        if time_s > self.now_s:
            self.clock.jump(time_s - self.now_s)
