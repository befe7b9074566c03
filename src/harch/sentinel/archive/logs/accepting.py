"""Which lines are taken? Those within the tenant's limits; others are counted by the reason why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harch.sentinel.archive.limits import LogLimits
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LinesWritten, LogBatch
from harch.sentinel.store.rate import Rate

_TIME_MAX = 1 << 62


@dataclass(slots=True)
class Accepted:
    batches: list[LogBatch] = field(default_factory=list)
    lines: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: str = ""
    has_counted: bool = False

    @property
    def written(self) -> LinesWritten:
        return LinesWritten(self.lines, dict(self.refused), self.first_refusal)

    def refuse(self, code: str, reason: str, lines: int = 1) -> None:
        self.refused[code] += lines
        self.first_refusal = self.first_refusal or reason


class Accepting:
    def __init__(self, limits: LogLimits, monotonic_s: Callable[[], float]) -> None:
        self._limits = limits
        self._lines = Rate(limits.lines_per_s_max, limits.lines_burst_max, "lines", monotonic_s)
        self._bytes = Rate(limits.bytes_per_s_max, limits.bytes_burst_max, "bytes", monotonic_s)
        self._known: set[Labels] = set()  # streams that were found valid and counted

    def accept(self, batches: Sequence[LogBatch], in_memory: Callable[[], set[Labels]]) -> Accepted:
        """Raises E0628 where the tenant sends too fast. `in_memory` tells which streams count for the limit."""
        accepted = Accepted()
        for batch in batches:
            if not batch.texts:
                continue
            code, reason = self._judged(batch.labels, accepted, in_memory)
            if code:
                accepted.refuse(code, reason, len(batch.texts))
                continue
            taken = self._lines_of(batch, accepted)
            if taken is not None and taken.texts:
                accepted.batches.append(taken)
                accepted.lines += len(taken.texts)
        self._lines.take(accepted.lines)
        if self._limits.bytes_per_s_max is not None:
            self._bytes.take(sum(len(text) for batch in accepted.batches for text in batch.texts))
        return accepted

    def _judged(self, labels: Labels, accepted: Accepted, in_memory: Callable[[], set[Labels]]) -> tuple[str, str]:
        """Code and reason why lines of this stream are not taken; empty if they are."""
        if labels in self._known:
            return "", ""
        if reason := self._wrong(labels):
            return "E0626", reason
        if len(self._known) >= self._limits.streams_max:
            if not accepted.has_counted:  # streams fall silent: once a request it is worth a look
                self._known = in_memory() | {batch.labels for batch in accepted.batches}
                accepted.has_counted = True
            if len(self._known) >= self._limits.streams_max:
                return "E0627", f"{self._limits.streams_max} streams are allowed at a time"
        self._known.add(labels)
        return "", ""

    def _wrong(self, labels: Labels) -> str:
        limits = self._limits
        if not labels:
            return "a stream needs a label"
        if len(labels) > limits.labels_per_stream_max:
            return f"{len(labels)} labels; {limits.labels_per_stream_max} are allowed"
        for name, value in labels:
            try:
                sizes = len(name.encode()), len(value.encode())
            except UnicodeEncodeError:
                return "a label is no UTF-8"
            if sizes[0] > limits.label_name_bytes_max or sizes[1] > limits.label_value_bytes_max:
                return f"label `{name[:40]}` is longer than {limits.label_value_bytes_max} bytes"
        return ""

    def _lines_of(self, batch: LogBatch, accepted: Accepted) -> LogBatch | None:
        """The batch, or what may stay of it. The usual batch is looked at as a whole, without a step for each line."""
        longest = self._limits.line_bytes_max
        is_plain = (
            not batch.metadata
            and max(map(len, batch.texts)) * 4 <= longest
            and -_TIME_MAX < min(batch.times_ns) <= max(batch.times_ns) < _TIME_MAX
        )
        if is_plain:
            try:
                "".join(batch.texts).encode()
            except UnicodeEncodeError:
                is_plain = False
        if is_plain:
            return batch
        kept = [place for place in range(len(batch.texts)) if self._takes(batch, place, accepted)]
        if len(kept) == len(batch.texts):
            return batch
        return LogBatch(
            batch.labels,
            [batch.times_ns[place] for place in kept],
            [batch.texts[place] for place in kept],
            [batch.metadata[place] for place in kept] if batch.metadata else (),
        )

    def _takes(self, batch: LogBatch, place: int, accepted: Accepted) -> bool:
        text, limits = batch.texts[place], self._limits
        try:
            size = len(text) if text.isascii() else len(text.encode())
            more = batch.metadata[place] if batch.metadata else ()
            more_size = sum(len(name.encode()) + len(value.encode()) for name, value in more)
        except UnicodeEncodeError:
            accepted.refuse("E0626", "a line is no UTF-8")
            return False
        if size > limits.line_bytes_max:
            accepted.refuse("E0626", f"a line of {size} bytes; {limits.line_bytes_max} are allowed")
        elif len(more) > limits.metadata_per_line_max or more_size > limits.metadata_bytes_max:
            accepted.refuse("E0626", f"a line with {len(more)} fields of metadata, {more_size} bytes")
        elif not -_TIME_MAX < batch.times_ns[place] < _TIME_MAX:
            accepted.refuse("E0626", f"a line of the time {batch.times_ns[place]}")
        else:
            return True
        return False
