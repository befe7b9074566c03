"""Who evaluates groups when they are due? One task per group; queries run in threads, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.rules.alert_state import KeptRule
from harch.sentinel.rules.definitions import RuleFile, RuleGroup
from harch.sentinel.rules.evaluation import (
    ScheduledEvaluation,
    SentAlert,
    Tools,
    evaluate_group,
    first_turn_ms,
    next_turn,
)
from harch.sentinel.rules.group_state import GroupState, carried_over, kept_rules, restored
from harch.sentinel.rules.views import SelfMetric, group_metrics

log = logging.getLogger(__name__)

GROUPS_AT_ONCE_MAX = 4
SLEEP_S_MAX = 60.0  # so that a clock that was set is noticed
FAILURES_LOGGED_MAX = 5  # of one turn
METRICS_EVERY_S = 15.0
BUSY_S = 0.1  # how often a group looks whether its predecessor is done

Offload = Callable[..., Awaitable[Any]]
Notify = Callable[[list[SentAlert]], Awaitable[None]]
Keep = Callable[[list[KeptRule]], Awaitable[None]]


@dataclass(slots=True)
class RunningGroup:
    group: RuleGroup
    state: GroupState
    task: asyncio.Task[None] | None = None
    before: RunningGroup | None = None  # the same group of the files before, which may still be at its last turn
    is_busy: bool = False
    is_ended: bool = False
    failures: dict[str, str] = field(default_factory=dict)  # of the last turn: the same is not logged every time
    empty_on_disk: set[str] = field(default_factory=set)  # rules of which the disk says that nothing is wrong

    def to_keep(self) -> list[KeptRule]:
        """What the disk does not know yet. That nothing is wrong is written once, and not after every turn."""
        found = [one for one in kept_rules(self.group, self.state) if one.alerts or one.rule not in self.empty_on_disk]
        self.empty_on_disk -= {one.rule for one in found}
        return found

    def kept(self, written: Iterable[KeptRule]) -> None:
        self.empty_on_disk |= {one.rule for one in written if not one.alerts}


class RuleRunner:
    """`notify` takes alerts that are due, `keep` what a restart goes on with; both are awaited after each turn.

    `figures` are written beside those of the groups: e.g. `AlertService.figures`.
    """

    def __init__(
        self,
        tools: Tools,
        clock: Clock,
        *,
        notify: Notify,
        keep: Keep,
        kept: Iterable[KeptRule] = (),
        self_metrics: Callable[[], Iterable[SelfMetric]] = tuple,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._tools, self._clock, self._notify, self._keep, self._offload = tools, clock, notify, keep, offload
        self._kept = list(kept)
        self._self_metrics = self_metrics
        self._running: dict[str, RunningGroup] = {}
        self._few = asyncio.Semaphore(GROUPS_AT_ONCE_MAX)
        self._changed = asyncio.Event()

    @property
    def groups(self) -> list[tuple[RuleGroup, GroupState]]:
        """For `/api/v1/rules` and `/api/v1/alerts`."""
        return [(one.group, one.state) for one in self._running.values()]

    def load(self, files: Iterable[RuleFile]) -> None:
        """Other files from now on. Groups that stay keep their state and, if unchanged, their timing."""
        before, self._running = self._running, {}
        for group in (group for file in files for group in file.groups):
            known = before.pop(group.key, None)
            if known is not None and known.group == group:
                self._running[group.key] = known
            elif known is not None:
                self._end(known)
                state = carried_over(known.group, known.state, group)
                self._running[group.key] = RunningGroup(group, state, before=known)
            else:
                state = restored(group, self._kept, now_ms=self._now_ms())
                self._running[group.key] = RunningGroup(group, state)
        for gone in before.values():
            self._end(gone)
            self._end_series(gone)
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_self_metrics())
            while True:
                self._changed.clear()
                for one in self._running.values():
                    if one.task is None:
                        one.task = tasks.create_task(self._run_group(one))
                await self._changed.wait()

    async def _run_group(self, one: RunningGroup) -> None:
        at_ms = first_turn_ms(one.group, self._now_ms())
        await self._sleep_until(at_ms)
        turn: ScheduledEvaluation | None = ScheduledEvaluation(at_ms)
        while not one.is_ended:
            if turn is not None:
                await self._take_turn(one, turn)
                at_ms = turn.at_ms
            await self._sleep_until(at_ms + one.group.interval_ms)
            turn = next_turn(one.group, at_ms, self._now_ms())

    async def _take_turn(self, one: RunningGroup, turn: ScheduledEvaluation) -> None:
        while one.before is not None and one.before.is_busy:
            await self._clock.sleep(BUSY_S)
        one.before = None
        one.is_busy = True
        try:
            async with self._few:
                outcome = await self._offload(evaluate_group, one.group, one.state, turn, self._tools)
        except Exception:  # the edge: a fault in one group's queries must not end all others
            log.exception("group %s", one.group.key)
            one.state.failures += 1
            return
        finally:
            one.is_busy = False
        news = [(rule, reason) for rule, reason in outcome.failures if one.failures.get(rule) != reason]
        for rule, reason in news[:FAILURES_LOGGED_MAX]:
            log.warning("rule %s of %s: %s", rule, one.group.key, reason)
        one.failures = dict(outcome.failures)
        try:
            if outcome.sent:
                await self._notify(outcome.sent)
            if unwritten := one.to_keep():
                await self._keep(unwritten)
                one.kept(unwritten)
        except HarchError as error:  # the disk is full: the alerts are known and sent, and the next turn tries again
            log.error("%s: %s", one.group.key, error.message)

    async def _write_self_metrics(self) -> None:
        """Writes how rules and, through `figures`, notifications are doing."""
        while True:
            await self._clock.sleep(METRICS_EVERY_S)
            at_ms = self._now_ms()
            samples = [one.at(at_ms) for one in (*group_metrics(self.groups), *self._self_metrics())]
            try:
                await self._offload(self._tools.append, samples)
            except HarchError as error:
                log.warning("could not store own metrics: %s", error.message)

    async def _sleep_until(self, at_ms: int) -> None:
        while (left_ms := at_ms - self._now_ms()) > 0:
            before_ms = self._now_ms()
            await self._clock.sleep(min(left_ms / 1000, SLEEP_S_MAX))
            if self._now_ms() < before_ms:
                return  # the clock was set back; `next_turn` finds the new slot

    def _end(self, one: RunningGroup) -> None:
        """A turn under way is not cancelled: its thread would go on, and change a state that others use."""
        one.is_ended = True
        if one.task is not None and not one.is_busy:
            one.task.cancel()

    def _end_series(self, gone: RunningGroup) -> None:
        """A group that left the files leaves no series that look alive."""
        empty = RuleGroup(file=gone.group.file, name=gone.group.name, interval_ms=gone.group.interval_ms, rules=())
        state = carried_over(gone.group, gone.state, empty)
        outcome = evaluate_group(empty, state, ScheduledEvaluation(self._now_ms()), self._tools)
        for _, reason in outcome.failures:
            log.warning("%s: %s", gone.group.key, reason)

    def _now_ms(self) -> int:
        return round(self._clock.now().timestamp() * 1000)
