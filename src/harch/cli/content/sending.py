"""How do files get to a hub? Scanned, packed, and what is missing sent; what they are is registered last.

So nothing is half registered: without a registration nobody can use what has arrived, and the hub collects it after a
while. Run again, the same files are not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.cli.views.counted import counted
from harch.cli.views.progress import progress_line
from harch.content.exchange import upload
from harch.content.file_cache import FileCache
from harch.content.folder_scan import OutsideLinks, size_text
from harch.content.frames import decode_ids, encode_ids
from harch.content.ignore import IgnoreRules
from harch.content.model import ENTRIES_MAX, TREE_BYTES_MAX
from harch.content.packing import FolderScan, PackedFolder, build_tree, pack, scan
from harch.content.secret_files import secrets_in

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.wire.content import ChunksStored

__all__ = ["CODE_BYTES_MAX", "FolderScan", "HubRemote", "PackedFolder", "SentFiles", "scan_all", "scan_code", "send"]

CODE_BYTES_MAX = 500_000_000
ROUNDS_MAX = 3  # of sending, where the hub has lost chunks again before they were registered
_SECRETS_LISTED = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubRemote:
    """The content store of a hub, as packing and unpacking know one. `ref`: what chunks are fetched by."""

    client: Client
    ref: str = ""

    def missing(self, ids: Sequence[bytes]) -> list[bytes]:
        return decode_ids(self.client.content.missing(encode_ids(ids)))

    def put(self, body: bytes) -> ChunksStored:
        return self.client.content.put(body)

    def fetch(self, ids: Sequence[bytes]) -> bytes:
        return self.client.content.fetch(self.ref, encode_ids(ids))


@dataclass(frozen=True, slots=True)
class SentFiles:
    """What was packed, and what of it had to travel. `bytes_sent`: as it travelled, compressed."""

    digest: str
    files: int
    size_bytes: int
    chunks_sent: int
    bytes_sent: int

    def __str__(self) -> str:
        sent = f"{counted(self.chunks_sent, 'chunk')} sent ({size_text(self.bytes_sent)})"
        return f"{counted(self.files, 'file')}, {size_text(self.size_bytes)}, {sent}"


def scan_code(folder: Path, *, limit_bytes: int | None, secrets_allowed: Collection[str]) -> FolderScan:
    """Raises E1106 for what cannot be packed, E1108 for too much of it, E1107 for secrets that nobody has named."""
    try:
        found = scan(
            folder,
            rules=IgnoreRules(),
            bytes_max=limit_bytes or CODE_BYTES_MAX,
            entries_max=ENTRIES_MAX,
            outside_links=OutsideLinks.KEEP,
        )
    except HarchError as error:
        if error.code == "E1108":
            ways = ("send data with `harch data add NAME --files DIR`", "raise the limit with --code-limit")
            error.hint = ", ".join(filter(None, (error.hint, *ways)))
        raise
    secrets = [path for path in secrets_in(found) if path not in secrets_allowed]
    if secrets:
        more = f" and {len(secrets) - _SECRETS_LISTED} more" if len(secrets) > _SECRETS_LISTED else ""
        raise HarchError(
            "E1107",
            f"{counted(len(secrets), 'file')} of the code {'looks' if len(secrets) == 1 else 'look'} like secrets: "
            f"{', '.join(secrets[:_SECRETS_LISTED])}{more}",
            hint="exclude them in .harchignore and store what the work needs with `harch secret set`; one that is no "
            f"secret is sent with --include-secret {secrets[0]}",
            meta={"paths": secrets},
        )
    return found


def scan_all(path: Path) -> FolderScan:
    """A folder, or a file alone, as it is: nothing is left out."""
    return scan(path, rules=None, bytes_max=TREE_BYTES_MAX, entries_max=ENTRIES_MAX)


def send(
    client: Client,
    found: FolderScan,
    register: Callable[[PackedFolder], T],
    *,
    what: str,
    as_json: bool,
    name: str = "",
) -> tuple[T, SentFiles]:
    """Packs, sends what the hub lacks, and registers it, in this order. Answers what `register` does.

    `name`: what a file alone is called in its tree.
    """
    # Of a file alone, its folder would be remembered as if it had no other.
    cache = FileCache(found.folder) if len(found.entries) != 1 else None
    packed = _packed(found, cache, what, as_json)
    if name and packed.entries[0].path != name:
        packed = RenamedFile(packed, name)
    total = sum(map(packed.size_of, packed.ids))
    chunks_sent = bytes_sent = 0
    for attempt in range(1, ROUNDS_MAX + 1):
        done = 0
        with progress_line(f"sending {what}", as_json) as line:

            def sent_more(count: int) -> None:
                nonlocal done
                done += count
                line.update(done, total)

            report = upload(packed, HubRemote(client), progress=sent_more)
        chunks_sent, bytes_sent = chunks_sent + report.chunks_sent, bytes_sent + report.bytes_sent
        try:
            made = register(packed)
        except HarchError as error:
            if error.code != "E1104" or attempt == ROUNDS_MAX:
                raise
        else:
            break
    return made, SentFiles(packed.digest, packed.files, packed.size_bytes, chunks_sent, bytes_sent)


def _packed(found: FolderScan, cache: FileCache | None, what: str, as_json: bool) -> PackedFolder:
    done = 0
    with progress_line(f"packing {what}", as_json) as line:

        def packed_more(count: int) -> None:
            nonlocal done
            done += count
            line.update(done, found.size_bytes)

        return pack(found, cache=cache, progress=packed_more)


class RenamedFile(PackedFolder):
    """The tree of a file alone, under another name: the chunks of the file are those of the other tree."""

    def __init__(self, packed: PackedFolder, name: str) -> None:
        self.entries = [replace(packed.entries[0], path=name)]
        built = build_tree(self.entries)
        self.digest, self.root = built.digest, built.root
        self._packed, self._built = packed, built.chunks

    @property
    def ids(self) -> list[bytes]:
        return [*dict.fromkeys(chunk.id for chunk in self.entries[0].chunks), *self._built]

    def size_of(self, chunk: bytes) -> int:
        return len(self._built[chunk]) if chunk in self._built else self._packed.size_of(chunk)

    def raw(self, chunk: bytes) -> bytes:
        return self._built[chunk] if chunk in self._built else self._packed.raw(chunk)
