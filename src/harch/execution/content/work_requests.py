"""Who answers when people want files of a task, or bring some? A few threads, and an answer in every case."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from harch.base.errors import HarchError
from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.protocol import FilesAnswer

AT_ONCE_MAX = 4
WAITING_MAX = 64
log = logging.getLogger(__name__)

Answer = Callable[[FilesAnswer], None]
Work = Callable[[Cancellation], FilesAnswer]  # raises HarchError


class WorkRequests:
    """Needs a running event loop, and is used from it only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[tuple[int, Work, Answer]] = SimpleQueue()
        self._threads = self._open = 0
        self._cancellation = Cancellation()

    def submit(self, request_id: int, work: Work, answer: Answer) -> None:
        if self._open >= WAITING_MAX:
            refused = HarchError("E0401", f"{WAITING_MAX} requests for files wait at this node", hint="try again later")
            answer(failed(request_id, refused))
            return
        self._open += 1
        self._waiting.put((request_id, work, answer))
        if self._threads < AT_ONCE_MAX:
            self._threads += 1
            threading.Thread(target=self._run, daemon=True, name="harch-files").start()

    def close(self) -> None:
        """What was not answered by now never is: the hub gives up with the connection."""
        self._cancellation.cancel()

    def _run(self) -> None:
        while True:
            try:
                request_id, work, answer = self._waiting.get_nowait()
            except Empty:
                self._soon(self._leave)
                return
            try:
                answered = work(self._cancellation)
            except Cancelled:
                return
            except HarchError as error:
                answered = failed(request_id, error)
            except Exception as error:
                log.exception("files of a task could not be read or written")
                why = HarchError("E1113", f"the node failed: {type(error).__name__}", hint="see the log of its agent")
                answered = failed(request_id, why)
            self._soon(self._answered, answer, answered)

    def _answered(self, answer: Answer, answered: FilesAnswer) -> None:
        self._open -= 1
        answer(answered)

    def _leave(self) -> None:
        """A thread has found nothing to do, which may have changed since."""
        self._threads -= 1
        if not self._waiting.empty():
            self._threads += 1
            threading.Thread(target=self._run, daemon=True, name="harch-files").start()

    def _soon(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent has ended
            self._loop.call_soon_threadsafe(callback, *arguments)


def failed(request_id: int, error: HarchError) -> FilesAnswer:
    return FilesAnswer(request_id=request_id, code=error.code, message=error.message, hint=error.hint)
