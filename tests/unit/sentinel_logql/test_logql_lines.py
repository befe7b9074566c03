"""What pipelines make of lines."""

from __future__ import annotations

import json

import pytest
from logql_world import T0, S, bodies, entries, found_labels, store_of

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.context import LogQueryLimits
from harch.sentinel.logql.stages import pipeline
from harch.sentinel.logql.stages.requirements import pushed_down
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.logql.syntax.parser import parse
from harch.sentinel.model.logs import FilterKind, LineFilter, LineOrder

WEB = {"app": "web"}
LINES = [(0, "GET /a 10.0.0.1 200"), (1, "POST /b 192.168.7.9 500"), (2, "GET /c ::1 404"), (3, "")]

FILTERS = {
    '|= "GET"': [0, 2],
    '!= "GET"': [1, 3],
    '|= "GET" or "POST"': [0, 1, 2],
    '!= "GET" or "POST"': [3],
    '|~ "/[ab]"': [0, 1],
    '!~ "/[ab]" or "404"': [3],
    '|> "GET <_> 200"': [0],
    '|> "<_> 500"': [1],
    '|> "GET<_>" or "POST<_>"': [0, 1, 2],
    '!> "<_>/<_>"': [3],
    '|= ip("10.0.0.0/8")': [0],
    '|= ip("192.168.7.1-192.168.7.20")': [1],
    '!= ip("10.0.0.0/8") or ip("::1")': [1, 3],
    '|= ""': [0, 1, 2, 3],
    '|= "GET" |= "404"': [2],
    '|= "." or "a+b"': [0, 1],
}


@pytest.mark.parametrize(("stage", "places"), FILTERS.items())
def test_line_filters_keep_the_right_lines(stage: str, places: list[int]) -> None:
    expected = [LINES[place][1] for place in places]
    store = store_of((WEB, LINES))
    assert bodies(store, f'{{app="web"}} {stage}') == expected
    # Behind a stage that may change texts the store cannot help, and the answer is the same.
    assert bodies(store, f'{{app="web"}} | decolorize {stage}') == expected


def test_filters_go_to_the_store_until_texts_change() -> None:
    tree = parse('{a="b"} |= "x" | json | level="error" |~ "y" or "z" | line_format "{{.q}}" != "w"')
    assert isinstance(tree, LogQuery)
    filters, left = pushed_down(tree.stages)
    assert filters == (LineFilter(FilterKind.CONTAINS, "x"), LineFilter(FilterKind.MATCHES, "(?:y)|(?:z)"))
    assert [type(stage).__name__ for stage in left] == ["Json", "LabelFilter", "LineFormat", "LineFilterStage"]


def test_json_flattens_objects_and_keeps_numbers_as_they_are_written() -> None:
    line = '{"a":"x","n":1.50,"t":true,"z":null,"l":[1],"o":{"p.q":{"r":"é"}},"1st":"y","app":"in"}'
    assert found_labels(store_of((WEB, [(0, line)])), '{app="web"} | json') == [
        {"app": "web", "app_extracted": "in", "a": "x", "n": "1.50", "t": "true", "o_p_q_r": "é", "_1st": "y"}
    ]


def test_json_expressions_reach_into_lists_and_objects() -> None:
    line = '{"s":[{"id":7},{"id":8}],"h":{"user-agent":"curl"},"o":{"a":[1.0,true,null]}}'
    query = '{app="web"} | json first="s[0].id", agent="h[\\"user-agent\\"]", whole="o", missing="x.y"'
    assert found_labels(store_of((WEB, [(0, line)])), query) == [
        {"app": "web", "first": "7", "agent": "curl", "whole": '{"a":[1.0,true,null]}'}
    ]


def test_logfmt_reads_quotes_and_passes_over_mistakes_unless_strict() -> None:
    store = store_of((WEB, [(0, r'level=warn msg="it \"works\"" empty= bare k=="x" took=3ms')]))
    assert found_labels(store, '{app="web"} | logfmt') == [
        {"app": "web", "level": "warn", "msg": 'it "works"', "took": "3ms"}
    ]
    strict = found_labels(store, '{app="web"} | logfmt --strict')[0]
    assert strict["__error__"] == "LogfmtParserErr"
    assert "took" not in strict
    assert found_labels(store, '{app="web"} | logfmt lvl="level", took')[0] == {
        "app": "web",
        "lvl": "warn",
        "took": "3ms",
    }


