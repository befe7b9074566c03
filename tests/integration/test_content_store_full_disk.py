"""A full disk refuses what is sent, keeps what it has, and can still be told what may go."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harch.content.frames import unpack_chunk
from unit.content_store.content_samples import SampleTree, frames_of, opened, packs_in, refused


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.needs("tmpfs")
def test_content_can_be_given_up_and_collected_on_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "content"
    store = opened(folder)
    kept, old = (SampleTree({"a": os.urandom(1_000_000)}, piece_bytes=100_000) for _ in range(2))
    for tree in (kept, old):
        store.put("acme", tree.frames)
        store.hold("acme", tree.digest, f"data:{tree.digest}")
    before = packs_in(folder)
    with (small_disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    for _ in range(3):
        with refused("E1002"):
            store.put("acme", frames_of(os.urandom(1_000_000)))
    assert packs_in(folder) == before, "and no part of a pack is left"
    store.release("acme", f"data:{old.digest}")
    assert store.collect(grace_s=0).chunks == len(old.ids)
    assert store.put("acme", frames_of(os.urandom(500_000))).stored == 1
    assert [unpack_chunk(frame) for frame in store.read("acme", kept.ids)] == list(kept.raw.values())
    assert (folder / "reserve").stat().st_size > 0
    store.close()
    again = opened(folder)
    assert again.held("acme", f"data:{kept.digest}") == kept.digest
    assert again.check().damaged == []
    again.close()
