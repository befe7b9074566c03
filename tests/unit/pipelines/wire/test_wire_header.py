from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.sense.flow_control import CREDIT_BYTES, Credit, pack_credit, unpack_credit
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    TIME_NS_MAX,
    BatchHeader,
    Flags,
    SequenceGap,
    as_replay,
    check_payload,
    crc32c,
    pack_batch,
    pack_gap,
    pack_header,
    read_gap,
    unpack_header,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TIMES = st.integers(0, TIME_NS_MAX)


@st.composite
def batches(draw: st.DrawFn) -> tuple[BatchHeader, bytes]:
    payload = draw(st.binary(max_size=200))
    header = BatchHeader(
        schema=draw(U32),
        n=draw(st.integers(0, 1000)),
        juris_mask=draw(U64),
        policy_version=draw(U32),
        source=draw(U32),
        seq=draw(st.integers(1, 2**63 - 1)),
        t_first_ns=draw(TIMES),
        watermark_ns=draw(TIMES),
        payload_len=len(payload),
        flags=draw(st.sampled_from([0, Flags.END, Flags.REPLAY, Flags.END | Flags.REPLAY])),
        priority=draw(st.integers(0, 7)),
        lane=draw(st.integers(0, 2)),
    )
    return header, payload


def sample(**changed: int) -> BatchHeader:
    fields = {
        "schema": 7,
        "n": 0,
        "juris_mask": 5,
        "policy_version": 1,
        "source": 9,
        "seq": 3,
        "t_first_ns": 1000,
        "watermark_ns": 900,
        "payload_len": 0,
    }
    return BatchHeader(**{**fields, **changed})


def test_the_checksum_is_crc32c_of_the_published_example() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@settings(deadline=None)
@given(batches())
def test_what_is_packed_is_read_back_unchanged(batch: tuple[BatchHeader, bytes]) -> None:
    header, payload = batch
    message = pack_batch(header, payload)
    assert len(message) == HEADER_BYTES + len(payload)
    assert unpack_header(message) == header
    assert check_payload(header, message) == payload


@settings(deadline=None)
@given(batches(), st.data())
def test_any_flipped_bit_is_found(batch: tuple[BatchHeader, bytes], data: st.DataObject) -> None:
    message = bytearray(pack_batch(*batch))
    bit = data.draw(st.integers(0, 8 * len(message) - 1))
    message[bit // 8] ^= 1 << bit % 8
    header = unpack_header(message)
    assert isinstance(header, Rejection) or isinstance(check_payload(header, message), Rejection)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_hostile_bytes_become_a_rejection_or_a_header_and_never_an_exception(message: bytes) -> None:
    header = unpack_header(message)
    if isinstance(header, BatchHeader):
        check_payload(header, message)
    else:
        assert header.rule
        assert header.detail


@settings(deadline=None)
@given(batches(), st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), max_size=12))
def test_a_head_with_any_bytes_replaced_is_refused_or_in_its_ranges(
    batch: tuple[BatchHeader, bytes], changes: list[tuple[int, int]]
) -> None:
    message = bytearray(pack_batch(*batch))
    for place, value in changes:
        message[place] = value
    header = unpack_header(message)
    if isinstance(header, BatchHeader):
        assert 0 <= header.t_first_ns <= TIME_NS_MAX
        assert header.payload_len <= PAYLOAD_BYTES_MAX
        assert header.seq >= 1 or header.is_watermark_only


@pytest.mark.parametrize(
    ("place", "value", "rule"),
    [
        (0, 0, "magic"),
        (4, 9, "version"),
        (5, 0x80, "flags"),
        (6, 200, "priority"),
        (7, 9, "lane"),
        (15, 0xFF, "events"),
        (59, 0xFF, "size"),
        (39, 0xFF, "seq"),
        (47, 0xFF, "time"),
    ],
)
def test_each_field_out_of_range_is_refused_by_name(place: int, value: int, rule: str) -> None:
    message = bytearray(pack_header(sample()))
    message[place] = value
    found = unpack_header(message)
    assert isinstance(found, Rejection)
    assert found.rule == rule


def test_a_cut_message_is_refused() -> None:
    message = pack_batch(sample(n=1, payload_len=4), b"abcd")
    assert isinstance(unpack_header(message[:63]), Rejection)
    refused = check_payload(sample(n=1, payload_len=4), message[:-1])
    assert isinstance(refused, Rejection)
    assert refused.rule == "length"


def test_a_header_that_nobody_could_read_is_not_sent() -> None:
    with pytest.raises(InvariantBroken):
        pack_header(sample(seq=0))
    with pytest.raises(InvariantBroken):
        pack_header(sample(juris_mask=-1))
    with pytest.raises(InvariantBroken):
        pack_header(sample(payload_len=3), b"four")


def test_a_gap_says_which_batches_and_how_many_events_were_shed() -> None:
    message = pack_gap(sample(), SequenceGap(4, 9, 60_000))
    header = unpack_header(message)
    assert isinstance(header, BatchHeader)
    assert header.is_gap
    assert header.seq == 9
    payload = check_payload(header, message)
    assert isinstance(payload, memoryview)
    assert read_gap(header, payload) == SequenceGap(4, 9, 60_000)


def test_a_gap_that_ends_before_it_begins_is_refused() -> None:
    message = pack_gap(sample(), SequenceGap(4, 9, 1))
    header = unpack_header(message)
    assert isinstance(header, BatchHeader)
    assert isinstance(read_gap(header, (10).to_bytes(8, "little") + bytes(8)), Rejection)


def test_a_replayed_message_differs_in_its_flag_only() -> None:
    header = sample(n=1, payload_len=4)
    again = as_replay(pack_batch(header, b"abcd"))
    found = unpack_header(again)
    assert found == sample(n=1, payload_len=4, flags=Flags.REPLAY)
    assert isinstance(found, BatchHeader)
    assert check_payload(found, again) == b"abcd"


@settings(deadline=None)
@given(st.builds(Credit, U32, U64, U64, st.integers(0, 2**63 - 1)), st.integers(0, CREDIT_BYTES * 8 - 1))
def test_credit_survives_the_wire_and_a_flipped_bit_does_not(credit: Credit, bit: int) -> None:
    message = bytearray(pack_credit(credit))
    assert unpack_credit(message) == credit
    message[bit // 8] ^= 1 << bit % 8
    assert isinstance(unpack_credit(message), Rejection)
    assert isinstance(unpack_credit(message[:-1]), Rejection)
