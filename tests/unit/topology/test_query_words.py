"""The query language word by word: every spelling, the plainest form of each query, and mistakes to the letter."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.placement.query import ResourceQuery, apply_query, describe, parse_query, split_gpus, without_query
from harch.placement.query_parser import parse_values, tokens_of
from harch.workloads.spec import Level, Resources, Strategy, Topology, WorkloadSpec

CLAUSES = (
    "a number of GPUs, tasks, cpus or GB; `>= 40 GB`; `with 20 GB`; `same island`; `prefer rack`; `in MA`; "
    "`any of MODEL|MODEL`; `spread`, `pack` or `exclusive`"
)
HINT = "docs/reference/query.md shows the whole language"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8 GPU", {"gpus": 8.0}),
        ("8 x GPUs", {"gpus": 8.0}),
        ("8×GPUs", {"gpus": 8.0}),
        (".5 GPU", {"gpus": 0.5}),
        ("1 GPU", {"gpus": 1.0}),
        ("4 x 8 h100-80gb", {"tasks": 4, "gpus": 8.0, "gpu_models": ("h100-80gb",)}),
        ("4 x 2 a100", {"tasks": 4, "gpus": 2.0, "gpu_models": ("a100-80gb",)}),
        ("3 tasks 2 cpus", {"tasks": 3, "cpus": 2.0}),
        ("3 tasks of 2 GPUs", {"tasks": 3, "gpus": 2.0}),
        ("1.5 cores", {"cpus": 1.5}),
        ("512 MB memory", {"memory_gb": 0.5}),
        ("64 GB RAM", {"memory_gb": 64.0}),
        ("2 TB memory", {"memory_gb": 2048.0}),
        ("7 GB scratch", {"storage_gb": 7.0}),
        ("7 GB disk", {"storage_gb": 7.0}),
        ("≥ 40 GB", {"gpu_memory_gb_min": 40.0}),
        (">=40GB per GPU", {"gpu_memory_gb_min": 40.0}),
        ("at least 40 GB VRAM, 3 cpus", {"gpu_memory_gb_min": 40.0, "cpus": 3.0}),
        (">= 40 GB of GPU memory, 64 GB memory", {"gpu_memory_gb_min": 40.0, "memory_gb": 64.0}),
        ("with 1 TB per GPU", {"gpu_memory_gb": 1024.0}),
        ("same island", {"required": Level.ISLAND}),
        ("one NVLink domain", {"required": Level.ISLAND}),
        ("same nvlink", {"required": Level.ISLAND}),
        ("single machine", {"required": Level.NODE}),
        ("in the same server", {"required": Level.NODE}),
        ("within a rack", {"required": Level.RACK}),
        ("in row", {"required": Level.ROW}),
        ("in one site", {"required": Level.HUB}),
        ("prefer island", {"preferred": Level.ISLAND}),
        ("preferably in one rack", {"preferred": Level.RACK}),
        ("preferred within the same row", {"preferred": Level.ROW}),
        ("spread", {"strategy": Strategy.SPREAD}),
        ("spread over nodes", {"strategy": Strategy.SPREAD, "preferred": Level.RACK}),
        ("spread across racks", {"strategy": Strategy.SPREAD, "preferred": Level.ROW}),
        ("packed", {"strategy": Strategy.PACK}),
        ("exclusive", {"exclusive": True}),
        ("exclusive nodes; pack", {"exclusive": True, "strategy": Strategy.PACK}),
        ("on inference", {"gpu_models": ("inference-card",)}),
        ("of H100 or h100-80gb | A100", {"gpu_models": ("h100-80gb", "a100-80gb")}),
        ("on any of x1|y-2", {"gpu_models": ("x1", "y-2")}),
        ("in MA", {"countries": ("MA",)}),
        ("in morocco | MA or SN", {"countries": ("MA", "SN")}),
        ("within MA, SN", {"countries": ("MA", "SN")}),
        ("in MA, 2 cpus", {"countries": ("MA",), "cpus": 2.0}),
        ("in MA; same rack", {"countries": ("MA",), "required": Level.RACK}),
        ("in south africa and 2 cpus", {"countries": ("ZA",), "cpus": 2.0}),
        ("  2   cpus  ", {"cpus": 2.0}),
    ],
)
def test_every_spelling_has_its_meaning(text: str, values: dict[str, object]) -> None:
    assert parse_values(text) == values


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("hello", 1, f"`hello` is not understood, expected {CLAUSES}"),
        ("exclusiv", 1, f"`exclusiv` is not understood, expected {CLAUSES}; did you mean `exclusive`?"),
        ("| 8 GPUs", 1, f"`|` is not understood, expected {CLAUSES}"),
        ("and", 1, f"empty query; expected {CLAUSES}"),
        (
            "8 gups",
            3,
            "`gups` is not understood, expected GPUs, a GPU model, tasks, cpus, GB or TB after a number; did you mean "
            "`gpus`?",
        ),
        ("8 x", 4, "the query ends too early, expected GPUs, a GPU model, tasks, cpus, GB or TB after a number"),
        ("4 x 8", 6, "the query ends too early, expected GPUs, after a number of tasks and an `x`"),
        (
            "4 x 8 gpsu",
            7,
            "`gpsu` is not understood, expected GPUs, after a number of tasks and an `x`; did you mean `gpus`?",
        ),
        ("1.5 x 8 GPUs", 1, "`1.5` is not a whole number of tasks"),
        ("2.5 h100", 1, "`2.5` GPUs: use a fraction below 1 or a whole number"),
        (
            "64 GB memry",
            7,
            "`memry` is not understood, expected `memory` or `storage` after an amount; the memory of a GPU is written "
            "`>= 40 GB`, that of a share `with 20 GB`; did you mean `memory`?",
        ),
        (
            "at lest 40 GB",
            4,
            "`lest` is not understood, expected `least`, as in `at least 40 GB`; did you mean `least`?",
        ),
        (">= x", 4, "`x` is not understood, expected a number of GB"),
        (">= 40 gbb", 7, "`gbb` is not understood, expected GB or TB; did you mean `gb`?"),
        (
            ">= 40 GB ram",
            10,
            "`ram` is not understood, expected nothing: `>= 40 GB` is the memory of each GPU, main memory is "
            "`64 GB memory`",
        ),
        (
            "with 20 GB memory",
            12,
            "`memory` is not understood, expected nothing: `with 20 GB` is what a share gets of the memory of its GPU, "
            "main memory is `64 GB memory`",
        ),
        (
            "any off h100",
            5,
            "`off` is not understood, expected `of`, as in `any of a100-80gb|h100-80gb`; did you mean `of`?",
        ),
        ("on h100 | 3", 11, "`3` is not understood, expected a GPU model"),
        ("prefer rak", 8, "`rak` is not understood, expected island, node, rack, row or hub; did you mean `rack`?"),
        ("spread over island", 13, "`island` is not understood, expected nodes or racks"),
        ("in", 3, "the query ends too early, expected a country or `one LEVEL` after `in`"),
        ("in 3 rabat", 4, "`3` is not understood, expected a country or `one LEVEL` after `in`"),
        ("in MA | 3", 9, "`3` is not understood, expected a country or `one LEVEL` after `in`"),
        ("2 cpus, 3 cpus", 9, "`cpus` is given twice"),
        ("spread over racks, prefer row", 20, "`preferred` is given twice"),
        ("on h100, of a100", 13, "`gpu_models` is given twice"),
        (">= 40 GB, at least 20 GB", 11, "`gpu_memory_gb_min` is given twice"),
        ("in MA and in SN", 11, "`countries` is given twice"),
        ("exclusive exclusive", 11, "`exclusive` is given twice"),
        ("2 cpus %", 8, "`%` is not understood"),
        (f"{'z' * 60}", 1, f"`{'z' * 40}` is not understood, expected {CLAUSES}"),
        ("spread, same island", 1, "`spread` needs several nodes, so it excludes `same island`"),
        ("same rack, prefer row", 1, "prefers one row and requires one rack, which is smaller"),
        (
            "1 GPU with 20 GB",
            1,
            "`with 20 GB` is what a share gets, as in `0.25 GPU with 20 GB`; a whole GPU comes with all its memory",
        ),
        (" " * 501, 500, "longer than 500 characters"),
    ],
)
def test_a_mistake_is_named_to_the_letter(text: str, position: int, message: str) -> None:
    with pytest.raises(HarchError) as raised:
        parse_query(text)
    error = raised.value
    assert (error.code, error.field, error.meta) == ("E0201", "query", {"position": position})
    assert error.message == f"query, character {position}: {message}"
    assert error.hint == ("give it once" if "given twice" in message else HINT)


def test_an_unknown_country_is_named_with_its_own_hint() -> None:
    with pytest.raises(HarchError) as raised:
        parse_query("2 cpus, in Moroco")
    assert raised.value.message.startswith("query, character 12: `Moroco` is not a country")
    assert raised.value.hint != HINT


def test_five_hundred_characters_are_read_and_one_more_is_not() -> None:
    assert parse_query("2 cpus" + " " * 494).cpus == 2
    with pytest.raises(HarchError, match="longer than 500 characters"):
        parse_query("2 cpus" + " " * 495)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8 GPUs", [("number", "8", 1, "8"), ("word", "GPUs", 3, "gpu"), ("end", "", 7, "")]),
        ("2xH100", [("number", "2", 1, "2"), ("mark", "x", 2, "x"), ("word", "H100", 3, "h100"), ("end", "", 7, "")]),
        (
            "is gas class",
            [("word", "is", 1, "is"), ("word", "gas", 4, "ga"), ("word", "class", 8, "class"), ("end", "", 13, "")],
        ),
        ("≥ .5; ", [("mark", "≥", 1, "≥"), ("number", ".5", 3, ".5"), ("mark", ";", 5, ";"), ("end", "", 6, "")]),
        ("   ", [("end", "", 1, "")]),
    ],
)
def test_words_have_positions_and_no_plural(text: str, words: list[tuple[str, str, int, str]]) -> None:
    assert [(*token, token.word) for token in tokens_of(text)] == words


@pytest.mark.parametrize(
    ("total", "split"),
    [
        (0, (1, 0)),
        (1, (1, 1)),
        (7, (1, 7)),
        (8, (1, 8)),
        (9, (3, 3)),
        (11, (11, 1)),
        (12, (2, 6)),
        (16, (2, 8)),
        (20, (4, 5)),
    ],
)
def test_a_total_is_split_into_equal_tasks_of_at_most_eight(total: int, split: tuple[int, int]) -> None:
    assert split_gpus(total) == split


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (ResourceQuery(tasks=1, gpus=1), "1 GPU"),
        (ResourceQuery(tasks=1, gpus=0), "0 GPUs"),
        (ResourceQuery(tasks=1, gpus=8), "8 GPUs"),
        (ResourceQuery(tasks=1, gpus=9), "1 task of 9 GPUs"),
        (ResourceQuery(tasks=1, gpus=9, required=Level.NODE), "9 GPUs, same node"),
        (ResourceQuery(tasks=1, gpus=9, required=Level.ISLAND), "9 GPUs, same island"),
        (ResourceQuery(tasks=1, gpus=9, required=Level.RACK), "1 task of 9 GPUs, same rack"),
        (ResourceQuery(tasks=2, gpus=1), "2 tasks of 1 GPU"),
        (ResourceQuery(tasks=3), "3 tasks"),
        (ResourceQuery(tasks=1, gpus=1, gpu_fraction=0.25, gpu_memory_gb=20), "0.25 GPU, with 20 GB"),
        (ResourceQuery(tasks=2, gpus=1, gpu_fraction=0.25), "2 tasks of 0.25 GPU"),
        (ResourceQuery(tasks=1, gpus=1, gpu_fraction=1e-05), "0.00001 GPU"),
        (
            ResourceQuery(
                gpu_models=("a1", "b2"),
                gpu_memory_gb_min=40.5,
                cpus=100.0,
                memory_gb=64,
                storage_gb=1e6,
                required=Level.ROW,
                preferred=Level.RACK,
                strategy=Strategy.SPREAD,
                exclusive=True,
                countries=("MA", "SN"),
            ),
            "any of a1|b2, >= 40.5 GB, 100 cpus, 64 GB memory, 1000000 GB storage, same row, prefer rack, spread, "
            "exclusive, in MA|SN",
        ),
    ],
)
def test_a_query_has_one_plainest_form_that_means_the_same(query: ResourceQuery, text: str) -> None:
    assert describe(query) == text
    assert parse_query(text) == query


@pytest.mark.parametrize(
    ("text", "tasks", "gpus"),
    [
        ("8 GPUs", 1, 8),
        ("9 GPUs", 3, 3),
        ("16 GPUs, same rack", 2, 8),
        ("16 GPUs, same island", 1, 16),
        ("16 GPUs, same node", 1, 16),
        ("2 tasks of 16 GPUs", 2, 16),
        ("1 GPU", 1, 1),
        ("0 GPUs", 1, 0),
    ],
)
def test_a_total_is_split_only_where_it_may_stand_on_several_nodes(text: str, tasks: int, gpus: int) -> None:
    query = parse_query(text)
    assert (query.tasks, query.gpus, query.gpu_fraction) == (tasks, gpus, None)


# Into a workload, and out of it again


def spec(query: str | None, **fields: object) -> WorkloadSpec:
    return WorkloadSpec(name="w", query=query, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "fields", "message"),
    [
        ("8 GPUs", {"resources": Resources(gpus=4)}, "the query gives 8 but `resources.gpus` has 4"),
        ("2 tasks", {"tasks": 4}, "the query gives 2 but `tasks` has 4"),
        (
            "2 a1|b2",
            {"resources": Resources(gpu_models=("b2", "a1"))},
            "the query gives a1, b2 but `resources.gpu_models` has b2 or a1",
        ),
        ("in MA|CI", {"countries_allowed": ("SN", "ZA")}, "the query gives MA, CI but `countries_allowed` has SN, ZA"),
        (
            "same rack",
            {"topology": Topology(required=Level.NODE)},
            "the query gives rack but `topology.required` has node",
        ),
    ],
)
def test_a_contradiction_is_named_to_the_letter(query: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(HarchError) as raised:
        apply_query(spec(query, **fields))
    assert (raised.value.code, raised.value.message, raised.value.hint) == ("E0201", message, "use only one of them")


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("8 GPUs", {"resources": Resources(gpus=8)}),
        ("2 tasks", {"tasks": 2}),
        ("2 cpus", {"tasks": 5}),
        ("2 h100", {"resources": Resources(gpu_model="h100-80gb")}),
        ("2 a1|b2", {"resources": Resources(gpu_models=("a1", "b2"))}),
        ("same rack", {"topology": Topology(required=Level.RACK)}),
        ("exclusive", {"topology": Topology(exclusive=True)}),
    ],
)
def test_what_both_say_alike_is_no_contradiction(query: str, fields: dict[str, object]) -> None:
    applied = apply_query(spec(query, **fields))
    for name, value in fields.items():
        given = getattr(applied, name)
        assert given == value or name == "resources"
    assert apply_query(applied) == applied


def test_everything_that_a_query_says_is_written_into_fields() -> None:
    text = "3 tasks of 2 GPUs, any of a1|b2, >= 40 GB, 5 cpus, 6 GB memory, 7 GB storage, same row, prefer rack, spread"
    applied = apply_query(spec(f"{text}, exclusive, in MA"))
    assert applied.tasks == 3
    assert applied.resources == Resources(
        gpus=2, gpu_models=("a1", "b2"), gpu_memory_gb_min=40, cpus=5, memory_gb=6, storage_gb=7
    )
    assert applied.topology == Topology(
        required=Level.ROW, preferred=Level.RACK, strategy=Strategy.SPREAD, exclusive=True
    )
    assert applied.countries_allowed == ("MA",)
    bare = without_query(applied)
    assert (bare.query, bare.tasks, bare.resources, bare.topology) == (None, 1, Resources(), Topology())
    assert bare.countries_allowed == ("MA",)


def test_what_a_query_leaves_open_stays() -> None:
    before = spec("2 cpus", tasks=4, resources=Resources(gpus=3, gpu_model="x"), topology=Topology(exclusive=True))
    applied = apply_query(before)
    assert (applied.tasks, applied.topology) == (4, Topology(exclusive=True))
    assert applied.resources == Resources(gpus=3, gpu_model="x", cpus=2)
    after = without_query(applied)
    assert (after.tasks, after.topology) == (4, Topology(exclusive=True))
    assert after.resources == Resources(gpus=3, gpu_model="x")
    none = spec(None, tasks=2)
    assert apply_query(none) is none
    assert without_query(none) is none


def test_a_whole_gpu_of_a_query_takes_no_share_with_it() -> None:
    assert apply_query(spec("1 GPU")).resources == Resources(gpus=1)
    applied = apply_query(spec("0.5 GPU", resources=Resources(gpus=1, gpu_fraction=0.5)))
    assert applied.resources == Resources(gpus=1, gpu_fraction=0.5)


@pytest.mark.parametrize(
    ("allowed", "query", "left"),
    [
        ((), "in MA", ("MA",)),
        (("SN",), "2 cpus", ("SN",)),
        (("SN", "MA"), "in MA|CI|SN", ("MA", "SN")),
        ((), "2 cpus", ()),
    ],
)
def test_countries_are_those_that_both_allow(allowed: tuple[str, ...], query: str, left: tuple[str, ...]) -> None:
    assert apply_query(spec(query, countries_allowed=allowed)).countries_allowed == left


def test_numbers_out_of_range_are_named_as_such() -> None:
    with pytest.raises(HarchError) as raised:
        apply_query(spec("99999 tasks"))
    assert raised.value.message.startswith("a number in the query is out of range: ")
