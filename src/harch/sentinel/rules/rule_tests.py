"""Do rules say what they should? Test files in the format of `promtool test rules`, run against any evaluator.

Input series are given at steps of `interval`, groups are evaluated every `evaluation_interval` from time zero on, and
after each time of interest the firing alerts and the values of expressions are compared with what is expected.
"""

# harch: pure

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import yaml
from msgspec import Struct, field

from harch.base.errors import HarchError
from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.rules.alert_state import ALERT_NAME, AlertState
from harch.sentinel.rules.definitions import Evaluate, RuleGroup, RuleSample
from harch.sentinel.rules.evaluation import ScheduledEvaluation, Tools, evaluate_group
from harch.sentinel.rules.group_state import GroupState, fresh

SAMPLES_PER_SERIES_MAX = 100_000
TURNS_MAX = 100_000
_TOLERANCE = 1e-9

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_STEP = re.compile(
    rf"(?P<start>[-+]?(?:{_NUMBER}|Inf|NaN)|_|stale)(?:(?P<sign>[-+])(?P<by>{_NUMBER}))?(?:x(?P<times>\d{{1,6}}))?"
)
_SERIES = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)?\s*(?:\{(?P<inner>.*)\})?", re.DOTALL)
_PAIR = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')


class TestStore(Evaluate, Protocol):
    """An evaluator over samples that are given to it."""

    def append(self, samples: Sequence[RuleSample], /) -> None: ...


class InputSeries(Struct):
    series: str
    values: str


class ExpectedAlert(Struct):
    exp_labels: dict[str, str] = field(default_factory=dict)
    exp_annotations: dict[str, str] = field(default_factory=dict)


class AlertTest(Struct):
    eval_time: str
    alertname: str
    exp_alerts: list[ExpectedAlert] = field(default_factory=list)


class ExpectedSample(Struct):
    labels: str
    value: float


class ExpressionTest(Struct):
    expr: str
    eval_time: str
    exp_samples: list[ExpectedSample] = field(default_factory=list)


class RuleTest(Struct):
    interval: str = "1m"
    name: str = ""
    input_series: list[InputSeries] = field(default_factory=list)
    alert_rule_test: list[AlertTest] = field(default_factory=list)
    promql_expr_test: list[ExpressionTest] = field(default_factory=list)
    external_labels: dict[str, str] = field(default_factory=dict)
    external_url: str = ""


class RuleTestFile(Struct):
    tests: list[RuleTest]
    rule_files: list[str] = field(default_factory=list)
    evaluation_interval: str = "1m"
    group_eval_order: list[str] = field(default_factory=list)

    def in_order(self, groups: Iterable[RuleGroup]) -> list[RuleGroup]:
        """Groups that `group_eval_order` names first, in that order; the others as they stand in their files."""
        places = {name: place for place, name in enumerate(self.group_eval_order)}
        return sorted(groups, key=lambda group: places.get(group.name, len(places)))


