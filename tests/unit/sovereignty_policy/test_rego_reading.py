"""Is Rego taken apart correctly, and is each limit of a bundle where it is said to be?"""

from __future__ import annotations

import json

import pytest

from harch.base.errors import HarchError, Problems
from harch.sovereignty.policy import bundle
from harch.sovereignty.policy.bundle import (
    BUILTINS_ALLOWED,
    bundle_of,
    check_plan,
    digest_of,
    lint_modules,
    package_of,
    references,
    rules_of,
)
from unit.sovereignty_policy.bundles import MANIFEST, REGO, cases, files


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("a", [("a", 1, False)]),
        ("a(b)", [("a", 1, True), ("b", 1, False)]),
        ('a . b ["c"](d)', [("a.b.c", 1, True), ("d", 1, False)]),
        ("a.b[c].d(1)", [("a.b", 1, False), ("c", 1, False), ("d", 1, True)]),
        ('x := a["b"].c', [("x", 1, False), ("a.b.c", 1, False)]),
        ('a["b" , c]', [("a.b", 1, False), ("c", 1, False)]),
        ('a[1].b("x")', [("a", 1, False), ("b", 1, True)]),
        ("a\n.b(", [("a", 1, False), ("b", 2, True)]),
        ("a # b(\n\n c", [("a", 1, False), ("c", 3, False)]),
        ("`x\ny` a", [("a", 2, False)]),
        ('"a\\"b(" c', [("c", 1, False)]),
        ("if in if(x)", [("if", 1, True), ("x", 1, False)]),
        ("not a", [("a", 1, False)]),
        ("1 + 2", []),
        ("", []),
    ],
)
def test_names_are_joined_and_calls_are_seen_with_their_line(source: str, found: list[tuple[str, int, bool]]) -> None:
    assert [(one.name, one.line, one.called) for one in references(source)] == found


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("package a.b\nx := 1", "a.b"),
        ('# package z\npackage a["b"]', "a.b"),
        ("package", ""),
        ("x := 1", ""),
        ("", ""),
    ],
)
def test_the_package_is_the_name_after_its_word(source: str, package: str) -> None:
    assert package_of(source) == package


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("a := 1\n b := 2\nc { d }", {"a", "b", "c"}),
        ("default allow := false\nallow if {\n x\n}", {"allow"}),
        ("default\nx := 1", {"x"}),
        ("x := {\n a: 1 }\ny := [\nz]\n(w)\nq(a,\nb)", {"x", "y", "q"}),
        ('"t" x\nelse y\nimport a.b\n# c\nz', {"z"}),
        ("x\n} y\n{ z", {"x"}),
        ("a b c", {"a"}),
        ("default a := b", {"a"}),
        ("x := 1 # y\n", {"x"}),
        ("x := [1, 2]\ny := (3)\nz := {4}\nu", {"x", "y", "z", "u"}),
    ],
)
def test_rules_are_the_names_that_begin_a_line_outside_of_brackets(lines: str, found: set[str]) -> None:
    assert rules_of(f"package p\n{lines}\n") == {f"p.{name}" for name in found}


def complaints(*modules: str, shipped: bool = False) -> list[tuple[str, str]]:
    problems = Problems()
    lint_modules({f"{n}.rego": source for n, source in enumerate(modules)}, problems, shipped=shipped)
    return problems.found


NOT_LISTED = "is not on the list of permitted built-ins"
NEITHER = "is neither a permitted built-in nor a function of this bundle"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("x := count(input.y)", None),
        ("x := array.concat([1], [2])", None),
        ("import rego.v1", None),
        ("x := f(1)\nf(y) := y", None),
        ("x := data.acme.f(1)\nf(y) := y", None),
        ("x := input.time.now_ns", None),
        ("x := http", None),
        ("x := http.send", f"`http.send` {NOT_LISTED}"),
        ("x := net.lookup_ip_addr(1)", f"`net.lookup_ip_addr` {NOT_LISTED}"),
        ("x := rego.metadata.rule()", f"`rego.metadata.rule` {NOT_LISTED}"),
        ("x := foo(1)", f"`foo(…)` {NEITHER}"),
        ("x := foo.bar(1)", f"`foo.bar(…)` {NEITHER}"),
        ("x := foo.bar", None),
        ("x := some(1)", None),
        ("x if (true)", None),
    ],
)
def test_what_may_be_called_is_listed_or_defined_here(line: str, complaint: str | None) -> None:
    assert complaints(f"package acme\n\n{line}") == ([("0.rego:3", complaint)] if complaint else [])


