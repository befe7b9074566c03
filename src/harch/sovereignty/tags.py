"""What may happen to a piece of data, and where? Tags, the objects that carry them, and how strictness is compared.

A tag only ever permits: a country that is not listed, a field that is not known, a tag that is missing all mean no.
Tags form a meet-semilattice. `meet` is the most that all of them permit, and what is derived from data carries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from harch.base.errors import InvariantBroken

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
