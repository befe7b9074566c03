"""What did somebody mean by this tag? Plain data in, `Tag` out, or one error that lists every mistake and its fix.

Groups become countries here, once: a later change of a group does not move data that was tagged before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harch.base.errors import HarchError, Problems
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import Classification, Tag

WORDS_MAX = 700
_LISTS = ("process_in", "rest_in", "transit_in", "key_in")
_FLAGS = ("may_cross_borders", "encrypt_at_rest", "encrypt_in_transit")
_NAMES = ("process_in", "rest_in", "transit_in", "key_in", "frameworks", "classification", *_FLAGS)
_HINT = "docs/reference/tags.md describes every field of a tag"


def parse_tag(raw: object, jurisdictions: Jurisdictions, *, where: str = "tag") -> Tag:
    """Reads a tag. Raises E0901 (country), E0905 (framework), E0201 (shape) or E0904 (contradiction), all at once.

    Only `process_in` and `rest_in` must be there. What is left out is read in the strictest way: no border is crossed,
    classification is `restricted`, everything is encrypted, and keys stay where the data may rest.
    """
    reader = _Reader(where, jurisdictions)
    tag = reader.read(raw)
    reader.raise_if_wrong()
    return tag


def contradictions(tag: Tag) -> list[tuple[str, str]]:
    """Why a tag cannot be obeyed, as pairs of field and reason. Derived tags may be so; people must not write them."""
    found = []
    if not tag.rest_in:
        found.append(("rest_in", "is empty, so the data may rest nowhere; name at least one country"))
    if not tag.may_cross_borders:
        stranded = [code for code in tag.process_in if code not in tag.rest_in]
        if tag.rest_in and stranded:
            listed = ", ".join(stranded)
            found.append(
                (
                    "process_in",
                    f"names {listed}, where it may neither rest nor travel to; add {listed} to `rest_in`, "
                    "or set `may_cross_borders: true`",
                )
            )
        passing = sorted(set(tag.transit_in) - set(tag.process_in) - set(tag.rest_in))
        if passing:
            found.append(
                (
                    "transit_in",
                    f"names {', '.join(passing)}, but it may not cross borders; "
                    "set `may_cross_borders: true` or remove them",
                )
            )
    if tag.encrypt_at_rest and tag.rest_in:
        outside = [code for code in tag.key_in if code not in tag.rest_in]
        if outside:
            found.append(
                (
                    "key_in",
                    f"names {', '.join(outside)}, where the data may not rest; a key is as sensitive as what it "
                    "opens: name countries of `rest_in`",
                )
            )
        if not tag.key_in:
            found.append(("key_in", "is empty, but it must be encrypted at rest; name where its keys may be held"))
    return found


@dataclass(slots=True)
class _Reader:
    where: str
    jurisdictions: Jurisdictions
    shape: Problems = field(default_factory=Problems)
    places: Problems = field(default_factory=Problems)
    laws: Problems = field(default_factory=Problems)
    sense: Problems = field(default_factory=Problems)

    def read(self, raw: object) -> Tag:
        if not isinstance(raw, Mapping):
            self.shape.add(self.where, "must be a table of fields, e.g. `process_in: [MA]`")
            raw = {}
        for name in raw:
            if name not in _NAMES:
                self.shape.add(f"{self.where}.{str(name)[:64]}", f"unknown field; known: {', '.join(_NAMES)}")
        for name in ("process_in", "rest_in"):
            if raw.get(name) is None:
                self.shape.add(f"{self.where}.{name}", f"is missing; write e.g. `{name}: [MA]`")
        lists = {name: self._countries(raw, name) for name in _LISTS}
        flags = {name: self._flag(raw, name) for name in _FLAGS}
        tag = Tag(
            process_in=lists["process_in"],
            rest_in=lists["rest_in"],
            transit_in=lists["transit_in"],
            may_cross_borders=flags["may_cross_borders"],
            frameworks=self._frameworks(raw),
            classification=self._classification(raw),
            encrypt_at_rest=flags["encrypt_at_rest"],
            encrypt_in_transit=flags["encrypt_in_transit"],
            key_in=lists["rest_in"] if raw.get("key_in") is None else lists["key_in"],
        )
        if not (self.shape or self.places):  # a country that was not understood would cause false contradictions
            for name, what in contradictions(tag):
                self.sense.add(f"{self.where}.{name}", what)
        return tag

    def raise_if_wrong(self) -> None:
        kinds = (("E0901", self.places), ("E0905", self.laws), ("E0201", self.shape), ("E0904", self.sense))
        found = [problem for _, problems in kinds for problem in problems.found]
        for code, problems in kinds:
            if problems:
                message = "; ".join(f"{where}: {what}" for where, what in found)
                meta: dict[str, object] = {"problems": [{"where": where, "what": what} for where, what in found]}
                raise HarchError(code, message, hint=_HINT, field=found[0][0], meta=meta)

    def _countries(self, raw: Mapping[object, object], name: str) -> tuple[str, ...]:
        return self.jurisdictions.expand(self._texts(raw, name), f"{self.where}.{name}", self.places)

    def _frameworks(self, raw: Mapping[object, object]) -> tuple[str, ...]:
        found = []
        for index, word in enumerate(self._texts(raw, "frameworks")):
            try:
                found.append(self.jurisdictions.framework(word))
            except HarchError as error:
                self.laws.add(f"{self.where}.frameworks[{index}]", f"{error.message}; {error.hint}")
        return tuple(found)

    def _texts(self, raw: Mapping[object, object], name: str) -> tuple[str, ...]:
        value = raw.get(name)
        if value is None:
            return ()
        if (
            not isinstance(value, list | tuple)
            or len(value) > WORDS_MAX
            or not all(isinstance(word, str) for word in value)
        ):
            self.shape.add(f"{self.where}.{name}", f"must be a list of at most {WORDS_MAX} texts, e.g. `[MA]`")
            return ()
        return tuple(value)

    def _flag(self, raw: Mapping[object, object], name: str) -> bool:
        strict = name != "may_cross_borders"
        value = raw.get(name)
        if value is None:
            return strict
        if not isinstance(value, bool):
            self.shape.add(f"{self.where}.{name}", "must be true or false")
            return strict
        return value

    def _classification(self, raw: Mapping[object, object]) -> Classification:
        value = raw.get("classification")
        if value is None:
            return Classification.RESTRICTED
        known = [level.value for level in Classification]
        if not isinstance(value, str) or value not in known:
            self.shape.add(f"{self.where}.classification", f"must be one of {', '.join(known)}")
            return Classification.RESTRICTED
        return Classification(value)
