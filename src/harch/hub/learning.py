"""How does a hub come to its learned policy? Compiles it aside, learns from its own history, and goes on learning.

Until the kernels are compiled (seconds at the first start, from disk afterwards) and where Numba is missing, the hub
places by best fit. Lessons are built in a thread that releases the interpreter lock and swapped in between decisions.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from harch.base.clock import Clock
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.kernels import load_if_compiled
from harch.hub.store.database import Database
from harch.placement.policy import KernelsMissing
from harch.placement.scheduler import Scheduler

if TYPE_CHECKING:
    from harch.placement.learned import LearnedPolicy

LOOK_EVERY_S = 0.5
HISTORY_MAX = 8192  # workloads of the past that a starting hub learns from

_LEARNED = "placing by policy %s, learned from %d requests"
_NOT_LEARNED = "policy %s has seen %d requests and learns from %d on; until then it places by best fit"

_log = logging.getLogger("harch.hub")


class Learner:
    """Equips the runtime's scheduler with the learned policy, also after each recovery from disk."""

    def __init__(self, jobs: JobRuntime, database: Database, clock: Clock) -> None:
        self._jobs, self._database, self._clock = jobs, database, clock
        self._policy: LearnedPolicy | None = None

    async def run(self) -> None:
        """Until cancelled; returns at once where there are no kernels."""
        try:
            await _compile()
        except KernelsMissing as missing:
            _log.warning("placing by best fit: %s", missing)
            return
        past = await asyncio.to_thread(self._database.recent_specs, HISTORY_MAX)
        self._jobs.equip = self._equip
        self._equip(self._jobs.machine.state.scheduler)
        if self._policy is not None:
            room = self._jobs.machine.state.scheduler.room
            for spec in reversed(past):
                self._policy.observe(room.kind(spec.resources))
            await self._learn_if_due()
            history = self._policy.engine.history
            if not history.learned_at:
                first = min(history.schedule.first_arrivals, default=history.schedule.every_arrivals)
                _log.info(_NOT_LEARNED, self._policy.name, history.arrivals, first)
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            await self._learn_if_due()

    def _equip(self, scheduler: Scheduler) -> None:
        from harch.placement.learned import LearnedPolicy

        history = self._policy.engine.history if self._policy is not None else None
        self._policy = LearnedPolicy(scheduler.room, history=history)
        scheduler.use(self._policy)

    async def _learn_if_due(self) -> None:
        from harch.placement.policy.engine import prepare

        policy = self._policy
        if policy is None or not policy.learning_due:
            return
        is_first = not policy.engine.history.learned_at
        prepared = await asyncio.to_thread(prepare, policy.engine.snapshot())
        if policy is self._policy:  # no recovery from disk in between
            policy.engine.adopt(prepared)
            if is_first:
                _log.info(_LEARNED, policy.name, policy.engine.history.learned_at)


async def _compile() -> None:
    """In a process of its own, unless that was done before; then this one loads the machine code from disk."""
    from harch.placement.policy import kernels_available

    if not kernels_available():
        raise KernelsMissing
    if not await asyncio.to_thread(load_if_compiled):
        await _compile_apart()
        await asyncio.to_thread(_load)


async def _compile_apart() -> None:
    compiler = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "harch.hub.kernels",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await compiler.wait()
    finally:
        if compiler.returncode is None:
            compiler.kill()
            await compiler.wait()


def _load() -> None:
    from harch.placement.policy.engine import warm

    warm()