def test_a_function_of_another_package_is_called_by_its_last_words() -> None:
    other = "package acme.lib\nf(x) := x"
    assert complaints("package acme\nimport data.acme.lib\nx := lib.f(1)", other) == []
    assert complaints("package acme\nx := data.acme.lib.f(1)", other) == []
    assert complaints("package acme\nx := lib.g(1)", other) == [("0.rego:2", f"`lib.g(…)` {NEITHER}")]
    assert complaints("package acme\nx := other.f(1)", other) == [("0.rego:2", f"`other.f(…)` {NEITHER}")]
    assert complaints("package acme\nx := f(1)", other) == [("0.rego:2", f"`f(…)` {NEITHER}")]


def test_a_module_needs_a_package_of_its_own() -> None:
    own = "packages below harch and world belong to HarchOS"
    assert complaints("x := 1") == [("0.rego", "has no `package`")]
    assert complaints("package harch.mine") == [("0.rego", f"`package harch.mine`: {own}")]
    assert complaints("package world") == [("0.rego", f"`package world`: {own}")]
    assert complaints("package harch.mine", "package world", shipped=True) == []
    assert complaints("package harchos", "package mine.world") == []
    assert complaints("x := 1", shipped=True) == [("0.rego", "has no `package`")]


def test_with_is_refused_where_it_stands_and_only_as_a_word() -> None:
    report = "`with` can end the engine's process; write inputs as *cases.json"
    assert complaints('package a\nx := "with"\n# with\ny if z with input as {}\nwithin := 1') == [("0.rego:4", report)]


def test_the_compiled_plan_is_held_against_the_same_list() -> None:
    problems = Problems()
    check_plan(["count", "opa.runtime", "http.send", "opa.runtime"], problems)
    assert problems.found == [
        ("compiled plan", f"calls `{name}`, which {NOT_LISTED}") for name in ("http.send", "opa.runtime")
    ]
    fine = Problems()
    check_plan(BUILTINS_ALLOWED, fine)
    assert not fine


# The bundle


def refusal(content: dict[str, bytes], *, shipped: bool = False) -> HarchError:
    with pytest.raises(HarchError) as caught:
        bundle_of(content, shipped=shipped)
    assert caught.value.code == "E0930"
    assert caught.value.hint == "docs/guides/policies.md describes bundles and lists the permitted built-ins"
    return caught.value


WHOLE = files(
    manifest=f'{MANIFEST}[reasons]\nworkload = "acme/deny"\n',
    rego=f"{REGO}\ndeny contains 1\n",
    data__json='{"limits": {"gpus": 8}}',
    cases__json=cases(("one", {"workload": {}}, False)),
    README__md="# words",
) | {"acme_test.rego": b"package acme_test\ntest_b := true\ntest_a := true\nhelper := 1\n"}


def test_a_whole_bundle_is_read_with_all_its_parts() -> None:
    found = bundle_of(WHOLE)
    assert found.title == "acme 1.0.0"
    assert found.paths == ("acme/allow", "acme/deny")
    assert found.test_paths == ("acme_test/test_a", "acme_test/test_b")
    assert list(found.modules) == ["acme.rego"]
    assert list(found.tests) == ["acme_test.rego"]
    assert found.data == {"limits": {"gpus": 8}}
    assert [(case.name, case.allow, case.question) for case in found.cases] == [("one", False, "workload")]
    assert found.digest == digest_of(
        {
            "manifest": {
                "name": "acme",
                "version": "1.0.0",
                "entrypoints": {"workload": "acme/allow"},
                "reasons": {"workload": "acme/deny"},
                "description": "",
            },
            "modules": found.modules,
            "data": found.data,
        }
    )
    assert digest_of({"b": 1, "a": "é"}) == digest_of({"a": "é", "b": 1}) != digest_of({"a": "e", "b": 1})


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        ({"acme.rego": None}, {("*.rego", "the bundle has no Rego")}),
        ({"acme.rego": b"\xff"}, {("acme.rego", "is not UTF-8"), ("acme.rego", "has no `package`")}),
        (
            {"notes.txt": b""},
            {("notes.txt", "not part of a bundle: policy.toml, *.rego, data.json, *cases.json or *.md")},
        ),
        (
            {"data.json": b'{"harch": 1, "world": 2}'},
            {("data.json", f"the key `{n}` belongs to HarchOS") for n in ("harch", "world")},
        ),
        ({"policy.toml": None}, {("policy.toml", "is missing")}),
    ],
)
def test_each_mistake_is_reported_with_its_file(
    change: dict[str, bytes | None], problems: set[tuple[str, str]]
) -> None:
    content = {name: text for name, text in {**files(), **change}.items() if text is not None}
    reported = refusal(content).meta["problems"]
    assert {(one["field"], one["message"]) for one in reported} >= problems  # type: ignore[attr-defined]


