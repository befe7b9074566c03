"""Where do errors stop that nobody foresaw? At the edge of each loop of a hub: counted, logged, and it goes on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.hub.jobs.faults import FaultBook

LOOP_AGAIN_S = 5.0

_log = logging.getLogger("harch.hub")


@contextmanager
def survived(what: str, faults: FaultBook) -> Iterator[None]:
    """One turn of a loop that must not end. Errors for people are logged as such.

    An invariant of the job machine that breaks has told the process to stop before it comes here.
    """
    try:
        yield
    except HarchError as error:
        _log.warning("%s: %s", what, error.message)
    except Exception:  # noqa: BLE001 - the edge of the process: the alert HubFaults says that it happened
        faults.total += 1
        _log.exception("%s failed", what)


async def kept_up(what: str, run: Callable[[], Awaitable[None]], faults: FaultBook, clock: Clock) -> None:
    """A loop that comes back: if an error ends it, it begins anew a moment later. Returns when it returns."""
    returned = False
    while not returned:
        with survived(what, faults):
            await run()
            returned = True
        if not returned:
            await clock.sleep(LOOP_AGAIN_S)
