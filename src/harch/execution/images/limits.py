"""How much may an image take? Bytes as it travels and on disk, files, time; and which registries may do without TLS."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harch.base.errors import HarchError
from harch.content.image_reference import is_loopback

GB = 1024**3
BLOCK_BYTES = 512  # the unit of `st_blocks`, whatever the disk has
INSECURE_SETTING = "HARCH_INSECURE_REGISTRIES"
AUTH_SETTING = "HARCH_REGISTRY_AUTH_FILE"


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Of one agent. `insecure_registries`: hosts that are spoken to without TLS, or without checking its certificates;
    `auth_file`: where skopeo finds passwords of registries, as `skopeo login` writes it."""

    insecure_registries: frozenset[str] = frozenset()
    auth_file: str = ""
    bytes_max: int = 64 * GB  # as it travels
    unpacked_bytes_max: int = 256 * GB
    entries_max: int = 3_000_000
    disk_free_bytes_min: int = 1 * GB
    pull_s_max: float = 2 * 3600.0
    unpack_s_max: float = 3600.0
    resolve_s_max: float = 120.0

    def speaks_tls(self, registry: str) -> bool:
        return registry not in self.insecure_registries and not is_loopback(registry)


def settings_from(environment: Mapping[str, str]) -> ImageSettings:
    """What an agent's environment says."""
    names = environment.get(INSECURE_SETTING, "").split(",")
    return ImageSettings(
        insecure_registries=frozenset(name.strip().lower() for name in names) - {""},
        auth_file=environment.get(AUTH_SETTING, ""),
    )


@dataclass(slots=True)
class FolderUse:
    """What a folder takes on disk, every file counted once."""

    bytes: int = 0
    entries: int = 0


def folder_use(folder: Path) -> FolderUse:
    """Without recursion, because a hostile image may be thousands of folders deep; what vanishes meanwhile is left
    out."""
    use, seen, waiting = FolderUse(), set(), [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    use.entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif found.st_nlink > 1 and found.st_ino in seen:
                        continue
                    elif found.st_nlink > 1:
                        seen.add(found.st_ino)
                    use.bytes += found.st_blocks * BLOCK_BYTES
        except OSError:
            continue
    return use


class DiskWatch:
    """Raises E1133 as soon as a folder grows beyond its limits, and E1113 when the disk is nearly full.

    A look at a large folder takes a while; it is repeated so seldom that a tenth of the time goes into looks.
    """

    LOOK_S_MIN, SHARE_MAX = 0.5, 0.1

    def __init__(
        self,
        folder: Path,
        settings: ImageSettings,
        *,
        bytes_max: int,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._folder, self._settings, self._bytes_max, self._progress = folder, settings, bytes_max, progress
        self._next_look_at = 0.0

    def __call__(self) -> None:
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < self._settings.disk_free_bytes_min:
            raise HarchError(
                "E1113",
                f"this node's disk is nearly full: less than {in_words(self._settings.disk_free_bytes_min)} are free",
                hint="free some of it, or run the work on another node",
            )
        began = time.monotonic()
        if began >= self._next_look_at:
            self.look()
            ended = time.monotonic()
            self._next_look_at = ended + max(self.LOOK_S_MIN, (ended - began) / self.SHARE_MAX)

    def look(self) -> FolderUse:
        use = folder_use(self._folder)
        if use.bytes > self._bytes_max:
            raise too_large(f"it takes more than {in_words(self._bytes_max)}")
        if use.entries > self._settings.entries_max:
            raise too_large(f"it has more than {self._settings.entries_max} files")
        self._progress(use.bytes)
        return use


def too_large(why: str) -> HarchError:
    return HarchError(
        "E1133", f"the image is too large for this node: {why}", hint="make it smaller, or split data off"
    )


def in_words(size: int) -> str:
    """For people: `850 MB`, `12.4 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
