from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.rejection import Rejection
from harch.pipelines.wire.subject import BatchSubject, all_partitions, parse_subject, subject_of


def test_a_subject_starts_with_its_country() -> None:
    subject = subject_of("MA", "irrigation-north", "sense", 7)
    assert isinstance(subject, BatchSubject)
    assert str(subject) == "juris.ma.irrigation-north.sense.7"
    assert parse_subject(str(subject)) == subject
    assert all_partitions(subject) == "juris.ma.irrigation-north.sense.*"


@pytest.mark.parametrize(
    ("country", "pipeline", "stage", "partition", "rule"),
    [
        ("mar", "p", "sense", 0, "country"),
        ("*", "p", "sense", 0, "country"),
        ("ma\n", "p", "sense", 0, "country"),
        ("ma", "a.b", "sense", 0, "pipeline"),
        ("ma", ">", "sense", 0, "pipeline"),
        ("ma", "a" * 49, "sense", 0, "pipeline"),
        ("ma", "a\n", "sense", 0, "pipeline"),
        ("ma", "p", "$JS", 0, "stage"),
        ("ma", "p", "sense", -1, "partition"),
        ("ma", "p", "sense", 1024, "partition"),
    ],
)
def test_words_that_would_leave_their_place_are_refused(
    country: str, pipeline: str, stage: str, partition: int, rule: str
) -> None:
    refused = subject_of(country, pipeline, stage, partition)
    assert isinstance(refused, Rejection)
    assert refused.rule == rule


@pytest.mark.parametrize(
    "text", ["juris.ma.p.sense.*", "juris.ma.p.sense.07", "juris.MA.p.sense.7", "juris.ma.p.sense", "$JS.API.x.y.1"]
)
def test_other_subjects_are_refused(text: str) -> None:
    assert isinstance(parse_subject(text), Rejection)


@settings(deadline=None)
@given(st.text(max_size=120))
def test_what_parses_is_written_the_same_way(text: str) -> None:
    found = parse_subject(text)
    assert isinstance(found, Rejection) or str(found) == text
