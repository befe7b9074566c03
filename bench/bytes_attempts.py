"""What was tried, what came of it, and on what? The book of attempts, and the objects that must stay where they are."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bytes_world import LinkedHub
from harch.base.errors import HarchError
from harch.cli.content.sending import HubRemote
from harch.content.exchange import read_tree
from harch.content.frames import decode_frames
from harch.content.model import ChunkRef
from harch.sdk import Client
from harch.wire.content import TransferView, TreeView

MARK_BYTES = 64
FETCHED_WITHIN_S = 20.0
NOISE_BYTES_MIN = 8_000  # smaller files are manifests of images, which are compressed when they are stored
CHUNKS_TRIED = 3  # of each object: its root, the first of its manifest, one of a file


@dataclass(frozen=True)
class Held:
    """An object with files. `marks`: bytes that are in it and nowhere else."""

    what: str
    id: str
    name: str
    digest: str
    chunks: tuple[ChunkRef, ...]
    marks: tuple[bytes, ...]

    @property
    def ids(self) -> list[bytes]:
        return [chunk.id for chunk in self.chunks]

    @property
    def some(self) -> tuple[ChunkRef, ...]:
        return (*self.chunks[: CHUNKS_TRIED - 1], self.chunks[-1])


def client_of(hub: LinkedHub, key: str = "") -> Client:
    return Client(hub.url, key or hub.key)


def held_at(hub: LinkedHub, ref: str, what: str, files: Path) -> Held:
    """Of an object that is readable there. Its marks are from the files that it was made of."""
    client = client_of(hub)
    data = client.data.get(ref)
    view = tree_of(client, data.id)
    root, entries = read_tree(view.digest, HubRemote(client, view.ref))
    found = [ChunkRef(bytes.fromhex(view.digest), 0), *root.manifest]
    found += [chunk for entry in entries for chunk in entry.chunks]
    marks = [
        content[len(content) // 2 :][:MARK_BYTES]
        for path in sorted(files.rglob("*"))
        if path.is_file() and len(content := path.read_bytes()) >= NOISE_BYTES_MIN
    ]
    return Held(what, data.id, data.name, view.digest, tuple(_sized(client, view, found)), tuple(marks))


def _sized(client: Client, view: TreeView, chunks: list[ChunkRef]) -> list[ChunkRef]:
    """The root does not say how long it is itself."""
    (root,) = decode_frames(HubRemote(client, view.ref).fetch([chunks[0].id]))
    return [ChunkRef(root.id, root.size), *dict.fromkeys(chunks[1:])]


def tree_of(client: Client, ref: str) -> TreeView:
    """Waits while the hub fetches it from another one. Raises `HarchError` if it may not, or does not come."""
    end_s = time.monotonic() + FETCHED_WITHIN_S
    while isinstance(found := client.content.tree(ref), TransferView):
        if found.error or time.monotonic() > end_s:
            raise HarchError("E1140", found.error or "it does not come", hint="")
        time.sleep(0.1)
    return found


@dataclass
class Attempts:
    """By family. An attempt that raises `HarchError` was refused, with that code."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    successes: list[str] = field(default_factory=list)

    def refused(self, family: str, what: str, call: Callable[[], object]) -> None:
        """Whatever it answers without raising is a success of the attacker, unless it is empty."""
        try:
            got = call()
        except HarchError as error:
            self.note(family, what, error.code, succeeded=False)
        except Exception as error:  # noqa: BLE001 - whatever ends it, it has brought nothing
            self.note(family, what, type(error).__name__, succeeded=False)
        else:
            self.note(family, what, "given" if got else "nothing", succeeded=bool(got))

    def note(self, family: str, what: str, outcome: str, *, succeeded: bool) -> None:
        self.outcomes[family][outcome] += 1
        if succeeded:
            self.successes.append(f"{family}: {what}: {outcome}")
            print(f"succeeded: {family}: {what}: {outcome}", file=sys.stderr, flush=True)

    @property
    def total(self) -> int:
        return sum(sum(outcomes.values()) for outcomes in self.outcomes.values())

    def show(self) -> None:
        for family, outcomes in self.outcomes.items():
            told = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
            print(f"  {family}: {sum(outcomes.values())} attempts: {told}", flush=True)