def test_patterns_and_expressions_name_parts_of_a_line() -> None:
    store = store_of((WEB, [(0, '1.2.3.4 - - "GET /x?y=1 HTTP" 200'), (1, "something else")]))
    named = {"app": "web", "ip": "1.2.3.4", "method": "GET", "path": "/x?y=1"}
    assert found_labels(store, '{app="web"} | pattern `<ip> - - "<method> <path> <_>` | method!=""') == [named]
    expression = r'`(?P<ip>\S+) - - "(?P<method>\w+) (?P<path>\S+)`'
    assert found_labels(store, f'{{app="web"}} | regexp {expression} | ip!=""') == [named]


def test_unpack_brings_the_line_back() -> None:
    packed = json.dumps({"_entry": "hello", "pod": "p1", "n": 5})
    (entry,) = entries(store_of((WEB, [(0, packed)])), '{app="web"} | unpack |= "hello"')
    assert entry.text == "hello"
    assert dict(entry.parsed) == {"pod": "p1"}


CONDITIONS = {
    'level="error"': [1],
    'level=~"err.*|info"': [0, 1],
    "status >= 400": [1, 2],
    "status = 200 or status = 404": [0, 2],
    "took > 15ms and took < 1m": [1],
    "size <= 2KB": [0],
    'ip = ip("10.0.0.0/8")': [0, 2],
    'ip != ip("10.0.0.0/8")': [1],
    'level="nope" or status = 200': [0],
    'missing=""': [0, 1, 2],
    "missing > 1": [],
    "status != 200, took > 15ms": [1, 2],
}


@pytest.mark.parametrize(("condition", "places"), CONDITIONS.items())
def test_conditions_compare_texts_numbers_durations_sizes_and_addresses(condition: str, places: list[int]) -> None:
    lines = [
        (0, "level=info status=200 took=10ms size=1KB ip=10.0.0.1"),
        (1, "level=error status=500 took=20ms size=5KB ip=172.16.0.1"),
        (2, "level=warn status=404 took=2m size=3MiB ip=10.9.9.9"),
    ]
    assert bodies(store_of((WEB, lines)), f'{{app="web"}} | logfmt | {condition}') == [
        lines[place][1] for place in places
    ]


def test_a_value_that_cannot_be_compared_stays_with_an_error() -> None:
    store = store_of((WEB, [(0, "status=oops"), (1, "status=500")]))
    found = found_labels(store, '{app="web"} | logfmt | status > 400')
    assert [one.get("__error__") for one in found] == ["LabelFilterErr", None]
    assert bodies(store, '{app="web"} | logfmt | status > 400 | __error__=""') == ["status=500"]


def test_what_no_parser_can_read_stays_with_an_error_that_can_be_dropped() -> None:
    store = store_of((WEB, [(0, "no json"), (1, "[1]"), (2, '{"a":1}')]))
    found = found_labels(store, '{app="web"} | json')
    assert [one.get("__error__", "") for one in found] == ["JSONParserErr", "JSONParserErr", ""]
    assert found_labels(store, '{app="web"} | json | drop __error__')[0] == {"app": "web"}
    assert bodies(store, '{app="web"} | json | __error__="JSONParserErr"') == ["no json", "[1]"]


def test_metadata_is_a_label_below_what_is_extracted_and_beside_the_streams() -> None:
    store = store_of(
        (
            WEB,
            [
                (0, "trace_id=inner", {"trace_id": "t1", "app": "meta"}),
                (1, "x", {"trace_id": "t2"}),
            ],
        )
    )
    assert bodies(store, '{app="web"} | trace_id="t2"') == ["x"]
    first = entries(store, '{app="web"} | logfmt')[0]
    assert dict(first.stream) == {"app": "web"}
    assert dict(first.metadata) == {"app_extracted": "meta"}
    assert dict(first.parsed) == {"trace_id": "inner"}


