"""What do templates write? The expected texts are those of Prometheus."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.sentinel.rules.templates.expansion import TemplateContext, alert_text, check_alert_text
from harch.sentinel.rules.templates.interpreter import OUTPUT_CHARS_MAX
from harch.sentinel.rules.templates.values import show_float, sprintf

LABELS = {"__name__": "up", "instance": "web-1.example.org:9100", "job": "node"}
ANSWERS = {
    "metric": [({"instance": "b"}, 21.0), ({"instance": "a"}, 11.0)],
    "none": [],
}


def answer(expression: str, at_ms: int) -> list[tuple[dict[str, str], float]]:
    if expression not in ANSWERS:
        raise HarchError("E0201", "1:1: unexpected character")
    return ANSWERS[expression]


def filled(text: str, value: float = 1.5) -> str:
    world = TemplateContext(evaluate=answer, external_labels={"hub": "dakhla"}, external_url="https://sentinel.example")
    return alert_text(text, LABELS, value, at_ms=1_700_000_000_500, world=world)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain }} text", "plain }} text"),
        ("{{ $labels.instance }} {{ .Labels.job }} {{ $value }}", "web-1.example.org:9100 node 1.5"),
        ("[{{ $labels.missing }}]", "[]"),
        ("{{ $externalLabels.hub }} {{ .ExternalURL }} {{ externalURL }}", "dakhla " + "https://sentinel.example " * 2),
        ('{{ printf "%.2f%% of %s" .Value $labels.job }}', "1.50% of node"),
        ("a {{- 1 -}} b", "a1b"),
        ("a {{- /* a comment */ -}} b", "ab"),
        ("{{ if eq $labels.job `node` }}yes{{ else }}no{{ end }}", "yes"),
        ("{{ if gt $value 2.0 }}big{{ else if gt $value 1.0 }}middle{{ else }}small{{ end }}", "middle"),
        ('{{ with query "none" }}{{ . | first | value }}{{ else }}nothing{{ end }}', "nothing"),
        ('{{ query "metric" | sortByLabel "instance" | first | label "instance" }}', "a"),
        ('{{ range query "metric" }}{{ .Labels.instance }}:{{ .Value }} {{ end }}', "b:21 a:11 "),
        ('{{ range $i, $r := query "metric" }}{{ if $i }}{{ continue }}{{ end }}{{ $r.Value }}{{ end }}', "21"),
        ("{{ range $name, $text := $labels }}{{ $name }},{{ end }}", "__name__,instance,job,"),
        ('{{ $x := "a" }}{{ if true }}{{ $x = "b" }}{{ end }}{{ $x }}', "b"),
        ('{{ $x := "a" }}{{ if true }}{{ $x := "b" }}{{ end }}{{ $x }}', "a"),
        ('{{ define "t" }}<{{ .arg0 }} {{ .arg1 }}>{{ end }}{{ template "t" (args 1 "z") }}', "<1 z>"),
        ("{{ $labels.instance | stripPort }} {{ $labels.instance | stripDomain }}", "web-1.example.org web-1:9100"),
        ('{{ stripPort "[::1]:80" }} {{ stripDomain "10.0.0.1:80" }} {{ stripPort "plain" }}', "::1 10.0.0.1:80 plain"),
        ('{{ reReplaceAll "(a)(b)" "${2}$1$$" "abc" }}', "ba$c"),
        ('{{ match "^we" $labels.instance }} {{ match "xx" "a" }}', "true false"),
        ('{{ "aa bB" | title }} {{ toUpper "a" }} {{ toLower "A" }}', "Aa BB A a"),
        ("{{ and 1 0 }} {{ or 0 2 }} {{ not 1 }} {{ len `abc` }} {{ index $labels `job` }}", "0 2 false 3 node"),
        ('{{ parseDuration "1h2m10ms" }} {{ now }}', "3720.01 1.7000000005e+09"),
        ('{{ tableLink "up == 0" }}', "/graph?g0.expr=up+%3D%3D+0&g0.tab=1"),
        ("{{ safeHtml `<b>` }} {{ html `<b>` }} {{ urlquery `a b` }}", "<b> &lt;b&gt; a+b"),
    ],
)
def test_a_template_writes_what_prometheus_writes(template: str, text: str):
    assert filled(template).strip() == text.strip()


@pytest.mark.parametrize(
    ("function", "values", "texts"),
    [
        (
            "humanize",
            [0.0, 1.0, 1234567.0, 0.12, 1e-9, float("nan"), float("inf"), -1500.0],
            ["0", "1", "1.235M", "120m", "1n", "NaN", "+Inf", "-1.5k"],
        ),
        ("humanize1024", [0.0, 1.0, 1048576.0, 0.12, 1024.0], ["0", "1", "1Mi", "0.12", "1ki"]),
        (
            "humanizeDuration",
            [0.0, 1.0, 60.0, 3600.0, 86400.0, 86400 + 2 * 3600 + 3.0, 899.9, 0.1, 1e-4, 123.456, -61.0],
            [
                "0s",
                "1s",
                "1m 0s",
                "1h 0m 0s",
                "1d 0h 0m 0s",
                "1d 2h 0m 3s",
                "14m 59s",
                "100ms",
                "100us",
                "2m 3s",
                "-1m 1s",
            ],
        ),
        ("humanizePercentage", [-0.22222, 0.0, 0.1234567, 1.23456], ["-22.22%", "0%", "12.35%", "123.5%"]),
        (
            "humanizeTimestamp",
            [1435065584.128, 0.0],
            ["2015-06-23 13:19:44.128 +0000 UTC", "1970-01-01 00:00:00 +0000 UTC"],
        ),
    ],
)
def test_numbers_are_humanized_as_in_prometheus(function: str, values: list[float], texts: list[str]):
    assert [filled(f"{{{{ $value | {function} }}}}", value) for value in values] == texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (100000.0, "100000"),
        (1000000.0, "1e+06"),
        (123456789.0, "1.23456789e+08"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (0.1 + 0.2, "0.30000000000000004"),
    ],
)
def test_floats_print_as_in_go(value: float, text: str):
    assert show_float(value) == text


def test_printf_has_gos_verbs_and_shows_mistakes_in_the_text():
    assert sprintf("%d %5d|%-5d|%05d %+d %x", [1, 2, 3, 4, 5, 255]) == "1     2|3    |00004 +5 ff"
    assert sprintf("%s %q %8.3f %e %g %v %t", ["a", 'b"', 2.0, 1.0, 0.5, 1.5, True]) == (
        'a "b\\""    2.000 1.000000e+00 0.5 1.5 true'
    )
    assert sprintf("%d", [1.5]) == "%!d(float64=1.5)"
    assert sprintf("%d %s", [1]) == "1 %!s(MISSING)"
    assert sprintf("%d", [1, "x"]) == "1%!(EXTRA string=x)"


@pytest.mark.parametrize(
    "template",
    [
        "{{ nope }}",
        "{{ $nope }}",
        "{{ if }}x{{ end }}",
        "{{ if true }}",
        "{{ end }}",
        "{{ 'a }}",
        "{{ 1 2 }}",
        "{{ break }}",
    ],
)
def test_mistakes_are_found_before_any_alert_fires(template: str):
    with pytest.raises(HarchError) as refused:
        check_alert_text(template)
    assert refused.value.code == "E0641"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ if gt $value 1 }}x{{ end }}", "incompatible types for comparison"),
        ('{{ query "broken(" }}', "unexpected character"),
        ('{{ query "none" | first }}', "no elements"),
        ("{{ .Nope }}", "can't evaluate field Nope"),
        ("{{ toUpper 1 }}", "expected string; got int"),
        ("{{ range $x := 40000 }}{{ range $y := 40000 }}{{ end }}{{ end }}", "steps"),
        ('{{ range $x := 3000 }}{{ printf "%900d" 1 }}{{ end }}', f"more than {OUTPUT_CHARS_MAX}"),
        ('{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}', "deeper"),
        ('{{ range $x := 30 }}{{ query "metric" }}{{ end }}', "20 queries"),
    ],
)
def test_a_text_that_fails_or_runs_away_says_so_in_its_place(template: str, reason: str):
    text = filled(template)
    assert text.startswith("<error expanding template: ")
    assert reason in text


def test_a_hostile_pattern_takes_linear_time():
    assert filled('{{ match "(a*)*(a*)*b" "' + "a" * 5000 + '" }}') == "false"
    assert "E0602" not in filled('{{ match "(?=a)" "a" }}')
    assert "error expanding" in filled('{{ match "(?=a)" "a" }}')
