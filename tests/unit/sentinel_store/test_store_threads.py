"""Readers beside writers: no reader sees half a sample, and what it saw once it sees again."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from harch.sentinel.model.labels import MatchKind, labels
from harch.sentinel.model.selection import SeriesBatch
from unit.sentinel_store.stores import ALL_TIMES, everything, matcher, open_database

SERIES = [labels({"__name__": "m", "n": str(number)}) for number in range(8)]
ROUNDS = 150


def test_readers_see_whole_samples_while_others_write_cut_and_forget(tmp_path: Path) -> None:
    """Values are made of their times, so that a sample of two halves would show."""
    database = open_database(tmp_path)
    stopped, problems = threading.Event(), []

    def read() -> None:
        seen: dict[str, int] = {}
        while not stopped.is_set():
            selection = database.select([matcher("n", "[0-5]", MatchKind.REGEX)], *ALL_TIMES, limit=1 << 40)
            samples = selection.samples
            for place in range(selection.series.count):
                first, count = int(samples.first[place]), int(samples.count[place])
                times = samples.timestamps[first : first + count]
                values = samples.values[first : first + count]
                name = dict(selection.series.labels_of(place))["n"]
                if not np.array_equal(values, times * 3.0 + int(name)):
                    problems.append(f"series {name}: values of other times")
                if (np.diff(times) <= 0).any():
                    problems.append(f"series {name}: times do not ascend")
                if count < seen.get(name, 0):
                    problems.append(f"series {name}: {seen[name]} samples, then {count}")
                seen[name] = count
            if problems:
                return

    def flush() -> None:
        while not stopped.is_set():
            database.flush()

    others = [threading.Thread(target=work) for work in (read, read, flush)]
    for other in others:
        other.start()
    rng = np.random.default_rng(7)
    for round_ in range(ROUNDS):
        times = round_ * 100 + rng.permutation(100)[:60]  # some come late, some even after a cut of later ones
        batches = [
            SeriesBatch(one, times.tolist(), (times * 3.0 + number).tolist()) for number, one in enumerate(SERIES)
        ]
        assert database.append(batches).refused == {}
    stopped.set()
    for other in others:
        other.join(60)
    assert problems == []
    assert sum(map(len, everything(database).values())) == ROUNDS * 60 * len(SERIES)
    database.close()
