"""What did a push bring? Lines by stream, and those that cannot be taken, with the reason of the first."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from harch.sentinel.collect.names import label_name
from harch.sentinel.collect.part_limits import check_count
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LogBatch

TIME_NS_MAX = 2**63 - 1
LINES_MAX = 500_000  # of one push
METADATA_MAX = 1000  # of one line; a store may allow fewer


@dataclass(slots=True)
class Pushed:
    batches: list[LogBatch] = field(default_factory=list)
    refused: int = 0  # lines
    reason: str = ""  # of the first line that was refused

    def refuse(self, lines: int, reason: str) -> None:
        self.refused += lines
        self.reason = self.reason or reason

    def add(self, stream: Labels, times_ns: list[int], lines: list[str], metadata: list[Labels]) -> None:
        """Lines of one stream; those with a time that no store can keep are refused."""
        if times_ns and not (min(times_ns) > 0 and max(times_ns) <= TIME_NS_MAX):
            times_ns, lines, metadata = self._with_good_times(times_ns, lines, metadata)
        if times_ns:
            self.batches.append(LogBatch(stream, times_ns, lines, metadata if any(metadata) else ()))

    def _with_good_times(
        self, times_ns: list[int], lines: list[str], metadata: list[Labels]
    ) -> tuple[list[int], list[str], list[Labels]]:
        good = [place for place, time_ns in enumerate(times_ns) if 0 < time_ns <= TIME_NS_MAX]
        first = next(time_ns for time_ns in times_ns if not 0 < time_ns <= TIME_NS_MAX)
        self.refuse(len(times_ns) - len(good), f"{first} is not a time in nanoseconds between 1970 and 2262")
        return (
            [times_ns[place] for place in good],
            [lines[place] for place in good],
            [metadata[place] for place in good] if metadata else [],
        )


_remembered = lru_cache(maxsize=16_384)(label_name)  # the same few names come with every line
_REMEMBERED_MAX = 256


def plain_name(name: str) -> str:
    return _remembered(name) if len(name) <= _REMEMBERED_MAX else label_name(name)


def metadata_of(pairs: dict[str, str]) -> Labels:
    """Names become ones that LogQL can write, as Loki does it: `http.method` is `http_method`. Raises E0606."""
    check_count(len(pairs), METADATA_MAX, "metadata entries on one line")
    return labels({plain_name(name): value for name, value in pairs.items() if name})
