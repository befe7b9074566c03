"""How is work in threads called off, and how much of it goes on at once? Whoever waits is woken, and nobody polls."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import Any, TypeVar

Result = TypeVar("Result")


class Cancelled(Exception):
    """Not a failure: somebody has called this off."""


class Cancellation:
    """One thing that can be called off, once, from any thread."""

    def __init__(self) -> None:
        self._cancelled: Future[None] = Future()

    def cancel(self) -> None:
        with contextlib.suppress(InvalidStateError):
            self._cancelled.set_result(None)

    @property
    def is_set(self) -> bool:
        return self._cancelled.done()

    def check(self) -> None:
        """Raises Cancelled."""
        if self.is_set:
            raise Cancelled

    def sleep(self, delay_s: float) -> None:
        """Raises Cancelled, at once."""
        wait((self._cancelled,), timeout=delay_s)
        self.check()

    def wait_for(self, other: Future[Result]) -> Result:
        """The result of somebody else's work, or its error. Raises Cancelled, at once."""
        both: tuple[Future[Any], ...] = (other, self._cancelled)
        wait(both, return_when=FIRST_COMPLETED)
        self.check()
        return other.result()

    def abandonable(self, call: Callable[[], Result]) -> Result:
        """What the call returns or raises. If this is called off, the call goes on in a thread of its own and nobody
        hears of its result: for what ends by itself and changes nothing, such as a request."""
        self.check()
        outcome: Future[Result] = Future()

        def run() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                outcome.set_exception(error)

        threading.Thread(target=run, daemon=True, name="harch-request").start()
        return self.wait_for(outcome)

    @contextlib.contextmanager
    def calling(self, stop: Callable[[], None]) -> Iterator[None]:
        """Calls `stop` once if this is called off meanwhile, from the thread that does so."""
        lock, inside = threading.Lock(), True

        def stop_inside(_: Future[None]) -> None:
            with lock:
                if inside:
                    stop()

        self._cancelled.add_done_callback(stop_inside)
        try:
            yield
        finally:
            with lock:
                inside = False


class Slots:
    """So many at once; the others wait in turn."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self, cancellation: Cancellation) -> Iterator[None]:
        """Raises Cancelled, at once."""
        turn: Future[None] = Future()
        with self._lock:
            self._waiting.append(turn)
            self._serve()
        try:
            cancellation.wait_for(turn)
            yield
        finally:
            with self._lock:
                if turn.done():
                    self._free += 1
                else:
                    self._waiting.remove(turn)
                self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().set_result(None)
