"""What was done to a chain is found, told apart, and located."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.sovereignty.audit.chain import ENDED, ChainHead, Draft, line_of, link, read_line, split_lines
from harch.sovereignty.audit.checkpoints import draft_of, introduce
from harch.sovereignty.audit.verification import Tampering, verify
from unit.sovereignty_audit.chains import AT, HUB, Chain, chain_of, key


def found(lines: list[bytes], *checkpoints: object) -> tuple[int, Tampering] | None:
    outcome = verify(lines, checkpoints)  # type: ignore[arg-type]
    return (outcome.finding.seq, outcome.finding.kind) if outcome.finding else None


def test_a_whole_chain_is_sound_and_told_with_its_head() -> None:
    chain = chain_of(10)
    outcome = verify(chain.lines())
    assert (outcome.finding, outcome.hub, outcome.entries, outcome.head) == (None, HUB, 10, chain.head.hash)


def test_an_edited_entry_is_named() -> None:
    lines = chain_of(10).lines()
    lines[4] = lines[4].replace(b"wl_3", b"wl_9")
    assert found(lines) == (5, Tampering.EDITED)


def test_an_edited_entry_with_a_fresh_hash_is_named_by_its_successor() -> None:
    lines = chain_of(10).lines()
    old = read_line(lines[4])
    assert old is not None
    previous = read_line(lines[3])
    assert previous is not None
    forged = link(previous.head, Draft(ENDED, "wl_9", "done"), hub=HUB, at=AT)
    lines[4] = line_of(forged.body, forged.hash)
    assert found(lines) == (5, Tampering.EDITED)


def test_a_removed_entry_is_named() -> None:
    lines = chain_of(10).lines()
    del lines[4]
    assert found(lines) == (5, Tampering.REMOVED)


def test_a_reordered_entry_is_told_from_a_removed_one() -> None:
    lines = chain_of(10).lines()
    lines[4], lines[7] = lines[7], lines[4]
    assert found(lines) == (5, Tampering.REORDERED)


def test_a_repeated_entry_was_inserted() -> None:
    lines = chain_of(10).lines()
    lines.insert(8, lines[4])
    assert found(lines) == (5, Tampering.INSERTED)


def test_a_forged_entry_that_fits_its_place_was_inserted() -> None:
    chain = chain_of(10)
    lines = chain.lines()
    forged = link(chain.linked[3].head, Draft(ENDED, "wl_9", "done"), hub=HUB, at=AT)
    lines.insert(4, line_of(forged.body, forged.hash))
    assert found(lines) == (5, Tampering.INSERTED)


def test_an_entry_of_another_hub_was_inserted() -> None:
    chain = chain_of(4)
    foreign = link(chain.head, Draft(ENDED, "wl_9", "done"), hub="dakar", at=AT)
    lines = chain.lines()
    lines.insert(4, line_of(foreign.body, foreign.hash))
    assert found(lines) == (5, Tampering.INSERTED)


@pytest.mark.parametrize("left", [0, 1, 5, 9, 10])
def test_an_export_without_its_end_is_truncated(left: int) -> None:
    assert found(chain_of(10).lines()[:left]) == (left + 1, Tampering.TRUNCATED)


def test_an_export_that_was_cut_in_a_line_is_truncated() -> None:
    text = b"".join(chain_of(10).lines())
    assert found(list(split_lines([text[:-10]]))) == (11, Tampering.TRUNCATED)


def test_a_tail_that_was_cut_and_signed_anew_with_the_hubs_own_key_is_shown_by_a_kept_copy() -> None:
    kept = chain_of(10).checkpoint()
    cut = chain_of(6)
    assert found(cut.lines()) is None
    assert found(cut.lines(), kept) == (7, Tampering.TRUNCATED)


def test_a_chain_that_was_rewritten_and_signed_anew_is_shown_by_kept_copies() -> None:
    kept = [chain_of(4).checkpoint(), chain_of(10).checkpoint()]
    rewritten = chain_of(6)
    rewritten.add(Draft(ENDED, "wl_9", "done"))
    rewritten.fill(8)
    assert found(rewritten.lines()) is None
    assert found(rewritten.lines(), *kept) == (5, Tampering.REWRITTEN)


def test_kept_copies_that_agree_are_counted_and_those_of_other_hubs_are_passed_over() -> None:
    other = Chain(key(7), hub="dakar").fill(3).checkpoint()
    outcome = verify(chain_of(10).lines(), [chain_of(4).checkpoint(), chain_of(9).checkpoint(), other])
    assert (outcome.finding, outcome.checkpoints) == (None, 2)


def test_a_kept_copy_with_a_forged_signature_is_no_proof() -> None:
    kept = chain_of(4).checkpoint()
    forged = replace(kept, checkpoint=replace(kept.checkpoint, seq=6))
    assert found(chain_of(10).lines(), forged) == (1, Tampering.BAD_CHECKPOINT)


def test_a_closing_checkpoint_by_another_key_is_no_proof() -> None:
    lines = chain_of(10).lines()
    lines[-1] = Chain(key(9)).fill(9).lines()[-1]
    assert found(lines) == (11, Tampering.BAD_CHECKPOINT)


def test_an_older_closing_checkpoint_does_not_cover_what_was_appended() -> None:
    lines = chain_of(10).lines()
    lines[-1] = chain_of(8).lines()[-1]
    assert found(lines) == (9, Tampering.INSERTED)


def test_something_after_the_closing_checkpoint_was_inserted() -> None:
    lines = chain_of(10).lines()
    assert found([*lines, lines[-1]]) == (11, Tampering.INSERTED)
    assert found([*lines, lines[3]]) == (11, Tampering.INSERTED)


def test_hexadecimal_has_one_spelling() -> None:
    lines = chain_of(3).lines()
    lines[-1] = lines[-1].replace(b"a", b"A")
    assert found(lines) is not None
    chain = chain_of(3)
    broken = chain.lines()
    start = broken[1].index(b'"hash":"') + 8
    broken[1] = broken[1][:start] + broken[1][start:].upper()
    assert found(broken) == (2, Tampering.EDITED)


class TestKeys:
    def test_a_key_that_the_old_one_has_introduced_may_sign(self) -> None:
        chain = chain_of(5)
        before = chain.checkpoint()
        chain.rotate(key(2))
        chain.fill(3)
        chain.rotate(key(3))
        outcome = verify(chain.lines(), [before])
        assert (outcome.finding, outcome.checkpoints) == (None, 1)

    def test_a_key_that_introduces_itself_later_is_bad(self) -> None:
        chain = chain_of(5)
        chain.key = key(2)
        chain.add(draft_of(introduce(HUB, chain.key, by=chain.key)))
        assert found(chain.lines()) == (6, Tampering.BAD_KEY)

    def test_a_key_whose_signature_does_not_hold_is_bad(self) -> None:
        chain = chain_of(5)
        statement = introduce(HUB, key(2), by=chain.key)
        chain.add(draft_of(replace(statement, key=chain.checkpoint().checkpoint.key)))
        assert found(chain.lines()) == (6, Tampering.BAD_KEY)

    def test_a_replaced_key_must_not_sign_for_what_came_after_it(self) -> None:
        chain = chain_of(5)
        old = chain.key
        chain.rotate(key(2))
        chain.fill(2)
        late = Chain(old)
        late.linked = chain.linked
        assert found(chain.lines(), late.checkpoint()) == (8, Tampering.BAD_CHECKPOINT)

    def test_a_tail_that_was_cut_with_the_key_in_it_is_truncated(self) -> None:
        chain = chain_of(5)
        chain.rotate(key(2))
        chain.fill(2)
        lines = chain.lines()
        assert found([*lines[:5], lines[-1]], chain.checkpoint()) == (6, Tampering.TRUNCATED)

    def test_a_chain_that_does_not_begin_with_its_key_is_bad(self) -> None:
        first = link(ChainHead(), Draft(ENDED, "wl", "done"), hub=HUB, at=AT)
        assert found([line_of(first.body, first.hash)]) == (1, Tampering.BAD_KEY)


def test_lines_are_found_however_the_pieces_fall() -> None:
    text = b"".join(chain_of(20).lines())
    for size in (1, 7, 100, 5000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert b"".join(split_lines(pieces)) == text
        assert verify(split_lines(pieces)).is_sound
