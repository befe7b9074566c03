"""A process that stores, holds, releases and collects until it is killed; it prints what it begins and what was done.

The first process loads the packages and makes one child for every line that it reads: a life begins at once.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.content.frames import unpack_chunk
from harch.content.store import ContentStore, StoreSettings, open_store
from unit.content_store.content_samples import MASTER_KEY, SampleTree

WRITERS = 3
TENANTS = ("acme", "other")
SETTINGS = StoreSettings(pack_bytes=60_000)
_ATTEMPTS_MAX = 1000
_KEPT = 6  # trees of one writer at a time


def tree_of(writer: int, number: int) -> SampleTree:
    """Some of its bytes are also in others', of all writers and times."""
    rng = random.Random(number % 7)
    files = {"shared": rng.randbytes(6000), "text": b"line of text %d\n" % (number % 5) * 300}
    rng = random.Random(1_000_000 * writer + number)
    files["own"] = rng.randbytes(rng.choice([0, 10, 3000, 50_000]))
    return SampleTree(files, piece_bytes=2000)


def tenant_of(writer: int, number: int) -> str:
    return TENANTS[number % 4 == 3]


def holder_of(writer: int, number: int) -> str:
    return f"data:{writer}-{number}"


def open_victim(folder: Path) -> ContentStore:
    return open_store(folder, master_key=MASTER_KEY, settings=SETTINGS, clock=SystemClock())


def main(folder: Path) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(folder, int(line))
        _, status = os.waitpid(child, 0)
        print("end", os.waitstatus_to_exitcode(status), 0, flush=True)


def live(folder: Path, first: int) -> None:
    say("life", os.getpid(), 0)
    store = open_victim(folder)
    threads = [threading.Thread(target=write, args=(store, writer, first)) for writer in range(WRITERS)]
    threads.append(threading.Thread(target=collect, args=(store,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write(store: ContentStore, writer: int, first: int) -> None:
    rng = random.Random(first)
    kept: list[int] = []
    number = first
    while True:
        tree, tenant = tree_of(writer, number), tenant_of(writer, number)
        say("holding", writer, number)
        send(store, tenant, tree, holder_of(writer, number))
        say("held", writer, number)
        kept.append(number)
        if len(kept) > _KEPT:
            old = kept.pop(rng.randrange(len(kept)))
            say("releasing", writer, old)
            store.release(tenant_of(writer, old), holder_of(writer, old))
            say("released", writer, old)
            check(store, tenant_of(writer, kept[0]), tree_of(writer, kept[0]))
        number += 1


def send(store: ContentStore, tenant: str, tree: SampleTree, holder: str) -> None:
    """As a client does it: what is missing is sent, and again if it was collected before it was held."""
    frames = {frame.id: frame for frame in tree.frames}
    missing = store.missing(tenant, tree.ids)
    for _ in range(_ATTEMPTS_MAX):
        half = len(missing) // 2
        for some in (missing[:half], missing[half:]):
            if some:
                store.put(tenant, [frames[name] for name in some])
        try:
            store.hold(tenant, tree.digest, holder)
            return
        except HarchError as error:
            names = error.meta.get("missing")
            if error.code != "E1104" or not isinstance(names, list):
                raise
            missing = [bytes.fromhex(name) for name in names]
    raise SystemExit("a tree was never complete")


def check(store: ContentStore, tenant: str, tree: SampleTree) -> None:
    if [unpack_chunk(frame) for frame in store.read(tenant, tree.ids)] != list(tree.raw.values()):
        say("wrong", 0, 0)


def collect(store: ContentStore) -> None:
    pause = threading.Event()
    while True:
        store.collect(grace_s=0)
        pause.wait(0.01)


def say(word: str, writer: int, number: int) -> None:
    os.write(1, f"{word} {writer} {number}\n".encode())  # whole or not at all


if __name__ == "__main__":
    main(Path(sys.argv[1]))
