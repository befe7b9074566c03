"""What is a policy bundle? A manifest, Rego, data and tests, as a value; its digest is the policy's version in audits.

The digest covers what can change a decision: manifest, Rego and data. Tests may be added without a new version.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError, Problems
from harch.sovereignty.policy.lint import RESERVED_ROOTS, lint_modules, package_of, rules_of

MANIFEST = "policy.toml"
DATA = "data.json"
FILES_MAX = 200
FILE_BYTES_MAX = 1024 * 1024
BUNDLE_BYTES_MAX = 4 * 1024 * 1024
CASES_MAX = 10_000
QUESTIONS = ("workload", "change")  # what HarchOS asks a policy about

Path = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]*(/[a-z_][a-z0-9_]*)+$", max_length=256)]


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`entrypoints` name the rule that must be exactly `true`; `reasons` a set of strings that says why not."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=64)]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+([-+][0-9A-Za-z.-]+)?$", max_length=64)]
    entrypoints: dict[str, Path]
    reasons: dict[str, Path] = {}
    description: Annotated[str, Meta(max_length=2000)] = ""


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One expectation about one input."""

    name: str
    input: dict[str, object]
    allow: bool
    question: str = "workload"


class PolicyBundle(Struct, frozen=True, kw_only=True):
    """A bundle that has passed every check short of compiling it."""

    manifest: Manifest
    modules: dict[str, str]
    data: dict[str, object]
    tests: dict[str, str] = {}
    cases: tuple[Case, ...] = ()
    digest: str = ""

    @property
    def title(self) -> str:
        return f"{self.manifest.name} {self.manifest.version}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Every rule that HarchOS may ask for."""
        return tuple(dict.fromkeys((*self.manifest.entrypoints.values(), *self.manifest.reasons.values())))

    @property
    def test_paths(self) -> tuple[str, ...]:
        """The rules `test_…` of the test modules."""
        found = {path for source in self.tests.values() for path in rules_of(source)}
        return tuple(sorted(path.replace(".", "/") for path in found if path.rsplit(".", 1)[-1].startswith("test_")))


def bundle_of(files: Mapping[str, bytes], *, shipped: bool = False) -> PolicyBundle:
    """The bundle in these files (path to content). Raises E0930 with every mistake."""
    problems = Problems()
    _check_sizes(files, problems)
    if problems:
        raise not_valid(problems)
    texts = {name: _text(name, content, problems) for name, content in sorted(files.items())}
    manifest = _manifest(texts.get(MANIFEST), problems)
    modules = {name: text for name, text in texts.items() if name.endswith(".rego") and not _is_test(name)}
    tests = {name: text for name, text in texts.items() if name.endswith(".rego") and _is_test(name)}
    data = _data(texts.get(DATA), problems)
    cases = tuple(case for name, text in texts.items() for case in _cases(name, text, problems))
    for name in texts:
        if name not in (MANIFEST, DATA) and not name.endswith((".rego", "cases.json", ".md")):
            problems.add(name, f"not part of a bundle: {MANIFEST}, *.rego, {DATA}, *cases.json or *.md")
    if not modules:
        problems.add("*.rego", "the bundle has no Rego")
    lint_modules({**modules, **tests}, problems, shipped=shipped)
    if manifest is not None:
        _check_entrypoints(manifest, modules, cases, problems)
    if problems or manifest is None:
        raise not_valid(problems)
    return PolicyBundle(
        manifest=manifest,
        modules=modules,
        data=data,
        tests=tests,
        cases=cases,
        digest=digest_of({"manifest": msgspec.to_builtins(manifest), "modules": modules, "data": data}),
    )


def digest_of(value: object) -> str:
    """Equal for equal values, whatever the order of their keys."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def not_valid(problems: Problems) -> HarchError:
    lines = [f"{where}: {what}" for where, what in problems.found]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    return HarchError(
        "E0930",
        message,
        hint="docs/guides/policies.md describes bundles and lists the permitted built-ins",
        meta={"problems": [{"field": where, "message": what} for where, what in problems.found]},
    )


def _check_sizes(files: Mapping[str, bytes], problems: Problems) -> None:
    if len(files) > FILES_MAX:
        problems.add("bundle", f"{len(files)} files; at most {FILES_MAX}")
    if sum(len(content) for content in files.values()) > BUNDLE_BYTES_MAX:
        problems.add("bundle", f"larger than {BUNDLE_BYTES_MAX // 1024} KiB")
    for name, content in files.items():
        if len(content) > FILE_BYTES_MAX:
            problems.add(name, f"larger than {FILE_BYTES_MAX // 1024} KiB")


def _text(name: str, content: bytes, problems: Problems) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        problems.add(name, "is not UTF-8")
        return ""


def _manifest(text: str | None, problems: Problems) -> Manifest | None:
    if text is None:
        problems.add(MANIFEST, "is missing")
        return None
    try:
        return msgspec.convert(tomllib.loads(text), Manifest)
    except (ValueError, RecursionError) as error:  # msgspec's and tomllib's errors are ValueErrors
        problems.add(MANIFEST, str(error))
        return None


def _data(text: str | None, problems: Problems) -> dict[str, object]:
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        problems.add(DATA, str(error))
        return {}
    for name in RESERVED_ROOTS:
        if name in found:
            problems.add(DATA, f"the key `{name}` belongs to HarchOS")
    return found


def _cases(name: str, text: str, problems: Problems) -> tuple[Case, ...]:
    if not name.endswith("cases.json"):
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[Case, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        problems.add(name, str(error))
        return ()
    if len(found) > CASES_MAX:
        problems.add(name, f"{len(found)} cases; at most {CASES_MAX}")
    return found[:CASES_MAX]


def _check_entrypoints(
    manifest: Manifest, modules: Mapping[str, str], cases: tuple[Case, ...], problems: Problems
) -> None:
    # The engine answers `undefined` for an entry point that does not exist, so a slip of the pen would deny everything.
    defined = {path.replace(".", "/") for source in modules.values() for path in rules_of(source)}
    if not manifest.entrypoints:
        problems.add(MANIFEST, "names no entry point, so nothing would ever be asked")
    for section, paths in (("entrypoints", manifest.entrypoints), ("reasons", manifest.reasons)):
        for question, path in paths.items():
            if question not in QUESTIONS:
                problems.add(f"{MANIFEST} {section}.{question}", f"HarchOS asks about: {', '.join(QUESTIONS)}")
            if path not in defined:
                packages = ", ".join(sorted({package_of(source) for source in modules.values()}))
                problems.add(f"{MANIFEST} {section}.{question}", f"no rule `{path}`; packages here: {packages}")
    for case in cases:
        if case.question not in manifest.entrypoints:
            problems.add(f"case {case.name}", f"asks `{case.question}`, which has no entry point")


def _is_test(name: str) -> bool:
    return name.endswith("_test.rego")
