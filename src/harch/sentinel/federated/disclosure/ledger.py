"""What was disclosed abroad already, and what would one more answer give away?

For every span of time the memory keeps a partition of the series that were in disclosed aggregates: two series are in
one *block* if no disclosed aggregate had one of them without the other. An aggregate may be disclosed if every block it
cuts falls into pieces of at least k sources each, and what is new in it is at least k sources. So every sum or count
that was disclosed is one over whole blocks, and no linear combination of them speaks of fewer than k sources of that
time. The decision looks at which series there are and never at their values: a refusal gives away no value.

All askers from abroad share one memory, because they may talk to each other. It is limited; when it is full nothing
more is disclosed until old pages are forgotten.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
from msgspec import Struct

from harch.sentinel.model.labels import Labels

PAGES_MAX = 1_000_000  # of five minutes each: over a hundred metrics, asked day and night for 30 days
NAMES_MAX = 1_000_000
FORGET_EVERY_S = 3600.0


class Named(Struct, frozen=True, tag="named", array_like=True):
    """Series that a ledger met for the first time, as digests, and the source of each."""

    ledger: str
    series: tuple[bytes, ...]
    sources: tuple[bytes, ...]


class DisclosureRecord(Struct, frozen=True, tag="told", array_like=True):
    """An aggregate over some series (a bit each), disclosed for some pages of time, the last one included."""

    ledger: str
    first_page: int
    last_page: int
    members: bytes
    disclosed_s: float


class Anew(Struct, frozen=True, tag="anew", array_like=True):
    """Everything before is void: what follows says all of it, with other bits."""


Record = Named | DisclosureRecord | Anew

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Record]).decode


@dataclass(slots=True)
class LedgerPage:
    """A span of time: blocks of series as sets of bits, and when something of it was last disclosed."""

    blocks: tuple[int, ...]
    disclosed_s: float


class DisclosureLedger:
    """What was disclosed of one metric (or of the log lines, or spans) of one tenant."""

    def __init__(self) -> None:
        self.bits: dict[bytes, int] = {}
        self.pages: dict[int, LedgerPage] = {}
        self._sources: dict[bytes, int] = {}
        self._source_of: list[int] = []
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}  # pages in a row have the same blocks
        self._members: list[int] = []  # of a source, as bits
        self._digests: list[bytes] = []

    def name(self, series: bytes, source: bytes) -> int:
        """The bit of a series."""
        number = self._sources.setdefault(source, len(self._sources))
        if number == len(self._members):
            self._members.append(0)
            self._digests.append(source)
        bit = len(self.bits)
        self.bits[series] = bit
        self._source_of.append(number)
        self._members[number] |= 1 << bit
        return bit

    def source_digest(self, series: bytes) -> bytes:
        return self._digests[self._source_of[self.bits[series]]]

    def has_sources(self, members: int, least: int) -> bool:
        """Whether these series come from at least so many sources; looks at no more of them than that."""
        found = 0
        while members and found < least:
            bit = (members & -members).bit_length() - 1
            members &= ~self._members[self._source_of[bit]]
            found += 1
        return found >= least

    def refined(self, page: int, members: int, least: int) -> tuple[int, ...] | None:
        """The blocks of a page once this is disclosed, or None where that would cut too small a piece."""
        known = self.pages.get(page)
        new, blocks = members, []
        for block in known.blocks if known is not None else ():
            inside = block & members
            new ^= inside
            outside = block ^ inside
            if inside and outside:
                if not (self.has_sources(inside, least) and self.has_sources(outside, least)):
                    return None
                blocks += [inside, outside]
            else:
                blocks.append(block)
        if new:
            if not self.has_sources(new, least):
                return None
            blocks.append(new)
        return tuple(blocks)

    def note(self, page: int, members: int, disclosed_s: float) -> None:
        """Records that this was disclosed."""
        blocks = self.refined(page, members, 0) or ()
        known = self.pages.setdefault(page, LedgerPage((), disclosed_s))
        known.blocks, known.disclosed_s = self._shared.setdefault(blocks, blocks), max(known.disclosed_s, disclosed_s)

    def share_anew(self) -> None:
        """Lets go of blocks that no page has any more."""
        self._shared = {page.blocks: page.blocks for page in self.pages.values()}

    def renamed(self) -> DisclosureLedger:
        """The same with fewer bits: only series that are in some page have one."""
        used = 0
        for blocks in self._shared:
            for block in blocks:
                used |= block
        fresh, places = DisclosureLedger(), {}
        for series, bit in self.bits.items():
            if used >> bit & 1:
                places[bit] = fresh.name(series, self.source_digest(series))
        for number, page in self.pages.items():
            for block in page.blocks:
                fresh.note(number, _moved(block, places), page.disclosed_s)
        return fresh


class Memory:
    """`take_records` gives what is new since the last call; whoever keeps it on disk hands it back to `replay`."""

    def __init__(self, *, pages_max: int = PAGES_MAX, names_max: int = NAMES_MAX) -> None:
        self._pages_max, self._names_max = pages_max, names_max
        self._ledgers: dict[str, DisclosureLedger] = {}
        self._records: list[Record] = []
        self._forgot_s = 0.0
        self._pages_used = 0

    def bits(self, ledger: str, series: Sequence[tuple[bytes, bytes]]) -> list[int] | None:
        """The bits of series, given as digests of series and source; None if there is no room for new ones."""
        book = self._ledgers.setdefault(ledger, DisclosureLedger())
        new = [one for one in dict(series).items() if one[0] not in book.bits]
        if new:
            if sum(len(each.bits) for each in self._ledgers.values()) + len(new) > self._names_max:
                return None
            self._record(Named(ledger, tuple(one for one, _ in new), tuple(source for _, source in new)))
        return [book.bits[one] for one, _ in series]

    def has_sources(self, ledger: str, members: int, least: int) -> bool:
        return self._ledgers[ledger].has_sources(members, least)

    def admit(self, ledger: str, sets: Mapping[int, int], *, least: int, now_s: float) -> bool:
        """Whether an aggregate over these series in each page may be disclosed; if so, it counts as disclosed.

        A page of which it has no series is not among `sets`.
        """
        book = self._ledgers[ledger]
        if not sets or not all(book.has_sources(members, least) for members in sets.values()):
            return False
        missing = sum(page not in book.pages for page in sets)
        if missing and self._pages_used + missing > self._pages_max:
            return False
        refined = {page: book.refined(page, members, least) for page, members in sets.items()}
        if any(blocks is None for blocks in refined.values()):
            return False
        new = [page for page, blocks in refined.items() if page not in book.pages or book.pages[page].blocks != blocks]
        for first, last in _runs(new, sets):
            self._record(DisclosureRecord(ledger, first, last, _bytes_of(sets[first]), now_s))
        for page in sets:
            book.pages[page].disclosed_s = max(book.pages[page].disclosed_s, now_s)
        return True

    def _record(self, record: Record) -> None:
        self._apply(record)
        self._records.append(record)

    def forget(self, *, now_s: float, remembered_s: float) -> None:
        """Drops pages of which nothing was disclosed for so long. Looks at most once an hour.

        Names stay until they are half of what there is room for; then those that are in no page go.
        """
        if now_s - self._forgot_s < FORGET_EVERY_S:
            return
        self._forgot_s = now_s
        for ledger in list(self._ledgers.values()):
            for page in [page for page, one in ledger.pages.items() if now_s - one.disclosed_s > remembered_s]:
                del ledger.pages[page]
            ledger.share_anew()
        self._pages_used = sum(len(ledger.pages) for ledger in self._ledgers.values())
        if sum(len(ledger.bits) for ledger in self._ledgers.values()) > self._names_max // 2:
            kept = [record for name, ledger in self._ledgers.items() for record in _records_of(ledger.renamed(), name)]
            for record in (Anew(), *kept):
                self._record(record)

    def take_records(self) -> bytes:
        """What was disclosed since the last call, to be kept before the answer goes out; empty: nothing new."""
        records, self._records = self._records, []
        return _encode(records) if records else b""

    def dump(self) -> bytes:
        """Everything, in the same form: what a fresh file begins with."""
        return _encode([record for name, ledger in self._ledgers.items() for record in _records_of(ledger, name)])

    def replay(self, records: bytes) -> None:
        """Takes back what `take_records` or `dump` gave. Raises msgspec.DecodeError for anything else."""
        for record in _decode(records):
            self._apply(record)

    def _apply(self, record: Record) -> None:
        if isinstance(record, Anew):
            self._ledgers, self._pages_used = {}, 0
            return
        book = self._ledgers.setdefault(record.ledger, DisclosureLedger())
        if isinstance(record, Named):
            for series, source in zip(record.series, record.sources, strict=True):
                if series not in book.bits:
                    book.name(series, source)
            return
        members = int.from_bytes(record.members, "little")
        for number in range(record.first_page, record.last_page + 1):
            self._pages_used += number not in book.pages
            book.note(number, members, record.disclosed_s)


def _records_of(ledger: DisclosureLedger, name: str) -> Iterable[Record]:
    """A ledger as records, with the same bits."""
    digests = list(ledger.bits)
    yield Named(name, tuple(digests), tuple(ledger.source_digest(series) for series in digests))
    alike = {number: id(page.blocks) for number, page in ledger.pages.items()}
    for first, last in _runs(sorted(ledger.pages), alike):
        disclosed_s = max(ledger.pages[number].disclosed_s for number in range(first, last + 1))
        for block in ledger.pages[first].blocks:
            yield DisclosureRecord(name, first, last, _bytes_of(block), disclosed_s)


def _runs(pages: Iterable[int], sets: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """First and last of pages in a row that have the same set."""
    first = last = None
    for page in sorted(pages):
        if first is not None and last is not None:
            if page == last + 1 and sets[page] == sets[first]:
                last = page
                continue
            yield first, last
        first = last = page
    if first is not None and last is not None:
        yield first, last


def _moved(block: int, places: Mapping[int, int]) -> int:
    result = 0
    while block:
        bit = (block & -block).bit_length() - 1
        block &= block - 1
        result |= 1 << places[bit]
    return result


def _bytes_of(members: int) -> bytes:
    return members.to_bytes((members.bit_length() + 7) // 8, "little")


def digest_of(labels: Labels) -> bytes:
    """A series as 16 bytes: the memory keeps no labels."""
    return blake2b(msgspec.msgpack.encode(labels), digest_size=16).digest()
