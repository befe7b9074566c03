"""When is it on disk? Group commit: many callers share one wait for the disk.

Statements run on the event loop, microseconds each; only COMMIT, which waits for the disk, runs in a thread. A thread
that ran the statements too would hand the interpreter lock to and fro once per statement, under load at up to 5 ms each
time. Nor does it help to run the rows of a group in the thread as one statement of many: SQLite then needs twice the
CPU for them, and a hub took a tenth fewer jobs. While a commit is under way new batches queue up, and the next commit
takes all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from harch.base.errors import HarchError
from harch.hub.store.database import Database, storage_error
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import ChainHead

STATEMENTS_PER_COMMIT_MAX = 1000  # bounds how long one group keeps the event loop busy
BATCHES_QUEUED_MAX = 50_000


class Mark(NamedTuple):
    """How far the books are: the end of the audit chain, and the number of the last event."""

    head: ChainHead
    events: int


class Committer:
    """Batches in, futures out; a future resolves when its batch is on disk, in order of submission.

    After a failed commit everything queued fails too, because it may rest on what was lost. The committer then refuses
    all batches until `reset`, when its owner has gone back to what is on disk.
    """

    def __init__(
        self,
        database: Database,
        *,
        on_failure: Callable[[HarchError], None],
        on_committed: Callable[[Mark], None] | None = None,
    ) -> None:
        self._database = database
        self._on_failure, self._on_committed = on_failure, on_committed
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._queue: deque[tuple[list[Statement], Mark | None, asyncio.Future[None]]] = deque()
        self._committing = False
        self._flush_planned = False
        self.failed: HarchError | None = None

    def submit(self, statements: list[Statement], mark: Mark | None = None) -> asyncio.Future[None]:
        """An empty batch is a barrier: it resolves when everything before it is on disk.

        `mark` tells how far the books are with this batch; `on_committed` gets the last one of each group, in the
        thread that commits, after the disk has it.
        """
        future = self._loop.create_future()
        if self.failed is not None:
            future.set_exception(self.failed)
        elif not self.has_room:
            future.set_exception(too_slow())
        else:
            self._queue.append((statements, mark, future))
            if not self._committing and not self._flush_planned:
                # Not at once: what else arrives in this turn of the loop shares the commit.
                self._flush_planned = True
                self._loop.call_soon(self._flush)
        return future

    @property
    def has_room(self) -> bool:
        return len(self._queue) < BATCHES_QUEUED_MAX

    def reset(self) -> None:
        self.failed = None

    async def drain(self) -> None:
        """Returns at a moment when nothing is on its way to the disk. Raises if that fails."""
        while self._queue or self._committing or self._flush_planned:
            await self.submit([])

    @property
    def is_busy(self) -> bool:
        return self._committing

    def refuse(self, error: HarchError) -> None:
        """Nothing more is written until `reset`; what is under way ends, what is queued fails."""
        self.failed = error
        waiting = [future for _, _, future in self._queue]
        self._queue.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """Waits for what is queued, then stops the thread."""
        if self.failed is None:
            await asyncio.wait([self.submit([])])
        self._thread.shutdown(wait=True)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._committing or not self._queue:
            return
        group: list[asyncio.Future[None]] = []
        statements: list[Statement] = []
        last: Mark | None = None
        while self._queue and len(statements) < STATEMENTS_PER_COMMIT_MAX:
            batch, mark, future = self._queue.popleft()
            group.append(future)
            statements += batch
            last = mark or last
        try:
            self._database.begin()
            self._database.execute(statements)
        except Exception as error:  # noqa: BLE001 - also a value that SQLite does not take: nobody may wait forever
            self._fail(error, group)
            return
        self._committing = True
        commit = self._loop.run_in_executor(self._thread, self._commit, last)
        commit.add_done_callback(lambda done: self._committed(done, group))

    def _commit(self, mark: Mark | None) -> None:
        self._database.commit()
        if mark is not None and self._on_committed is not None:
            self._on_committed(mark)

    def _committed(self, done: asyncio.Future[None], group: list[asyncio.Future[None]]) -> None:
        self._committing = False
        error = done.exception()
        if error is not None:
            self._fail(error, group)
            return
        for future in group:
            if not future.done():
                future.set_result(None)
        self._flush()

    def _fail(self, error: BaseException, group: list[asyncio.Future[None]]) -> None:
        self.failed = storage_error(error, self._database.path)
        with contextlib.suppress(
            sqlite3.Error
        ):  # if even this fails, the reload after `reset` finds out what is on disk
            self._database.rollback()
        waiting = [*group, *(future for _, _, future in self._queue)]
        self._queue.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(self.failed)
        self._on_failure(self.failed)


def too_slow() -> HarchError:
    return HarchError("E0401", "the disk cannot keep up", hint="try again", retry_after_s=2)
