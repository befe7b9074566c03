"""Exactly where does a chain stop being good, and what is told then? Numbers, counts and heads at the boundaries."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sovereignty.audit import chain as chains
from harch.sovereignty.audit import checkpoints
from harch.sovereignty.audit.chain import (
    ENDED,
    LOSS_ACCEPTED,
    NO_HASH,
    ChainHead,
    Draft,
    Linked,
    line_of,
    link,
    moved,
    read_line,
    split_lines,
)
from harch.sovereignty.audit.checkpoints import (
    SignedCheckpoint,
    check_offer,
    draft_of,
    introduce,
    public_hex,
    read_checkpoint,
    read_checkpoints,
    sign,
    signature_holds,
    statement_in,
)
from harch.sovereignty.audit.verification import (
    WHY_LENGTH_MAX,
    AuditFinding,
    ChainVerifier,
    Loss,
    Tampering,
    acceptance,
    find_loss,
    loss_in,
    verify,
)
from harch.wire.audit import AcceptedLoss
from unit.sovereignty_audit.chains import AT, HUB, Chain, chain_of, key

CHAIN = chain_of(10)
LINES = CHAIN.lines()


def text_of(linked: Linked) -> bytes:
    return line_of(linked.body, linked.hash)


def outcome(lines: list[bytes], *kept: SignedCheckpoint) -> tuple[int, Tampering, str, int, str, int]:
    """The finding, the entries that are good, the last good hash, and the copies that agree."""
    found = verify(lines, kept)
    assert found.finding is not None
    assert not found.is_sound
    finding = found.finding
    return finding.seq, finding.kind, finding.detail, found.entries, found.head, found.checkpoints


def head_after(count: int, chain: Chain = CHAIN) -> str:
    return chain.linked[count - 1].hash if count else NO_HASH


# What is found


def test_entries_are_given_back_while_they_are_good_and_never_again() -> None:
    verifier = ChainVerifier()
    broken = [*LINES[:4], LINES[4].replace(b"wl_3", b"wl_9"), *LINES[5:]]
    taken = [verifier.take(line) for line in broken]
    assert [entry.seq if entry else None for entry in taken] == [1, 2, 3, 4, *[None] * 7]
    assert ChainVerifier().take(LINES[-1]) is None
    whole = ChainVerifier()
    assert [entry.seq for line in LINES if (entry := whole.take(line))] == list(range(1, 11))


def test_an_edited_line_ends_the_good_part_before_it() -> None:
    lines = [*LINES[:4], LINES[4].replace(b"wl_3", b"wl_9"), *LINES[5:]]
    assert outcome(lines) == (5, Tampering.EDITED, "the line does not match its hash", 4, head_after(4), 0)


@pytest.mark.parametrize("place", [1, 2, 6])
def test_a_changed_predecessor_is_named_and_no_one_stands_before_the_first(place: int) -> None:
    before = ChainHead(place - 1, "f" * 64)
    if place == 1:
        foreign = link(before, draft_of(introduce(HUB, CHAIN.key, by=CHAIN.key)), hub=HUB, at=AT)
    else:
        foreign = link(before, Draft(ENDED, "wl_9", "done"), hub=HUB, at=AT)
    lines = [*LINES[: place - 1], text_of(foreign), *LINES[place:]]
    detail = f"entry {place} was linked to a different entry, or is not its successor"
    expected = (max(1, place - 1), Tampering.EDITED, detail, place - 1, head_after(place - 1), 0)
    assert outcome(lines) == expected


def test_a_removed_entry_ends_the_good_part_before_the_gap() -> None:
    lines = [*LINES[:4], *LINES[5:]]
    assert outcome(lines) == (5, Tampering.REMOVED, "entry 6 is in its place", 4, head_after(4), 0)
    assert outcome(lines, CHAIN.checkpoint())[:2] == (5, Tampering.REMOVED)
    assert outcome(LINES[1:])[:4] == (1, Tampering.REMOVED, "entry 2 is in its place", 0)


def test_a_missing_entry_that_turns_up_was_moved_and_others_do_not_count_for_it() -> None:
    lines = [*LINES[:4], LINES[5], LINES[6], LINES[4], *LINES[7:]]
    assert outcome(lines) == (5, Tampering.REORDERED, "found further down", 4, head_after(4), 0)
    damaged = [*LINES[:4], LINES[5], b"nothing\n", LINES[6]]
    assert outcome(damaged)[:2] == (5, Tampering.REMOVED)


def test_a_repeated_entry_is_named_by_its_own_number() -> None:
    lines = [*LINES[:8], LINES[4], *LINES[8:]]
    assert outcome(lines) == (5, Tampering.INSERTED, "entry 5 is duplicated here", 8, head_after(8), 0)
    twice = [*LINES[:8], LINES[7], *LINES[8:]]
    assert outcome(twice)[:2] == (8, Tampering.INSERTED)


def test_what_follows_the_closing_checkpoint_was_inserted() -> None:
    after = link(CHAIN.head, Draft(ENDED, "wl_9", "done"), hub=HUB, at=AT)
    detail = "entries follow the closing checkpoint"
    for extra in (text_of(after), LINES[-1], LINES[2]):
        assert outcome([*LINES, extra]) == (11, Tampering.INSERTED, detail, 10, head_after(10), 0)


def test_an_entry_of_another_hub_is_reported_with_both_names() -> None:
    foreign = link(CHAIN.linked[3].head, Draft(ENDED, "wl_9", "done"), hub="dakar", at=AT)
    detail = f"belongs to hub dakar, the chain to {HUB}"
    assert outcome([*LINES[:4], text_of(foreign)]) == (5, Tampering.INSERTED, detail, 4, head_after(4), 0)


def test_the_first_fault_that_is_wrong_is_reported_and_no_later_one() -> None:
    foreign = link(CHAIN.linked[3].head, Draft("audit.key", "audit-key", "done"), hub="dakar", at=AT)
    assert outcome([*LINES[:4], text_of(foreign), b"more\n"])[:2] == (5, Tampering.INSERTED)


# The end


@pytest.mark.parametrize("left", [0, 1, 10])
def test_an_end_that_is_missing_is_counted_from_the_last_entry(left: int) -> None:
    detail = "the closing checkpoint is missing"
    assert outcome(LINES[:left]) == (left + 1, Tampering.TRUNCATED, detail, left, head_after(left), 0)


def test_a_line_that_is_cut_off_and_a_line_that_is_damaged_are_distinguished() -> None:
    assert outcome([*LINES[:9], LINES[9][:-1]])[:3] == (10, Tampering.TRUNCATED, "the last line is cut off")
    assert outcome([*LINES[:9], b"\n"])[:3] == (10, Tampering.EDITED, "the line does not match its hash")


@pytest.mark.parametrize(
    ("signed", "seq", "kind"), [(8, 9, Tampering.INSERTED), (9, 10, Tampering.INSERTED), (12, 11, Tampering.TRUNCATED)]
)
def test_a_closing_checkpoint_of_another_length_says_what_is_too_much_or_missing(
    signed: int, seq: int, kind: Tampering
) -> None:
    closing = chain_of(signed).checkpoint().line
    detail = f"the hub signed {signed} entries, found 10"
    assert outcome([*LINES[:10], closing]) == (seq, kind, detail, 10, head_after(10), 0)


def test_a_closing_checkpoint_must_be_by_the_hub_with_its_key_and_with_a_signature_that_holds() -> None:
    good = CHAIN.checkpoint()
    other_hub = sign(CHAIN.head, hub="dakar", at=AT, key=CHAIN.key)
    other_key = sign(CHAIN.head, hub=HUB, at=AT, key=key(5))
    forged = replace(good, signature="00" * 64)
    for closing in (other_hub, other_key, forged):
        found = outcome([*LINES[:10], closing.line])
        assert found[:3] == (11, Tampering.BAD_CHECKPOINT, "the closing checkpoint is not signed by the hub's key")


def test_a_closing_checkpoint_for_another_hash_shows_a_rewritten_chain_after_the_last_copy_that_agrees() -> None:
    lie = sign(ChainHead(10, "e" * 64), hub=HUB, at=AT, key=CHAIN.key)
    detail = "the hub signed a different hash for the last entry"
    assert outcome([*LINES[:10], lie.line]) == (1, Tampering.REWRITTEN, detail, 10, head_after(10), 0)
    kept = chain_of(6).checkpoint()
    assert outcome([*LINES[:10], lie.line], kept) == (7, Tampering.REWRITTEN, detail, 10, head_after(10), 1)


def test_a_copy_of_the_last_entry_is_no_sign_of_a_later_one() -> None:
    found = verify(LINES, [CHAIN.checkpoint(), CHAIN.checkpoint()])
    assert (found.is_sound, found.entries, found.checkpoints, found.hub) == (True, 10, 2, HUB)
    later = chain_of(11).checkpoint()
    for lines in (LINES, LINES[:10]):
        assert outcome(lines, later)[:3] == (11, Tampering.TRUNCATED, "a stored checkpoint names entry 11")


# Copies that peers kept


def test_a_copy_that_differs_shows_what_was_rewritten_since_the_last_that_agrees() -> None:
    rewritten = chain_of(6)
    rewritten.add(Draft(ENDED, "wl_9", "done"))
    rewritten.fill(8)
    kept = [chain_of(4).checkpoint(), chain_of(9).checkpoint(), chain_of(10).checkpoint()]
    detail = f"entries 5 to 9 differ from those signed on {AT}"
    assert outcome(rewritten.lines(), *kept) == (5, Tampering.REWRITTEN, detail, 8, head_after(8, rewritten), 1)


def test_a_copy_of_no_entry_at_all_is_no_copy() -> None:
    empty = sign(ChainHead(), hub=HUB, at=AT, key=CHAIN.key)
    first = chain_of(1).checkpoint()
    assert outcome(LINES, empty)[:3] == (
        1,
        Tampering.BAD_CHECKPOINT,
        "the signature of a stored checkpoint is not valid",
    )
    assert verify(LINES, [first]).checkpoints == 1


def test_a_copy_by_a_key_that_was_not_in_force_is_no_proof() -> None:
    early = sign(CHAIN.linked[2].head, hub=HUB, at=AT, key=key(7))
    detail = "a stored checkpoint is signed by a key that was not in force"
    assert outcome(LINES, early)[:4] == (3, Tampering.BAD_CHECKPOINT, detail, 2)


# Losses


def loss_entry(chain: Chain, seq: int, **details: object) -> bytes:
    loss = Loss(found=chain.head, lost=ChainHead(seq - 1, "d" * 64), source="head file")
    draft = acceptance(loss, actor="amal", why="disk")
    changed = replace(draft, details={**draft.details, **details})  # type: ignore[dict-item]
    return text_of(link(ChainHead(seq - 1, chain.head.hash), changed, hub=HUB, at=AT))


def with_loss(lost: int) -> Chain:
    """Five entries, then one that admits that there were `lost`, then two more."""
    chain = chain_of(5)
    loss = Loss(found=chain.head, lost=ChainHead(lost, "d" * 64), source="head file")
    draft = acceptance(loss, actor="amal", why="disk")
    linked = link(ChainHead(loss.next_seq - 1, chain.head.hash), draft, hub=HUB, at=AT)
    chain.linked.append(linked)
    return chain.fill(2)


def test_an_admitted_loss_leaves_numbers_out_and_the_chain_sound() -> None:
    chain = with_loss(9)
    found = verify(chain.lines(), [chain_of(8).checkpoint(), chain_of(9).checkpoint(), chain_of(5).checkpoint()])
    assert (found.finding, found.entries, found.checkpoints, found.checkpoints_lost) == (None, 8, 1, 2)
    assert [(loss.seq, loss.found_seq, loss.lost_seq, loss.why) for loss in found.losses] == [(10, 5, 9, "disk")]


def test_a_copy_that_contradicts_the_chain_is_explained_by_a_loss_that_reaches_so_far() -> None:
    rewritten = chain_of(4)
    rewritten.add(Draft(ENDED, "wl_9", "done"))  # number five, which others knew otherwise
    loss = Loss(found=rewritten.head, lost=ChainHead(5, chain_of(5).head.hash), source="dakar")
    linked = link(rewritten.head, acceptance(loss, actor="amal", why="x"), hub=HUB, at=AT)
    rewritten.linked.append(linked)
    rewritten.fill(2)
    kept = chain_of(5).checkpoint()
    found = verify(rewritten.lines(), [kept])
    assert (found.finding, found.checkpoints, found.checkpoints_lost) == (None, 0, 1)
    later = Chain()
    later.linked = list(rewritten.linked)
    later.add(Draft(ENDED, "other", "done"))
    contradicted = verify(rewritten.lines(), [kept, replace_hash(later, 7)])
    assert contradicted.finding is not None
    assert contradicted.finding.kind is Tampering.REWRITTEN
    assert contradicted.checkpoints_lost == 1


def replace_hash(chain: Chain, seq: int) -> SignedCheckpoint:
    return sign(ChainHead(seq, "c" * 64), hub=HUB, at=AT, key=chain.key)


@pytest.mark.parametrize(
    "details", [{"found_seq": 4}, {"lost_seq": 8}, {"lost_seq": 10}, {"found_seq": "5"}, {"found_seq": 0}]
)
def test_a_loss_that_does_not_match_what_is_before_it_was_inserted(details: dict[str, object]) -> None:
    chain = chain_of(5)
    lines = [*chain.lines()[:5], loss_entry(chain, 10, **details)]
    detail = "it accepts a loss that does not match the entries before it"
    assert outcome(lines) == (10, Tampering.INSERTED, detail, 5, head_after(5), 0)


def test_a_loss_must_follow_what_was_left() -> None:
    chain = chain_of(5)
    loss = Loss(found=ChainHead(5, "b" * 64), lost=ChainHead(9, "d" * 64), source="x")
    linked = link(ChainHead(9, "b" * 64), acceptance(loss, actor="amal", why="x"), hub=HUB, at=AT)
    assert outcome([*chain.lines()[:5], text_of(linked)])[:2] == (10, Tampering.INSERTED)


@pytest.mark.parametrize(
    ("found", "lost", "sentence", "entries", "next_seq"),
    [
        (5, 9, "its audit chain ends at entry 5, but it had 9, by dakar", 4, 10),
        (5, 6, "its audit chain ends at entry 5, but it had 6, by dakar", 1, 7),
        (5, 5, "entry 5 of its audit chain has changed, by dakar", 1, 6),
        (7, 3, "entry 3 of its audit chain has changed, by dakar", 1, 8),
        (0, 3, "its audit chain ends at entry 0, but it had 3, by dakar", 3, 4),
    ],
)
def test_a_loss_says_what_is_missing_and_where_to_go_on(
    found: int, lost: int, sentence: str, entries: int, next_seq: int
) -> None:
    loss = Loss(found=ChainHead(found, "a" * 64), lost=ChainHead(lost, "b" * 64), source="dakar")
    assert (loss.sentence, loss.entries, loss.next_seq) == (sentence, entries, next_seq)


def accepted(lost_seq: int) -> AcceptedLoss:
    return AcceptedLoss(seq=lost_seq + 1, at=AT, actor="amal", found_seq=1, lost_seq=lost_seq)


@pytest.mark.parametrize(
    ("known_seq", "hash_there", "accepted_to", "events", "is_lost"),
    [
        (0, None, (), (0, 9), False),  # nothing was known
        (1, None, (), (0, 0), True),
        (1, "a" * 64, (), (0, 0), False),
        (5, "b" * 64, (), (0, 0), True),
        (5, "a" * 64, (), (7, 7), False),
        (5, "a" * 64, (), (8, 7), False),
        (5, "a" * 64, (), (6, 7), True),
        (5, None, (5,), (0, 0), False),
        (5, None, (4,), (0, 0), True),
        (5, None, (4, 6), (0, 9), False),
    ],
)
def test_an_end_is_lost_if_it_was_known_is_not_there_and_no_one_has_accepted_that(
    known_seq: int, hash_there: str | None, accepted_to: tuple[int, ...], events: tuple[int, int], is_lost: bool
) -> None:
    known, stored = ChainHead(known_seq, "a" * 64), ChainHead(3, "c" * 64)
    loss = find_loss(
        known,
        stored=stored,
        hash_there=hash_there,
        accepted=[accepted(seq) for seq in accepted_to],
        source="head file",
        stored_events=events[0],
        known_events=events[1],
    )
    expected = Loss(found=stored, lost=known, source="head file", lost_events=events[1])
    assert loss == (expected if is_lost else None)


def test_an_acceptance_reads_back_and_its_reason_is_cut() -> None:
    loss = Loss(found=ChainHead(5, "a" * 64), lost=ChainHead(9, "b" * 64), source="dakar")
    draft = acceptance(loss, actor="amal", why="w" * (WHY_LENGTH_MAX + 1))
    assert (draft.kind, draft.subject, draft.verdict, draft.actor) == (LOSS_ACCEPTED, "audit-chain", "accepted", "amal")
    entry = link(ChainHead(9, "a" * 64), draft, hub=HUB, at=AT).entry
    assert loss_in(entry) == AcceptedLoss(
        seq=10,
        at=AT,
        actor="amal",
        found_seq=5,
        lost_seq=9,
        lost_hash="b" * 64,
        source="dakar",
        why="w" * WHY_LENGTH_MAX,
    )
    assert loss_in(replace(entry, details={})) == AcceptedLoss(seq=10, at=AT, actor="amal", found_seq=0, lost_seq=0)


def test_a_finding_is_a_value() -> None:
    assert verify([]).finding == AuditFinding(
        seq=1, kind=Tampering.TRUNCATED, detail="the closing checkpoint is missing"
    )


# Lines


def test_a_line_that_is_not_exactly_as_written_is_no_line() -> None:
    line = LINES[3]
    read = read_line(line)
    assert read is not None
    assert (read.entry, read.body, read.hash) == (CHAIN.linked[3].entry, CHAIN.linked[3].body, CHAIN.linked[3].hash)
    assert read.head == ChainHead(4, CHAIN.linked[3].hash)
    for wrong in (line[:-1], b" " + line, line.replace(b'"hash"', b'"hasch"'), line[:-1] + b" ", b""):
        assert read_line(wrong) is None
    for body in (b"{}", b"\xff", b'"text"'):
        linked = chains.sha256(body).hexdigest()
        assert read_line(line_of(body, linked)) is None


def test_a_line_without_an_end_is_handed_on_when_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "LINE_BYTES_MAX", 4)
    assert list(split_lines([b"abcd"])) == [b"abcd"]
    assert list(split_lines([b"abcd", b"e\nf"])) == [b"abcde\n", b"f"]
    assert list(split_lines([b"abcde", b"f\n"])) == [b"abcde", b"f\n"]
    assert list(split_lines([])) == []
    assert list(split_lines([b"a\n", b""])) == [b"a\n"]


def test_an_entry_concerns_its_subject_and_its_data_alone() -> None:
    draft = moved(
        ("d1", "d2"),
        origin="dakhla",
        destination="dakar",
        countries=("MA", "SN"),
        actor="hub",
        authority="t",
        policy_version="v",
        bytes_count=7,
    )
    entry = link(ChainHead(), draft, hub=HUB, at=AT).entry
    assert [ref for ref in ("d1", "d2", "d3", "") if entry.concerns(ref)] == ["d1", "d2"]
    assert replace(entry, data=()).concerns("d1")
    assert not replace(entry, subject="w", data=()).concerns("d1")
    assert entry.details == {"bytes": 7, "from": "dakhla", "to": "dakar"}
    assert (entry.seq, entry.prev, entry.countries, entry.authority) == (1, NO_HASH, ("MA", "SN"), "t")


# Checkpoints


def test_a_signature_holds_in_one_spelling_for_one_message() -> None:
    signer, message = key(1), b"so it is"
    name, sealed = public_hex(signer), signer.sign(message).hex()
    assert signature_holds(name, sealed, message)
    assert not signature_holds(name, sealed, b"so it is not")
    assert not signature_holds(name.upper(), sealed, message)
    assert not signature_holds(name, sealed.upper(), message)
    assert not signature_holds(name, f"{sealed[:2]} {sealed[2:]}", message)
    assert not signature_holds("zz", sealed, message)
    assert not signature_holds("", "", message)
    assert not signature_holds(public_hex(key(2)), sealed, message)


def test_a_checkpoint_is_read_only_as_a_hub_writes_it() -> None:
    signed = CHAIN.checkpoint()
    assert read_checkpoint(signed.line) == signed
    assert read_checkpoint(signed.line[:-1]) is None
    assert read_checkpoint(signed.line.replace(b":", b": ", 1)) is None
    assert read_checkpoint(b"\xff\n") is None
    assert read_checkpoint(b"{}\n") is None


def test_empty_lines_between_checkpoints_do_not_matter_and_their_number_does(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [chain_of(3).checkpoint(), CHAIN.checkpoint()]
    text = b"\n" + two[0].line + b"  \n" + two[1].line
    monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 2)
    assert read_checkpoints(text) == two
    assert read_checkpoints(b'  {"items":[]}') == []
    with pytest.raises(HarchError) as refused:
        read_checkpoints(text + two[0].line)
    assert (refused.value.code, refused.value.message) == ("E0201", "more than 2 checkpoints")
    with pytest.raises(HarchError) as refused:
        read_checkpoints(b"\xff\xfe")
    assert refused.value.code == "E0202"
    assert refused.value.hint == "one per line, as `harch audit head --json` prints them"


def at(count: int, moment: str) -> SignedCheckpoint:
    return sign(chain_of(count).head, hub=HUB, at=moment, key=key(1))


EARLY, LATE = "2026-11-15T08:00:00.000Z", "2026-11-15T10:00:00.000Z"


@pytest.mark.parametrize(
    ("offered", "known", "is_taken"),
    [
        (at(5, LATE), at(9, EARLY), False),  # it was longer before
        (at(5, EARLY), at(9, LATE), True),
        (at(5, EARLY), at(9, EARLY), True),
        (at(9, LATE), at(9, EARLY), True),
        (at(10, LATE), at(9, EARLY), True),
        (at(10, EARLY), at(9, LATE), True),
    ],
)
def test_a_chain_that_is_shorter_than_it_was_is_refused(
    offered: SignedCheckpoint, known: SignedCheckpoint, is_taken: bool
) -> None:
    if is_taken:
        check_offer(offered, [known])
        return
    with pytest.raises(HarchError) as refused:
        check_offer(offered, [known])
    assert (refused.value.code, refused.value.meta) == ("E0920", {"kept_seq": 9, "offered_seq": 5})
    assert refused.value.message == f"hub {HUB} had 9 entries on {EARLY}, and has 5 now"


def test_a_second_history_is_reported_with_both_hashes() -> None:
    other = chain_of(4)
    other.add(Draft(ENDED, "wl_9", "done"))
    with pytest.raises(HarchError) as refused:
        check_offer(other.checkpoint(), [chain_of(3).checkpoint(), chain_of(5).checkpoint()])
    assert refused.value.meta == {"kept": chain_of(5).head.hash, "offered": other.head.hash}
    assert refused.value.message == f"hub {HUB} signed a different hash for entry 5"


def test_a_statement_counts_if_its_hub_its_signer_and_its_signature_are_right() -> None:
    known = [chain_of(5).checkpoint()]
    chain = chain_of(5)
    chain.rotate(key(2))
    good = introduce(HUB, key(2), by=key(1))
    check_offer(chain.checkpoint(), known, [good])
    for wrong in (
        introduce("dakar", key(2), by=key(1)),
        introduce(HUB, key(2), by=key(3)),
        introduce(HUB, key(3), by=key(1)),
        replace(good, signature="00" * 64),
    ):
        with pytest.raises(HarchError) as refused:
            check_offer(chain.checkpoint(), known, [wrong])
        assert refused.value.message == f"hub {HUB} signs with a key that its known keys have not certified"
    check_offer(chain.checkpoint(), [])  # the first key that a hub shows is believed


def test_a_key_statement_is_read_from_its_entry() -> None:
    statement = introduce(HUB, key(2), by=key(1))
    draft = draft_of(statement, actor="amal")
    entry = link(ChainHead(), draft, hub=HUB, at=AT).entry
    assert (entry.actor, statement_in(entry), statement_in(entry).holds) == ("amal", statement, True)
    for name in ("by", "key", "signature"):
        partial = {other: value for other, value in entry.details.items() if other != name}
        assert not statement_in(replace(entry, details=partial)).holds
    assert not statement_in(replace(entry, hub="dakar")).holds
