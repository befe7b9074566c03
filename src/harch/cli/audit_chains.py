"""Where does a chain come from, and what was kept of it elsewhere? Exports of hubs and of files, and checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.remote import connect

if TYPE_CHECKING:
    from harch.sdk.types import Hub
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


@dataclass(slots=True)
class KeptElsewhere:
    """What other hubs keep of a hub's chain, who was asked, and who could not be."""

    checkpoints: list[SignedCheckpoint] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)  # hub -> why

    @property
    def sentence(self) -> str:
        silent = "; ".join(f"{hub} could not be asked: {why}" for hub, why in self.silent.items())
        if not self.asked:
            return f"no other hub was asked for checkpoints, so a cut tail can stay hidden{silent and ': '}{silent}"
        return f"asked {', '.join(self.asked)} for checkpoints{silent and '; '}{silent}"


def kept_by_others(hub: str | None) -> KeptElsewhere:
    """What the others keep of one hub. They are asked directly: the one to be verified could hide something."""
    with connect(hub) as client:
        hubs = client.hubs.list()
    own = next((view.id for view in hubs if view.own), "")
    return kept_at([view for view in hubs if not view.own], own)


def kept_at(hubs: Iterable[Hub], of: str | None) -> KeptElsewhere:
    """What these hubs keep, of one hub or (None) of all."""
    import msgspec

    from harch.sdk import Client
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint

    kept = KeptElsewhere()
    for view in hubs:
        if not view.reachable or not view.endpoint:
            kept.silent[view.id] = view.error or "not reachable"
            continue
        try:
            with Client(view.endpoint) as other:
                found = other.audit.checkpoints(of)
        except HarchError as error:
            kept.silent[view.id] = error.message
            continue
        kept.asked.append(view.id)
        for one in msgspec.convert(msgspec.to_builtins(found), list[SignedCheckpoint]):
            if one.holds:
                kept.checkpoints.append(one)
            else:
                kept.silent[view.id] = "it shows a checkpoint whose signature does not hold"
    return kept


def checkpoints_in(path: str | None) -> list[SignedCheckpoint]:
    from harch.sovereignty.audit.checkpoints import read_checkpoints

    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            return read_checkpoints(file.read(_CHECKPOINT_BYTES_MAX))
    except OSError as error:
        raise HarchError("E0202", f"{path} cannot be read: {error.strerror}", hint="check the path") from error
