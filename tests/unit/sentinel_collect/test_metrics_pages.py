"""Pages of metrics are read as Prometheus reads them, and a page that is wrong says where."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.collect.exposition import ExpositionPage, PageCache, read_page
from harch.sentinel.model.labels import METRIC_NAME, MetricType, labels

NOW = 1_700_000_000_000


def samples(text: str, **options: bool) -> dict[tuple[tuple[str, str], ...], tuple[int, float]]:
    page = read_page(text, NOW, **options)
    return {batch.labels: (batch.timestamps[0], batch.values[0]) for batch in page.samples}  # type: ignore[misc]


def named(name: str, **pairs: str) -> tuple[tuple[str, str], ...]:
    return labels({**pairs, METRIC_NAME: name})


def test_names_labels_values_and_times() -> None:
    found = samples(
        "# HELP requests Requests\\nso far.\n# TYPE requests counter\n"
        'requests{code="200",path="/a\\"b\\\\c\\n"} 1.5e3 1600000000000\n'
        "requests 2\n up  +Inf\n"
        '{"with.dots", "a.b"="c"} 3\n'
    )
    assert found == {
        named("requests", code="200", path='/a"b\\c\n'): (1_600_000_000_000, 1500.0),
        named("requests"): (NOW, 2.0),
        named("up"): (NOW, math.inf),
        labels({METRIC_NAME: "with.dots", "a.b": "c"}): (NOW, 3.0),
    }


def test_what_is_told_about_a_metric() -> None:
    page = read_page("# HELP size Bytes\\nkept.\n# TYPE size gauge\n# a remark\nsize 1\n# TYPE old untyped\n", NOW)
    assert page.metadata["size"].type is MetricType.GAUGE
    assert page.metadata["size"].help == "Bytes\nkept."
    assert page.metadata["old"].type is MetricType.UNKNOWN


def test_openmetrics_has_seconds_exemplars_and_starts() -> None:
    text = (
        "# TYPE hits counter\n# UNIT hits seconds\n"
        'hits_total{a="1"} 5 1600000000.5 # {trace_id="abc"} 0.67 1600000000.25\n'
        'hits_created{a="1"} 1500000000.125\n# EOF\n'
    )
    (batch,) = read_page(text, NOW, openmetrics=True).samples
    assert batch.timestamps == (1_600_000_000_500,)
    assert batch.starts == (1_500_000_000_125,)
    assert batch.exemplars[0].labels == (("trace_id", "abc"),)
    assert (batch.exemplars[0].value, batch.exemplars[0].timestamp) == (0.67, 1_600_000_000_250)


def test_a_page_of_openmetrics_that_was_cut_short_is_refused() -> None:
    with pytest.raises(HarchError, match="EOF"):
        read_page("# TYPE hits counter\nhits_total 5\n", NOW, openmetrics=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("metric", "ends where a number"),
        ("metric one", "not a number"),
        ("metric 1_000", "not a number"),
        ('metric{a="b" 1', "not closed"),
        ("metric{a=b} 1", "not quoted"),
        ('metric{a="b",a="c"} 1', "twice"),
        ('{a="b"} 1', "no metric name"),
        ("metric 1 2 3", "after the value"),
        ("metric 1 nan", "not a time"),
        ("# TYPE metric thing", "not a metric type"),
    ],
)
def test_mistakes_name_their_line(line: str, reason: str) -> None:
    with pytest.raises(HarchError, match=f"line 2 of the page: .*{reason}"):
        read_page(f"fine 1\n{line}\n", NOW)


def test_a_page_has_a_limit() -> None:
    with pytest.raises(HarchError, match="more than 2 samples"):
        read_page("a 1\nb 1\nc 1\n", NOW, limit=2)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    refusals = []
    try:
        read_page(text, NOW)
    except HarchError as refusal:
        refusals.append(refusal.code)
    assert refusals in ([], ["E0670"])


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(min_size=1, max_size=12)),
    st.floats(allow_nan=False),
)
def test_what_is_written_is_read_back(pairs: dict[str, str], value: float) -> None:
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in pairs.items()
    }
    inside = ",".join(f'{name}="{text}"' for name, text in escaped.items())
    (batch,) = read_page(f"metric{{{inside}}} {value!r}\n", NOW).samples
    assert batch.labels == labels({**pairs, METRIC_NAME: "metric"})
    assert batch.values[0] == value


LINES = st.sampled_from(
    [
        "up 1",
        "up 2",
        "up\t3 ",
        'hits{code="200"} 5',
        'hits{code="200",} 6',
        'hits{code="20}0"}7',
        'hits{code="2#0"} 8',
        'hits{code="200"} 9 1600000000000',
        'hits{code="200"} 5 # {trace="a"} 1',
        'hits{code="200"} } 5',
        'hits{code="200"} 1_0',
        'hits{code="200"}',
        'hits{a="b",a="c"} 1',
        '{"with.dots", "a.b"="c"} 3',
        "# TYPE requests counter",
        "requests_created 1.6e9",
        'requests_created{a="b"} 1.6e9',
        'requests_total{a="b"} 3',
        "# EOF",
    ]
)


@given(st.lists(st.lists(LINES, max_size=6), min_size=2, max_size=4), st.booleans())
def test_a_page_says_the_same_whatever_was_read_before_it(pages: list[list[str]], openmetrics: bool) -> None:
    known = PageCache[str]()

    def read(lines: list[str], cache: PageCache[str] | None) -> ExpositionPage | str:
        try:
            return read_page("\n".join(lines), NOW, openmetrics=openmetrics, known=cache)
        except HarchError as refusal:
            return refusal.message

    for lines in pages:
        assert read(lines, known) == read(lines, None)


def test_a_series_is_read_once_and_forgotten_with_the_first_page_that_lacks_it() -> None:
    known = PageCache[str]()
    (first,) = read_page('hits{code="200"} 1', NOW, known=known).samples
    (second,) = read_page('hits{code="200"} 2', NOW, known=known).samples
    assert second.labels is first.labels
    read_page("up 1", NOW, known=known)
    (third,) = read_page('hits{code="200"} 3', NOW, known=known).samples
    assert third.labels == first.labels
    assert third.labels is not first.labels
