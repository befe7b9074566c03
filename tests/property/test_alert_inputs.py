"""Can what people and peers send break alerting? Whatever comes in, the answer is a result or an error with a code."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.alerts import api, api_silences
from harch.sentinel.alerts.api import AlertFilter
from harch.sentinel.alerts.config import default_config
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.matchers import format_matchers, parse_matchers
from harch.sentinel.alerts.shared_state import SharedState
from harch.sentinel.model.durations import format_duration_ms, parse_duration_ms
from harch.sentinel.rules.file import parse_rules
from harch.sentinel.rules.rule_tests import expanded, parse_series
from harch.sentinel.rules.templates.expansion import TemplateContext, alert_text
from harch.sentinel.rules.templates.interpreter import OUTPUT_CHARS_MAX
from harch.sentinel.rules.templates.values import show_float, sprintf

NOW = 1_767_261_600_000
PARTS = (
    *("{{", "}}", "{{-", "-}}", " ", "$labels", "$value", ".", "|", "(", ")", '"a"', "`b`", "1", "1.5", ":=", "=", ","),
    *("if", "else", "end", "range", "with", "define", "template", "block", "break", "continue", "nil", "true", "$x"),
    *("printf", "humanize", "humanizeTimestamp", "query", "first", "index", "slice", "len", "match", "args", "and"),
    *("-1", "1e400", "'a'", "/*", "*/", "\\", "%", '"%999999d"', ".Labels.a", "$", "eq", "lt", "print", "reReplaceAll"),
)


def code_of(call: Callable[[], object]) -> str:
    """The code of the refusal; "" where there is none. Any other error breaks the test."""
    try:
        call()
    except HarchError as error:
        return error.code
    return ""


templates = st.lists(st.sampled_from(PARTS), max_size=14).map(" ".join) | st.text(max_size=40)


@given(templates, st.floats())
@example("{{ humanizeTimestamp 1e300 }}", 0.0)
@example("{{ printf `%*d` 1000000 1 }}", 0.0)
@example("{{ index `a` -1 }}", 0.0)
@example('{{ "\\ud800" }}{{ printf "%c" 55296 }}', 0.0)
@example("{{ slice `abc` 2 1 }}", 0.0)
@example("{{ range $x := -5 }}{{ end }}", 0.0)
@example("{{ define `a` }}{{ end }}{{ template `a` }}{{ block `b` . }}x{{ end }}", 0.0)
def test_any_template_becomes_a_bounded_text(template: str, value: float):
    world = TemplateContext(evaluate=lambda expression, at_ms: [({"a": "b"}, 1.0)])
    text = alert_text(template, {"a": "b"}, value, at_ms=NOW, world=world)
    assert len(text.encode()) <= 4 * (OUTPUT_CHARS_MAX + 100)


@given(
    st.text(alphabet="%d.5*-+# 0vsqxeTtgfcU[]", max_size=12),
    st.lists(st.integers() | st.floats() | st.text(max_size=5)),
)
def test_any_format_gives_a_text(form: str, values: list[object]):
    assert isinstance(sprintf(form, values), str)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_written_so_that_it_reads_back_equal(value: float):
    for verb in "gef":
        assert float(show_float(value, verb)) == value


YAML_PARTS = (
    "groups",
    ":",
    "-",
    "\n",
    " ",
    "  ",
    "name",
    "rules",
    "alert",
    "expr",
    "for",
    "a",
    "{",
    "}",
    "[",
    "]",
    "&a",
    "*a",
)
YAML_PARTS += (
    "route",
    "receiver",
    "receivers",
    "matchers",
    "'",
    '"',
    "5m",
    "|",
    ">",
    "? ",
    "!!x",
    "<<",
    "#",
    "\t",
    "labels",
)


@given(st.lists(st.sampled_from(YAML_PARTS), max_size=25).map("".join) | st.text(max_size=60))
@example("route: {receiver: a}\nreceivers: [{name: a}]\ninhibit_rules: [{}]\n")
@example("a: &a [*a]")
@example('groups: [{name: "\\ud800"}]')
@example("groups: &a\n- *a")
@example("route: &r {receiver: x, routes: [*r]}\nreceivers: [{name: x}]")
def test_any_file_is_read_or_refused_with_a_code(text: str):
    assert code_of(lambda: parse_rules(text, name="f")) in ("", "E0640")
    assert code_of(lambda: parse_config(text)) in ("", "E0643")


@given(st.text(alphabet='ab=!~"{}, \\\n.*(', max_size=16))
def test_any_matcher_is_read_or_refused_and_what_is_read_reads_the_same_again(text: str):
    code = code_of(lambda: parse_matchers(text))
    assert code in ("", "E0644")
    if not code:
        found = parse_matchers(text)
        assert parse_matchers(format_matchers(found)) == found


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["labels", "annotations", "startsAt", "endsAt", "matchers", "name", "value", "id", "createdBy"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json, st.lists(st.text(max_size=8), max_size=2), st.text(max_size=8))
def test_any_request_is_answered_and_never_breaks_the_desk(body: object, filters: list[str], receiver: str):
    machine = AlertMachine(default_config(), SharedState())
    query = AlertFilter(filter=tuple(filters), receiver=receiver)
    for handle in (
        lambda: api.post_alerts(machine, body, now_ms=NOW),
        lambda: api.post_alerts(machine, [body], now_ms=NOW),
        lambda: api_silences.post_silence(machine, body, new_id="x", now_ms=NOW),
        lambda: api.post_ack(machine, receiver, body, now_ms=NOW),
        lambda: api.get_alerts(machine, query, now_ms=NOW),
        lambda: api.get_alert_groups(machine, query, now_ms=NOW),
        lambda: api_silences.get_silences(machine, filters, now_ms=NOW),
    ):
        status, _ = api.answered(handle)
        assert status in (200, 400, 404)
    machine.tick(NOW)


@given(st.integers(0, 9 * 10**12))
def test_a_duration_is_written_so_that_it_reads_back_equal(duration_ms: int):
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


@given(st.text(alphabet='0123456789.+-x_stale eInfNa{}=",', max_size=20))
def test_series_of_rule_tests_are_read_or_refused(text: str):
    assert code_of(lambda: expanded(text)) in ("", "E0640")
    assert code_of(lambda: parse_series(text)) in ("", "E0640")
