"""Packs say what is in them, twice; keys and nonces meet once; frames cannot blow up."""

from __future__ import annotations

import os
import random
import struct

import pytest
import zstandard

from harch.content.frames import HEAD_BYTES as FRAME_HEAD_BYTES
from harch.content.frames import (
    Codec,
    compressor,
    decode_frames,
    decode_ids,
    decompressor,
    encode_frame,
    encode_ids,
    pack_chunk,
    unpack_chunk,
)
from harch.content.frames import read_head as read_frame_head
from harch.content.model import CHUNK_BYTES_MAX
from harch.content.store.encryption import TenantKey, unwrap_key, wrap_key
from harch.content.store.records import (
    FOOTER_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    DamagedRecord,
    PackDraft,
    encode_head,
    footer_bytes,
    read_by_footer,
    read_by_records,
    read_head,
)
from unit.content_store.content_samples import frames_of, names_of, refused

KEY = TenantKey(b"k" * 16, bytes(32))
RAWS = [random.Random(number).randbytes(50 + 40 * number) for number in range(5)]


def pack(raws: list[bytes] = RAWS) -> bytes:
    draft = PackDraft(b"p" * 16, KEY.id)
    for number, frame in enumerate(frames_of(*raws)):
        draft.add(*KEY.seal(frame, b"s" * 16, number))
    draft.finish()
    data = b"".join(draft.pieces)
    assert len(data) == draft.bytes
    return data


def test_the_end_of_a_pack_lists_what_the_pack_holds() -> None:
    data = pack()
    by_footer = read_by_footer(data[:HEADER_BYTES], data[-footer_bytes(data[-FOOTER_BYTES:]) :], len(data))
    assert by_footer == read_by_records(data)
    assert by_footer.is_whole
    assert by_footer.key_id == KEY.id
    assert [record.head.chunk for record in by_footer.records] == names_of(*RAWS)
    opened = [KEY.open(memoryview(data)[at : at + head.record_bytes], head.chunk) for at, head in by_footer.records]
    assert [unpack_chunk(frame) for frame in opened] == RAWS


@pytest.mark.parametrize("raws", [RAWS[:1], [b"1"], [b"1", b"2", b"3"]])
def test_short_packs_are_read_in_both_ways(raws: list[bytes]) -> None:
    data = pack(raws)
    assert read_by_records(data) == read_by_footer(data, data, len(data))


def test_every_flipped_bit_is_noticed_by_the_footer_or_by_a_record() -> None:
    data = pack(RAWS[:2])
    whole = read_by_footer(data, data, len(data))
    for bit in range(8 * len(data)):
        hit = bytearray(data)
        hit[bit // 8] ^= 1 << bit % 8
        found = 0
        try:
            assert read_by_footer(hit, hit, len(hit)) == whole
        except DamagedRecord:
            found += 1
        for at, head in whole.records:
            try:
                KEY.open(memoryview(hit)[at : at + head.record_bytes], head.chunk)
            except DamagedRecord:
                found += 1
        assert found == 1, bit


def test_records_beside_a_damaged_one_are_still_found() -> None:
    data = bytearray(pack())
    whole = read_by_records(bytes(data))
    hurt = whole.records[2]
    data[hurt.at + 10] ^= 1
    found = read_by_records(bytes(data))
    assert not found.is_whole
    assert [record for record in found.records if record != hurt] == [one for one in whole.records if one != hurt]


@pytest.mark.parametrize("length", range(0, 700, 7))
def test_what_is_left_of_a_pack_that_was_cut_is_found(length: int) -> None:
    data = pack()[:length]
    whole = read_by_records(pack())
    if length < HEADER_BYTES:
        with pytest.raises(DamagedRecord):
            read_by_records(data)
        return
    found = read_by_records(data)
    assert found.records == [one for one in whole.records if one.at + one.head.record_bytes <= length]
    assert not found.is_whole
    with pytest.raises(DamagedRecord):
        read_by_footer(data, data, len(data))


def test_anything_else_is_no_head_and_no_pack() -> None:
    head = encode_head(KEY.seal(frames_of(b"x")[0], b"s" * 16, 0)[0])
    for wrong in (b"", head[:-1], bytes(HEAD_BYTES), os.urandom(HEAD_BYTES)):
        with pytest.raises(DamagedRecord):
            read_head(wrong)
        with pytest.raises(DamagedRecord):
            read_by_records(wrong)
        with pytest.raises(DamagedRecord):
            footer_bytes(wrong)


# Keys


def test_a_record_is_opened_by_its_tenant_under_its_name_only() -> None:
    frame, other = frames_of(b"one of these", b"another one")
    _, encoded, sealed = KEY.seal(frame, b"s" * 16, 7)
    record = memoryview(encoded + sealed)
    assert KEY.open(record, frame.id) == frame
    for key, name in (
        (TenantKey(KEY.id, b"\1" * 32), frame.id),
        (TenantKey(b"j" * 16, bytes(32)), frame.id),
        (KEY, other.id),
    ):
        with pytest.raises(DamagedRecord):
            key.open(record, name)
    with pytest.raises(DamagedRecord):
        KEY.open(record[:-1], frame.id)


def test_a_head_that_was_rewritten_with_a_right_checksum_is_noticed() -> None:
    frame = frames_of(b"y" * 500)[0]
    head, _, sealed = KEY.seal(frame, b"s" * 16, 7)
    for changed in (head._replace(size=499), head._replace(codec=Codec.RAW), head._replace(number=8)):
        with pytest.raises(DamagedRecord):
            KEY.open(memoryview(encode_head(changed) + sealed), frame.id)


def test_equal_chunks_are_sealed_differently_each_time() -> None:
    frame = frames_of(b"the same")[0]
    sealed = {KEY.seal(frame, salt, number)[2] for salt in (b"a" * 16, b"b" * 16) for number in (0, 1)}
    assert len(sealed) == 4


def test_a_wrapped_key_opens_with_its_master_key_for_its_tenant_only() -> None:
    wrapped = wrap_key(b"t" * 32, master_key=bytes(32), context=b"acme", nonce=b"n" * 12)
    assert unwrap_key(wrapped, master_key=bytes(32), context=b"acme") == b"t" * 32
    for master, context, value in (
        (b"\1" * 32, b"acme", wrapped),
        (bytes(32), b"evil", wrapped),
        (bytes(32), b"acme", wrapped[:-1]),
        (bytes(32), b"acme", b""),
    ):
        with refused("E1110"):
            unwrap_key(value, master_key=master, context=context)


# Frames


def test_a_payload_may_not_grow_beyond_its_size_or_carry_anything_behind_it() -> None:
    frame = pack_chunk(b"a" * 1000)
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 28))
    silent_bomb = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 28))
    for wrong in (
        frame._replace(payload=bomb),
        frame._replace(payload=silent_bomb),
        frame._replace(payload=frame.payload + b"x"),
        frame._replace(payload=frame.payload[:-1]),
        frame._replace(payload=b""),
        frame._replace(size=999),
        frame._replace(size=1001),
    ):
        with refused("E1101"):
            unpack_chunk(wrong)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 1000)
    assert unpack_chunk(frame._replace(payload=silent)) == b"a" * 1000


