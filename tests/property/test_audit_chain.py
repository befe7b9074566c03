"""Whatever is done to the bytes of an audit chain is found, and its bytes are canonical."""

from __future__ import annotations

import msgspec
import rfc8785
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harch.sovereignty.audit.chain import ChainHead, Draft, line_of, link, read_line, split_lines
from harch.sovereignty.audit.verification import verify
from unit.sovereignty_audit.chains import Chain, chain_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
details = st.dictionaries(
    names,
    texts | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.lists(texts, max_size=3).map(tuple),
    max_size=5,
)
drafts = st.builds(
    Draft,
    kind=texts,
    subject=texts,
    verdict=texts,
    actor=texts,
    authority=texts,
    policy_version=texts,
    data=st.lists(texts, max_size=3).map(tuple),
    countries=st.lists(texts, max_size=3).map(tuple),
    details=details,
)

CHAIN = chain_of(12)
LINES = CHAIN.lines()
TEXT = b"".join(LINES)


def sound(text: bytes, *checkpoints: object) -> bool:
    return verify(split_lines([text]), checkpoints).is_sound  # type: ignore[arg-type]


@given(drafts, texts, texts)
def test_an_entry_is_written_as_the_reference_encoder_writes_it(draft: Draft, hub: str, at: str) -> None:
    linked = link(ChainHead(7, "a" * 64), draft, hub=hub, at=at)
    assert linked.body == rfc8785.dumps(msgspec.to_builtins(linked.entry))
    read = read_line(line_of(linked.body, linked.hash))
    assert read is not None
    assert (read.entry, read.hash) == (linked.entry, linked.hash)


@given(st.lists(drafts, max_size=20))
def test_whatever_a_hub_writes_is_sound(written: list[Draft]) -> None:
    chain = Chain()
    for draft in written:
        assume(draft.kind != "audit.key")
        chain.add(draft)
    outcome = verify(chain.lines(), [chain.checkpoint()])
    assert (outcome.finding, outcome.entries, outcome.checkpoints) == (None, len(written) + 1, 1)


def test_every_bit_of_every_byte_of_an_export_counts() -> None:
    whole = b"".join(Chain().fill(2).lines())
    assert sound(whole)
    for position in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            assert not sound(bytes(changed)), (position, bit)


@given(st.integers(0, len(TEXT) - 1), st.integers(1, 255))
def test_any_other_byte_anywhere_is_found(position: int, difference: int) -> None:
    changed = bytearray(TEXT)
    changed[position] ^= difference
    assert not sound(bytes(changed))


@given(st.integers(0, len(TEXT) - 1))
def test_any_cut_is_found(length: int) -> None:
    assert not sound(TEXT[:length])


@given(st.integers(1, 11))
def test_a_tail_that_was_cut_and_closed_with_the_hubs_own_signature_is_found_with_a_kept_copy(entries: int) -> None:
    shorter = chain_of(entries)
    assert sound(b"".join(shorter.lines()))
    assert not sound(b"".join(shorter.lines()), CHAIN.checkpoint())


@given(st.permutations(range(len(LINES))))
def test_any_other_order_is_found(order: list[int]) -> None:
    assume(order != list(range(len(LINES))))
    assert not sound(b"".join(LINES[number] for number in order))


@given(st.integers(0, len(LINES) - 1), st.integers(0, len(LINES)))
def test_any_repeated_line_is_found(which: int, where: int) -> None:
    lines = list(LINES)
    lines.insert(where, LINES[which])
    assert not sound(b"".join(lines))


@given(st.sets(st.integers(0, len(LINES) - 1), min_size=1))
def test_any_removed_lines_are_found(removed: set[int]) -> None:
    assert not sound(b"".join(line for number, line in enumerate(LINES) if number not in removed))


@given(st.integers(0, len(TEXT)), st.binary(min_size=1, max_size=200))
@settings(max_examples=300)
def test_any_inserted_bytes_are_found(where: int, extra: bytes) -> None:
    changed = TEXT[:where] + extra + TEXT[where:]
    assume(changed != TEXT)
    assert not sound(changed)


@given(st.integers(2, 12), drafts)
def test_an_entry_that_was_replaced_with_all_later_ones_made_anew_is_found_with_a_kept_copy(
    seq: int, draft: Draft
) -> None:
    assume(draft.kind != "audit.key")
    rewritten = chain_of(seq - 1)
    rewritten.add(draft)
    rewritten.fill(12 - seq)
    assume(rewritten.linked[seq - 1].hash != CHAIN.linked[seq - 1].hash)
    assert sound(b"".join(rewritten.lines()))
    assert not sound(b"".join(rewritten.lines()), CHAIN.checkpoint())
