"""Who answers other hubs here? The rules of `sentinel.federated.owning` over this SENTINEL's stores.

What is told abroad is remembered on disk before it leaves. Without that memory nothing is told abroad.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from harch.api.telemetry.federated_settings import FederatedSettings
from harch.base.errors import HarchError
from harch.sentinel.federated.account import AskedHere
from harch.sentinel.federated.memory_file import MemoryFile
from harch.sentinel.federated.messages import Answer
from harch.sentinel.federated.owning.answering import OwnHub, Readers, answer
from harch.sentinel.federated.owning.memory import Memory
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.options import QueryOptions

_log = logging.getLogger("harch.sentinel")


class HubOwner:
    """One hub's telemetry, for others and for its own people. `readers` opens what a tenant has here."""

    def __init__(
        self, settings: FederatedSettings, readers: Callable[[str], Readers], engine: Engine, memory_path: Path
    ) -> None:
        self._settings, self._readers, self._engine = settings, readers, engine
        self._telling = threading.Lock()  # answers abroad come one after the other: each counts for the next
        self._file: MemoryFile | None = None
        try:
            self._file = MemoryFile(memory_path)
        except HarchError as problem:
            _log.error("nothing is told abroad: %s", problem.message)

    def answer(self, asked: AskedHere, *, now_ms: int, is_gone: Callable[[], bool] = lambda: False) -> Answer:
        """Raises E0697 where the operator has turned answers off, E0698 without a memory of what was told."""
        if not self._settings.answers:
            raise HarchError("E0697", "this hub answers no questions of other hubs", hint="its operator decided so")
        if self._settings.policy.is_home(asked.here.country, asked.asker.country):
            return self._answered(asked, Memory(), now_ms, is_gone)
        with self._telling:
            if self._file is None:
                raise HarchError("E0698", "this hub does not know any more what it has told abroad")
            told = self._answered(asked, self._file.memory, now_ms, is_gone)
            self._file.keep()
            return told

    def own(self, asked: AskedHere, *, now_ms: int, is_gone: Callable[[], bool] = lambda: False) -> Answer:
        """What is asked by people of this hub stays here."""
        return self._answered(asked, Memory(), now_ms, is_gone)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _answered(self, asked: AskedHere, memory: Memory, now_ms: int, is_gone: Callable[[], bool]) -> Answer:
        hub = OwnHub(asked.here.hub_id, asked.here.country, self._readers, memory, self._settings.policy, self._engine)
        options = QueryOptions(timeout_s=asked.within_s, is_cancelled=is_gone)
        return answer(asked.question, asked.asker, hub, now_s=now_ms / 1000, options=options)
