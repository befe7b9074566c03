"""A SENTINEL without its hub goes on, but neither forever nor beside a folder that is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harch.sentinel.http.server import LOOK_EVERY_S, WITHOUT_HUB_S_MAX, until_not_needed
from harch.testing.clock import SimClock


async def test_it_goes_on_for_a_day_without_its_hub(tmp_path: Path) -> None:
    clock, held = SimClock(), tmp_path / "sentinel.lock"
    held.touch()
    heard_s = clock.monotonic_s()
    waiting = asyncio.create_task(until_not_needed(held, lambda: heard_s, clock))
    await clock.advance(WITHOUT_HUB_S_MAX)
    assert not waiting.done()
    heard_s = clock.monotonic_s()  # the hub is back
    await clock.advance(WITHOUT_HUB_S_MAX)
    assert not waiting.done()
    await clock.advance(2 * LOOK_EVERY_S)
    assert "24 hours" in await waiting


async def test_it_ends_when_its_folder_is_removed_or_belongs_to_another(tmp_path: Path) -> None:
    clock, held = SimClock(), tmp_path / "sentinel.lock"
    held.touch()
    waiting = asyncio.create_task(until_not_needed(held, clock.monotonic_s, clock))
    await clock.advance(LOOK_EVERY_S)
    assert not waiting.done()
    other = tmp_path / "other"
    other.touch()
    other.replace(held)  # removed and made anew
    await clock.advance(LOOK_EVERY_S)
    assert "is gone" in await waiting
