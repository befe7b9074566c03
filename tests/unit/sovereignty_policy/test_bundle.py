"""Is a bundle read completely, refused with every mistake, and known by what it says?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.policy.bundle import BUILTINS_ALLOWED, bundle_of, references, rules_of
from harch.sovereignty.policy.evaluation import DEFAULT, read_bundle
from unit.sovereignty_policy.bundles import MANIFEST, REGO, cases, files


def mistakes(content: dict[str, bytes]) -> str:
    with pytest.raises(HarchError) as caught:
        bundle_of(content)
    assert caught.value.code == "E0930"
    return caught.value.message


def test_the_digest_changes_with_rules_and_data_and_not_with_tests() -> None:
    digest = bundle_of(files()).digest
    assert bundle_of(files()).digest == digest
    assert bundle_of(files(cases__json=cases(("x", {}, False)))).digest == digest
    assert bundle_of(files(REGO + "\n# a word\n")).digest != digest
    assert bundle_of(files(data__json='{"limits": 1}')).digest != digest
    assert bundle_of(files(manifest=MANIFEST.replace("1.0.0", "1.0.1"))).digest != digest


def test_the_order_of_keys_in_data_does_not_matter() -> None:
    one, other = files(data__json='{"a": 1, "b": 2}'), files(data__json='{"b": 2, "a": 1}')
    assert bundle_of(one).digest == bundle_of(other).digest


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("allow if opa.runtime().env", "opa.runtime"),
        ('allow if opa["runtime"]().env', "opa.runtime"),
        ("allow if opa . runtime().env", "opa.runtime"),
        ('allow if http.send({"url": "x"})', "http.send"),
        ('deny if net.cidr_contains("10.0.0.0/8", input.ip)', "net.cidr_contains"),
        ("allow if time.now_ns() > 1", "time.now_ns"),
        ("allow if rand.intn(`x`, 2) == 1", "rand.intn"),
        ("allow if foo(input)", "foo"),
        ("f(x) := x\nallow if f(1) with f as opa.runtime", "opa.runtime"),
        ("allow if input.x with input as {}", "with"),
    ],
)
def test_what_a_policy_must_not_call_is_named_with_its_line(line: str, word: str) -> None:
    said = mistakes(files(f"package acme\nimport rego.v1\nallow := true\n{line}\n"))
    assert word in said
    assert "acme.rego:" in said


def test_words_in_texts_and_comments_are_not_calls() -> None:
    rego = 'package acme\n# opa.runtime() with x\nallow if input.x == "opa.runtime() with"\nb := `http.send(1)`'
    assert bundle_of(files(rego)).manifest.name == "acme"


def test_functions_of_the_bundle_and_of_the_default_policy_may_be_called() -> None:
    rego = "package acme\nimport rego.v1\nallow if ok(input)\nok(x) if count(x.labels) > 0\n"
    assert bundle_of(files(rego)).paths == ("acme/allow",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"manifest": MANIFEST.replace("acme/allow", "acme/alow")}, "no rule `acme/alow`"),
        ({"manifest": MANIFEST.replace("workload =", "lunch =")}, "unknown question"),
        ({"manifest": 'name = "acme"\nversion = "1.0.0"\n[entrypoints]\n'}, "has no entry point"),
        ({"manifest": "name = 3"}, "policy.toml"),
        ({"rego": "package harch.mine\nallow := true"}, "belong to HarchOS"),
        ({"rego": "allow := true"}, "has no `package`"),
        ({"data__json": '{"world": {}}'}, "belongs to HarchOS"),
        ({"data__json": "[1]"}, "data.json"),
        ({"cases__json": '[{"name": "x"}]'}, "cases.json"),
        ({"notes__txt": "x"}, "not part of a bundle"),
    ],
)
def test_a_bundle_with_a_mistake_is_refused(change: dict[str, str], said: str) -> None:
    assert said in mistakes(files(**change))


def test_every_mistake_is_told_at_once() -> None:
    said = mistakes(files("package acme\nallow if http.send(1)\nb if rand.intn(1)", data__json="["))
    assert "http.send" in said
    assert "rand.intn" in said
    assert "data.json" in said


def test_a_bundle_without_a_manifest_is_refused() -> None:
    assert "policy.toml: is missing" in mistakes({"a.rego": b"package a\nallow := true"})


def test_sizes_are_limited() -> None:
    assert "files; at most" in mistakes({f"{n}.md": b"" for n in range(300)})
    assert "larger than" in mistakes(files(data__json=" " * (1024 * 1024 + 1)))


def test_links_in_a_bundle_folder_are_refused(tmp_path: Path) -> None:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    assert read_bundle(str(tmp_path)).manifest.name == "acme"
    (tmp_path / "more.rego").symlink_to("/etc/hostname")
    with pytest.raises(HarchError, match="not a plain file"):
        read_bundle(str(tmp_path))


def test_rules_are_found_at_the_beginning_of_lines_only() -> None:
    source = "package a.b\ndefault x := 1\ny contains 1 if {\n\tz := 2\n\tz == 2\n} else := 3\nf(q) := q\n"
    assert rules_of(source) == {"a.b.x", "a.b.y", "a.b.f"}


def test_references_join_dots_and_brackets() -> None:
    assert {reference.name for reference in references('a.b["c"](d[e])')} == {"a.b.c", "d", "e"}


def test_the_shipped_bundle_is_valid_and_uses_permitted_built_ins_only() -> None:
    bundle = read_bundle(DEFAULT)
    assert bundle.manifest.entrypoints == {"workload": "harch/sovereignty/allow"}
    assert len(bundle.test_paths) >= 10
    assert "opa.runtime" not in BUILTINS_ALLOWED


def test_the_guide_lists_the_permitted_built_ins() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "policies.md").read_text("utf-8")
    listed = guide.split("<!-- builtins -->")[1].split("```text\n")[1].split("```")[0].split()
    assert set(listed) == {name for name in BUILTINS_ALLOWED if not name.startswith("internal.")}
