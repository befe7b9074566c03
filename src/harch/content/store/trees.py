"""Which trees are needed, by whom, and which chunks do they keep? A tree lives while somebody holds it.

Its chunks are counted once per tree, in the transaction of its first hold, and given up in that of its last release. So
a tree that is damaged meanwhile can still be released, and a count can never disagree with what it counts.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.content.frames import BATCH_CHUNKS_MAX
from harch.content.model import (
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    chunks_of,
    decode_manifest,
    decode_root,
    invalid,
    is_digest,
)
from harch.content.store.chunks import Chunks
from harch.content.store.index import Index, find_chunks, places, slices
from harch.content.store.settings import (
    HOLDER_BYTES_MAX,
    ID_CACHE_ENTRIES,
    MISSING_LISTED_MAX,
    READ_BYTES_MAX,
    TREE_CACHE_ENTRIES,
)
from harch.content.store.tenants import Tenants

Value = TypeVar("Value")


class StoredTree(Struct, frozen=True):
    """A tree whose manifest was read and checked. `root_bytes`: the size of the chunk that holds its root."""

    digest: str
    root_bytes: int
    root: TreeRoot
    entries: tuple[TreeEntry, ...]

    def chunks(self) -> list[ChunkRef]:
        """Each once: root, manifest, files."""
        return list(chunks_of(bytes.fromhex(self.digest), self.root_bytes, self.root, self.entries))


class Hold(NamedTuple):
    """Who keeps a tree, and until when; None: until it is released."""

    tenant: str
    holder: str
    digest: str
    until: datetime | None


class _Cache(Generic[Value]):
    """The values that were used last, as long as their weights together stay below a limit."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max, self._weight = weight_max, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> Value | None:
        with self._lock:
            if name not in self._values:
                return None
            self._values.move_to_end(name)
            return self._values[name][0]

    def put(self, name: Hashable, value: Value, weight: int) -> None:
        with self._lock:
            if weight > self._weight_max or name in self._values:
                return
            self._values[name] = value, weight
            self._weight += weight
            while self._weight > self._weight_max:
                _, (_, dropped) = self._values.popitem(last=False)
                self._weight -= dropped

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._weight = 0


