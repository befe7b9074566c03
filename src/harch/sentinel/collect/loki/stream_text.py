"""Which stream does `{job="api", site="dakhla"}` name? Read strictly: a guess would file lines under a wrong name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Labels, is_plain_label_name, labels
from harch.sentinel.promql.syntax.quoting import BadEscape, unquote

LABELS_MAX = 1000
TEXT_MAX, _REMEMBERED_MAX = 64 * 1024, 1024
_PAIR = re.compile(
    r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"
    r'("(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'|`[^`]*`)\s*"
)


def parse_stream(text: str) -> Labels:
    """The labels of a stream's text. Raises E0681."""
    return _remembered(text) if len(text) <= _REMEMBERED_MAX else _parsed(text)


def _parsed(text: str) -> Labels:
    if len(text) > TEXT_MAX:
        raise _refusal(text, f"it has {len(text)} characters; {TEXT_MAX} are allowed")
    inside = text.strip()
    if not (inside.startswith("{") and inside.endswith("}")):
        raise _refusal(text, "it does not stand in braces")
    pairs: dict[str, str] = {}
    at, end = 1, len(inside) - 1
    while at < end or not pairs:
        found = _PAIR.match(inside, at, end)
        if found is None:
            if not inside[at:end].strip():
                break  # no labels at all, or a comma at the end, which Prometheus allows
            raise _refusal(text, f'`name="value"` is expected at character {at + 1}')
        name = found[1]
        if name in pairs:
            raise _refusal(text, f"`{name}` comes twice")
        pairs[name] = _value(text, found[2])
        at = found.end()
        if at < end:
            if inside[at] != ",":
                raise _refusal(text, f"a comma is expected at character {at + 1}")
            at += 1
    return checked_stream(pairs)


_remembered = lru_cache(maxsize=16_384)(_parsed)  # the same streams come with every push


def checked_stream(pairs: Mapping[str, str]) -> Labels:
    """The labels of a stream, if they can name one. Raises E0681."""
    if len(pairs) > LABELS_MAX:
        raise HarchError("E0681", f"a stream with {len(pairs)} labels; {LABELS_MAX} are more than any store allows")
    for name in pairs:
        if not is_plain_label_name(name):
            raise HarchError("E0681", f"`{name[:80]}` is no name of a label: letters, digits and `_`, no digit first")
    stream = labels(pairs)
    if not stream:
        raise HarchError("E0681", "a stream needs at least one label that is not empty")
    return stream


def _value(text: str, quoted: str) -> str:
    try:
        value = unquote(quoted)
        value.encode()  # an escape may name bytes that are no text
    except (BadEscape, UnicodeEncodeError):
        raise _refusal(text, f"{quoted[:80]} has an escape that means no text") from None
    return value


def _refusal(text: str, why: str) -> HarchError:
    return HarchError("E0681", f"`{text[:200]}` names no stream: {why}")
