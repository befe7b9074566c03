"""What do stages look at? Texts, metadata, labels: whatever is not looked at need not be read or extracted."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable

from harch.sentinel.logql.stages.page import LabelsRead
from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.nodes import Condition, Stage
from harch.sentinel.logql.text.fields import escaped, pattern_expression
from harch.sentinel.logql.text.templates import compiled_template
from harch.sentinel.model.logs import FilterKind, LineFilter

_CHANGES_BODIES = (nodes.LineFormat, nodes.Decolorize, nodes.Unpack)
_PARSES = (nodes.Json, nodes.Logfmt, nodes.PatternParser, nodes.Regexp, nodes.Unpack)


def labels_read(pipeline: Iterable[Stage], answer: Iterable[str]) -> LabelsRead | None:
    """The labels that a pipeline and its answer look at; None where that cannot be known."""
    names = set(answer)
    for stage in pipeline:
        match stage:
            case nodes.LabelFilter(condition=condition):
                names |= condition_labels(condition)
            case nodes.LineFormat(template=template):
                read = compiled_template(template).labels
                if read is None:
                    return None
                names |= read
            case nodes.LabelFormat(assignments=assignments):
                for one in assignments:
                    read = compiled_template(one.value).labels if one.is_template else frozenset({one.value})
                    if read is None:
                        return None
                    names |= {*read, one.label}
            case nodes.DropLabels(labels=labels) | nodes.KeepLabels(labels=labels):
                names |= {one if isinstance(one, str) else one.name for one in labels}
    return LabelsRead(names)


def condition_labels(condition: Condition) -> set[str]:
    match condition:
        case nodes.Both(left=left, right=right) | nodes.Either(left=left, right=right):
            return condition_labels(left) | condition_labels(right)
        case nodes.TextCondition(matcher=matcher):
            return {matcher.name}
        case nodes.AmountCondition(label=label) | nodes.AddressCondition(label=label):
            return {label}


def needs_bodies(pipeline: Iterable[Stage]) -> bool:
    """Whether any stage looks at texts, once the store has applied its filters."""
    for stage in pipeline:
        match stage:
            case nodes.LabelFilter() | nodes.DropLabels() | nodes.KeepLabels():
                continue
            case nodes.LabelFormat(assignments=assignments):
                if any(one.is_template and compiled_template(one.value).labels is None for one in assignments):
                    return True
            case _:
                return True
    return False


def needs_labels(pipeline: Iterable[Stage]) -> bool:
    """Whether any stage looks at labels, so that metadata must be read."""
    return any(not isinstance(stage, nodes.LineFilterStage | nodes.Decolorize | nodes.DropLabels) for stage in pipeline)


def pushed_down(pipeline: tuple[Stage, ...]) -> tuple[tuple[LineFilter, ...], tuple[Stage, ...]]:
    """The filters that the store applies, and the stages that are left.

    A filter on lines may go before parsers and filters on labels: it drops the same lines there. It may not go before
    a stage that changes texts.
    """
    filters: list[LineFilter] = []
    left: list[Stage] = []
    for place, stage in enumerate(pipeline):
        if isinstance(stage, _CHANGES_BODIES):
            return tuple(filters), (*left, *pipeline[place:])
        found = _store_filters(stage) if isinstance(stage, nodes.LineFilterStage) else None
        if found is None:
            left.append(stage)
        else:
            filters += found
    return tuple(filters), tuple(left)


def _store_filters(stage: nodes.LineFilterStage) -> list[LineFilter] | None:
    """The same filter in the store's words; None where it has none. Filters for addresses are ours alone."""
    if any(one.is_ip for one in stage.strings):
        return None
    strings = [one.text for one in stage.strings]
    operator = stage.operator
    if operator in (nodes.LineOperator.FITS, nodes.LineOperator.FITS_NOT):
        strings = [pattern_expression(text) for text in strings]
    if operator is nodes.LineOperator.LACKS:
        return [LineFilter(FilterKind.LACKS, text) for text in strings]
    if operator.is_negative:
        return [LineFilter(FilterKind.MATCHES_NOT, text) for text in strings]
    if operator is nodes.LineOperator.CONTAINS:
        if len(strings) == 1:
            return [LineFilter(FilterKind.CONTAINS, strings[0])]
        return [LineFilter(FilterKind.MATCHES, "|".join(map(escaped, strings)))]
    joined = strings[0] if len(strings) == 1 else "|".join(f"(?:{text})" for text in strings)
    return [LineFilter(FilterKind.MATCHES, joined)]


def has_parser(pipeline: Iterable[Stage]) -> bool:
    return any(isinstance(stage, _PARSES) for stage in pipeline)
