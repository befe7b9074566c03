"""What do stages look at? Texts, metadata, labels: whatever is not looked at need not be read or extracted."""

from __future__ import annotations

from collections.abc import Iterable

from harch.sentinel.logql.stages.wanting import LabelsRead
from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.syntax.stages import Condition, Stage
from harch.sentinel.logql.texts.patterns import escaped, pattern_expression
from harch.sentinel.logql.texts.templates import compiled_template
from harch.sentinel.model.logs import FilterKind, LineFilter

_CHANGES_TEXTS = (stages.LineFormat, stages.Decolorize, stages.Unpack)
_PARSES = (stages.Json, stages.Logfmt, stages.Pattern, stages.Regexp, stages.Unpack)


def labels_read(pipeline: Iterable[Stage], answer: Iterable[str]) -> LabelsRead | None:
    """The labels that a pipeline and its answer look at; None where that cannot be told."""
    names = set(answer)
    for stage in pipeline:
        match stage:
            case stages.LabelFilter(condition=condition):
                names |= condition_labels(condition)
            case stages.LineFormat(template=template):
                read = compiled_template(template).labels
                if read is None:
                    return None
                names |= read
            case stages.LabelFormat(assignments=assignments):
                for one in assignments:
                    read = compiled_template(one.value).labels if one.is_template else frozenset({one.value})
                    if read is None:
                        return None
                    names |= {*read, one.label}
            case stages.Drop(labels=labels) | stages.Keep(labels=labels):
                names |= {one if isinstance(one, str) else one.name for one in labels}
    return LabelsRead(names)


def condition_labels(condition: Condition) -> set[str]:
    match condition:
        case stages.Both(left=left, right=right) | stages.Either(left=left, right=right):
            return condition_labels(left) | condition_labels(right)
        case stages.TextCondition(matcher=matcher):
            return {matcher.name}
        case stages.AmountCondition(label=label) | stages.AddressCondition(label=label):
            return {label}


def needs_texts(pipeline: Iterable[Stage]) -> bool:
    """Whether any stage looks at texts, once the store has applied its filters."""
    for stage in pipeline:
        match stage:
            case stages.LabelFilter() | stages.Drop() | stages.Keep():
                continue
            case stages.LabelFormat(assignments=assignments):
                if any(one.is_template and compiled_template(one.value).labels is None for one in assignments):
                    return True
            case _:
                return True
    return False


def needs_labels(pipeline: Iterable[Stage]) -> bool:
    """Whether any stage looks at labels, so that metadata must be read."""
    return any(not isinstance(stage, stages.LineFilter | stages.Decolorize | stages.Drop) for stage in pipeline)


def pushed_down(pipeline: tuple[Stage, ...]) -> tuple[tuple[LineFilter, ...], tuple[Stage, ...]]:
    """The filters that the store applies, and the stages that are left.

    A filter on lines may go before parsers and filters on labels: it drops the same lines there. It may not go before
    a stage that changes texts.
    """
    filters: list[LineFilter] = []
    left: list[Stage] = []
    for place, stage in enumerate(pipeline):
        if isinstance(stage, _CHANGES_TEXTS):
            return tuple(filters), (*left, *pipeline[place:])
        found = _store_filters(stage) if isinstance(stage, stages.LineFilter) else None
        if found is None:
            left.append(stage)
        else:
            filters += found
    return tuple(filters), tuple(left)


def _store_filters(stage: stages.LineFilter) -> list[LineFilter] | None:
    """The same filter in the store's words; None where it has none. Filters for addresses are ours alone."""
    if any(one.is_ip for one in stage.texts):
        return None
    texts = [one.text for one in stage.texts]
    operator = stage.operator
    if operator in (stages.LineOperator.FITS, stages.LineOperator.FITS_NOT):
        texts = [pattern_expression(text) for text in texts]
    if operator is stages.LineOperator.LACKS:
        return [LineFilter(FilterKind.LACKS, text) for text in texts]
    if operator.is_negative:
        return [LineFilter(FilterKind.MATCHES_NOT, text) for text in texts]
    if operator is stages.LineOperator.CONTAINS:
        if len(texts) == 1:
            return [LineFilter(FilterKind.CONTAINS, texts[0])]
        return [LineFilter(FilterKind.MATCHES, "|".join(map(escaped, texts)))]
    joined = texts[0] if len(texts) == 1 else "|".join(f"(?:{text})" for text in texts)
    return [LineFilter(FilterKind.MATCHES, joined)]


def has_parser(pipeline: Iterable[Stage]) -> bool:
    return any(isinstance(stage, _PARSES) for stage in pipeline)
