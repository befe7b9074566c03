"""How are several slow questions asked at once, and given up at the end? By a few threads that nobody joins."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from harch.base.errors import HarchError

K = TypeVar("K")


class Crew:
    """`size` threads. They are daemons: a program that ends does not wait for a hub that hangs."""

    def __init__(self, size: int) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for number in range(size):
            threading.Thread(target=self._work, name=f"crew-{number}", daemon=True).start()

    def ask(self, questions: Mapping[K, Callable[[], Any]], within_s: float) -> dict[K, Any]:
        """The answers, or the HarchError that came instead. What takes longer than all may is answered with E0802."""
        found: dict[K, Any] = {}
        done: queue.SimpleQueue[tuple[K, Any]] = queue.SimpleQueue()
        for key, question in questions.items():
            self._jobs.put(_job(key, question, done))
        until_s = time.monotonic() + within_s
        while len(found) < len(questions):
            try:
                key, answer = done.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                late = HarchError("E0802", f"nothing came within {within_s:g} s")
                return {key: found.get(key, late) for key in questions}
            found[key] = answer
        return found

    def _work(self) -> None:
        while True:
            self._jobs.get()()


def _job(key: K, question: Callable[[], Any], done: queue.SimpleQueue[tuple[K, Any]]) -> Callable[[], None]:
    def run() -> None:
        try:
            answer = question()
        except HarchError as error:
            answer = error
        except Exception as fault:  # noqa: BLE001 - an answer that cannot be read costs its line, not the screen
            answer = HarchError("E0802", f"the answer cannot be read: {fault!r}")
        done.put((key, answer))

    return run