TEMPLATES = {
    "{{.app}}: {{.msg}}": "web: hi there",
    "{{ .msg | upper | replace ` ` `_` }}": "HI_THERE",
    '{{ __line__ | trunc 3 }}|{{ __timestamp__ | date "2006-01-02T15:04:05Z07:00" }}': "msg|2023-11-14T22:13:20Z",
    "{{ if eq .n `5` }}five{{ else }}other{{ end }}": "five",
    "{{ add 1 2 .n }} {{ divf .n 2 }} {{ mul 2 3 }} {{ round 2.567 1 }}": "8 2.5 6 2.6",
    "{{ .missing | default `none` }}": "none",
    "{{ regexReplaceAll `(h)i` .msg `${1}ey` }}": "hey there",
    "{{ alignLeft 4 .app }}|{{ alignRight 5 .app }}": "web |  web",
    "{{ b64enc .app }} {{ b64dec `d2Vi` }} {{ urlencode `a b&c` }} {{ urldecode `a+b%26` }}": "d2Vi web a+b%26c a b&",
    "{{ contains `the` .msg }} {{ hasPrefix `hi` .msg }} {{ count `h` .msg }}": "true true 2",
    '{{ range $k, $v := fromJson `{"a":1}` }}{{$k}}={{$v}}{{ end }}': "a=1",
    "{{ __timestamp__ | unixEpoch }} {{ (unixToTime `1700000000`).Unix }}": "1700000000 1700000000",
    "{{ duration `90s` }} {{ bytes `2KB` }}": "90 2000",
}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.items())
def test_templates_rewrite_lines(template: str, expected: str) -> None:
    store = store_of((WEB, [(0, 'msg="hi there" n=5')]))
    quoted = json.dumps(template)
    assert bodies(store, f'{{app="web"}} | logfmt | line_format {quoted}') == [expected]


def test_a_template_that_fails_leaves_the_line_with_an_error() -> None:
    (entry,) = entries(store_of((WEB, [(0, "x")])), '{app="web"} | line_format "{{ div 1 0 }}"')
    assert entry.text == "x"
    assert dict(entry.parsed)["__error__"] == "TemplateFormatErr"


def test_labels_are_renamed_written_dropped_and_kept() -> None:
    store = store_of(({"app": "web", "env": "prod"}, [(0, "level=info user=bob"), (1, "level=error user=eve")]))
    base = '{app="web"} | logfmt'
    assert found_labels(store, f'{base} | label_format who=user, where="{{{{.app}}}}-{{{{.env}}}}"')[0] == {
        "app": "web",
        "env": "prod",
        "level": "info",
        "who": "bob",
        "where": "web-prod",
    }
    assert found_labels(store, f'{base} | drop env, level="info", user') == [
        {"app": "web"},
        {"app": "web", "level": "error"},
    ]
    assert found_labels(store, f'{base} | keep app, level="error"') == [
        {"app": "web"},
        {"app": "web", "level": "error"},
    ]
    assert found_labels(store, f'{base} | label_format app="x" | drop app')[0] == {
        "env": "prod",
        "level": "info",
        "user": "bob",
    }


def test_colours_are_taken_out() -> None:
    assert bodies(store_of((WEB, [(0, "\x1b[31mred\x1b[0m plain")])), '{app="web"} | decolorize') == ["red plain"]


def test_lines_come_in_the_order_asked_for_up_to_the_limit() -> None:
    store = store_of((WEB, [(second, f"a{second}") for second in range(5)]), ({"app": "db"}, [(2, "b")]))
    newest = entries(store, '{app=~".+"}', limit=3, order=LineOrder.NEWEST_FIRST)
    assert [entry.text for entry in newest] == ["a4", "a3", "b"]
    oldest = entries(store, '{app=~".+"} | logfmt | app!=""', limit=4)
    assert [entry.text for entry in oldest] == ["a0", "a1", "b", "a2"]
    assert [entry.time_ns for entry in entries(store, '{app="web"}', interval_s=2)] == [T0, T0 + 2 * S, T0 + 4 * S]


def test_lines_with_endless_fields_and_templates_that_flood_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [(0, json.dumps({f"k{line}_{field}": "v" for field in range(100)})) for line in range(60)]
    with pytest.raises(HarchError, match="different labels") as caught:
        entries(store_of((WEB, fields)), '{app="web"} | json | k0_0="v"')
    assert caught.value.code == "E0687"
    assert len(entries(store_of((WEB, fields)), '{app="web"} | json one="k0_0" | one="v"')) == 1
    monkeypatch.setattr(pipeline, "WRITTEN_CHARS_MAX", 100_000)
    lines = [(second, "x") for second in range(20)]
    flood = "{{ repeat 10000 `x` }}"
    with pytest.raises(HarchError, match="templates produce more") as caught:
        entries(store_of((WEB, lines)), f'{{app="web"}} | line_format "{flood}" | app=""')
    assert caught.value.code == "E0687"


def test_more_lines_than_one_answer_may_have_are_refused() -> None:
    store = store_of((WEB, [(second, "x" * 100) for second in range(50)]))
    with pytest.raises(HarchError, match="max entries limit") as caught:
        entries(store, '{app="web"}', limit=6000)
    assert caught.value.code == "E0687"
    with pytest.raises(HarchError) as caught:
        entries(store, '{app="web"}', limits=LogQueryLimits(result_bytes_max=1000))
    assert caught.value.code == "E0687"
