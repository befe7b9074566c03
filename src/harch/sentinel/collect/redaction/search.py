"""Which of many texts hold a secret? All of them are searched at once, because almost none does.

The texts are joined with line ends and searched for any of the patterns. A pattern that is found in a text alone is
also found in the joined text, at that place or by a match that reaches over it: so every text that a match touches is
looked at again by itself, and no other can hold anything. `^` and `$` mean line ends in the joined text; patterns that
can tell it from a text alone by other means are never joined.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from harch.sentinel.collect.redaction.rule import Rule, compiled

_PIECE_CHARACTERS = 1 << 20
_GROUP_NAME = re.compile(r"\(\?P?<[A-Za-z0-9_]+>")
_NOT_JOINABLE = re.compile(r"\\[AzZCQ]|\(\?[a-zA-Z]*[-mU]")  # ends of the text, and flags that change `^` and `$`


class Search:
    """Finds the texts that any of the rules may concern."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        joinable = [rule for rule in rules if not _NOT_JOINABLE.search(rule.source)]
        self._alone: list[Any] = [rule.pattern for rule in rules if _NOT_JOINABLE.search(rule.source)]
        self._union: Any = None
        if joinable:
            try:
                self._union = _joined([rule.source for rule in joinable])
            except _NotJoined:
                self._alone = [rule.pattern for rule in rules]

    def touched(self, texts: Sequence[str]) -> list[int]:
        """Places of texts to look at one by one, in order."""
        found: set[int] = set()
        if self._union is not None:
            for first, last in _pieces(texts):
                found.update(first + place for place in self._in_piece(texts[first:last]))
        for pattern in self._alone:
            found.update(place for place, text in enumerate(texts) if pattern.search(text) is not None)
        return sorted(found)

    def _in_piece(self, texts: Sequence[str]) -> Iterator[int]:
        joined = "\n".join(texts).encode()
        at, ends = 0, None
        while True:
            found = self._union.search(joined, at)
            if found is None:
                return
            begin, end = found.span()
            if ends is None:
                ends = list(accumulate(len(text.encode()) + 1 for text in texts))  # each with its line end
            first, last = bisect_right(ends, begin), bisect_right(ends, max(begin, end - 1))
            yield from range(first, min(last, len(texts) - 1) + 1)
            if last >= len(texts) - 1:
                return
            at = ends[last]  # the rest of a text that is touched need not be searched


class _NotJoined(Exception):
    """All patterns together are more than RE2 takes: then each is searched for by itself."""


def _joined(sources: Sequence[str]) -> Any:
    """Groups have no names here: two rules may use the same one."""
    expression = "|".join(f"(?:{_GROUP_NAME.sub('(', source)})" for source in sources)
    return compiled(f"(?m){expression}", _NotJoined, captures=False)


def _pieces(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Ranges of texts that are not too long together."""
    begin, size = 0, 0
    for place, text in enumerate(texts):
        size += len(text) + 1
        if size >= _PIECE_CHARACTERS:
            yield begin, place + 1
            begin, size = place + 1, 0
    if begin < len(texts):
        yield begin, len(texts)
