"""Queries by example: what they mean, where they go wrong, and what they do to a workload."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.placement.query import ResourceQuery, apply_query, describe, parse_query, without_query
from harch.workloads.spec import Level, Resources, Strategy, Topology, WorkloadSpec

ISLAND_IN_MA = "8 GPUs, same NVLink island, >= 40 GB, in MA"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (ISLAND_IN_MA, ResourceQuery(tasks=1, gpus=8, required=Level.ISLAND, gpu_memory_gb_min=40, countries=("MA",))),
        (
            "16 x h100-80gb in one rack, prefer island",
            ResourceQuery(tasks=2, gpus=8, gpu_models=("h100-80gb",), required=Level.RACK, preferred=Level.ISLAND),
        ),
        (
            "0.25 GPU any of a100-80gb|h100-80gb",
            ResourceQuery(tasks=1, gpus=1, gpu_fraction=0.25, gpu_models=("a100-80gb", "h100-80gb")),
        ),
        (
            "4 tasks of 8 GPUs, spread over racks, exclusive, 16 cpus, 64 GB memory",
            ResourceQuery(
                tasks=4,
                gpus=8,
                preferred=Level.ROW,
                strategy=Strategy.SPREAD,
                exclusive=True,
                cpus=16,
                memory_gb=64,
            ),
        ),
        (
            "0.25 GPU with 20 GB, >= 40 GB",
            ResourceQuery(tasks=1, gpus=1, gpu_fraction=0.25, gpu_memory_gb=20, gpu_memory_gb_min=40),
        ),
        ("with 20 GB of GPU memory", ResourceQuery(gpu_memory_gb=20)),
        ("4 x 8 GPUs", ResourceQuery(tasks=4, gpus=8)),
        ("8xh100", ResourceQuery(tasks=1, gpus=8, gpu_models=("h100-80gb",))),
        ("2 A100 or H100", ResourceQuery(tasks=1, gpus=2, gpu_models=("a100-80gb", "h100-80gb"))),
        ("12 gpus", ResourceQuery(tasks=2, gpus=6)),
        ("11 gpus", ResourceQuery(tasks=11, gpus=1)),
        ("16 GPUs, same node", ResourceQuery(tasks=1, gpus=16, required=Level.NODE)),
        ("1 task of 16 GPUs", ResourceQuery(tasks=1, gpus=16)),
        ("3 tasks, 2 cores, 1 TB storage", ResourceQuery(tasks=3, cpus=2, storage_gb=1024)),
        ("at least 0.04 TB per GPU", ResourceQuery(gpu_memory_gb_min=40.96)),
        ("spread across nodes", ResourceQuery(strategy=Strategy.SPREAD, preferred=Level.RACK)),
        ("pack in the same row", ResourceQuery(strategy=Strategy.PACK, required=Level.ROW)),
        ("IN Côte d'Ivoire OR senegal", ResourceQuery(countries=("CI", "SN"))),
        ("in MA, SN, exclusive nodes", ResourceQuery(countries=("MA", "SN"), exclusive=True)),
        ("in MA and at least 40GB", ResourceQuery(countries=("MA",), gpu_memory_gb_min=40)),
        ("in MA, in one rack", ResourceQuery(countries=("MA",), required=Level.RACK)),
        ("2 GPUs of any of a100|h100", ResourceQuery(tasks=1, gpus=2, gpu_models=("a100-80gb", "h100-80gb"))),
    ],
)
def test_a_query_means_what_it_says(text: str, query: ResourceQuery) -> None:
    assert parse_query(text) == query
    assert parse_query(describe(query)) == query


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("8 GPUs, same iland", 14, "did you mean `island`?"),
        ("8 gbus", 3, "did you mean `gpus`?"),
        ("8 GPUs, spraed", 9, "did you mean `spread`?"),
        ("8", 2, "ends too early"),
        ("", 1, "empty query"),
        (" , ", 1, "empty query"),
        ("8 GPUs $", 8, "`$` is not understood"),
        ("8 GPUs, 4 GPUs", 9, "given twice"),
        ("same rack, same node", 12, "given twice"),
        ("1.5 GPUs", 1, "use a fraction below 1"),
        ("1.5 tasks", 1, "not a whole number"),
        ("40 GB", 6, "`>= 40 GB`"),
        (">= GB", 4, "a number of GB"),
        (">= 40 GPUs", 7, "GB or TB"),
        (">= 40 GB memory", 10, "main memory is `64 GB memory`"),
        ("0.25 GPU with 20 GB memory", 21, "main memory is `64 GB memory`"),
        ("0.25 GPU with GPUs", 15, "a number of GB"),
        ("8 GPUs with 20 GB", 1, "a whole GPU comes with all its memory"),
        ("at 40 GB", 4, "did you mean"),
        ("any h100", 5, "any of a100-80gb"),
        ("any of 3", 8, "a GPU model"),
        ("in Moroco", 4, "`Moroco` is not a country"),
        ("in 3", 4, "a country"),
        ("4 x 8 cpus", 7, "GPUs"),
        ("spread over rows", 13, "nodes or racks"),
        ("spread, same node", 1, "excludes `same node`"),
        ("same rack, prefer hub", 1, "smaller"),
        ("x" * 501, 500, "longer than"),
    ],
)
def test_a_mistake_has_a_position_and_what_was_expected(text: str, position: int, said: str) -> None:
    with pytest.raises(HarchError) as raised:
        parse_query(text)
    error = raised.value
    assert error.code == "E0201"
    assert error.field == "query"
    if "did you mean" in said and "`" not in said:
        said = "`least`"
    assert said in error.message
    assert error.meta["position"] == position
    assert error.hint


def spec(query: str | None, **fields: object) -> WorkloadSpec:
    return WorkloadSpec(name="w", query=query, **fields)  # type: ignore[arg-type]


def test_a_query_fills_the_fields_and_keeps_its_words() -> None:
    applied = apply_query(spec(ISLAND_IN_MA, resources=Resources(cpus=16)))
    assert applied.resources == Resources(gpus=8, gpu_memory_gb_min=40, cpus=16)
    assert applied.topology == Topology(required=Level.ISLAND)
    assert applied.countries_allowed == ("MA",)
    assert applied.query == ISLAND_IN_MA
    assert apply_query(applied) == applied


def test_one_model_is_the_model_and_several_are_a_choice() -> None:
    assert apply_query(spec("2 h100-80gb")).resources.gpu_model == "h100-80gb"
    assert apply_query(spec("2 a100|h100")).resources.gpu_models == ("a100-80gb", "h100-80gb")


@pytest.mark.parametrize(
    ("query", "fields", "field"),
    [
        ("8 GPUs", {"resources": Resources(gpus=4)}, "resources.gpus"),
        ("1 GPU", {"resources": Resources(gpus=1, gpu_fraction=0.5)}, "resources.gpu_fraction"),
        ("8 GPUs", {"tasks": 4}, "tasks"),
        ("2 tasks of 8 GPUs", {"tasks": 4}, "tasks"),
        ("8 h100-80gb", {"resources": Resources(gpu_model="a100-80gb")}, "resources.gpu_models"),
        ("same rack", {"topology": Topology(required=Level.ROW)}, "topology.required"),
        ("pack", {"topology": Topology(strategy=Strategy.SPREAD)}, "topology.strategy"),
        ("in MA", {"countries_allowed": ("SN",)}, "countries_allowed"),
    ],
)
def test_a_field_that_says_something_else_is_a_mistake(query: str, fields: dict[str, object], field: str) -> None:
    with pytest.raises(HarchError) as raised:
        apply_query(spec(query, **fields))
    assert (raised.value.code, raised.value.field) == ("E0201", field)


@pytest.mark.parametrize("query", ["9999 GPUs, same node", "99999 tasks of 1 GPU", "0 cpus", "0 tasks of 1 GPU"])
def test_limits_of_fields_hold_for_queries_too(query: str) -> None:
    with pytest.raises(HarchError) as raised:
        apply_query(spec(query))
    assert (raised.value.code, raised.value.field) == ("E0201", "query")


def test_countries_of_both_are_narrowed_never_widened() -> None:
    assert apply_query(spec("in MA|SN", countries_allowed=("SN", "CI"))).countries_allowed == ("SN",)


def test_a_query_can_be_taken_out_again_without_loosening_a_rule() -> None:
    before = spec("2 tasks of 8 h100, same rack, exclusive, in MA", resources=Resources(cpus=16))
    after = without_query(apply_query(before))
    assert after == spec(None, resources=Resources(cpus=16), countries_allowed=("MA",))
    assert without_query(after) == after


def test_what_a_query_says_of_a_share_is_written_into_its_fields_and_out_again() -> None:
    applied = apply_query(spec("0.25 GPU with 20 GB"))
    assert applied.resources == Resources(gpus=1, gpu_fraction=0.25, gpu_memory_gb=20)
    assert without_query(applied).resources == Resources()
    beside = apply_query(spec("0.25 GPU", resources=Resources(gpus=1, gpu_fraction=0.25, gpu_memory_gb=20)))
    assert without_query(beside).resources == Resources(), "memory has no meaning without its share"
    for wrong in ("with 20 GB", "0.25 GPU with 0 GB"):
        with pytest.raises(HarchError) as raised:
            apply_query(spec(wrong))
        assert (raised.value.code, raised.value.field) == ("E0201", "query")
