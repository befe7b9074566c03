"""What do some rules change in some texts? The rules for one kind of place, for many texts at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from harch.sentinel.collect.redaction.rule import Rule
from harch.sentinel.collect.redaction.search import Search

FOLLOWING_LINES_MAX = 200  # how far the end of a block is waited for
_NAMES_REMEMBERED, _NAME_REMEMBERED_MAX = 16_384, 256

Hits = Counter[str]  # by name of a rule


class Looking:
    """Threads may share it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [rule for rule in rules if rule.pattern is not None]
        self._with_names = [rule for rule in rules if rule.names is not None]
        self._search = Search(self._rules)
        self._searches = [Search([rule]) for rule in self._rules]
        self._remembered = lru_cache(maxsize=_NAMES_REMEMBERED)(self._rule_of_name)

    def rule_of_name(self, name: str) -> Rule | None:
        """The rule that replaces values with this name as a whole. Names that nobody would use are not remembered."""
        if not self._with_names:
            return None
        return self._remembered(name) if len(name) <= _NAME_REMEMBERED_MAX else self._rule_of_name(name)

    def touched(self, texts: Sequence[str]) -> Sequence[int]:
        """Places of texts in which something may be found, in order."""
        return self._search.touched(texts) if self._rules and texts else ()

    def changed(self, texts: Sequence[str], hits: Hits, touched: Sequence[int] | None = None) -> dict[int, str]:
        """New texts by place, for those that change."""
        places = self.touched(texts) if touched is None else touched
        current = [texts[place] for place in places]
        for rule, search in zip(self._rules, self._searches, strict=True):
            for at in search.touched(current):
                current[at], count = rule.applied(current[at])
                if count:
                    hits[rule.name] += count
        return {place: text for place, text in zip(places, current, strict=True) if text != texts[place]}

    def changed_lines(self, texts: Sequence[str], touched: Sequence[int], hits: Hits) -> dict[int, str]:
        """The same for the lines of one stream in their order: a secret may go on in the lines that follow."""
        changed = self.changed(texts, hits, touched)
        for rule in self._rules:
            if rule.until is not None:
                for place in sorted(changed):
                    self._follow(rule, texts, place, changed, hits)
        return changed

    def clean_pairs(self, pairs: Sequence[tuple[str, str]], clean: Mapping[str, str], hits: Hits) -> dict[str, str]:
        """Names with their values as they may be kept; `clean` has the new ones of values that hold a secret."""
        told = {}
        for name, value in pairs:
            rule = self.rule_of_name(name)
            if rule is None:
                told[name] = clean.get(value, value)
            else:
                told[name] = rule.whole()
                hits[rule.name] += 1
        return told

    @staticmethod
    def _follow(rule: Rule, texts: Sequence[str], place: int, changed: dict[int, str], hits: Hits) -> None:
        is_end = rule.until.search  # type: ignore[union-attr]
        if not rule.applied(texts[place])[1] or is_end(texts[place]) is not None:
            return
        for following in range(place + 1, min(place + 1 + FOLLOWING_LINES_MAX, len(texts))):
            changed[following] = rule.whole()
            hits[rule.name] += 1
            if is_end(texts[following]) is not None:
                return

    def _rule_of_name(self, name: str) -> Rule | None:
        for rule in self._with_names:
            if rule.names is not None and rule.names.fullmatch(name) is not None:
                return rule
        return None
