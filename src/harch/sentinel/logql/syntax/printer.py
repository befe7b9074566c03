"""How is a LogQL tree written? Its normal form on one line, which parses to the same tree again."""

# harch: pure

from __future__ import annotations

from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.lexer import ALONE
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Condition,
    Grouping,
    LabelReplace,
    LogQuery,
    Metric,
    Number,
    Query,
    RangeAggregation,
    Stage,
    Unit,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.logql.text.values import format_bytes, format_duration
from harch.sentinel.model.labels import Matcher
from harch.sentinel.promql.syntax.literals import format_number, quote
from harch.sentinel.promql.syntax.nodes import Cardinality, VectorMatching
from harch.sentinel.promql.syntax.printer import label_text, matcher_text

# Conditions on labels that are called like a stage, and would be read as that stage.
_LIKE_STAGES = tuple(f"{word}{sign}" for word in sorted(ALONE) for sign in ("!=", "!~", " !="))


def to_text(node: Query) -> str:
    match node:
        case LogQuery():
            return _query_text(node)
        case RangeAggregation():
            return _range_text(node)
        case VectorAggregation(operator=operator, expr=expr, parameter=parameter, grouping=grouping):
            inside = to_text(expr) if parameter is None else f"{parameter}, {to_text(expr)}"
            group = "" if grouping is None else f" {_grouping_text(grouping)} "
            return f"{operator}{group}({inside})"
        case BinaryOperation(left=left, right=right):
            return f"{_side_text(left)} {_operator_text(node)} {_side_text(right)}"
        case Number(value=value):
            return _number_text(value)
        case VectorOf(value=value):
            return f"vector({_number_text(value)})"
        case LabelReplace():
            strings = (node.target, node.replacement, node.source, node.expression)
            return f"label_replace({to_text(node.expr)}, {', '.join(map(quote, strings))})"


def matchers_text(matchers: tuple[Matcher, ...]) -> str:
    return f"{{{', '.join(map(matcher_text, matchers))}}}"


def _query_text(node: LogQuery) -> str:
    text = matchers_text(node.matchers)
    before: Stage | None = None
    for stage in node.stages:
        if before is not None and _would_join(before, stage):
            text = f"({text})"
        text += f" {stage_text(stage)}"
        before = stage
    return text


def _would_join(before: Stage, stage: Stage) -> bool:
    """`| drop a != "x"` drops some values of a label; parentheses make a filter on lines of it."""
    return (
        isinstance(before, nodes.DropLabels | nodes.KeepLabels)
        and isinstance(before.labels[-1], str)
        and isinstance(stage, nodes.LineFilterStage)
        and stage.operator in (nodes.LineOperator.LACKS, nodes.LineOperator.MATCHES_NOT)
    )


def _range_text(node: RangeAggregation) -> str:
    parts = [_query_text(node.query)]
    if node.unwrap is not None:
        label, conversion = node.unwrap.label, node.unwrap.conversion
        parts.append(f"| unwrap {conversion}({label})" if conversion else f"| unwrap {label}")
        parts += map(stage_text, node.unwrap.filters)
    text = f"{' '.join(parts)} [{format_duration(node.range_ns)}]"
    text += f" offset {format_duration(node.offset_ns)}" if node.offset_ns else ""
    given = "" if node.parameter is None else f"{_number_text(node.parameter)}, "
    group = "" if node.grouping is None else f" {_grouping_text(node.grouping)}"
    return f"{node.function}({given}{text}){group}"


def _side_text(node: Metric) -> str:
    return f"({to_text(node)})" if isinstance(node, BinaryOperation) else to_text(node)


def _operator_text(node: BinaryOperation) -> str:
    text = node.operator + (" bool" if node.return_bool else "")
    return text if node.matching is None else text + _matching_text(node.matching)