def parse_rule_tests(text: str, *, name: str) -> RuleTestFile:
    """Raises E0640."""
    try:
        return msgspec.convert(yaml.safe_load(text), RuleTestFile, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise HarchError("E0640", f"{name}: {error}", hint="write it as for `promtool test rules`") from error


def run_rule_test(
    test: RuleTest, groups: Iterable[RuleGroup], new_store: Callable[[], TestStore], *, evaluation_interval: str = "1m"
) -> Iterator[str]:
    """What is not as expected, in words; nothing if all is well."""
    interval_ms = parse_duration_ms(evaluation_interval)
    store = new_store()
    store.append(list(_samples(test)))
    running = [(group, fresh(group)) for group in groups]
    times = [one.eval_time for one in test.alert_rule_test] + [one.eval_time for one in test.promql_expr_test]
    last_ms = max(map(parse_duration_ms, times), default=0)
    if interval_ms <= 0 or last_ms // interval_ms > TURNS_MAX:
        raise HarchError("E0640", "the test has too many evaluations", hint="shorten it, or widen the interval")
    tools = Tools(
        evaluate=store,
        append=store.append,
        elapsed_s=lambda: 0.0,
        external_labels=test.external_labels,
        external_url=test.external_url,
    )
    for at_ms in range(0, last_ms + 1, interval_ms):
        for group, state in running:
            for rule, reason in evaluate_group(group, state, ScheduledEvaluation(at_ms), tools).failures:
                yield f"{test.name}: {rule} at {at_ms // 1000}s failed: {reason}"
        until_ms = at_ms + interval_ms
        for one in test.alert_rule_test:
            if at_ms <= parse_duration_ms(one.eval_time) < until_ms:
                yield from _compared_alerts(test, one, [state for _, state in running])
        for expression in test.promql_expr_test:
            if at_ms <= parse_duration_ms(expression.eval_time) < until_ms:
                yield from _compared_values(test, expression, store)


def _compared_alerts(test: RuleTest, one: AlertTest, states: Sequence[GroupState]) -> Iterator[str]:
    found = {
        alert.labels: alert.annotations
        for state in states
        for rule in state.rules
        for alert in rule.alerts.values()
        if alert.state is AlertState.FIRING and dict(alert.labels)[ALERT_NAME] == one.alertname
    }
    wanted = {labels({ALERT_NAME: one.alertname, **want.exp_labels}): want.exp_annotations for want in one.exp_alerts}
    where = f"{test.name}: {one.alertname} at {one.eval_time}"
    for key in wanted.keys() - found.keys():
        yield f"{where}: expected {dict(key)}, firing: {[dict(other) for other in found]}"
    for key in found.keys() - wanted.keys():
        yield f"{where}: unexpected {dict(key)}"
    for key in wanted.keys() & found.keys():
        if wanted[key] != found[key]:
            yield f"{where}: expected annotations {wanted[key]}, got {found[key]}"


def _compared_values(test: RuleTest, one: ExpressionTest, store: TestStore) -> Iterator[str]:
    found: Mapping[Labels, float] = {
        labels(pairs): value for pairs, value in store(one.expr, parse_duration_ms(one.eval_time))
    }
    wanted = {parse_series(sample.labels): sample.value for sample in one.exp_samples}
    where = f"{test.name}: {one.expr} at {one.eval_time}"
    if found.keys() != wanted.keys():
        yield f"{where}: expected {[dict(key) for key in wanted]}, got {[dict(key) for key in found]}"
        return
    for key, value in wanted.items():
        same = math.isclose(value, found[key], rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        if not same and not (math.isnan(value) and math.isnan(found[key])):
            yield f"{where}: expected {value} for {dict(key)}, got {found[key]}"


def _samples(test: RuleTest) -> Iterator[RuleSample]:
    interval_ms = parse_duration_ms(test.interval)
    for given in test.input_series:
        key = parse_series(given.series)
        for step, value in enumerate(expanded(given.values)):
            if value is not None:
                yield RuleSample(key, step * interval_ms, value)


def expanded(text: str) -> list[float | None]:
    """`1+2x3 _ stale` is 1, 3, 5, 7, nothing, and the end of the series. Raises E0640."""
    found: list[float | None] = []
    for word in text.split():
        match = _STEP.fullmatch(word)
        if match is None or len(found) > SAMPLES_PER_SERIES_MAX:
            raise HarchError(
                "E0640", f"`{word[:40]}` are not sample values", hint="write e.g. `0+1x10`, `_x5` or `stale`"
            )
        times = int(match["times"] or 0)
        if match["start"] == "_":
            found += [None] * max(times, 1)
            continue
        start = STALE if match["start"] == "stale" else float(match["start"])
        by = float((match["sign"] or "+") + (match["by"] or "0"))
        found += [start + by * step if by else start for step in range(times + 1)]
    return found


def parse_series(text: str) -> Labels:
    """`up{job="x"}` or `{__name__="up"}`. Raises E0640."""
    match = _SERIES.fullmatch(text.strip())
    inner = (match["inner"] or "").strip() if match else ""
    pairs = dict(_PAIR.findall(inner))
    if match is None or _PAIR.sub("", inner).strip():
        raise HarchError("E0640", f"`{text[:80]}` is not a series", hint='write e.g. up{job="node"}')
    if match["name"]:
        pairs[METRIC_NAME] = match["name"]
    return labels({name: value.replace('\\"', '"').replace("\\\\", "\\") for name, value in pairs.items()})
