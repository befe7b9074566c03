"""Old samples that were acknowledged stay as long as new ones, counted from when they came."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from harch.base.clock import epoch_ms
from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.blocks.planning import DAY_MS, BlockPolicy, Downsampling
from harch.sentinel.store.blocks.tenant import TenantBlocks
from harch.sentinel.store.database import TenantDatabase
from harch.testing.clock import SimClock
from unit.sentinel_store.stores import ALL_TIMES, ANY_AGE, TestDisk, content

KEEP = BlockPolicy(keep_ms=15 * DAY_MS)
COARSE = BlockPolicy(keep_ms=2 * DAY_MS, downsampling=(Downsampling(300_000, DAY_MS, 15 * DAY_MS),))
OLD = labels({METRIC_NAME: "old"})
NEW = labels({METRIC_NAME: "new"})


@pytest.mark.parametrize("policy", [KEEP, COARSE], ids=["raw", "downsampled"])
@pytest.mark.parametrize("age_days", [16, 20_000], ids=["beyond the retention", "of 1970"])
async def test_samples_older_than_the_retention_stay_as_long_as_new_ones(
    tmp_path: Path, policy: BlockPolicy, age_days: int
) -> None:
    clock = SimClock()
    database = TenantDatabase(
        tmp_path, TenantBlocks.open(tmp_path / "blocks", policy), clock, limits=ANY_AGE, disk=TestDisk()
    )

    def names() -> set[str]:
        return {dict(one)[METRIC_NAME] for one in content(database.select((), *ALL_TIMES, limit=1000))}

    async def upkeep(days: float) -> None:
        await clock.advance(timedelta(days=days).total_seconds())
        database.maintain()
        database.maintain()  # what the first one wrote can be thinned out and taken away now

    now_ms = epoch_ms(clock.now())
    database.append([SeriesBatch(NEW, (now_ms,), (1.0,)), SeriesBatch(OLD, (now_ms - age_days * DAY_MS,), (1.0,))])
    database.flush()
    await upkeep(0.1)
    assert names() == {"new", "old"}
    await upkeep(14)
    assert names() == {"new", "old"}
    await upkeep(4)
    assert names() == set()
    database.close()


async def test_samples_that_come_in_time_are_counted_by_their_own_time(tmp_path: Path) -> None:
    clock = SimClock()
    database = TenantDatabase(
        tmp_path, TenantBlocks.open(tmp_path / "blocks", KEEP), clock, limits=ANY_AGE, disk=TestDisk()
    )
    database.append([SeriesBatch(NEW, (epoch_ms(clock.now()),), (1.0,))])
    await clock.advance(20 * 3600)  # flushed late, but within a day
    database.flush()
    await clock.advance(14.5 * 86_400)
    database.maintain()
    assert not content(database.select((), *ALL_TIMES, limit=1000))
    database.close()
