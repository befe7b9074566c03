"""What may happen to a piece of data, and where?

Tags, the objects that carry them, how strictness is compared, and how a tag is read from plain data.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from harch.base.errors import HarchError, InvariantBroken, Problems
from harch.sovereignty.jurisdictions import Jurisdictions

# What may happen to a piece of data, and where? Tags, the objects that carry them, and how strictness is compared.
#
# A tag only ever permits: a country that is not listed, a field that is not known, a tag that is missing all mean no.
# Tags form a meet-semilattice. `meet` is the most that all of them permit, and what is derived from data carries it.


CountryCode = Annotated[str, Meta(pattern="^[A-Z]{2}$")]
FrameworkId = Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=48)]
Countries = Annotated[tuple[CountryCode, ...], Meta(max_length=676)]


class Classification(StrEnum):
    """How much harm a leak does. `restricted` is never shown outside the hub where it is."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    RESTRICTED = "restricted"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {level: rank for rank, level in enumerate(Classification)}


class DataKind(StrEnum):
    DATASET = "dataset"
    MODEL = "model"
    CHECKPOINT = "checkpoint"
    STREAM = "stream"
    LOG_STREAM = "log_stream"
    METRIC_STREAM = "metric_stream"
    PIPELINE_OUTPUT = "pipeline_output"
    CODE = "code"
    ARTIFACT = "artifact"
    IMAGE = "image"


