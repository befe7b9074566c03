"""What is asked of the store, and what is left to do? Filters go down, columns that nobody looks at are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harch.sentinel.logql.evaluate.work import Work
from harch.sentinel.logql.stages.pipeline import Pipeline
from harch.sentinel.logql.stages.reading import needs_labels, needs_texts, pushed_down
from harch.sentinel.logql.stages.wanting import EXTRACTED, LabelsRead
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.logql.syntax.stages import Condition, Stage
from harch.sentinel.model.logs import LogRequest, Order
from harch.sentinel.model.matchers import Matcher, MatchKind


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to the store, and the pipeline for what it answers."""

    request: LogRequest
    pipeline: Pipeline


def planned(
    query: LogQuery,
    start_ns: int,
    end_ns: int,
    order: Order,
    work: Work,
    *,
    wanted: LabelsRead | None,
    answer_texts: bool,
    answer_labels: bool,
) -> Planned:
    """`answer_texts` and `answer_labels`: whether the answer itself shows texts, or labels that metadata may hold."""
    filters, left = pushed_down(query.stages)
    request = LogRequest(
        query.matchers,
        start_ns,
        end_ns,
        filters,
        _metadata_matchers(query, start_ns, end_ns, work),
        order,
        with_texts=answer_texts or needs_texts(left),
        with_metadata=answer_labels or needs_labels(left),
        scanned_bytes_max=work.limits.scanned_bytes_max,
    )
    return Planned(request, Pipeline(left, wanted, work.now_ns))


def _metadata_matchers(query: LogQuery, start_ns: int, end_ns: int, work: Work) -> tuple[Matcher, ...]:
    """`| trace_id="…"` before any other stage is the store's to answer, if no stream has such a label itself."""
    found = [matcher for stage in _first_filters(query.stages) for matcher in _equalities(stage.condition)]
    if not found:
        return ()
    streams = work.readable.streams(query.matchers, start_ns, end_ns)
    known = {name for labels in streams for name, _ in labels}
    return tuple(matcher for matcher in found if matcher.name not in known)


def _first_filters(pipeline: tuple[Stage, ...]) -> Iterator[stages.LabelFilter]:
    for stage in pipeline:
        if isinstance(stage, stages.LabelFilter):
            yield stage
        elif not isinstance(stage, stages.LineFilter):
            return


def _equalities(condition: Condition) -> list[Matcher]:
    """What must hold in any case. Errors and names that hide no stream's label are ours, and no store knows them."""
    match condition:
        case stages.Both(left=left, right=right):
            return [*_equalities(left), *_equalities(right)]
        case stages.TextCondition(matcher=Matcher(kind=MatchKind.EQUAL, value=value) as matcher):
            is_ours = matcher.name.startswith("__") or matcher.name.endswith(EXTRACTED)
            return [matcher] if value and not is_ours else []
        case _:
            return []
