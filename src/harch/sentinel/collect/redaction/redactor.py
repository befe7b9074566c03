"""How are secrets taken out of what comes in? Line by line and value by value, and every hit is counted by its rule."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from harch.sentinel.collect.redaction.rules import RedactionPlace, RedactionRule
from harch.sentinel.collect.redaction.scanner import Hits, RuleScanner, clean_attributes, clean_span, names_and_strings
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.spans import Attributes, Span

_Choice = tuple[int, ...]  # places of the rules that concern a stream


class Redactor:
    """All rules of one SENTINEL. Threads may share it."""

    def __init__(self, rules: Sequence[RedactionRule]) -> None:
        self.rules = tuple(rules)
        self._hits: Hits = Counter({rule.name: 0 for rule in rules})
        self._counting = threading.Lock()
        self._scanner = lru_cache(maxsize=1024)(self._scanner_for)
        self._everywhere = tuple(range(len(self.rules))) if not any(rule.streams for rule in self.rules) else None

    @property
    def hits(self) -> Mapping[str, int]:
        """How often each rule has found something since the start."""
        with self._counting:
            return dict(self._hits)

    def batches(self, batches: Sequence[LogBatch]) -> Sequence[LogBatch]:
        """The same lines without secrets. Rules are chosen by the labels that came."""
        hits: Hits = Counter()
        by_choice: dict[_Choice, list[int]] = defaultdict(list)
        for place, batch in enumerate(batches):
            by_choice[self._choice(batch.labels)].append(place)
        cleaned = list(batches)
        for choice, places in by_choice.items():
            for place, clean in zip(places, self._clean([batches[at] for at in places], choice, hits), strict=True):
                cleaned[place] = clean
        self._count(hits)
        return cleaned

    def spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """The same spans without secrets. To `streams` of a rule a span has the label `service_name`."""
        hits: Hits = Counter()
        by_choice: dict[_Choice, list[int]] = defaultdict(list)
        for place, span in enumerate(spans):
            by_choice[self._choice(labels({"service_name": span.service}))].append(place)
        cleaned = list(spans)
        for choice, places in by_choice.items():
            scanner = self._scanner(choice, RedactionPlace.ATTRIBUTES)
            names, bodies = names_and_strings([spans[place] for place in places])
            listed = list(bodies)
            clean = {listed[at]: text for at, text in scanner.changed(listed, hits).items()}
            if not clean and not any(map(scanner.rule_of_name, names)):
                continue  # as almost always
            kept: dict[int, Attributes] = {}  # resources, which many spans share
            for place in places:
                resource = spans[place].resource
                if id(resource) not in kept:
                    kept[id(resource)] = clean_attributes(resource, clean, scanner, hits)
                cleaned[place] = clean_span(spans[place], kept[id(resource)], clean, scanner, hits)
        self._count(hits)
        return cleaned

    def _clean(self, batches: Sequence[LogBatch], choice: _Choice, hits: Hits) -> list[LogBatch]:
        lines = self._clean_lines([batch.bodies for batch in batches], choice, hits)
        names = self._clean_labels([(batch.labels,) for batch in batches], choice, RedactionPlace.LABELS, hits)
        metadata = self._clean_labels([batch.metadata for batch in batches], choice, RedactionPlace.METADATA, hits)
        return [
            replace(batch, labels=named[0], bodies=bodies, metadata=more)
            for batch, named, bodies, more in zip(batches, names, lines, metadata, strict=True)
        ]

    def _clean_lines(self, batches: Sequence[Sequence[str]], choice: _Choice, hits: Hits) -> list[Sequence[str]]:
        """Lines of several streams are searched at once; where something is found, stream by stream."""
        scanner = self._scanner(choice, RedactionPlace.LINE)
        touched = scanner.touched([text for bodies in batches for text in bodies])
        cleaned: list[Sequence[str]] = []
        begin = 0
        for bodies in batches:
            end = begin + len(bodies)
            here = [place - begin for place in touched[bisect_left(touched, begin) : bisect_left(touched, end)]]
            changed = scanner.changed_lines(bodies, here, hits) if here else {}
            cleaned.append([changed.get(place, text) for place, text in enumerate(bodies)] if changed else bodies)
            begin = end
        return cleaned

    def _clean_labels(
        self, batches: Sequence[Sequence[Labels]], choice: _Choice, where: RedactionPlace, hits: Hits
    ) -> list[Sequence[Labels]]:
        """Most lines share their metadata with others: each is looked at once."""
        scanner = self._scanner(choice, where)
        found = {one for batch in batches for one in batch if one}
        bodies = list({value for one in found for _, value in one})
        clean = {bodies[at]: text for at, text in scanner.changed(bodies, hits).items()}
        if not clean and not any(map(scanner.rule_of_name, {name for one in found for name, _ in one})):
            return list(batches)
        new = {one: labels(scanner.clean_pairs(one, clean, hits)) for one in found}
        return [[new.get(one, one) for one in batch] for batch in batches]

    def _scanner_for(self, choice: _Choice, where: RedactionPlace) -> RuleScanner:
        return RuleScanner([self.rules[place] for place in choice if where in self.rules[place].where])

    def _choice(self, stream: Labels) -> _Choice:
        if self._everywhere is not None:
            return self._everywhere
        return tuple(place for place, rule in enumerate(self.rules) if rule.concerns(stream))

    def _count(self, hits: Hits) -> None:
        if hits:
            with self._counting:
                self._hits.update(hits)
