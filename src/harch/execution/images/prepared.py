"""What does a task get of its image? Files, and an environment; not its entrypoint, working directory or user."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import FIELD, DamagedContent
from harch.execution.images.layout import LayoutImage
from harch.execution.images.unpacking import root_of
from harch.execution.isolation.root_fs import RootFs

RECORD = "image.json"
# What an image says better than HarchOS. All else that a task finds in its environment was decided for it, or by it.
_DEFAULTS = frozenset({"PATH", "LANG", "PYTHONUNBUFFERED"})
_OWN_PREFIX = "HARCH_"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # Docker's, too


class ImageRecord(Struct, frozen=True, kw_only=True):
    """`image.json` beside the files. `digests`: of the image, first, and of the indexes that led to it."""

    digests: tuple[str, ...]
    env: dict[str, str]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    user: str


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image on this node. `cache_name`: what the cache of the node has it under."""

    cache_name: str
    rootfs: RootFs
    record: ImageRecord

    @property
    def digest(self) -> str:
        return self.record.digests[0]

    def environment(self, task: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
        """`task`: what a task finds without an image; `chosen`: what its owner has set of that."""
        env = {name: value for name, value in self.record.env.items() if not name.startswith(_OWN_PREFIX)}
        env.setdefault("PATH", DEFAULT_PATH)
        decided = {
            name: value for name, value in task.items() if name in chosen or name not in _DEFAULTS or name not in env
        }
        return env | decided

    def unused(self) -> Iterator[str]:
        """What its maker has set and HarchOS does not follow, for the log."""
        record = self.record
        if record.entrypoint:
            yield f"its entrypoint {' '.join(record.entrypoint)} is not used: work runs its own command"
        if record.workdir not in ("", "/"):
            yield f"its working directory {record.workdir} is not used: work starts in its own working folder"
        if record.user not in ("", "0", "root", "0:0", "root:root"):
            yield f"its user {record.user} is not used: work runs as the user of the node's agent, without privileges"


def write_record(folder: Path, image: LayoutImage) -> None:
    config = image.config
    record = ImageRecord(
        digests=image.digests,
        env=config.env,
        entrypoint=config.entrypoint,
        cmd=config.cmd,
        workdir=config.workdir,
        user=config.user,
    )
    (folder / RECORD).write_bytes(FIELD.seal(msgspec.json.encode(record)))


def read_prepared(folder: Path, cache_name: str) -> PreparedImage:
    """What an agent has put there, perhaps an earlier one. Raises E1113 if it is not as it was written."""
    try:
        record = msgspec.json.decode(FIELD.unseal((folder / RECORD).read_bytes()), type=ImageRecord)
        return PreparedImage(cache_name, root_of(Path(os.path.realpath(folder))), record)
    except (OSError, DamagedContent, msgspec.DecodeError) as error:
        raise HarchError(
            "E1113",
            f"the unpacked image {folder} is damaged: {error}",
            hint=f"delete the folder on the node and start the work again: rm -r {folder}",
        ) from error