class Tag(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """What is permitted. Lists are sorted and free of repeats, so equal tags are equal values and equal bytes.

    `transit_in` always holds `process_in` and `rest_in` too: it is every country that the data may cross.
    Frameworks are demands: a hub must be under, or declare that it upholds, each of them.
    """

    process_in: Countries
    rest_in: Countries
    transit_in: Countries
    may_cross_borders: bool  # false: never on a link that crosses more than one country
    frameworks: Annotated[tuple[FrameworkId, ...], Meta(max_length=256)]
    classification: Classification
    encrypt_at_rest: bool
    encrypt_in_transit: bool
    key_in: Countries  # where keys may be held; looked at only with `encrypt_at_rest`

    def __post_init__(self) -> None:
        for name in ("process_in", "rest_in", "key_in", "frameworks"):
            _set_sorted(self, name, getattr(self, name))
        _set_sorted(self, "transit_in", (*self.transit_in, *self.process_in, *self.rest_in))


class DataObject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A thing that carries a tag. `tag` None means that nobody has said yet what it permits, so it permits nothing.

    `tag_revision` counts the tags that it has had; a declassification names the one that it loosens.
    """

    id: str
    kind: DataKind
    name: str
    tenant: str
    tag: Tag | None
    hubs: tuple[str, ...] = ()  # where copies of it are
    size_bytes: Annotated[int, Meta(ge=0)] = 0
    parents: tuple[str, ...] = ()  # ids of what it was derived from
    tag_revision: Annotated[int, Meta(ge=1)] = 1


def meet(tags: Iterable[Tag]) -> Tag:
    """The most that all of them permit: their greatest lower bound. At least one tag, for none would permit all."""
    found = list(tags)
    if not found:
        raise InvariantBroken("the meet of no tags would permit everything")
    return reduce(_meet_two, found[1:], found[0])


def is_within(strict: Tag, loose: Tag) -> bool:
    """True if `strict` permits nothing that `loose` does not permit: the order of which `meet` is the lower bound."""
    return (
        set(strict.process_in) <= set(loose.process_in)
        and set(strict.rest_in) <= set(loose.rest_in)
        and set(strict.transit_in) <= set(loose.transit_in)
        and set(strict.key_in) <= set(loose.key_in)
        and set(strict.frameworks) >= set(loose.frameworks)
        and strict.may_cross_borders <= loose.may_cross_borders
        and strict.classification.rank >= loose.classification.rank
        and strict.encrypt_at_rest >= loose.encrypt_at_rest
        and strict.encrypt_in_transit >= loose.encrypt_in_transit
    )


def loosens(old: Tag | None, new: Tag) -> bool:
    """True if `new` permits anything that `old` did not, so that a declassification is needed. A first tag is none."""
    return old is not None and not is_within(new, old)


def _meet_two(one: Tag, other: Tag) -> Tag:
    return Tag(
        process_in=_both(one.process_in, other.process_in),
        rest_in=_both(one.rest_in, other.rest_in),
        transit_in=_both(one.transit_in, other.transit_in),
        may_cross_borders=one.may_cross_borders and other.may_cross_borders,
        frameworks=one.frameworks + other.frameworks,
        classification=max(one.classification, other.classification, key=_RANKS.__getitem__),
        encrypt_at_rest=one.encrypt_at_rest or other.encrypt_at_rest,
        encrypt_in_transit=one.encrypt_in_transit or other.encrypt_in_transit,
        key_in=_both(one.key_in, other.key_in),
    )


def _both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(set(one).intersection(other))


def _set_sorted(tag: Tag, name: str, values: tuple[str, ...]) -> None:
    force_setattr(tag, name, tuple(sorted(set(values))))


# Permits nothing: what is derived from data whose tag is not known.
NOWHERE = Tag(
    process_in=(),
    rest_in=(),
    transit_in=(),
    may_cross_borders=False,
    frameworks=(),
    classification=Classification.RESTRICTED,
    encrypt_at_rest=True,
    encrypt_in_transit=True,
    key_in=(),
)


# What did somebody mean by this tag? Plain data in, `Tag` out, or one error that lists every mistake and its fix.
#
# Groups become countries here, once: a later change of a group does not move data that was tagged before.


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
        found.append(("rest_in", "is empty, so the data may not be stored anywhere; name at least one country"))
    if not tag.may_cross_borders:
        stranded = [code for code in tag.process_in if code not in tag.rest_in]
        if tag.rest_in and stranded:
            listed = ", ".join(stranded)
            found.append(
                (
                    "process_in",
                    f"names {listed}, where it may neither be stored nor sent; add {listed} to `rest_in`, "
                    "or set `may_cross_borders: true`",
                )
            )
        passing = sorted(set(tag.transit_in) - set(tag.process_in) - set(tag.rest_in))
        if passing:
            found.append(
                (
                    "transit_in",
                    f"names {', '.join(passing)}, but the data may not cross borders; "
                    "set `may_cross_borders: true` or remove them",
                )
            )
    if tag.encrypt_at_rest and tag.rest_in:
        outside = [code for code in tag.key_in if code not in tag.rest_in]
        if outside:
            found.append(
                (
                    "key_in",
                    f"names {', '.join(outside)}, where the data may not be stored; a key is as sensitive as the "
                    "data it opens: name countries of `rest_in`",
                )
            )
        if not tag.key_in:
            found.append(("key_in", "is empty, but encryption at rest is required; name where its keys may be held"))
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
        return self.jurisdictions.expand(self._strings(raw, name), f"{self.where}.{name}", self.places)

    def _frameworks(self, raw: Mapping[object, object]) -> tuple[str, ...]:
        found = []
        for index, word in enumerate(self._strings(raw, "frameworks")):
            try:
                found.append(self.jurisdictions.framework(word))
            except HarchError as error:
                self.laws.add(f"{self.where}.frameworks[{index}]", f"{error.message}; {error.hint}")
        return tuple(found)

    def _strings(self, raw: Mapping[object, object], name: str) -> tuple[str, ...]:
        value = raw.get(name)
        if value is None:
            return ()
        if (
            not isinstance(value, list | tuple)
            or len(value) > WORDS_MAX
            or not all(isinstance(word, str) for word in value)
        ):
            self.shape.add(f"{self.where}.{name}", f"must be a list of at most {WORDS_MAX} strings, e.g. `[MA]`")
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
