"""Which strings hold a secret, and what do the rules make of them?

Many are searched at once, because almost none does; of a span every string but its ids and its service.
"""

# harch: pure

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from harch.sentinel.collect.redaction.rules import RedactionRule, compiled
from harch.sentinel.model.spans import Attributes, AttributeValue, Span

# Which of many texts hold a secret? All of them are searched at once, because almost none does.
#
# The texts are joined with line ends and searched for any of the patterns. A pattern that is found in a text alone is
# also found in the joined text, at that place or by a match that reaches over it: so every text that a match touches is
# looked at again by itself, and no other can hold anything. `^` and `$` mean line ends in the joined text; patterns
# that
# can tell it from a text alone by other means are never joined.


_PIECE_CHARACTERS = 1 << 20
_GROUP_NAME = re.compile(r"\(\?P?<[A-Za-z0-9_]+>")
_NOT_JOINABLE = re.compile(r"\\[AzZCQ]|\(\?[a-zA-Z]*[-mU]")  # ends of the text, and flags that change `^` and `$`


class StringSearch:
    """Finds the texts that any of the rules may concern."""

    def __init__(self, rules: Sequence[RedactionRule]) -> None:
        joinable = [rule for rule in rules if not _NOT_JOINABLE.search(rule.source)]
        self._alone: list[Any] = [rule.pattern for rule in rules if _NOT_JOINABLE.search(rule.source)]
        self._union: Any = None
        if joinable:
            try:
                self._union = _joined([rule.source for rule in joinable])
            except _NotJoined:
                self._alone = [rule.pattern for rule in rules]

    def touched(self, strings: Sequence[str]) -> list[int]:
        """Places of texts to look at one by one, in order."""
        found: set[int] = set()
        if self._union is not None:
            for first, last in _pieces(strings):
                found.update(first + place for place in self._in_piece(strings[first:last]))
        for pattern in self._alone:
            found.update(place for place, text in enumerate(strings) if pattern.search(text) is not None)
        return sorted(found)

    def _in_piece(self, strings: Sequence[str]) -> Iterator[int]:
        joined = "\n".join(strings).encode()
        at, ends = 0, None
        while True:
            found = self._union.search(joined, at)
            if found is None:
                return
            begin, end = found.span()
            if ends is None:
                ends = list(accumulate(len(text.encode()) + 1 for text in strings))  # each with its line end
            first, last = bisect_right(ends, begin), bisect_right(ends, max(begin, end - 1))
            yield from range(first, min(last, len(strings) - 1) + 1)
            if last >= len(strings) - 1:
                return
            at = ends[last]  # the rest of a text that is touched need not be searched


class _NotJoined(Exception):
    """All patterns together are more than RE2 takes: then each is searched for by itself."""


def _joined(sources: Sequence[str]) -> Any:
    """Groups have no names here: two rules may use the same one."""
    expression = "|".join(f"(?:{_GROUP_NAME.sub('(', source)})" for source in sources)
    return compiled(f"(?m){expression}", _NotJoined, captures=False)


