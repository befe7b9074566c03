"""How do several threads share a list of work? Each takes the next item until none is left or one has failed.

The items come from an iterator, so they can be made while others are worked on, and there are never more at a time than
threads: what they hold in memory is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class _End:
    """Behind the last item."""


_END = _End()
_LOOK_S = 0.5  # an interrupt that comes just before a wait begins does not end it


def for_each(items: Iterable[T], act: Callable[[T], None], *, threads: int) -> None:
    """Calls `act` once with each item. The caller's thread is one of the threads.

    The first exception, of `act` or of the iterator, keeps further items from being taken. It is raised once every
    thread is done with its item; so is an interrupt of the caller's thread.
    """
    iterator = iter(items)
    taking = threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures:
                with taking:
                    item = next(iterator, _END)
                if isinstance(item, _End):
                    return
                act(item)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)

    def run_beside(ended: threading.Event) -> None:
        try:
            run()
        finally:
            ended.set()

    ends: list[threading.Event] = []
    try:
        for number in range(1, threads):
            ended = threading.Event()
            threading.Thread(target=run_beside, args=(ended,), name=f"content-{number}").start()
            ends.append(ended)
        run()
    except BaseException as error:  # noqa: BLE001 - as above: nothing is left before the others are done
        failures.append(error)
    finally:
        # Events and not `Thread.join`: an interrupted join of Python 3.11 takes a thread for ended that is still at
        # work, and what it works on would be closed under its hands.
        is_waiting = True
        while is_waiting:  # with all that may be interrupted inside of `try`
            try:
                for ended in ends:
                    while not ended.wait(_LOOK_S):
                        continue
                is_waiting = False
            except BaseException as error:  # noqa: BLE001 - an interrupt
                failures.append(error)
    if failures:
        raise failures[0]
