"""Which keys and values does a logfmt line have? `level=info msg="it works" took=3ms`."""

from __future__ import annotations

import re

# A key runs to `=` or a space; a value is quoted, or runs to a space. Possessive, so that no line takes long.
_KEY, _QUOTED, _BARE = r'[^\x00-\x20="]++', r'[^"\\]*+(?:\\.[^"\\]*+)*+', r'[^\x00-\x20"]*+'
_PAIR = re.compile(rf'[\x00-\x20]*+({_KEY})(?:=(?:"({_QUOTED})"|({_BARE})))?', re.DOTALL)
_WHOLE_LINE = re.compile(
    rf'(?:[\x00-\x20]*+{_KEY}(?:=(?:"{_QUOTED}"|{_BARE}))?(?=[\x00-\x20]|\Z))*+[\x00-\x20]*+', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PASSED_OVER = re.compile(r"[\x00-\x20]*[^\x00-\x20]+")
_NO_TEXT = "\ufffd"  # in place of half a character


def logfmt_pairs(line: str, *, strict: bool = False) -> tuple[list[tuple[str, str]], str]:
    """Pairs in order, and what is wrong with the line. A mistake ends the line if `strict`, else it is passed over."""
    if _WHOLE_LINE.fullmatch(line) is not None:
        return [(key, bare or _unescaped(quoted)) for key, quoted, bare in _PAIR.findall(line)], ""
    return _with_mistakes(line, strict=strict)


def _with_mistakes(line: str, *, strict: bool) -> tuple[list[tuple[str, str]], str]:
    pairs: list[tuple[str, str]] = []
    position, end, wrong = 0, len(line.rstrip()), ""
    while position < end:
        found = _PAIR.match(line, position)
        follows = line[found.end() : found.end() + 1] if found is not None else ""
        if found is not None and (not follows or follows <= " "):
            pairs.append((found[1], found[3] or _unescaped(found[2] or "")))
            position = found.end()
            continue
        if not wrong:
            wrong = f"logfmt syntax error at pos {position + 1}: unexpected {line[position : position + 20]!r}"
        if strict:
            break
        passed = _PASSED_OVER.match(line, position)
        position = passed.end() if passed is not None else end
    return pairs, wrong if strict else ""


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if not found[1]:
        return _NAMED.get(found[2], found[2])
    code = int(found[1], 16)
    return _NO_TEXT if 0xD800 <= code < 0xE000 else chr(code)