def _pieces(strings: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Ranges of texts that are not too long together."""
    begin, size = 0, 0
    for place, text in enumerate(strings):
        size += len(text) + 1
        if size >= _PIECE_CHARACTERS:
            yield begin, place + 1
            begin, size = place + 1, 0
    if begin < len(strings):
        yield begin, len(strings)


# What do some rules change in some texts? The rules for one kind of place, for many texts at once.


FOLLOWING_LINES_MAX = 200  # how far the end of a block is waited for
_NAMES_REMEMBERED, _NAME_REMEMBERED_MAX = 16_384, 256

Hits = Counter[str]  # by name of a rule


class RuleScanner:
    """Threads may share it."""

    def __init__(self, rules: Sequence[RedactionRule]) -> None:
        self._rules = [rule for rule in rules if rule.pattern is not None]
        self._with_names = [rule for rule in rules if rule.names is not None]
        self._search = StringSearch(self._rules)
        self._searches = [StringSearch([rule]) for rule in self._rules]
        self._remembered = lru_cache(maxsize=_NAMES_REMEMBERED)(self._rule_of_name)

    def rule_of_name(self, name: str) -> RedactionRule | None:
        """The rule that replaces values with this name as a whole. Names that nobody would use are not remembered."""
        if not self._with_names:
            return None
        return self._remembered(name) if len(name) <= _NAME_REMEMBERED_MAX else self._rule_of_name(name)

    def touched(self, strings: Sequence[str]) -> Sequence[int]:
        """Places of texts in which something may be found, in order."""
        return self._search.touched(strings) if self._rules and strings else ()

    def changed(self, strings: Sequence[str], hits: Hits, touched: Sequence[int] | None = None) -> dict[int, str]:
        """New texts by place, for those that change."""
        places = self.touched(strings) if touched is None else touched
        current = [strings[place] for place in places]
        for rule, search in zip(self._rules, self._searches, strict=True):
            for at in search.touched(current):
                current[at], count = rule.applied(current[at])
                if count:
                    hits[rule.name] += count
        return {place: text for place, text in zip(places, current, strict=True) if text != strings[place]}

    def changed_lines(self, strings: Sequence[str], touched: Sequence[int], hits: Hits) -> dict[int, str]:
        """The same for the lines of one stream in their order: a secret may go on in the lines that follow."""
        changed = self.changed(strings, hits, touched)
        for rule in self._rules:
            if rule.until is not None:
                for place in sorted(changed):
                    self._follow(rule, strings, place, changed, hits)
        return changed

    def clean_pairs(self, pairs: Sequence[tuple[str, str]], clean: Mapping[str, str], hits: Hits) -> dict[str, str]:
        """Names with their values as they may be kept; `clean` has the new ones of values that hold a secret."""
        cleaned = {}
        for name, value in pairs:
            rule = self.rule_of_name(name)
            if rule is None:
                cleaned[name] = clean.get(value, value)
            else:
                cleaned[name] = rule.whole()
                hits[rule.name] += 1
        return cleaned

    @staticmethod
    def _follow(rule: RedactionRule, strings: Sequence[str], place: int, changed: dict[int, str], hits: Hits) -> None:
        is_end = rule.until.search  # type: ignore[union-attr]
        if not rule.applied(strings[place])[1] or is_end(strings[place]) is not None:
            return
        for following in range(place + 1, min(place + 1 + FOLLOWING_LINES_MAX, len(strings))):
            changed[following] = rule.whole()
            hits[rule.name] += 1
            if is_end(strings[following]) is not None:
                return

    def _rule_of_name(self, name: str) -> RedactionRule | None:
        for rule in self._with_names:
            if rule.names is not None and rule.names.fullmatch(name) is not None:
                return rule
        return None


# Where may a span hold a secret? In every text of it but its ids and its service.


def names_and_strings(spans: Sequence[Span]) -> tuple[set[str], set[str]]:
    """Names of all attributes, and every text that may hold a secret, once."""
    names: set[str] = set()
    strings: set[str] = set()
    resources: set[int] = set()  # seen already: many spans share one
    for span in spans:
        strings.add(span.name)
        for name, value in span.attributes:
            names.add(name)
            if value.__class__ is str:
                strings.add(value)
        if span.status_message:
            strings.add(span.status_message)
        for event in span.events:
            strings.add(event.name)
            _note(event.attributes, names, strings)
        for link in span.links:
            _note(link.attributes, names, strings)
        if id(span.resource) not in resources:
            resources.add(id(span.resource))
            _note(span.resource, names, strings)
    return names, strings


def _note(attributes: Attributes, names: set[str], strings: set[str]) -> None:
    for name, value in attributes:
        names.add(name)
        if isinstance(value, str):
            strings.add(value)


def clean_span(span: Span, resource: Attributes, clean: Mapping[str, str], scanner: RuleScanner, hits: Hits) -> Span:
    """The span as it may be kept: itself, if it holds nothing that a rule concerns. `resource` is clean already."""
    attributes = clean_attributes(span.attributes, clean, scanner, hits)
    events = tuple(
        replace(
            event,
            name=clean.get(event.name, event.name),
            attributes=clean_attributes(event.attributes, clean, scanner, hits),
        )
        for event in span.events
    )
    links = tuple(
        replace(link, attributes=clean_attributes(link.attributes, clean, scanner, hits)) for link in span.links
    )
    name = clean.get(span.name, span.name)
    message = clean.get(span.status_message, span.status_message)
    if (
        attributes is span.attributes
        and resource is span.resource
        and (name, message, events, links) == (span.name, span.status_message, span.events, span.links)
    ):
        return span
    return replace(
        span,
        name=name,
        status_message=message,
        attributes=attributes,
        resource=resource,
        events=events,
        links=links,
    )


def clean_attributes(attributes: Attributes, clean: Mapping[str, str], scanner: RuleScanner, hits: Hits) -> Attributes:
    """The same tuple where nothing changes: resources are shared by many spans."""
    rule_of_name = scanner.rule_of_name
    for name, value in attributes:
        if rule_of_name(name) is not None or value in clean:
            break
    else:
        return attributes
    cleaned: list[tuple[str, AttributeValue]] = []
    for name, value in attributes:
        rule = rule_of_name(name)
        if rule is not None:
            hits[rule.name] += 1
            cleaned.append((name, rule.whole()))
        else:
            cleaned.append((name, clean.get(value, value) if isinstance(value, str) else value))
    return tuple(cleaned)
