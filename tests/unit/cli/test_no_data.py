"""Does an empty answer say why it is empty, by what SENTINEL knows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from harch.base.errors import HarchError
from harch.cli.telemetry.no_data import EmptyAnswers, once_each
from harch.sdk.sentinel import QueryAnswer, SentinelClient, VectorSample

NOW = 1_790_000_000.0
SAMPLE = QueryAnswer("vector", vector=[VectorSample({}, (NOW, "1"))])
NOTHING = QueryAnswer("vector")


class Stored:
    """A SENTINEL that stores these series, and whose queries are answered by name."""

    def __init__(self, series: Sequence[Mapping[str, str]] = (), answers: Mapping[str, QueryAnswer] | None = None):
        self.series, self.answers = series, answers or {}

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        if path == "/api/v1/series":
            wanted = (params or {})["match[]"][0]
            return {"data": [one for one in self.series if wanted in (one["__name__"], one.get("selector"))]}
        label = path.split("/")[-2]
        return {"data": sorted({one[label] for one in self.series if label in one})}

    def query(self, promql: str, at_s: float) -> QueryAnswer:
        return self.answers.get(promql, NOTHING)


def why(stored: Stored, promql: str, warnings: Sequence[str] = (), *, all_hubs: bool = False) -> str:
    return EmptyAnswers(cast(SentinelClient, stored), all_hubs=all_hubs).why(promql, NOW, NOW, warnings)


def test_a_sentinel_that_has_just_started_says_so() -> None:
    assert "no samples yet" in why(Stored(), "up")


def test_a_metric_that_does_not_exist_is_named_with_those_that_are_similar() -> None:
    assert why(Stored([{"__name__": "harch_nodes_up"}]), "sum(harch_node_up)") == (
        "there is no metric `harch_node_up`; similar: harch_nodes_up"
    )


def test_labels_that_match_nothing_are_named_with_the_values_there_are() -> None:
    stored = Stored([{"__name__": "up", "job": "agent"}, {"__name__": "up", "job": "hub"}])
    assert why(stored, 'up{job="x"}') == 'no series matches `up{job="x"}`; `job` is agent, hub'


def test_a_time_without_samples_is_named() -> None:
    reason = why(Stored([{"__name__": "up"}]), "up")
    assert reason.startswith("`up` has no samples at 2026-09-21")
    assert reason.endswith("there are older ones")


def test_a_rate_over_one_sample_says_that_it_needs_two() -> None:
    stored = Stored([{"__name__": "up"}], {"count(count_over_time(up[5m]))": SAMPLE})
    assert why(stored, "rate(up[5m])") == "`up[5m]` holds one sample so far; rates need two"


def test_samples_that_satisfy_no_comparison_are_not_called_missing() -> None:
    assert "`up > 9` yields nothing" in why(Stored([{"__name__": "up"}], {"count(up)": SAMPLE}), "up > 9")


def test_what_sentinel_said_with_the_answer_comes_first_and_once() -> None:
    said = ["hub dakar does not answer", "hub dakar does not answer"]
    assert why(Stored(), "up", said) == "hub dakar does not answer"


def test_all_hubs_without_samples_say_so() -> None:
    assert "all hubs answered" in why(Stored(), "up", all_hubs=True)


def test_a_sentinel_that_no_longer_answers_leaves_the_query_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise HarchError("E0802", "gone")

    monkeypatch.setattr(Stored, "get", gone)
    assert why(Stored(), "up") == "nothing matches `up`"


def test_what_hubs_say_alike_is_one_sentence() -> None:
    found = once_each([f"hub {name} withheld 1 group" for name in ("a", "b", "c")] + ["hub a does not answer"])
    assert found == ["hubs a, b and c withheld 1 group", "hub a does not answer"]
