"""No store takes a lying disk at its word: some of the faults of `make bench-faults`, always the same ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harch.testing.store_faults import ALL_STORES, FaultVerdict, FaultyStore, StoreBench, StoreFault

FAULTS = 5
STORES = pytest.mark.parametrize("store", ALL_STORES, ids=lambda store: store.name)


@STORES
def test_flipped_bits_and_lost_ends_are_harmless_or_said(store: FaultyStore, tmp_path: Path) -> None:
    bench, rng = StoreBench(store, tmp_path / "store"), random.Random(f"{store.name} 1")
    tried = [bench.attempt(bench.random_fault(rng)) for _ in range(FAULTS)]
    assert [str(one.fault) for one in tried if one.verdict is FaultVerdict.SILENT] == []


def test_the_bench_itself_notices_a_store_that_says_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "a").write_bytes(bytes(100))

    trusting = StoreBench(FaultyStore("trusting", make, lambda folder: (folder / "a").read_bytes()), tmp_path)
    assert trusting.attempt(StoreFault("a", 100, 50, 3)).verdict is FaultVerdict.SILENT
    assert trusting.attempt(StoreFault("a", 100, 99)).verdict is FaultVerdict.SILENT
