"""What is a policy bundle, and is its Rego fit to decide?

A manifest, Rego, data and tests, as a value; calls that a policy must not make are found with file and line.
"""

# harch: pure

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError, Problems

# Is this Rego fit to decide? Finds calls that the engine lacks or that a policy must not make, with file and line.
#
# A built-in that the engine does not have makes a rule undefined or an error, and one such as `opa.runtime` looks at
# the
# machine. Only what is listed here may be called. The worker checks the compiled plan against the same list.


# Two roots, because the engine evaluates every rule of `data.harch` whenever base data below the same root is read.
PACKAGE_ROOT, WORLD_ROOT = "harch", "world"
RESERVED_ROOTS = (PACKAGE_ROOT, WORLD_ROOT)

# Pure, in the engine, and bounded by the size of their arguments. No clock, no randomness, no network, no machine.
_PLAIN = """
abs all any array.concat array.reverse array.slice base64.decode base64.encode base64.is_valid base64url.decode
base64url.encode bits.and bits.lsh bits.negate bits.or bits.rsh bits.xor ceil concat contains count crypto.md5
crypto.sha1 crypto.sha256 div endswith eq equal floor format_int graph.reachable gt gte hex.decode hex.encode indexof
indexof_n intersection is_array is_boolean is_null is_number is_object is_set is_string json.filter json.is_valid
json.marshal json.remove json.unmarshal lower lt lte max min mul neq minus numbers.range object.filter object.get
object.keys object.remove object.subset object.union object.union_n or and plus product rem regex.is_valid regex.match
regex.replace regex.split replace round semver.compare semver.is_valid set_diff sort split sprintf startswith
strings.any_prefix_match strings.any_suffix_match strings.count strings.render_template strings.replace_n
strings.reverse substring sum time.add_date time.clock time.date time.diff time.parse_duration_ns
time.parse_rfc3339_ns time.weekday to_number trim trim_left trim_prefix trim_right trim_space trim_suffix type_name
union units.parse units.parse_bytes upper walk internal.member_2 internal.member_3
"""
BUILTINS_ALLOWED = frozenset(_PLAIN.split())

