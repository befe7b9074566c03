"""Is damage told as a series, for as long as what was set aside waits for somebody?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.http.self_metrics import DAMAGE_SERIES, DamageMetrics
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock


def counts(folder: Path) -> dict[str, float]:
    clock = SimClock()
    stores = StoreFolder(folder, clock, TenantLimits(samples_in_memory_max=1 << 12, series_max=64), BlockPolicy())
    archive = ArchiveFolder(folder, clock)
    try:
        found = DamageMetrics(stores, archive, folder, clock).series()
        assert {dict(one.labels)["__name__"] for one in found} == {DAMAGE_SERIES}
        return {dict(one.labels)["store"]: one.values[0] for one in found}
    finally:
        archive.close()
        stores.close()


def test_what_was_set_aside_is_counted_until_it_is_deleted(tmp_path: Path) -> None:
    clock = SimClock()
    stores = StoreFolder(tmp_path, clock, TenantLimits(samples_in_memory_max=1 << 12, series_max=64), BlockPolicy())
    archive = ArchiveFolder(tmp_path, clock)
    now_ms = int(clock.now().timestamp() * 1000)
    stores.store("a").append([SeriesBatch(labels({"__name__": "up"}), [now_ms], [1.0])])
    archive.logs("b").append([LogBatch(labels({"app": "x"}), [now_ms * 1_000_000], ["line"])])
    archive.close()
    stores.close()
    assert counts(tmp_path) == {"metrics": 0, "logs": 0, "spans": 0, "state": 0}
    for segment in ("tenants/a/wal/00000001.log", "tenants/b/logs/wal/00000001.log"):
        data = bytearray((tmp_path / segment).read_bytes())
        data[20] ^= 1
        (tmp_path / segment).write_bytes(data)
    assert counts(tmp_path) == {"metrics": 1, "logs": 1, "spans": 0, "state": 0}
    assert counts(tmp_path) == {"metrics": 1, "logs": 1, "spans": 0, "state": 0}, "also after a restart"
    for kept in tmp_path.rglob("*.damaged"):
        kept.unlink()
    assert set(counts(tmp_path).values()) == {0}


def test_a_tenant_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    clock = SimClock()
    limits = TenantLimits(samples_in_memory_max=1 << 12, series_max=64)
    stores, archive = StoreFolder(tmp_path, clock, limits, BlockPolicy()), ArchiveFolder(tmp_path, clock)
    now_ms = int(clock.now().timestamp() * 1000)
    for tenant in ("a", "b"):
        stores.store(tenant).append([SeriesBatch(labels({"__name__": "up"}), [now_ms], [1.0])])
        stores.store(tenant).delete([], 0, 1)
        archive.logs(tenant).append([LogBatch(labels({"app": "x"}), [now_ms * 1_000_000], ["line"])])
        archive.logs(tenant).table.flush()
    archive.close()
    stores.close()
    for name in ("tenants/a/blocks/deletions.json", "tenants/a/logs/files.json"):
        (tmp_path / name).write_bytes(b"rubbish")
    stores, archive = StoreFolder(tmp_path, clock, limits, BlockPolicy()), ArchiveFolder(tmp_path, clock)
    assert stores.store("b").head.sample_count == 1
    assert archive.logs("b").facts()["lines"] == 1
    for ask in (stores.store, archive.logs):
        with pytest.raises(HarchError) as refused:
            ask("a")
        assert refused.value.code == "E0613"
    archive.close()
    stores.close()
    assert counts(tmp_path) == {"metrics": 1, "logs": 1, "spans": 0, "state": 0}
