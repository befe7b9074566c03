"""Flipped bytes are found, the block is named and set aside, and everything else goes on."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from blocks_naive import Model, Sample, bits_of, model_of, selection_of
from faulty_disk import QuickDisk

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import BucketSpan, NativeHistogram
from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.block import Block, DamagedBlock
from harch.sentinel.store.blocks.planning import HOUR_MS
from harch.sentinel.store.blocks.tenant import TenantBlocks

ALWAYS = (-(2**62), 2**62)
FIRST, SECOND = "block-000000000001", "block-000000000002"
HISTOGRAM = NativeHistogram(count=3.0, sum=2.5, positive_spans=(BucketSpan(0, 2),), positive_counts=(1.0, 2.0))


def model_at(hour: int) -> Model:
    floats = {hour * HOUR_MS + step * 15_000: Sample(bits_of(step * 1.5), start=7) for step in range(40)}
    return {
        labels({"__name__": "m", "i": "a"}): floats,
        labels({"__name__": "m", "i": "b"}): floats,
        labels({"__name__": "h", "i": "a"}): {hour * HOUR_MS: Sample(bits_of(2.5), 0, HISTOGRAM)},
    }


@pytest.fixture
def two_blocks(tmp_path: Path) -> Path:
    folder = tmp_path / "blocks"
    blocks = TenantBlocks.open(folder, disk=QuickDisk())
    blocks.add(selection_of(model_at(0)))
    blocks.add(selection_of(model_at(100)))
    blocks.close()
    return folder


def everything(blocks: TenantBlocks) -> Model:
    return model_of(blocks.select([], *ALWAYS, limit=10**6))


def test_every_flipped_byte_is_found_and_only_its_block_is_lost(two_blocks: Path) -> None:
    whole = {path: path.read_bytes() for path in (two_blocks / FIRST).iterdir()}
    random = np.random.default_rng(5)
    flips = 0
    for path, content in whole.items():
        for place in range(len(content)):
            broken = bytearray(content)
            flip = int(random.integers(1, 256))
            broken[place] ^= flip
            path.write_bytes(broken)
            blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
            if path.name == "meta.json" and flip.bit_count() == 1:  # one flipped bit is put right
                assert path.read_bytes() == content
                assert path.with_name("meta.json.damaged").read_bytes() == broken
                path.with_name("meta.json.damaged").unlink()
                continue
            if not blocks.problems():
                with pytest.raises(HarchError, match=f"E0613.*{FIRST}"):
                    everything(blocks)
            (problem,) = blocks.problems()
            assert FIRST in problem.message
            assert everything(blocks) == model_at(100)
            assert [entry.name for entry in (two_blocks / "quarantine").iterdir()] == [FIRST]
            (two_blocks / "quarantine" / FIRST).rename(two_blocks / FIRST)
            path.write_bytes(content)
            flips += 1
    assert flips > 500
    assert everything(TenantBlocks.open(two_blocks, disk=QuickDisk())) == {
        label_set: {**samples, **model_at(100)[label_set]} for label_set, samples in model_at(0).items()
    }


@pytest.mark.parametrize("name", ["index", "samples", "meta.json"])
@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_missing_and_cut_files_are_damage_too(two_blocks: Path, name: str, content: bytes | None) -> None:
    path = two_blocks / FIRST / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    assert [problem.code for problem in blocks.problems()] == ["E0613"]
    assert everything(blocks) == model_at(100)


def test_a_rewrite_that_meets_damage_sets_the_block_aside_and_goes_on(two_blocks: Path) -> None:
    path = two_blocks / FIRST / "samples"
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    late = {label_set: {5: samples[0]} for label_set, samples in model_at(0).items()}
    blocks.add(selection_of(late))
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    report = blocks.maintain(0)
    assert FIRST in report.put_off[0]
    assert [problem.code for problem in blocks.problems()] == ["E0613"]
    assert set(everything(blocks)) == set(late)


def test_a_block_of_another_version_is_left_where_it_is(two_blocks: Path) -> None:
    path = two_blocks / FIRST / "meta.json"
    line = path.read_bytes().splitlines()[0].replace(b'"version":1', b'"version":2')
    path.write_bytes(line + b"\n%08x\n" % zlib.crc32(line))
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    assert [problem.code for problem in blocks.problems()] == ["E0614"]
    assert (two_blocks / FIRST).is_dir()
    blocks.add(selection_of(model_at(200)))
    assert [meta.sequence for meta in blocks.metas()] == [2, 3]


def test_a_number_in_quarantine_is_not_given_again(two_blocks: Path) -> None:
    (two_blocks / SECOND / "meta.json").write_bytes(b"")
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    blocks.add(selection_of(model_at(200)))
    assert [meta.sequence for meta in blocks.metas()] == [1, 3]


def test_a_changed_list_of_deletions_stops_everything(two_blocks: Path) -> None:
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    blocks.delete([Matcher(MatchKind.EQUAL, "i", "a")], 0, 10)
    path = two_blocks / "deletions.json"
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"'))
    with pytest.raises(HarchError, match=r"E0613.*deletions\.json"):
        TenantBlocks.open(two_blocks, disk=QuickDisk())


def test_what_was_erased_is_in_no_file(tmp_path: Path) -> None:
    """Also not compressed: every page and section is unpacked to look for the label's value."""
    folder = tmp_path / "blocks"
    blocks = TenantBlocks.open(folder, disk=QuickDisk())
    secret = labels({"__name__": "m", "user": "jane-doe-4711"})
    model = {secret: {1: Sample(bits_of(1.0)), 9 * HOUR_MS: Sample(bits_of(2.0))}, **model_at(0)}
    blocks.add(selection_of(model))
    assert any(b"jane-doe" in content for content in unpacked(blocks))
    blocks.delete([Matcher(MatchKind.EQUAL, "user", "jane-doe-4711")], *ALWAYS)
    proof = blocks.purge(0)
    assert (proof.blocks_replaced, proof.blocks_checked) == ((1, 2), (3,))
    assert not any(b"jane-doe" in content for content in unpacked(blocks))
    assert not any(b"jane-doe" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def unpacked(blocks: TenantBlocks) -> list[bytes]:
    found: list[bytes] = []
    for block in blocks._state.moment().blocks:
        found += [block._index._raw(name).tobytes() for name in block._index.names()]
    return found


def test_erasure_is_not_claimed_while_a_damaged_block_may_hold_some(two_blocks: Path) -> None:
    (two_blocks / SECOND / "meta.json").write_bytes(b"")
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    blocks.delete([Matcher(MatchKind.EQUAL, "i", "a")], *ALWAYS)
    with pytest.raises(HarchError, match=f"E0616.*{SECOND} in quarantine"):
        blocks.purge(0)
    shutil.rmtree(two_blocks / "quarantine")
    blocks.delete([Matcher(MatchKind.EQUAL, "i", "a")], *ALWAYS)
    assert blocks.purge(0).deletions[0].id == 2


def test_a_new_block_that_cannot_be_read_back_replaces_nothing(
    two_blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
    late = {label_set: {5: samples[0]} for label_set, samples in model_at(0).items()}
    blocks.add(selection_of(late))
    before = everything(blocks)
    names = sorted(path.name for path in two_blocks.iterdir())

    def damaged(block: Block) -> None:
        raise DamagedBlock(block.path, "wrong")

    with monkeypatch.context() as patch:
        patch.setattr(Block, "verify", damaged)
        assert "wrong" in blocks.maintain(0).put_off[0]
        with pytest.raises(HarchError, match="E0613"):
            blocks.add(selection_of(model_at(500)))
    assert everything(blocks) == before
    assert sorted(path.name for path in two_blocks.iterdir()) == names
    assert blocks.maintain(0).done == [f"overlap of {FIRST}, block-000000000003"]
    assert everything(blocks) == before


def test_a_damaged_block_that_cannot_be_moved_is_not_served_either(two_blocks: Path) -> None:
    path = two_blocks / FIRST / "samples"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (two_blocks / "quarantine").write_bytes(b"a file in the way")
    for _ in range(2):
        blocks = TenantBlocks.open(two_blocks, disk=QuickDisk())
        with pytest.raises(HarchError, match=f"E0613.*{FIRST}"):
            everything(blocks)
        assert everything(blocks) == model_at(100)
