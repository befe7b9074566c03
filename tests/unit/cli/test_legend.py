"""Does a legend name series by what tells them apart?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.cli.views.legend import legend_names, unit_of

label_sets = st.dictionaries(st.sampled_from(["__name__", "hub", "kind", "id", "zone"]), st.sampled_from("abc"))


@given(st.lists(label_sets.map(lambda found: tuple(sorted(found.items()))), unique=True, min_size=2, max_size=20))
def test_no_two_series_get_one_name(found: list[tuple[tuple[str, str], ...]]) -> None:
    names = legend_names([dict(labels) for labels in found])
    assert len(set(names)) == len(names)


def test_only_the_labels_that_differ_are_named_and_the_shortest_of_them() -> None:
    gpus = [
        {"__name__": "power", "hub_name": hub, "index": str(index), "uuid": f"GPU-{index}{hub:->36}", "job": "agent"}
        for hub in ("Dakar", "Dakhla")
        for index in range(2)
    ]
    assert legend_names(gpus)[1] == "hub_name=Dakar index=1"
    assert legend_names(gpus[:2]) == ["index=0", "index=1"]


def test_a_single_series_is_named_by_its_metric_its_labels_or_its_query() -> None:
    assert legend_names([{"__name__": "up", "job": "a", "instance": "b"}]) == ["up"]
    assert legend_names([{"hub": "dakar"}]) == ["hub=dakar"]
    assert legend_names([{}], alone="sum(up)") == ["sum(up)"]


def test_a_template_names_series_unless_two_would_get_the_same_name() -> None:
    series = [{"peer": "a", "hub": "x"}, {"peer": "b", "hub": "x"}]
    assert legend_names(series, "to {{ peer }}{{gone}}") == ["to a", "to b"]
    assert legend_names(series, "{{hub}}") == ["peer=a", "peer=b"]


def test_units_are_those_that_names_of_metrics_state() -> None:
    assert unit_of([{"__name__": "link_rtt_ms"}, {"__name__": "link_rtt_ms", "peer": "a"}]) == "ms"
    assert unit_of([{"__name__": "draw_watts"}, {"__name__": "up"}]) == ""
    assert unit_of([{"hub": "a"}]) == ""
