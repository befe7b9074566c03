"""A store in a folder, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harch.content.store import ContentStore
from harch.testing.clock import SimClock
from unit.content_store.content_samples import opened


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "content"


@pytest.fixture
def store(folder: Path, clock: SimClock) -> Iterator[ContentStore]:
    made = opened(folder, clock=clock)
    yield made
    made.close()
