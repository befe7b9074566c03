"""An archive answers as a list in memory would, whatever was written, flushed, merged, erased and opened again."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.logs import LineOrder
from harch.sentinel.model.spans import Span, SpanField
from harch.testing.telemetry_stores import MemoryLogs, MemorySpans
from unit.sentinel_archive.archive_world import (
    HOUR_NS,
    lines,
    log_archive,
    random_batches,
    random_filters,
    random_matchers,
    random_request,
    random_span,
    random_span_query,
    random_times,
    span_archive,
)

LOG_STEPS = ("append", "append", "append", "ask", "ask", "flush", "delete", "purge", "maintain", "merge", "reopen")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(LOG_STEPS), min_size=5, max_size=30))
def test_logs_answer_like_a_list(seed: int, steps: list[str]) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive, model = log_archive(folder), MemoryLogs()
        for step in (*steps, "ask", "ask", "ask"):
            if step == "append":
                batches = random_batches(rng)
                assert archive.append(batches) == model.append(batches)
            elif step == "ask":
                request = random_request(rng)
                found, expected = lines(archive, request), lines(model, request)
                if request.order is LineOrder.ANY and request.limit is None:
                    assert sorted(found) == sorted(expected)
                elif request.order is LineOrder.ANY:
                    assert len(found) == len(expected)
                else:
                    assert found == expected
                asked = (random_matchers(rng), *random_times(rng))
                assert archive.streams(*asked) == model.streams(*asked)
            elif step == "delete":
                erased = (random_matchers(rng), random_filters(rng), *random_times(rng))
                assert archive.delete(*erased) == model.delete(*erased)
            elif step == "reopen":
                archive.close()
                archive = log_archive(folder)
            elif step == "merge":
                archive.table.files.rewrite(archive.table.files.manifest.files, archive.table._lock)
            else:
                {"flush": archive.table.flush, "purge": archive.purge, "maintain": archive.maintain}[step]()
        assert archive.facts()["lines"] == model.facts()["lines"] or archive.facts()["erasures_to_carry_out"]
        archive.close()


SPAN_STEPS = ("append", "append", "append", "ask", "ask", "flush", "delete", "purge", "maintain", "merge", "reopen")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(SPAN_STEPS), min_size=5, max_size=30))
def test_spans_answer_like_a_dictionary(seed: int, steps: list[str]) -> None:
    rng = random.Random(seed)
    sent: list[Span] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive, model = span_archive(folder), MemorySpans()
        for step in (*steps, "ask", "ask", "ask"):
            if step == "append":
                spans = [random_span(rng, len(sent) + place) for place in range(rng.randint(1, 8))]
                sent += spans
                spans += rng.sample(sent, min(len(sent), rng.choice((0, 0, 2))))  # some come again
                assert archive.append(spans) == model.append(spans)
            elif step == "ask":
                query = random_span_query(rng)
                assert archive.search(query) == model.search(query)
                by = rng.sample(
                    (SpanField.SERVICE, SpanField.NAME, SpanField.STATUS, SpanField.KIND), rng.randint(0, 3)
                )
                assert archive.statistics(query, by) == model.statistics(query, by)
                trace_id = rng.choice(sent).trace_id if sent else "0" * 32
                assert archive.trace(trace_id) == model.trace(trace_id)
                span = (rng.randrange(30), HOUR_NS + rng.randrange(30))
                assert archive.tag_names(*span) == model.tag_names(*span)
                field, attribute = rng.choice(tuple(SpanField)), rng.choice(("user", "http.status", "host"))
                asked = (field, attribute, *span, rng.choice((2, 100)))
                assert archive.tag_values(*asked) == model.tag_values(*asked)
            elif step == "delete":
                ids = rng.sample([span.trace_id for span in sent], min(len(sent), rng.choice((0, 1, 2))))
                erased = (random_span_query(rng), ids)
                assert archive.delete(*erased) == model.delete(*erased)
            elif step == "reopen":
                archive.close()
                archive = span_archive(folder)
            elif step == "merge":
                archive.table.files.rewrite(archive.table.files.manifest.files, archive.table._lock)
            else:
                {"flush": archive.table.flush, "purge": archive.purge, "maintain": archive.maintain}[step]()
        assert archive.facts()["spans"] == model.facts()["spans"]
        archive.close()
