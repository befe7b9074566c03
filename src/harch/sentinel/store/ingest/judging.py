"""Which series of a request may its sender write? Asked before anything is stored; the others are refused by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.label_bytes import Refusal, read_labels
from harch.sentinel.store.limits import Limits
from harch.sentinel.store.request import Request


@dataclass(frozen=True, slots=True)
class Judge:
    """`why_not` answers why labels may not be written, or nothing. It may raise HarchError to refuse all of a request.

    A request whose bytes have none of `markers` is not looked at any further; without markers every row is.
    """

    why_not: Callable[[Mapping[str, str]], str]
    markers: Sequence[bytes] = ()


def judge_rows(request: Request, judge: Judge | None, limits: Limits) -> None:
    """Adds refusals to the request. Raises whatever the judge raises."""
    if judge is None or not len(request.label_starts):
        return
    ends, starts = request.label_ends.tolist(), request.label_starts.tolist()
    data = request.data[: max(ends)].tobytes()
    if judge.markers and not any(marker in data for marker in judge.markers):
        return
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        try:
            why = judge.why_not(dict(read_labels(data[start:end], limits)))
        except Refusal:
            continue  # labels that cannot be read are refused with their own reason
        if why:
            request.refusals[row] = Refusal("E0103", why)


def judge_batches(batches: Sequence[SeriesBatch], judge: Judge | None) -> tuple[list[SeriesBatch], int, str]:
    """Those that may be written, the number of samples that may not, and the first reason."""
    if judge is None:
        return list(batches), 0, ""
    kept, refused, first = [], 0, ""
    for batch in batches:
        why = judge.why_not(dict(batch.labels))
        if why:
            refused += len(batch.timestamps)
            first = first or why
        else:
            kept.append(batch)
    return kept, refused, first
