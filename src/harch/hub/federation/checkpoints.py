"""Who would notice that a hub has rewritten its history? Its peers: they keep signed checkpoints of its audit chain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.hub.audit.service import HubAudit
from harch.hub.federation.messages import CheckpointKept, CheckpointSent

CHECKPOINTS_BACK = "checkpoints-back"  # the feature of links whose hub wants to see what is kept of it
SHOW_EVERY_S = 60.0
OPEN_MAX = 100  # checkpoints that wait for the disk

_log = logging.getLogger("harch.hub")

Note = Callable[[str, str, str], None]


class CheckpointPost:
    """Shows this hub's newest checkpoint to all peers, and keeps what they show. `send` is the mesh's.

    A peer that comes back is shown the newest one that is kept of it: so it learns at once if it has lost its end.
    """

    def __init__(
        self,
        audit: HubAudit,
        clock: Clock,
        *,
        send: Callable[[str, CheckpointSent | CheckpointKept], object],
        note: Note,
        takes_back: Callable[[str], bool] = lambda hub_id: True,
    ) -> None:
        self._audit, self._clock, self._send, self._note = audit, clock, send, note
        self._takes_back = takes_back
        self._owed: set[str] = set()  # hubs that have not seen what is kept of them
        self._sent: dict[str, int] = {}  # the last entry that each linked peer knows of
        self._wake = asyncio.Event()
        self._storing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled: every minute, and as soon as a peer is linked."""
        while True:
            try:
                async with asyncio.timeout(SHOW_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._give_back()
                await self._show()
            except HarchError as error:  # the disk: whoever owns it says so
                _log.warning("cannot send a checkpoint to peers: %s", error.message)

    def linked(self, hub_id: str) -> None:
        self._sent[hub_id] = -1
        self._owed.add(hub_id)
        self._wake.set()

    def unlinked(self, hub_id: str) -> None:
        self._sent.pop(hub_id, None)
        self._owed.discard(hub_id)

    def came(self, hub_id: str, sent: CheckpointSent) -> None:
        if sent.checkpoint.checkpoint.hub != hub_id or len(self._storing) >= OPEN_MAX:
            return  # a hub speaks for its own chain only; a surplus is shown again in a minute
        self._start(self._keep(hub_id, sent))

    def came_back(self, hub_id: str, kept: CheckpointKept) -> None:
        """What a peer keeps of this hub."""
        if len(self._storing) < OPEN_MAX:
            self._start(self._audit.confront(kept.checkpoint, hub_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    def close(self) -> None:
        for task in list(self._storing):
            task.cancel()

    async def _give_back(self) -> None:
        for hub_id in sorted(self._owed):
            self._owed.discard(hub_id)
            kept = await self._audit.newest_kept(hub_id) if self._takes_back(hub_id) else None
            if kept is not None:
                self._send(hub_id, CheckpointKept(checkpoint=kept))

    async def _show(self) -> None:
        if self._audit.loss is not None:
            return  # a chain that lacks its end is not to be vouched for
        signed = await self._audit.head()
        seq = signed.checkpoint.seq
        behind = [hub_id for hub_id, known in self._sent.items() if known != seq]
        if behind:
            message = CheckpointSent(checkpoint=signed, keys=tuple(await self._audit.key_statements()))
            for hub_id in behind:
                self._send(hub_id, message)
                self._sent[hub_id] = seq

    async def _keep(self, hub_id: str, sent: CheckpointSent) -> None:
        try:
            await self._audit.keep(sent.checkpoint, sent.keys)
        except HarchError as error:
            if error.code == "E0920":
                self._note("audit.contradicted", hub_id, error.message)
            else:
                _log.warning("the checkpoint of %s is not kept: %s", hub_id, error.message)
