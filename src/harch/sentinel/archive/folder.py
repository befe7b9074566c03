"""Whose lines and spans are where? One folder a tenant, beside its series, in a folder that the process has locked."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.archive.limits import ArchiveSettings
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.archive.spans.store import SpanArchive
from harch.sentinel.archive.table import SharedMemory
from harch.sentinel.store.tenants import TENANTS_MAX, check_tenant

LOGS, SPANS = "logs", "spans"

_log = logging.getLogger(__name__)


class ArchiveFolder:
    """All tenants' lines and spans. `StoreFolder` has the lock. A tenant begins with its first request."""

    def __init__(self, folder: Path, clock: Clock, settings: ArchiveSettings | None = None) -> None:
        """Opens what is there, which may take a while. What has a damaged list of files is refused when it is asked
        for, with E0613; others go on."""
        self._tenants_folder, self._clock = folder / "tenants", clock
        self._settings = settings or ArchiveSettings()
        self._memory = SharedMemory(self._settings.memory_bytes_max)
        self._opening = threading.Lock()
        self._logs: dict[str, LogArchive] = {}
        self._spans: dict[str, SpanArchive] = {}
        self._refused: Counter[str] = Counter()
        self._tenants_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(self._tenants_folder.iterdir()):
            if (path / LOGS).is_dir():
                self._try(self.logs, path.name, LOGS)
            if (path / SPANS).is_dir():
                self._try(self.spans, path.name, SPANS)

    def logs(self, tenant: str) -> LogArchive:
        """Raises E0618 for a name that is none, or one tenant too many."""
        found = self._logs.get(tenant)
        if found is None:
            with self._opening:
                self._check(tenant)
                if tenant not in self._logs:
                    folder = self._tenants_folder / tenant / LOGS
                    self._logs[tenant] = LogArchive(
                        folder, self._settings.logs, self._settings.logs_policy, self._clock, memory=self._memory
                    )
                found = self._logs[tenant]
        return found

    def spans(self, tenant: str) -> SpanArchive:
        found = self._spans.get(tenant)
        if found is None:
            with self._opening:
                self._check(tenant)
                if tenant not in self._spans:
                    folder = self._tenants_folder / tenant / SPANS
                    self._spans[tenant] = SpanArchive(
                        folder, self._settings.spans, self._settings.spans_policy, self._clock, memory=self._memory
                    )
                found = self._spans[tenant]
        return found

    def names(self) -> Sequence[str]:
        return sorted({*self._logs, *self._spans})

    def damaged(self) -> Mapping[str, int]:
        """How many files were set aside and are still there."""
        return {
            LOGS: sum(len(one.table.damaged_files()) for one in tuple(self._logs.values())) + self._refused[LOGS],
            SPANS: sum(len(one.table.damaged_files()) for one in tuple(self._spans.values())) + self._refused[SPANS],
        }

    def _try(self, opened: Callable[[str], object], tenant: str, what: str) -> None:
        try:
            opened(tenant)
        except HarchError as damage:
            if damage.code != "E0613":
                raise
            self._refused[what] += 1
            _log.error("%s: %s of tenant %s are unavailable: %s", damage.code, what, tenant, damage.message)

    def maintain(self, tenant: str) -> None:
        """Upkeep of one tenant, for the process to call now and then."""
        if tenant in self._logs:
            self._logs[tenant].maintain()
        if tenant in self._spans:
            self._spans[tenant].maintain()

    def close(self) -> None:
        for logs in self._logs.values():
            logs.close()
        for spans in self._spans.values():
            spans.close()
        self._logs.clear()
        self._spans.clear()

    def _check(self, tenant: str) -> None:
        check_tenant(tenant)
        known = {*self._logs, *self._spans}
        if tenant not in known and len(known) >= TENANTS_MAX:
            raise HarchError("E0618", f"{TENANTS_MAX} tenants exist; no room for `{tenant}`")
