"""What time is it? The only module that reads the machine's clocks; everyone else receives a `Clock` or a `now`."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol

# Systems without it have no such suspend either, or none that we could see. `execution.kernel` reads the same clock.
BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """A source of time: wall time for people, monotonic seconds for durations, boot seconds for leases, and sleep."""

    def now(self) -> datetime: ...

    def monotonic_s(self) -> float: ...

    def boot_s(self) -> float:
        """Seconds since this machine started, also while it was suspended: a lease runs out in its sleep, too."""
        ...

    async def sleep(self, delay_s: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_s(self) -> float:
        return time.clock_gettime(BOOT_CLOCK)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def machine_boot_id() -> str:
    """Which boot of which machine the boot clock counts for; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since 1970, the time of telemetry."""
    return round(moment.timestamp() * 1000)


def epoch_ns(moment: datetime) -> int:
    """Nanoseconds since 1970, exact to the microsecond that a moment has."""
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


@lru_cache(maxsize=4096)  # the same moment is written several times: a workload's age, all events of one turn
def iso(moment: datetime) -> str:
    """UTC in ISO 8601 with milliseconds and `Z`: the one form that HarchOS writes."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"  # without its "+00:00"


def parse_iso(text: str) -> datetime:
    """Reads ISO 8601; a time without a zone is refused, because guessing one moves jobs by hours."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time `{text}` has no time zone; write e.g. `{text}Z`")
    return moment.astimezone(UTC)