class Trees:
    """Thread-safe."""

    def __init__(self, index: Index, chunks: Chunks, tenants: Tenants, clock: Clock) -> None:
        self._index, self._chunks, self._tenants, self._clock = index, chunks, tenants, clock
        self._trees: _Cache[StoredTree] = _Cache(TREE_CACHE_ENTRIES)
        self._ids: _Cache[frozenset[bytes]] = _Cache(ID_CACHE_ENTRIES)

    # Reading

    def tree(self, tenant: str, digest: str) -> StoredTree:
        """Raises E1102 if its root or its manifest is not here, E1105 if it is no tree, E1101 if it is damaged."""
        found = self._trees.get((tenant, digest))
        if found is None:
            found = self._read(tenant, digest)
            weight = 1 + sum(1 + len(entry.chunks) for entry in found.entries)
            self._trees.put((tenant, digest), found, weight)
        return found

    def _read(self, tenant: str, digest: str) -> StoredTree:
        if not is_digest(digest):
            raise invalid(f"`{digest[:100]}` is no digest")
        ((frame, raw),) = self._chunks.read_raw(tenant, [bytes.fromhex(digest)])
        root = decode_root(raw)
        manifest = b"".join(self._manifest(tenant, root))
        entries = tuple(decode_manifest(manifest))
        files = sum(entry.kind is EntryKind.FILE for entry in entries)
        if files != root.files or sum(entry.size for entry in entries) != root.size_bytes:
            raise invalid("its root counts other files than its manifest lists")
        return StoredTree(digest, frame.size, root, entries)

    def _manifest(self, tenant: str, root: TreeRoot) -> list[bytes]:
        found: list[bytes] = []
        for some in batches_of(root.manifest):
            raws = [raw for _, raw in self._chunks.read_raw(tenant, [chunk.id for chunk in some])]
            if [len(raw) for raw in raws] != [chunk.size for chunk in some]:
                raise invalid("its root names chunks of its manifest with another size than they have")
            found += raws
        return found

    def ids_of(self, tenant: str, digest: str) -> frozenset[bytes]:
        """Every chunk of the tree."""
        found = self._ids.get((tenant, digest))
        if found is None:
            found = frozenset(chunk.id for chunk in self.tree(tenant, digest).chunks())
            self._ids.put((tenant, digest), found, 1 + len(found))
        return found

    def outside(self, tenant: str, digest: str, ids: Sequence[bytes]) -> set[bytes]:
        """Of a tree that somebody holds the index knows it, however large the tree is."""
        owner = self._tenants.find(tenant)
        rows = (
            self._index.query("SELECT key FROM trees WHERE tenant = ? AND digest = ?", (owner.row, digest))
            if owner is not None
            else []
        )
        if owner is None or not rows:
            return set(ids) - self.ids_of(tenant, digest)
        inside: set[bytes] = set()
        with self._index.reading() as connection:
            for some in slices(ids):
                found = connection.execute(
                    "SELECT id FROM chunks JOIN tree_chunks ON chunk = chunks.key AND tree = ?"  # noqa: S608
                    f" WHERE tenant = ? AND id IN ({places(some)})",
                    (*rows[0], owner.row, *some),
                )
                inside.update(name for (name,) in found)
        return set(ids) - inside

    def forget_cached(self) -> None:
        """What was removed must not be answered from memory."""
        self._trees.clear()
        self._ids.clear()

    # Holding

    def hold(self, tenant: str, digest: str, holder: str, until: datetime | None) -> StoredTree:
        """Replaces what the holder held before. Raises E1104 with the names of chunks that are missing or damaged."""
        if not holder or len(holder.encode()) > HOLDER_BYTES_MAX:
            raise HarchError("E0201", f"a holder has 1 to {HOLDER_BYTES_MAX} bytes", field="holder")
        until_ms = None if until is None else int(1000 * until.timestamp())
        found = self._tree_to_hold(tenant, digest)
        owner = self._tenants.find_or_make(tenant)
        change = partial(
            _hold, tenant=owner.row, digest=digest, holder=holder, until_ms=until_ms, now_ms=self._now_ms()
        )
        if self._index.write(partial(change, keys=None)):
            return found
        refs = found.chunks()
        keys = self._keys_of(owner.row, found, refs)
        if not self._index.write(partial(change, keys=keys)):
            self._keys_of(owner.row, found, refs)  # some were collected between the two steps: which?
            raise HarchError("E1104", "the tree was being removed", hint="try again", meta={"missing": []})
        return found

    def _tree_to_hold(self, tenant: str, digest: str) -> StoredTree:
        try:
            return self.tree(tenant, digest)
        except HarchError as error:
            absent = error.meta.get("missing") or error.meta.get("damaged")
            if error.code in ("E1102", "E1101") and isinstance(absent, list):
                raise incomplete([bytes.fromhex(name) for name in absent]) from error
            raise

    def _keys_of(self, tenant: int, tree: StoredTree, refs: Sequence[ChunkRef]) -> list[int]:
        """Raises E1104 for chunks that are not there or are damaged, E1105 for sizes that are not true."""
        with self._index.reading() as connection:
            rows = find_chunks(connection, tenant, [ref.id for ref in refs])
        absent = [ref.id for ref in refs if ref.id not in rows or rows[ref.id].is_damaged]
        if absent:
            raise incomplete(absent)
        if any(rows[ref.id].size != ref.size for entry in tree.entries for ref in entry.chunks):
            raise invalid("it names chunks with another size than they have")
        return sorted(row.key for row in rows.values())

    def release(self, tenant: str, holder: str) -> None:
        owner = self._tenants.find(tenant)
        if owner is None:
            return
        self._index.write(partial(release, tenant=owner.row, holder=holder, now_ms=self._now_ms()))

    def release_expired(self) -> int:
        """Returns how many there were."""
        now_ms = self._now_ms()
        expired = self._index.query("SELECT tenant, holder FROM holds WHERE until_ms <= ?", (now_ms,))

        for tenant, holder in expired:
            self._index.write(partial(_release_expired, tenant=tenant, holder=holder, now_ms=now_ms))
        return len(expired)

    def held(self, tenant: str, holder: str) -> str | None:
        owner = self._tenants.find(tenant)
        if owner is None:
            return None
        found = self._index.query(
            "SELECT digest FROM holds JOIN trees ON tree = trees.key WHERE holds.tenant = ? AND holder = ?",
            (owner.row, holder),
        )
        return str(found[0][0]) if found else None

    def holders(self) -> list[Hold]:
        rows = self._index.query(
            "SELECT name, holder, digest, until_ms FROM holds JOIN trees ON tree = trees.key"
            " JOIN tenants ON holds.tenant = tenants.key ORDER BY name, holder"
        )
        return [
            Hold(name, holder, digest, None if until is None else datetime.fromtimestamp(until / 1000, UTC))
            for name, holder, digest, until in rows
        ]

    def _now_ms(self) -> int:
        return int(1000 * self._clock.now().timestamp())


