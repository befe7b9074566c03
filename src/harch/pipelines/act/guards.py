"""May this command be sent now, and if it failed, when again?

Interlocks and rate limits, and an exponential delay with a jitter that follows from a seed.
"""

# harch: pure

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from harch.base.rejection import Rejection
from harch.pipelines.act.ledger import ActionCommand
from harch.pipelines.act.settings import TTL_S_MAX, ActionSettings, RateLimit, RetrySettings

_T = TypeVar("_T")
DEVICES_REMEMBERED_MAX = 100_000  # per kind of memory; the least recently used is forgotten first


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now, but at this time."""

    until_ms: int


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ms: int


class Guards:
    """Remembers per device and action when it was last commanded, and how many tokens are left."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], tuple[int, ActionCommand]] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def remember(self, commands: Iterable[tuple[ActionCommand, int]]) -> None:
        """What the ledger knows of before this process started."""
        for command, at_ms in commands:
            last = self._last.get((command.device, command.action))
            if last is None or at_ms > last[0]:
                _keep(self._last, (command.device, command.action), (at_ms, command))

    def interlock(
        self, command: ActionCommand, action: ActionSettings, *, now_ms: int, stopped: str
    ) -> Rejection | None:
        """The first interlock that says no."""
        if stopped:
            return Rejection(command.cmd_id, "stop", f"all actions are halted: {stopped}", "lift the halt")
        for index, step in enumerate(command.steps):
            for name, (low, high) in action.interlocks.ranges.items():
                value = step.args.get(name)
                if value is None:
                    continue
                if isinstance(value, str) or not low <= value <= high:  # also what is not a number
                    detail = f"`{name}` of step {index} is {value!r}, allowed: {low:g} to {high:g}"
                    return Rejection(command.cmd_id, "range", detail, "correct the rule, or widen the interlock")
        at_ms, last = self._last.get((command.device, command.action), (0, command))
        if last.cmd_id == command.cmd_id:
            return None
        if at_ms and action.interlocks.newest_only and command.window <= last.window:
            detail = f"window {last.window} was already sent, this is window {command.window}"
            return Rejection(command.cmd_id, "superseded", detail, "turn off `newest_only`")
        wait_ms = at_ms + round(action.interlocks.min_interval_s * 1000) - now_ms
        if wait_ms > 0:
            detail = f"the device was commanded {(now_ms - at_ms) / 1000:g} s ago, allowed once every "
            detail += f"{action.interlocks.min_interval_s:g} s"
            return Rejection(command.cmd_id, "interval", detail, "lower `min_interval_s`")
        return None

    def admit(
        self, command: ActionCommand, action: ActionSettings, *, now_ms: int, stopped: str
    ) -> Rejection | Wait | None:
        """Asked right before a command is claimed; a yes takes a token and counts as a command to the device."""
        if (refusal := self.interlock(command, action, now_ms=now_ms, stopped=stopped)) is not None:
            return refusal
        if action.rate is not None and (wait := self._take(command, action.rate, now_ms)) is not None:
            return wait
        if action.interlocks.min_interval_s or action.interlocks.newest_only:
            _keep(self._last, (command.device, command.action), (now_ms, command))
        return None

    def _take(self, command: ActionCommand, rate: RateLimit, now_ms: int) -> Wait | None:
        key = (command.device, command.action)
        bucket = self._buckets.get(key) or _Bucket(float(rate.burst), now_ms)
        gained = max(0, now_ms - bucket.at_ms) * rate.per_s / 1000
        bucket.tokens, bucket.at_ms = min(float(rate.burst), bucket.tokens + gained), max(bucket.at_ms, now_ms)
        _keep(self._buckets, key, bucket)
        if bucket.tokens >= 1.0:
            bucket.tokens -= 1.0
            return None
        # No command lives longer than that, and the quotient of a tiny rate is beyond every integer.
        wait_s = min((1.0 - bucket.tokens) / rate.per_s, TTL_S_MAX)
        return Wait(now_ms + 1 + int(wait_s * 1000))


def _keep(memory: OrderedDict[tuple[str, str], _T], key: tuple[str, str], value: _T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > DEVICES_REMEMBERED_MAX:
        memory.popitem(last=False)


# How long until the next attempt? Exponential, with a jitter that follows from a seed.


def delay_ms(retries: RetrySettings, *, attempt: int, key: str, seed: int) -> int:
    """The wait after attempt number `attempt` (from 1) of `key`. Different keys wait differently, or all would return
    to a recovering device in the same moment."""
    plain_s = min(retries.max_s, retries.base_s * retries.factor ** min(attempt - 1, 64))
    noise = int.from_bytes(hashlib.blake2b(f"{seed}:{key}:{attempt}".encode(), digest_size=8).digest()) / 2**64
    return max(1, round(1000 * plain_s * (1 + retries.jitter * (2 * noise - 1))))