def test_one_mistake_is_a_sentence_and_several_are_a_list() -> None:
    one = refusal({**files(), "notes.txt": b""})
    assert one.message == "notes.txt: not part of a bundle: policy.toml, *.rego, data.json, *cases.json or *.md"
    two = refusal({**files(), "a.txt": b"", "b.txt": b""})
    assert two.message.startswith("2 problems\n  a.txt: not part of a bundle")


def test_entry_points_reasons_and_cases_must_lead_somewhere() -> None:
    def reported(manifest: str, **more: str) -> str:
        return refusal(files(manifest=manifest, **more)).message

    reasons = f'{MANIFEST}[reasons]\nworkload = "acme/deny"\n'
    assert reported(reasons) == "policy.toml reasons.workload: no rule `acme/deny`; packages here: acme"
    lunch = f'{MANIFEST}[reasons]\nlunch = "acme/allow"\n'
    assert reported(lunch) == "policy.toml reasons.lunch: unknown question; use workload, change"
    question = json.dumps([{"name": "one", "input": {}, "allow": True, "question": "change"}])
    assert reported(MANIFEST, cases__json=question) == "case one: uses `change`, which has no entry point"
    both = MANIFEST.replace('workload = "acme/allow"', 'workload = "acme/allow"\nchange = "acme/allow"')
    assert bundle_of(files(manifest=both, cases__json=question)).paths == ("acme/allow",)


def test_a_rule_of_a_test_is_no_entry_point() -> None:
    content = {
        **files(manifest=MANIFEST.replace("acme/allow", "acme/test_it")),
        "a_test.rego": b"package acme\ntest_it := true",
    }
    assert "no rule `acme/test_it`" in refusal(content).message


def test_a_shipped_bundle_may_use_the_reserved_packages() -> None:
    content = files("package harch.acme\nallow := true", manifest=MANIFEST.replace("acme/allow", "harch/acme/allow"))
    assert "belong to HarchOS" in refusal(content).message
    assert bundle_of(content, shipped=True).paths == ("harch/acme/allow",)


def test_limits_are_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    content = files(cases__json=cases(("one", {}, False), ("two", {}, True)))
    total, largest = sum(map(len, content.values())), max(map(len, content.values()))
    limits = {"FILES_MAX": len(content), "BUNDLE_BYTES_MAX": total, "FILE_BYTES_MAX": largest, "CASES_MAX": 2}
    reported = {
        "FILES_MAX": "bundle: 3 files; at most 2",
        "BUNDLE_BYTES_MAX": "bundle: larger than 0 KiB",
        "FILE_BYTES_MAX": "larger than 0 KiB",
        "CASES_MAX": "cases.json: 2 cases; at most 1",
    }
    for name, limit in limits.items():
        monkeypatch.setattr(bundle, name, limit)
    assert len(bundle_of(content).cases) == 2
    for name, limit in limits.items():
        monkeypatch.setattr(bundle, name, limit - 1)
        assert refusal(content).message.endswith(reported[name])
        monkeypatch.setattr(bundle, name, limit)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 5000])
def test_data_and_cases_that_cannot_be_read_are_refused(text: str) -> None:
    assert refusal(files(data__json=text)).message.startswith("data.json: ")
    assert refusal(files(cases__json=text)).message.startswith("cases.json: ")