def _hold(
    connection: sqlite3.Connection,
    *,
    tenant: int,
    digest: str,
    holder: str,
    until_ms: int | None,
    now_ms: int,
    keys: Sequence[int] | None,
) -> bool:
    """`keys`: of the chunks of a tree that nobody holds yet. False if these are needed, or are not all there any more.
    Raises E1104 for chunks that are damaged."""
    known = connection.execute("SELECT key FROM trees WHERE tenant = ? AND digest = ?", (tenant, digest)).fetchone()
    if known is None:
        if keys is None:
            return False
        known = (connection.execute("INSERT INTO trees (tenant, digest) VALUES (?, ?)", (tenant, digest)).lastrowid,)
        connection.executemany("INSERT INTO tree_chunks VALUES (?, ?)", [(known[0], key) for key in keys])
        (there,) = connection.execute(
            "SELECT COUNT(*) FROM tree_chunks JOIN chunks ON chunk = chunks.key WHERE tree = ?", known
        ).fetchone()
        if there != len(keys):
            connection.execute("DELETE FROM tree_chunks WHERE tree = ?", known)
            connection.execute("DELETE FROM trees WHERE key = ?", known)
            return False
        connection.execute(
            "DELETE FROM unreferenced WHERE chunk IN (SELECT chunk FROM tree_chunks WHERE tree = ?)", known
        )
    damaged = connection.execute(
        "SELECT id FROM chunks WHERE is_damaged = 1 AND EXISTS"
        " (SELECT 1 FROM tree_chunks WHERE tree = ? AND chunk = chunks.key)",
        known,
    ).fetchall()
    if damaged:
        raise incomplete([name for (name,) in damaged])
    before = connection.execute("SELECT tree FROM holds WHERE tenant = ? AND holder = ?", (tenant, holder)).fetchone()
    connection.execute("INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?)", (tenant, holder, known[0], until_ms))
    if before is not None and before != known:
        give_up_tree(connection, before[0], now_ms)
    return True


def _release_expired(connection: sqlite3.Connection, *, tenant: int, holder: str, now_ms: int) -> None:
    """Unless it was prolonged meanwhile."""
    if connection.execute(
        "SELECT 1 FROM holds WHERE tenant = ? AND holder = ? AND until_ms <= ?", (tenant, holder, now_ms)
    ).fetchone():
        release(connection, tenant=tenant, holder=holder, now_ms=now_ms)


def release(connection: sqlite3.Connection, *, tenant: int, holder: str, now_ms: int) -> None:
    """Nothing, if it holds nothing."""
    found = connection.execute("SELECT tree FROM holds WHERE tenant = ? AND holder = ?", (tenant, holder)).fetchone()
    if found is not None:
        connection.execute("DELETE FROM holds WHERE tenant = ? AND holder = ?", (tenant, holder))
        give_up_tree(connection, found[0], now_ms)


def give_up_tree(connection: sqlite3.Connection, tree: int, now_ms: int) -> None:
    """If nobody holds it any more, the chunks that no other tree has are unreferenced from now on."""
    if connection.execute("SELECT 1 FROM holds WHERE tree = ? LIMIT 1", (tree,)).fetchone():
        return
    connection.execute(
        "INSERT INTO unreferenced SELECT chunk, ?, 1 FROM tree_chunks AS own WHERE tree = ? AND NOT EXISTS"
        " (SELECT 1 FROM tree_chunks AS other WHERE other.chunk = own.chunk AND other.tree <> own.tree)",
        (now_ms, tree),
    )
    connection.execute("DELETE FROM tree_chunks WHERE tree = ?", (tree,))
    connection.execute("DELETE FROM trees WHERE key = ?", (tree,))


def batches_of(chunks: Sequence[ChunkRef]) -> list[list[ChunkRef]]:
    """As many as one read may have."""
    batches: list[list[ChunkRef]] = [[]]
    size = 0
    for chunk in chunks:
        if size + chunk.size > READ_BYTES_MAX // 2 or len(batches[-1]) >= BATCH_CHUNKS_MAX:
            batches.append([])
            size = 0
        batches[-1].append(chunk)
        size += chunk.size
    return batches if batches[0] else []


def incomplete(names: Sequence[bytes]) -> HarchError:
    return HarchError(
        "E1104",
        f"{len(names)} chunks of the tree are not at this hub",
        hint="send them, and try again",
        meta={"missing": [name.hex() for name in names[:MISSING_LISTED_MAX]]},
    )
