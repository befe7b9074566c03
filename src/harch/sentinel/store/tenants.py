"""Whose series are where? One folder a tenant below one folder that a single process owns."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.blocks.tenant import TenantBlocks
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.limits import TenantLimits

TENANTS_MAX = 10_000
LOCK = "sentinel.lock"
_NAME = re.compile(r"[a-zA-Z0-9!_.*'()-]{1,150}")


_log = logging.getLogger(__name__)


class StoreFolder:
    """All tenants of one process. A tenant begins with its first request; those on disk are opened at the start.

    A tenant whose store is damaged where nobody may read around it is refused, each time it is asked for; others go on.
    """

    def __init__(self, folder: Path, clock: Clock, limits: TenantLimits, policy: BlockPolicy) -> None:
        """Raises E1005 if the folder cannot be used or another process has it. Reads every log, which may take long."""
        self._folder, self._clock, self._limits, self._policy = folder, clock, limits, policy
        self._lock = _locked(folder)
        self._opening = threading.Lock()
        self._open: dict[str, TenantDatabase] = {}
        self._refused: set[str] = set()
        try:
            for path in sorted(self._tenants_folder.iterdir()):
                if path.is_dir():
                    self._try(path.name)
        except BaseException:
            self.close()
            raise

    def store(self, tenant: str) -> TenantDatabase:
        """The store of a tenant. Raises E0618 for a name that is none, or one tenant too many."""
        found = self._open.get(tenant)
        if found is not None:
            return found
        check_tenant(tenant)
        with self._opening:
            if tenant not in self._open:
                if len(self._open) >= TENANTS_MAX:
                    raise HarchError("E0618", f"{TENANTS_MAX} tenants exist; no room for `{tenant}`")
                folder = self._tenants_folder / tenant
                blocks = TenantBlocks.open(folder / "blocks", self._policy)
                self._open[tenant] = TenantDatabase(folder, blocks, self._clock, limits=self._limits)
                self._refused.discard(tenant)
            return self._open[tenant]

    @property
    def refused(self) -> frozenset[str]:
        """Tenants whose stores do not open."""
        return frozenset(self._refused)

    def _try(self, tenant: str) -> None:
        try:
            self.store(tenant)
        except HarchError as damage:
            if damage.code != "E0613":
                raise
            self._refused.add(tenant)
            _log.error("%s: series of tenant %s are unavailable: %s", damage.code, tenant, damage.message)

    def __contains__(self, tenant: object) -> bool:
        return tenant in self._open

    def names(self) -> Sequence[str]:
        return sorted(self._open)

    def close(self) -> None:
        for database in self._open.values():
            database.close()
        self._open.clear()
        os.close(self._lock)

    @property
    def lock_file(self) -> Path:
        """What this process holds while the folder is its own."""
        return self._folder / LOCK

    @property
    def _tenants_folder(self) -> Path:
        return self._folder / "tenants"


def check_tenant(tenant: str) -> None:
    """Raises E0618 for a name that is none: it becomes the name of a folder."""
    if not _NAME.fullmatch(tenant) or tenant in (".", ".."):
        raise HarchError("E0618", f"`{tenant[:150]}` is not a tenant name")


def _locked(folder: Path) -> int:
    """Two processes on one folder would each believe to be alone."""
    try:
        (folder / "tenants").mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HarchError("E1005", f"cannot use {folder}: {error.strerror}", hint="choose another --data") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise HarchError(
            "E1005", f"another SENTINEL uses {folder}", hint="stop it, or choose another --data"
        ) from error
    return descriptor
