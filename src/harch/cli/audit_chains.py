"""Where does a chain come from, and what was kept of it elsewhere? Exports of hubs and of files, and checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.remote import connect

if TYPE_CHECKING:
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint

_READ_BYTES = 1024 * 1024
_CHECKPOINT_BYTES_MAX = 256 * 1024 * 1024

checkpoints_option = click.option(
    "--checkpoints",
    "checkpoints_file",
    metavar="FILE",
    help="Checkpoints that were kept elsewhere: without them a cut tail can stay hidden.",
)


@contextmanager
def export_of(file: str | None, hub: str | None) -> Iterator[Iterator[bytes]]:
    """The chain in pieces: of a file (`-`: stdin), else of a hub."""
    if file is None:
        with connect(hub) as client:
            yield client.audit.export()
    elif file == "-":
        yield iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
    else:
        try:
            with Path(file).open("rb") as stream:
                yield iter(lambda: stream.read(_READ_BYTES), b"")
        except OSError as error:
            raise HarchError("E0202", f"{file} cannot be read: {error.strerror}", hint="check the path") from error


def checkpoints_in(path: str | None) -> list[SignedCheckpoint]:
    from harch.sovereignty.audit.checkpoints import read_checkpoints

    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            return read_checkpoints(file.read(_CHECKPOINT_BYTES_MAX))
    except OSError as error:
        raise HarchError("E0202", f"{path} cannot be read: {error.strerror}", hint="check the path") from error
