"""Samples of a target carry its labels, and what it does not show any more ends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harch.base.errors import HarchError
from harch.sentinel.collect.exposition import PageCache, read_page
from harch.sentinel.collect.scrape.client import ScrapeAnswer, Scraped, ended, scraped, size_bytes
from harch.sentinel.collect.scrape.config import ScrapeConfig, StaticConfig, parse_config
from harch.sentinel.collect.scrape.relabel import Relabel, relabelled
from harch.sentinel.collect.scrape.targets import ScrapeTarget, read_groups, targets_of
from harch.sentinel.model.histograms import STALE_BITS
from harch.sentinel.model.labels import METRIC_NAME, Labels

NOW = 1_700_000_000_000
JOB = ScrapeConfig("shop")
TARGET = ScrapeTarget("shop", "http://a:1/metrics", (("instance", "a:1"), ("job", "shop")))


def answer(text: str) -> ScrapeAnswer:
    return ScrapeAnswer(NOW, 0.25, read_page(text, NOW))


def told(found: Scraped) -> dict[str, float]:
    return {dict(batch.labels)[METRIC_NAME]: batch.values[0] for batch in found.batches}  # type: ignore[misc]


def is_stale(value: object) -> bool:
    return int(np.float64(value).view(np.uint64)) == STALE_BITS  # type: ignore[arg-type]


def test_facts_about_the_scrape_stand_beside_the_samples() -> None:
    found = scraped(JOB, TARGET, answer("hits 1\nsize 2\n"), frozenset())
    assert told(found) == {
        "hits": 1.0,
        "size": 2.0,
        "up": 1.0,
        "scrape_duration_seconds": 0.25,
        "scrape_samples_scraped": 2.0,
        "scrape_samples_post_metric_relabeling": 2.0,
        "scrape_series_added": 2.0,
    }
    assert all(dict(batch.labels)["job"] == "shop" for batch in found.batches)


def test_a_series_that_vanished_ends_and_all_end_when_the_target_is_silent() -> None:
    first = scraped(JOB, TARGET, answer("hits 1\nsize 2\n"), frozenset())
    second = scraped(JOB, TARGET, answer("hits 2\n"), first.seen)
    assert is_stale(told(second)["size"])
    assert told(second)["hits"] == 2.0
    silent = scraped(JOB, TARGET, ScrapeAnswer(NOW + 1, 10.0, failure="timed out"), second.seen)
    assert is_stale(told(silent)["hits"])
    assert told(silent)["up"] == 0.0
    assert silent.failure == "timed out"


def test_a_target_that_is_no_longer_asked_ends_whole() -> None:
    found = scraped(JOB, TARGET, answer("hits 1\n"), frozenset())
    markers = ended(TARGET, found.seen, NOW + 1)
    assert all(is_stale(batch.values[0]) for batch in markers)
    assert {"hits", "up"} <= {dict(batch.labels)[METRIC_NAME] for batch in markers}


def test_samples_at_times_of_their_own_get_no_marker() -> None:
    found = scraped(JOB, TARGET, answer(f"hits 1 {NOW - 5}\n"), frozenset())
    assert not found.seen


def test_the_targets_labels_win_unless_the_sample_is_trusted() -> None:
    page = answer('hits{job="inner",instance="x"} 1\n')
    (sample, *_) = scraped(JOB, TARGET, page, frozenset()).batches
    assert dict(sample.labels)["exported_job"] == "inner"
    assert dict(sample.labels)["job"] == "shop"
    (sample, *_) = scraped(ScrapeConfig("shop", honor_labels=True), TARGET, page, frozenset()).batches
    assert dict(sample.labels)["job"] == "inner"


def test_labels_of_a_repeated_series_are_those_of_its_first_page() -> None:
    drop = Relabel((METRIC_NAME,), action="drop", regex="hits")
    job = ScrapeConfig("shop", metric_relabel_configs=(drop, Relabel(regex="tmp", action="labeldrop")))
    pages = [answer('hits 1\nsize{tmp="a"} 2\n'), answer('hits 2\nsize{tmp="a"} 3\nup_to 4\n')]
    known = PageCache[Labels]()
    for page in pages:
        kept = scraped(job, TARGET, page, frozenset(), known)
        anew = scraped(job, TARGET, page, frozenset())
        assert [(batch.labels, batch.values) for batch in kept.batches] == [
            (batch.labels, batch.values) for batch in anew.batches
        ]
        assert "hits" not in told(kept)


def test_a_page_beyond_the_jobs_limit_is_refused_whole() -> None:
    found = scraped(ScrapeConfig("shop", sample_limit=1), TARGET, answer("a 1\nb 1\n"), frozenset())
    assert told(found)["up"] == 0.0
    assert "a" not in told(found)
    assert "limit" in found.failure


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (Relabel(("a",), target_label="b", regex="x(.*)", replacement="${1}!"), {"a": "xyz"}, {"a": "xyz", "b": "yz!"}),
        (Relabel(("a",), target_label="b"), {"a": ""}, {"a": ""}),
        (Relabel(("a",), action="keep", regex="x.*"), {"a": "y"}, None),
        (Relabel(("a",), action="drop", regex="x.*"), {"a": "y"}, {"a": "y"}),
        (
            Relabel(("a", "b"), target_label="c", separator="-", action="uppercase"),
            {"a": "x", "b": "y"},
            {"a": "x", "b": "y", "c": "X-Y"},
        ),
        (Relabel(regex="tmp_.*", action="labeldrop"), {"tmp_a": "1", "b": "2"}, {"b": "2"}),
        (
            Relabel(regex="meta_(.*)", replacement="$1", action="labelmap"),
            {"meta_zone": "1"},
            {"meta_zone": "1", "zone": "1"},
        ),
        (Relabel(("a",), target_label="b", action="keepequal"), {"a": "1", "b": "2"}, None),
        (Relabel(("a",), target_label="m", modulus=8, action="hashmod"), {"a": "host"}, {"a": "host", "m": "1"}),
    ],
)
def test_relabelling(rule: Relabel, before: dict[str, str], after: dict[str, str] | None) -> None:
    found = relabelled(before, [rule])
    if after is not None and "m" in after:
        assert found is not None
        assert 0 <= int(found["m"]) < 8
    else:
        assert found == (None if after is None else {name: value for name, value in after.items() if value})


def test_targets_have_an_address_and_an_instance() -> None:
    job = ScrapeConfig(
        "probe",
        params={"module": ["icmp"]},
        relabel_configs=(
            Relabel(("__address__",), target_label="__param_target"),
            Relabel((), target_label="__address__", replacement="prober:9115"),
        ),
    )
    (target,) = targets_of(job, [StaticConfig(("web.example",), {"zone": "ma"})])
    assert target.url == "http://prober:9115/metrics?module=icmp&target=web.example"
    assert dict(target.labels) == {"instance": "prober:9115", "job": "probe", "zone": "ma"}


def test_groups_come_in_json_and_yaml() -> None:
    expected = [StaticConfig(("a:1",), {"zone": "ma"})]
    assert read_groups('[{"targets": ["a:1"], "labels": {"zone": "ma"}}]') == expected
    assert read_groups("- targets: [a:1]\n  labels: {zone: ma}\n") == expected
    with pytest.raises(HarchError, match="target groups"):
        read_groups("just text")


def test_a_configuration_in_the_words_of_prometheus() -> None:
    config = parse_config(
        "global: {scrape_interval: 15s}\n"
        "scrape_configs:\n"
        "- job_name: hub\n  scrape_timeout: 20s\n  static_configs: [{targets: [a:1]}]\n",
        "here",
    )
    (job,) = config.scrape_configs
    assert config.interval_ms(job) == 15_000
    assert config.timeout_ms(job) == 15_000  # never longer than the interval


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("scrape_configs: [{job_name: a}, {job_name: a}]", "used twice"),
        ("scrape_configs: [{job_name: a, scrape_interval: soon}]", "not a duration"),
        ("scrape_configs: [{job_name: a, relabel_configs: [{action: replace}]}]", "target_label"),
        ("scrape_configs: [{job_name: a, relabel_configs: [{action: keep, regex: '('}]}]", "missing"),
        ("scrape_configs: [{job_name: a, colour: red}]", "colour"),
        ("scrape_configs: {", "here"),
    ],
)
def test_mistakes_in_a_configuration_are_named(text: str, reason: str) -> None:
    with pytest.raises(HarchError, match=reason) as refusal:
        parse_config(text, "here")
    assert refusal.value.code == "E0673"


def test_sizes() -> None:
    assert size_bytes("10MB") == 10 << 20
    assert size_bytes("") == 0
    assert math.isfinite(size_bytes("1GiB"))