def _matching_text(matching: VectorMatching) -> str:
    grouped = matching.cardinality in (Cardinality.MANY_TO_ONE, Cardinality.ONE_TO_MANY)
    text = ""
    if matching.labels or matching.on or grouped:
        text += f" {'on' if matching.on else 'ignoring'} ({_names_text(matching.labels)})"
    if grouped:
        side = "left" if matching.cardinality is Cardinality.MANY_TO_ONE else "right"
        text += f" group_{side} ({_names_text(matching.include)})"
    return text


def _grouping_text(grouping: Grouping) -> str:
    return f"{'without' if grouping.without else 'by'} ({_names_text(grouping.labels)})"


def _names_text(names: tuple[str, ...]) -> str:
    return ", ".join(map(label_text, names))


def _number_text(value: float) -> str:
    return format_number(value).removeprefix("+")


def stage_text(stage: Stage) -> str:
    match stage:
        case nodes.LineFilterStage(operator=operator, strings=strings):
            return f"{operator.value} {' or '.join(map(_line_text, strings))}"
        case nodes.Json(extractions=extractions):
            return " ".join(["| json", _extractions_text(extractions)]).rstrip()
        case nodes.Logfmt(extractions=extractions):
            flags = [flag for flag, is_on in (("--strict", stage.strict), ("--keep-empty", stage.keep_empty)) if is_on]
            return " ".join(["| logfmt", *flags, _extractions_text(extractions)]).rstrip()
        case nodes.PatternParser(text=text):
            return f"| pattern {quote(text)}"
        case nodes.Regexp(expression=expression):
            return f"| regexp {quote(expression)}"
        case nodes.Unpack():
            return "| unpack"
        case nodes.LabelFilter(condition=condition):
            text = condition_text(condition)
            return f"| ({text})" if text.startswith(_LIKE_STAGES) else f"| {text}"
        case nodes.LineFormat(template=template):
            return f"| line_format {quote(template)}"
        case nodes.LabelFormat(assignments=assignments):
            return f"| label_format {', '.join(map(_assignment_text, assignments))}"
        case nodes.Decolorize():
            return "| decolorize"
        case nodes.DropLabels(labels=labels):
            return f"| drop {_labels_text(labels)}"
        case nodes.KeepLabels(labels=labels):
            return f"| keep {_labels_text(labels)}"


def _line_text(one: nodes.LineText) -> str:
    return f"ip({quote(one.text)})" if one.is_ip else quote(one.text)


def _extractions_text(extractions: tuple[nodes.Extraction, ...]) -> str:
    return ", ".join(f"{one.label}={quote(one.expression)}" for one in extractions)


def _assignment_text(one: nodes.LabelAssignment) -> str:
    return f"{one.label}={quote(one.value) if one.is_template else one.value}"


def _labels_text(labels: tuple[str | Matcher, ...]) -> str:
    return ", ".join(one if isinstance(one, str) else matcher_text(one) for one in labels)


def condition_text(condition: Condition) -> str:
    match condition:
        case nodes.TextCondition(matcher=matcher):
            return matcher_text(matcher)
        case nodes.AmountCondition(label=label, operator=operator, amount=amount, unit=unit):
            return f"{label} {operator} {_amount_text(amount, unit)}"
        case nodes.AddressCondition(label=label, is_negative=is_negative, pattern=pattern):
            return f"{label} {'!=' if is_negative else '='} ip({quote(pattern)})"
        case nodes.Both(left=left, right=right):
            return f"{_joined_text(left)} and {_joined_text(right)}"
        case nodes.Either(left=left, right=right):
            return f"{_joined_text(left)} or {_joined_text(right)}"


def _joined_text(condition: Condition) -> str:
    text = condition_text(condition)
    return f"({text})" if isinstance(condition, nodes.Both | nodes.Either) else text


def _amount_text(amount: float, unit: Unit) -> str:
    match unit:
        case Unit.DURATION:
            return format_duration(int(amount))
        case Unit.BYTES:
            return format_bytes(int(amount))
        case Unit.NUMBER:
            return _number_text(amount)
