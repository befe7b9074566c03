"""Trees and stores for tests: small files, cut at fixed sizes, so that a test knows its chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame, chunk_id, pack_chunk
from harch.content.model import (
    ROOT_VERSION,
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    encode_manifest,
    encode_root,
)
from harch.content.store import ContentStore, StoreSettings, open_store
from harch.content.store.storage import PACKS
from harch.testing.clock import SimClock

MASTER_KEY = bytes(range(32))
SETTINGS = StoreSettings()


class SampleTree:
    """A tree with all that has to be sent for it. `chunk_lie` and `root_lie` are added to sizes that it tells."""

    def __init__(
        self, files: Mapping[str, bytes], *, piece_bytes: int = 1000, chunk_lie: int = 0, root_lie: int = 0
    ) -> None:
        self.raw: dict[bytes, bytes] = {}
        entries = [
            TreeEntry(path, EntryKind.FILE, chunks=self._cut(content, piece_bytes, chunk_lie))
            for path, content in files.items()
        ]
        self.file_ids = list(self.raw)
        manifest = self._cut(encode_manifest(entries), piece_bytes)
        root = TreeRoot(ROOT_VERSION, sum(entry.size for entry in entries) + root_lie, len(entries), manifest)
        (self.root,) = self._cut(encode_root(root), 1 << 20)
        self.digest = self.root.id.hex()
        self.ids = list(self.raw)
        self.frames = frames_of(*self.raw.values())

    def _cut(self, content: bytes, piece_bytes: int, lie: int = 0) -> tuple[ChunkRef, ...]:
        refs = []
        for at in range(0, len(content), piece_bytes):
            piece = content[at : at + piece_bytes]
            self.raw[chunk_id(piece)] = piece
            refs.append(ChunkRef(chunk_id(piece), len(piece) + lie))
        return tuple(refs)


def opened(folder: Path, *, clock: Clock | None = None, settings: StoreSettings = SETTINGS) -> ContentStore:
    return open_store(folder, master_key=MASTER_KEY, settings=settings, clock=clock or SimClock())


def frames_of(*raws: bytes) -> list[ChunkFrame]:
    return [pack_chunk(raw) for raw in raws]


def names_of(*raws: bytes) -> list[bytes]:
    return [chunk_id(raw) for raw in raws]


def packs_in(folder: Path) -> list[Path]:
    return sorted((folder / PACKS).iterdir())


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def rows_in(store: ContentStore) -> dict[str, int]:
    """Tables that are not empty, but for notes."""
    counts = {}
    for table in ("tenants", "packs", "chunks", "unreferenced", "trees", "tree_chunks", "holds"):
        ((counts[table],),) = store._index.query(f"SELECT COUNT(*) FROM {table}")
    return {table: count for table, count in counts.items() if count}


def steps_of(store: ContentStore, patch: pytest.MonkeyPatch) -> list[str]:
    """What a store does to the disk from now on, in order."""
    steps: list[str] = []

    def traced(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            steps.append(step)
            return result

        return call

    for step in ("write", "sync", "delete"):
        patch.setattr(store._storage, step, traced(step, getattr(store._storage, step)))
    patch.setattr(store._index, "write", traced("commit", store._index.write))
    return steps


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[HarchError]]:
    with pytest.raises(HarchError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
