"""Whatever another hub sends as a question is answered or refused, and never an accident."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from owner_world import ABROAD, HOME, Owner, gpu, steady
from test_logs_over_hubs import hub
from test_spans_over_hubs import span, store

from harch.sentinel.federated.messages import LogPart, MetricPart, Part, Requester, TracePart

OWNER = Owner({gpu(number): steady(1.0, 3000, 4000) for number in range(8)}, hub(6), store(*map(span, range(8))))

EDGES = [1, -1, 2**53, -(2**53), 2**62 - 1, 2**63 - 1, -(2**63), 2**64 - 1]
ORDINARY = [0, 60_000, 3_600_000, 300 * 10**9, 900 * 10**9, 3600 * 10**9]
numbers = st.one_of(st.sampled_from(ORDINARY), st.sampled_from(ORDINARY), st.sampled_from(EDGES))
expressions = st.sampled_from(
    [
        "sum(load)",
        "sum(load offset 290y)",
        "sum(load offset -290y)",
        "sum(rate(load[290y]))",
        "load",
        "sum(load{job=~'('})",
        "",
        "\\x00",
        'sum(count_over_time({job="agent"}[5m]))',
        'sum(count_over_time({job="agent"}[290y] offset 290y))',
        '{job="agent"}',
        "}{",
    ]
)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(
        MetricPart, expression=expressions, start_ms=numbers, end_ms=numbers, step_ms=numbers, lookback_ms=numbers
    ),
    st.builds(LogPart, expression=expressions, start_ns=numbers, end_ns=numbers, step_ns=numbers, limit=numbers),
    st.builds(
        TracePart,
        kind=st.sampled_from(["search", "trace", "statistics"]),
        query=st.sampled_from(["", "service=hub", "{ name =~ `(` }", "name=~(", "0" * 32, "}{", "{ kind = server }"]),
        start_ns=numbers,
        end_ns=numbers,
        by=st.lists(st.sampled_from(["service", "name", "trace_id", ""])).map(tuple),
        limit=numbers,
    ),
)


@pytest.mark.parametrize("who", [HOME, ABROAD], ids=["home", "abroad"])
@settings(max_examples=120)
@given(part=parts)
def test_any_part_is_told_or_refused(who: Requester, part: Part) -> None:
    told = OWNER.part(part, who)
    assert told.refused is None or told.refused.rule
