"""Is this Rego fit to decide? Finds calls that the engine lacks or that a policy must not make, with file and line.

A built-in that the engine does not have makes a rule undefined or an error, and one such as `opa.runtime` looks at the
machine. Only what is listed here may be called. The worker checks the compiled plan against the same list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harch.base.errors import Problems

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
