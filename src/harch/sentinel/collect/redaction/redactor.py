"""How are secrets taken out of what comes in? Line by line and value by value, and every hit is counted by its rule."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from harch.sentinel.collect.redaction.looking import Hits, Looking
from harch.sentinel.collect.redaction.rule import Rule, Where
from harch.sentinel.collect.redaction.span_texts import clean_attributes, clean_span, names_and_texts
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.spans import Attributes, Span

_Choice = tuple[int, ...]  # places of the rules that concern a stream


class Redactor:
    """All rules of one SENTINEL. Threads may share it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._hits: Hits = Counter({rule.name: 0 for rule in rules})
        self._counting = threading.Lock()
        self._looking = lru_cache(maxsize=1024)(self._looking_at)
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
        told = list(batches)
        for choice, places in by_choice.items():
            for place, clean in zip(places, self._clean([batches[at] for at in places], choice, hits), strict=True):
                told[place] = clean
        self._count(hits)
        return told

    def spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """The same spans without secrets. To `streams` of a rule a span has the label `service_name`."""
        hits: Hits = Counter()
        by_choice: dict[_Choice, list[int]] = defaultdict(list)
        for place, span in enumerate(spans):
            by_choice[self._choice(labels({"service_name": span.service}))].append(place)
        told = list(spans)
        for choice, places in by_choice.items():
            looking = self._looking(choice, Where.ATTRIBUTES)
            names, texts = names_and_texts([spans[place] for place in places])
            listed = list(texts)
            clean = {listed[at]: text for at, text in looking.changed(listed, hits).items()}
            if not clean and not any(map(looking.rule_of_name, names)):
                continue  # as almost always
            kept: dict[int, Attributes] = {}  # resources, which many spans share
            for place in places:
                resource = spans[place].resource
                if id(resource) not in kept:
                    kept[id(resource)] = clean_attributes(resource, clean, looking, hits)
                told[place] = clean_span(spans[place], kept[id(resource)], clean, looking, hits)
        self._count(hits)
        return told

    def _clean(self, batches: Sequence[LogBatch], choice: _Choice, hits: Hits) -> list[LogBatch]:
        lines = self._clean_lines([batch.texts for batch in batches], choice, hits)
        names = self._clean_labels([(batch.labels,) for batch in batches], choice, Where.LABELS, hits)
        metadata = self._clean_labels([batch.metadata for batch in batches], choice, Where.METADATA, hits)
        return [
            replace(batch, labels=named[0], texts=texts, metadata=more)
            for batch, named, texts, more in zip(batches, names, lines, metadata, strict=True)
        ]

    def _clean_lines(self, batches: Sequence[Sequence[str]], choice: _Choice, hits: Hits) -> list[Sequence[str]]:
        """Lines of several streams are searched at once; where something is found, stream by stream."""
        looking = self._looking(choice, Where.LINE)
        touched = looking.touched([text for texts in batches for text in texts])
        told: list[Sequence[str]] = []
        begin = 0
        for texts in batches:
            end = begin + len(texts)
            here = [place - begin for place in touched[bisect_left(touched, begin) : bisect_left(touched, end)]]
            changed = looking.changed_lines(texts, here, hits) if here else {}
            told.append([changed.get(place, text) for place, text in enumerate(texts)] if changed else texts)
            begin = end
        return told

    def _clean_labels(
        self, batches: Sequence[Sequence[Labels]], choice: _Choice, where: Where, hits: Hits
    ) -> list[Sequence[Labels]]:
        """Most lines share their metadata with others: each is looked at once."""
        looking = self._looking(choice, where)
        found = {one for batch in batches for one in batch if one}
        texts = list({value for one in found for _, value in one})
        clean = {texts[at]: text for at, text in looking.changed(texts, hits).items()}
        if not clean and not any(map(looking.rule_of_name, {name for one in found for name, _ in one})):
            return list(batches)
        new = {one: labels(looking.clean_pairs(one, clean, hits)) for one in found}
        return [[new.get(one, one) for one in batch] for batch in batches]

    def _looking_at(self, choice: _Choice, where: Where) -> Looking:
        return Looking([self.rules[place] for place in choice if where in self.rules[place].where])

    def _choice(self, stream: Labels) -> _Choice:
        if self._everywhere is not None:
            return self._everywhere
        return tuple(place for place, rule in enumerate(self.rules) if rule.concerns(stream))

    def _count(self, hits: Hits) -> None:
        if hits:
            with self._counting:
                self._hits.update(hits)
