"""Which alerts are meant? Matchers as Alertmanager writes them: `a="b"`, `{a="b", c=~"d.*"}`, `"a name"!="x"`."""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MatchKind, is_plain_label_name, whole_text_pattern

MATCHERS_MAX = 64
PATTERN_CHARS_MAX = 4_096

_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s{}!=~,"\'`\\]+))\s*(?P<kind>=~|!~|!=|=)\s*')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*', re.DOTALL)
_PLAIN = re.compile(r'[^,"]*')
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def parse_matchers(text: str) -> list[Matcher]:
    """One matcher or several, with or without braces. Raises E0644."""
    inner = text.strip()
    if inner.startswith("{"):
        if not inner.endswith("}"):
            raise wrong(text, "the brace is not closed")
        inner = inner[1:-1]
    elif inner.endswith("}") and not inner.endswith('"}'):
        raise wrong(text, "a closing brace without an opening one")
    found: list[Matcher] = []
    at = 0
    while inner[at:].strip():
        matcher, at = _one(text, inner, at)
        found.append(matcher)
        if len(found) > MATCHERS_MAX:
            raise wrong(text, f"more than {MATCHERS_MAX} matchers")
    return found


def parse_matcher(text: str) -> Matcher:
    """Exactly one. Raises E0644."""
    found = parse_matchers(text)
    if len(found) != 1:
        raise wrong(text, "expected one matcher")
    return found[0]


def matcher(name: str, value: str, *, is_regex: bool = False, is_equal: bool = True) -> Matcher:
    """A matcher from its parts, checked. Raises E0644."""
    if not name:
        raise HarchError("E0644", "a matcher has no name", hint="name the label to match")
    if len(value) > PATTERN_CHARS_MAX:
        raise HarchError("E0644", f"the value of `{name}` is longer than {PATTERN_CHARS_MAX}", hint="shorten it")
    if is_regex:
        try:
            whole_text_pattern(value)
        except HarchError as error:
            if error.code != "E0602":
                raise
            raise HarchError("E0644", f"`{name}`: {error.message}", hint="regular expressions are RE2") from error
        return Matcher(MatchKind.REGEX if is_equal else MatchKind.NOT_REGEX, name, value)
    return Matcher(MatchKind.EQUAL if is_equal else MatchKind.NOT_EQUAL, name, value)


def all_match(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    return all(one.matches(labels.get(one.name, "")) for one in matchers)


def format_matchers(matchers: Iterable[Matcher]) -> str:
    """`{a="b",c=~"d"}`, as keys of routes and groups have it."""
    return "{" + ",".join(_format_matcher(one) for one in matchers) + "}"


def _format_matcher(one: Matcher) -> str:
    """Names that are not plain are quoted, so that they can be read again."""
    if is_plain_label_name(one.name):
        return str(one)
    escaped = one.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"{str(one)[len(one.name) :]}'


def _one(text: str, inner: str, at: int) -> tuple[Matcher, int]:
    head = _NAME.match(inner, at)
    if head is None:
        raise wrong(text, f"`{inner[at : at + 20]}` does not start with a name and one of = != =~ !~")
    quoted = _QUOTED.match(inner, head.end())
    if quoted is not None:
        value, at = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), quoted[1]), quoted.end()
    else:
        plain = _PLAIN.match(inner, head.end())
        value = plain[0].strip() if plain else ""
        at = plain.end() if plain else head.end()
    if at < len(inner):
        if inner[at] != ",":
            raise wrong(text, f"unexpected `{inner[at : at + 10]}`")
        at += 1
    kind = head["kind"]
    name = head["plain"] if head["quoted"] is None else _ESCAPE.sub(r"\1", head["quoted"])
    return matcher(name, value, is_regex="~" in kind, is_equal=not kind.startswith("!")), at


def wrong(text: str, why: str) -> HarchError:
    return HarchError("E0644", f"`{text[:80]}`: {why}", hint='write e.g. severity="page" or instance=~"web-.*"')
