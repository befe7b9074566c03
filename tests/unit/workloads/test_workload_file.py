"""Are workload files read as people mean them, and is every mistake named with its place?"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.workloads.file import ALIASES_MAX, DOCUMENTS_MAX, FILE_BYTES_MAX, parse_workloads
from harch.workloads.spec import Priority


def refusal(text: str) -> HarchError:
    with pytest.raises(HarchError) as caught:
        parse_workloads(text.encode(), "job.yaml")
    return caught.value


def test_several_documents_are_several_workloads_and_empty_ones_are_skipped() -> None:
    specs = parse_workloads(b"---\nname: a\n---\n---\nkind: workload\nname: b\npriority: high\n", "job.yaml")
    assert [spec.name for spec in specs] == ["a", "b"]
    assert specs[1].priority is Priority.HIGH


def test_text_fields_take_numbers_and_booleans_as_they_are_written() -> None:
    (spec,) = parse_workloads(
        b"name: 7b\ncommand: [sleep, 60, 1e3, yes, 012]\nenv: {PORT: 8080, DEBUG: true}\nlabels: {v: 1.10}\n",
        "job.yaml",
    )
    assert spec.command == ("sleep", "60", "1e3", "yes", "012")
    assert spec.env == {"PORT": "8080", "DEBUG": "true"}
    assert spec.labels == {"v": "1.10"}


def test_norway_is_a_country() -> None:
    (spec,) = parse_workloads(b"name: a\ncountries_allowed: [NO, MA]\n", "job.yaml")
    assert spec.countries_allowed == ("NO", "MA")


def test_every_mistake_is_named_at_once_with_line_column_and_field() -> None:
    error = refusal("nmae: x\nresources:\n  gpuz: 8\n  cpus: -1\npriority: hihg\ncountries_allowed: [MA, MRO]\n")
    assert error.code == "E0201"
    assert error.message.splitlines()[1:] == [
        "  job.yaml:1:1: nmae: unknown field; did you mean `name`?",
        "  job.yaml:1:1: name: is missing",
        "  job.yaml:3:3: resources.gpuz: unknown field; did you mean `gpus`?",
        "  job.yaml:4:3: resources.cpus: expected `float` > 0.0",
        "  job.yaml:5:1: priority: `hihg` is not one of low, normal, high, critical; did you mean `high`?",
        "  job.yaml:6:25: countries_allowed[1]: `MRO` is not valid: ISO 3166-1 alpha-2 code, e.g. MA, SN, CI.",
    ]
    problems = error.meta["problems"]
    assert isinstance(problems, list)
    assert problems[2] == {
        "file": "job.yaml",
        "line": 3,
        "column": 3,
        "field": "resources.gpuz",
        "message": "unknown field; did you mean `gpus`?",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nname: b\n", "job.yaml:1:1: name: is given twice, again in line 2"),
        ("name: a\ncommand: [x]\nmodelled_duration_s: 5\n", "excludes `command`"),
        ("name: a\nresources: 8\n", "job.yaml:2:1: resources: must be a mapping of fields, not a number"),
        ("name: a\nenv: {1A: x}\n", "env.1A: "),
        ("name: a\ntasks: 1.5\n", "tasks: expected `int`, got `float`"),
        ("name: a\nmax_duration_s: .inf\n", "max_duration_s: expected `float | null`, got `str`"),
        ("- name: a\n", "must be a mapping of fields, not a list"),
        ("hello\n", "must be a mapping of fields, not text"),
        ("kind: pipeline\nname: a\n", "job.yaml:1:1: kind: `pipeline` is not known"),
        ("name: !!python/object:os.system a\n", "job.yaml:1:1: name: "),
        ("tasks: !!binary YQ==\nname: a\n", "tag `tag:yaml.org,2002:binary` is not supported"),
        ("? [a]\n: b\nname: a\n", "a field's name must be plain text"),
        ("# nothing\n", "job.yaml describes no workload"),
        ("name: a\n---\nname: a\n", "two workloads are named `a`"),
        (f"name: a\ntasks: {'9' * 5000}\n", "tasks: "),
    ],
)
def test_a_mistake_is_told_in_words(text: str, said: str) -> None:
    error = refusal(text)
    assert error.code == "E0201"
    assert said in error.message
    assert error.kind.exit_code == 2


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("name: [a\n", "job.yaml:2:1: ", "brackets"),
        ("name: a\n\ttasks: 2\n", "job.yaml:2:1: ", "spaces, not tabs"),
        ("name: 'a\n", "job.yaml:", "quotes"),
        ("name: a\x01\n", "job.yaml is not text", "UTF-8"),
    ],
)
def test_what_is_not_yaml_is_unreadable_at_a_place(text: str, where: str, hint: str) -> None:
    error = refusal(text)
    assert error.code == "E0202"
    assert where in error.message
    assert hint in error.hint


def test_bytes_that_are_not_utf8_are_unreadable() -> None:
    with pytest.raises(HarchError) as caught:
        parse_workloads(b"name: \xff\xfe\n", "job.yaml")
    assert caught.value.code == "E0202"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, f"more than {ALIASES_MAX} aliases"),
        ("a: &a [*a]\n", ""),
        ("name: " + "[" * 5000, "levels of nesting"),
        ("---\nname: a\n" * (DOCUMENTS_MAX + 1), f"more than {DOCUMENTS_MAX} documents"),
        ("- " * 20 + "x", "levels of nesting"),
    ],
    ids=["aliases", "endless", "deep flow", "documents", "deep blocks"],
)
def test_hostile_files_are_refused_cheaply(text: str, said: str) -> None:
    assert said in refusal(text).message


def test_a_file_above_the_limit_is_refused() -> None:
    assert refusal("#" * (FILE_BYTES_MAX + 1)).code == "E0204"


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_workloads_or_an_error_for_people(data: bytes) -> None:
    with suppress(HarchError):
        assert parse_workloads(data, "job.yaml")


def test_topology_gang_and_class_are_read_and_their_mistakes_named() -> None:
    text = "name: a\ntopology: {required: rack}\ngang: {tasks_min: 1}\nresources: {gpus: 1, gpu_models: [4090, l4]}\n"
    (spec,) = parse_workloads(text.encode(), "a.yaml")
    assert (spec.topology.required, spec.resources.gpu_models) == ("rack", ("4090", "l4"))
    with pytest.raises(HarchError) as raised:
        parse_workloads(b"name: a\ntopology: {required: rak}\nscheduling_class: trainning\n", "a.yaml")
    assert "topology.required: `rak` is not one of island" in raised.value.message
    assert "did you mean `training`?" in raised.value.message