_WORDS_OF_REGO = """
package import as default if else contains in some every with not null true false set data input
"""
_KEYWORDS = frozenset(_WORDS_OF_REGO.split())
_FAMILIES = """
array base64 base64url bits crypto glob graph graphql hex http internal io json net numbers object opa print providers
rand regex rego semver strings time trace units urlquery uuid yaml
"""
_BUILTIN_FAMILIES = frozenset(_FAMILIES.split())
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|`[^`]*`)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<line>\n)|(?P<space>[ \t\r]+)|(?P<sign>.)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A dotted name as it stands in the text; `["x"]` counts as `.x`."""

    name: str
    line: int
    called: bool


def lint_modules(modules: Mapping[str, str], problems: Problems, *, shipped: bool = False) -> None:
    """Every mistake of the Rego files, at most as many as `problems` keeps. `shipped`: may use the reserved root."""
    defined = {path for source in modules.values() for path in rules_of(source)}
    for file, source in modules.items():
        package = package_of(source)
        if not package:
            problems.add(file, "has no `package`")
        elif package.split(".")[0] in RESERVED_ROOTS and not shipped:
            problems.add(file, f"`package {package}`: packages below {' and '.join(RESERVED_ROOTS)} belong to HarchOS")
        for kind, text, line in _tokens(source):
            if kind == "word" and text == "with":
                problems.add(f"{file}:{line}", "`with` can end the engine's process; write inputs as *cases.json")
        for reference in references(source):
            if complaint := _complaint(reference, package, defined):
                problems.add(f"{file}:{reference.line}", complaint)


def check_plan(builtins: Iterable[str], problems: Problems) -> None:
    """The same list against what the compiled plan calls."""
    for name in sorted(set(builtins) - BUILTINS_ALLOWED):
        problems.add("compiled plan", f"calls `{name}`, which is not on the list of permitted built-ins")


def package_of(source: str) -> str:
    words = list(_words(source))
    for index, reference in enumerate(words):
        if reference.name == "package" and index + 1 < len(words):
            return words[index + 1].name
    return ""


def rules_of(source: str) -> frozenset[str]:
    """Full paths (`acme.workload.allow`) of what a module defines: names at the beginning of a line, outside braces."""
    package = package_of(source)
    found = set[str]()
    depth, fresh, after_default = 0, True, False
    for kind, text, _ in _tokens(source):
        if kind == "line":
            fresh = True
        elif kind == "word":
            is_head = fresh and depth == 0 and text not in ("package", "import", "default", "else")
            if is_head or after_default:
                found.add(f"{package}.{text}")
            after_default = text == "default"
            fresh = False
        elif kind not in ("space", "comment"):
            depth += (text in "{[(") - (text in "}])")
            fresh = after_default = False
    return frozenset(found)


def references(source: str) -> Iterator[Reference]:
    """Every dotted name that is not a keyword alone."""
    return (reference for reference in _words(source) if reference.name not in _KEYWORDS or reference.called)


def _complaint(reference: Reference, package: str, defined: set[str]) -> str:
    name = reference.name
    if name in BUILTINS_ALLOWED or name == "rego.v1":
        return ""
    if f"{package}.{name}" in defined or name.removeprefix("data.") in defined:
        return ""
    family = name.split(".")[0]
    if "." in name and family in _BUILTIN_FAMILIES:
        return f"`{name}` is not on the list of permitted built-ins"
    if not reference.called or name in _KEYWORDS:
        return ""
    # An imported package is called by its last word; the compiled plan has the last say on those.
    if "." in name and any(path.split(".")[-2:] == name.split(".")[-2:] for path in defined):
        return ""
    return f"`{name}(…)` is neither a permitted built-in nor a function of this bundle"


def _words(source: str) -> Iterator[Reference]:
    """Joins `a . b ["c"]` to `a.b.c`, and looks whether `(` follows. A name alone on its line is not joined further."""
    name, line, state = "", 0, ""  # state: what may come next, `.` or a part
    for kind, text, at in _tokens(source):
        if kind in ("space", "comment"):
            continue
        if name and state == "part" and kind == "word":
            name, state = f"{name}.{text}", "name"
        elif name and state == "index" and kind == "text":
            name, state = f"{name}.{text[1:-1]}", "close"
        elif name and state == "close" and text == "]":
            state = "name"
        elif name and state == "name" and text in (".", "["):
            state = "part" if text == "." else "index"
        else:
            if name:
                yield Reference(name, line, called=text == "(")
            name, line, state = (text, at, "name") if kind == "word" else ("", 0, "")
    if name:
        yield Reference(name, line, called=False)


def _tokens(source: str) -> Iterator[tuple[str, str, int]]:
    line = 1
    for match in _TOKEN.finditer(source):
        yield match.lastgroup or "sign", match.group(), line
        line += match.group().count("\n")


# What is a policy bundle? A manifest, Rego, data and tests, as a value; its digest is the policy's version in audits.
#
# The digest covers what can change a decision: manifest, Rego and data. Tests may be added without a new version.


MANIFEST = "policy.toml"
DATA = "data.json"
FILES_MAX = 200
FILE_BYTES_MAX = 1024 * 1024
BUNDLE_BYTES_MAX = 4 * 1024 * 1024
CASES_MAX = 10_000
QUESTIONS = ("workload", "change")  # what HarchOS asks a policy about

Path = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]*(/[a-z_][a-z0-9_]*)+$", max_length=256)]


class BundleManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`entrypoints` name the rule that must be exactly `true`; `reasons` a set of strings that says why not."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=64)]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+([-+][0-9A-Za-z.-]+)?$", max_length=64)]
    entrypoints: dict[str, Path]
    reasons: dict[str, Path] = {}
    description: Annotated[str, Meta(max_length=2000)] = ""


class PolicyCase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One expectation about one input."""

    name: str
    input: dict[str, object]
    allow: bool
    question: str = "workload"


class PolicyBundle(Struct, frozen=True, kw_only=True):
    """A bundle that has passed every check short of compiling it."""

    manifest: BundleManifest
    modules: dict[str, str]
    data: dict[str, object]
    tests: dict[str, str] = {}
    cases: tuple[PolicyCase, ...] = ()
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
    sources = {name: _text(name, content, problems) for name, content in sorted(files.items())}
    manifest = _manifest(sources.get(MANIFEST), problems)
    modules = {name: text for name, text in sources.items() if name.endswith(".rego") and not _is_test(name)}
    tests = {name: text for name, text in sources.items() if name.endswith(".rego") and _is_test(name)}
    data = _data(sources.get(DATA), problems)
    cases = tuple(case for name, text in sources.items() for case in _cases(name, text, problems))
    for name in sources:
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


def _manifest(text: str | None, problems: Problems) -> BundleManifest | None:
    if text is None:
        problems.add(MANIFEST, "is missing")
        return None
    try:
        return msgspec.convert(tomllib.loads(text), BundleManifest)
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


def _cases(name: str, text: str, problems: Problems) -> tuple[PolicyCase, ...]:
    if not name.endswith("cases.json"):
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[PolicyCase, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        problems.add(name, str(error))
        return ()
    if len(found) > CASES_MAX:
        problems.add(name, f"{len(found)} cases; at most {CASES_MAX}")
    return found[:CASES_MAX]


def _check_entrypoints(
    manifest: BundleManifest, modules: Mapping[str, str], cases: tuple[PolicyCase, ...], problems: Problems
) -> None:
    # The engine answers `undefined` for an entry point that does not exist, so a slip of the pen would deny everything.
    defined = {path.replace(".", "/") for source in modules.values() for path in rules_of(source)}
    if not manifest.entrypoints:
        problems.add(MANIFEST, "has no entry point")
    for section, paths in (("entrypoints", manifest.entrypoints), ("reasons", manifest.reasons)):
        for question, path in paths.items():
            if question not in QUESTIONS:
                problems.add(f"{MANIFEST} {section}.{question}", f"unknown question; use {', '.join(QUESTIONS)}")
            if path not in defined:
                packages = ", ".join(sorted({package_of(source) for source in modules.values()}))
                problems.add(f"{MANIFEST} {section}.{question}", f"no rule `{path}`; packages here: {packages}")
    for case in cases:
        if case.question not in manifest.entrypoints:
            problems.add(f"case {case.name}", f"uses `{case.question}`, which has no entry point")


def _is_test(name: str) -> bool:
    return name.endswith("_test.rego")
