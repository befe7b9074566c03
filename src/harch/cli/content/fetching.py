"""How do files get from a hub to this machine? Waited for where it has them to fetch, checked, and put in place."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.cli.content.sending import HubRemote
from harch.cli.output import clean, note
from harch.cli.views.counted import counted
from harch.cli.views.progress import progress_line
from harch.content.exchange import download, read_tree
from harch.content.folder_scan import size_text
from harch.content.model import EntryKind, TreeEntry
from harch.wire.content import TransferView, TreeView

if TYPE_CHECKING:
    from harch.sdk import Client

POLL_S = 0.5
STALLED_S_MAX = 600.0  # without one byte more; what has come is kept, so that another attempt goes on


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """What is in place now."""

    ref: str
    digest: str
    folder: str
    files: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{counted(self.files, 'file')}, {size_text(self.size_bytes)}"


def wait_for_tree(client: Client, ref: str, *, as_json: bool) -> TreeView:
    """Waits while the hub fetches it from another one, and says from where. Raises E1140 if nothing comes any more."""
    clock = SystemClock()
    found = client.content.tree(ref)
    if isinstance(found, TreeView):
        return found
    source = clean(found.source_hub or "another hub")
    if not as_json:
        note(f"this hub fetches it from {source} first")
    moved_s, bytes_seen = clock.monotonic_s(), found.bytes_done
    with progress_line(f"from {source} to this hub", as_json) as line:
        while isinstance(found, TransferView):
            if found.error:
                raise HarchError("E1140", clean(found.error), hint="try again: what has come is not sent again")
            if found.bytes_done != bytes_seen:
                moved_s, bytes_seen = clock.monotonic_s(), found.bytes_done
            elif clock.monotonic_s() - moved_s > STALLED_S_MAX:
                why = f"nothing has come from {source} for {STALLED_S_MAX / 60:.0f} min"
                raise HarchError("E1140", why, hint="`harch hubs` shows whether it can be reached; try again later")
            line.update(found.bytes_done, found.bytes_total or None)
            time.sleep(POLL_S)
            found = client.content.tree(ref)
    return found


def entries_of(client: Client, view: TreeView) -> list[TreeEntry]:
    return read_tree(view.digest, HubRemote(client, view.ref))[1]


def fetch(client: Client, view: TreeView, entries: list[TreeEntry], folder: Path, *, as_json: bool) -> FetchedFiles:
    """Puts the files of a tree into a folder; those that are there already, and are the same, are not fetched."""
    total = sum(entry.size for entry in entries)
    done = 0
    with progress_line(f"fetching {clean(view.name or view.ref)}", as_json) as line:

        def arrived(count: int) -> None:
            nonlocal done
            done += count
            line.update(done, total)

        download(entries, folder, HubRemote(client, view.ref), progress=arrived)
    files = sum(entry.kind is EntryKind.FILE for entry in entries)
    return FetchedFiles(view.ref, view.digest, str(folder), files, total)


def fetch_data(client: Client, ref: str, folder: Path, *, as_json: bool) -> FetchedFiles:
    """A data object that HarchOS holds, into a folder. Raises E1102 for one that was registered without files."""
    view = wait_for_tree(client, ref, as_json=as_json)
    return fetch(client, view, entries_of(client, view), folder, as_json=as_json)