def test_memory_is_not_given_to_a_payload_that_claims_another_size() -> None:
    class Unused:
        def decompress(self, *_: object, **__: object) -> bytes:
            raise AssertionError("it was unpacked before its size was looked at")

    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 22))
    with refused("E1101"):
        unpack_chunk(pack_chunk(b"a" * 1000)._replace(payload=bomb), by=Unused())  # type: ignore[arg-type]


def test_one_compressor_serves_many_chunks() -> None:
    packer, unpacker = compressor(), decompressor()
    for raw in (b"a" * 1000, b"b" * 2000, os.urandom(500)):
        assert pack_chunk(raw, by=packer) == pack_chunk(raw)
        assert unpack_chunk(pack_chunk(raw, by=packer), by=unpacker) == raw


def test_bodies_of_frames_are_read_as_they_were_written() -> None:
    frames = frames_of(b"a" * 1000, os.urandom(500), b"x")
    body = b"".join(map(encode_frame, frames))
    assert list(decode_frames(body)) == list(decode_frames(memoryview(body))) == frames
    assert list(decode_frames(b"")) == []
    assert sum(frame.bytes_travelling for frame in frames) == len(body)


@pytest.mark.parametrize("left", [1, FRAME_HEAD_BYTES - 1, FRAME_HEAD_BYTES, FRAME_HEAD_BYTES + 499, -1])
def test_a_body_that_was_cut_is_no_body_of_frames(left: int) -> None:
    body = encode_frame(frames_of(os.urandom(500))[0])
    with refused("E1101"):
        list(decode_frames(body[:left]))


@pytest.mark.parametrize(
    ("size", "codec", "length"),
    [
        (0, Codec.ZSTD, 5),
        (CHUNK_BYTES_MAX + 1, Codec.ZSTD, 5),
        (5, Codec.ZSTD, 0),
        (5, Codec.ZSTD, CHUNK_BYTES_MAX + 1),
        (5, 2, 5),
        (5, Codec.RAW, 6),
    ],
)
def test_impossible_heads_of_frames_are_refused(size: int, codec: int, length: int) -> None:
    with refused("E1101"):
        read_frame_head(struct.pack("!32sIBI", bytes(32), size, codec, length))


def test_the_largest_frame_is_allowed() -> None:
    head = struct.pack("!32sIBI", bytes(32), CHUNK_BYTES_MAX, Codec.RAW, CHUNK_BYTES_MAX)
    assert read_frame_head(head) == (bytes(32), CHUNK_BYTES_MAX, Codec.RAW, CHUNK_BYTES_MAX)


def test_a_body_has_a_limited_number_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.content.frames.BATCH_CHUNKS_MAX", 2)
    frame = encode_frame(frames_of(b"x")[0])
    assert len(list(decode_frames(frame * 2))) == 2
    with refused("E1101"):
        list(decode_frames(frame * 3))


def test_lists_of_names_are_whole() -> None:
    names = names_of(b"1", b"2")
    assert decode_ids(encode_ids(names)) == names
    with refused("E1101"):
        decode_ids(encode_ids(names)[:-1])
