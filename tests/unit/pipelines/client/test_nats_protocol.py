"""Does the parser give the same messages however the bytes arrive, and a clear no to what is no NATS?"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.client.errors import ProtocolError
from harch.pipelines.client.protocol import (
    LINE_BYTES_MAX,
    READ_BYTES_MIN,
    Event,
    Info,
    Message,
    Ok,
    Parser,
    ServerPing,
    ServerPong,
    ServerRefusal,
)


def small_parser() -> Parser:
    return Parser(buffer_bytes=1, payload_bytes_max=4096)


subjects = st.lists(st.from_regex(r"\A[a-zA-Z0-9_$-]{1,8}\Z"), min_size=1, max_size=4).map(".".join)
payloads = st.binary(max_size=600)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, Event]:
    subject, sid, payload = draw(subjects), draw(st.integers(0, 10**9)), draw(payloads)
    reply = draw(st.one_of(st.just(""), subjects))
    words = f"{subject} {sid} {reply}".rstrip()
    if draw(st.booleans()):
        return f"MSG {words} {len(payload)}\r\n".encode() + payload + b"\r\n", Message(subject, sid, reply, payload)
    header = b"NATS/1.0\r\nA: " + draw(st.binary(max_size=20)).hex().encode() + b"\r\n\r\n"
    head = f"HMSG {words} {len(header)} {len(header) + len(payload)}\r\n".encode()
    return head + header + payload + b"\r\n", Message(subject, sid, reply, payload, header)


controls = st.sampled_from(
    [
        (b"PING\r\n", ServerPing()),
        (b"PONG\r\n", ServerPong()),
        (b"+OK\r\n", Ok()),
        (b"-ERR 'Slow Consumer'\r\n", ServerRefusal("Slow Consumer")),
        (b'INFO {"max_payload":1048576,"nonce":"abc"}\r\n', Info({"max_payload": 1048576, "nonce": "abc"})),
    ]
)
frames = st.lists(st.one_of(messages(), controls), max_size=12)


@given(frames=frames, cuts=st.lists(st.integers(1, 400), max_size=60))
def test_any_way_of_cutting_the_bytes_gives_the_same_events(frames: list[tuple[bytes, Event]], cuts: list[int]) -> None:
    data, parser, found = b"".join(raw for raw, _ in frames), small_parser(), []
    at = 0
    for size in [*cuts, len(data)]:
        found += parser.feed(data[at : at + size])
        at += size
    assert found == [event for _, event in frames]
    assert parser.pending_bytes == 0


@given(data=st.binary(max_size=400))
def test_hostile_bytes_give_events_or_one_typed_error_that_stays(data: bytes) -> None:
    parser = small_parser()
    try:
        parser.feed(data)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            parser.feed(b"PING\r\n")


@given(frames=frames, at=st.integers(0, 2000), byte=st.integers(0, 255))
def test_one_wrong_byte_never_raises_anything_else(frames: list[tuple[bytes, Event]], at: int, byte: int) -> None:
    data = bytearray(b"".join(raw for raw, _ in frames))
    if data:
        data[at % len(data)] = byte
    with contextlib.suppress(ProtocolError):
        small_parser().feed(bytes(data))


@pytest.mark.parametrize(
    "raw",
    [
        b"HELLO\r\n",
        b"X",  # refused at its first byte, not after a line that may never end
        b"MSG a 1 5000\r\n",  # beyond the limit of 4096
        b"MSG a 1 -1\r\n",
        b"MSG a 1 1_0\r\n",
        b"MSG a 1\r\n",
        b"MSG a b c d 1\r\n",
        b"MSG a 1 2\r\nabXX",
        b"HMSG a 1 9 4\r\nNATS",
        b"MSG \xff\xfe 1 0\r\n\r\n",
        b"INFO {not json\r\n",
        b"M" + b"x" * LINE_BYTES_MAX,
        b"MSG " + b"s" * 5000 + b" 1 0\r\n\r\n",
    ],
)
def test_each_kind_of_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        small_parser().feed(raw)


def test_a_payload_is_a_view_into_the_buffer_until_more_room_is_asked_for() -> None:
    parser = small_parser()
    raw = b"MSG a 1 3\r\nabc\r\nMSG a 1 3\r\ndef\r\n"
    parser.writable()[: len(raw)] = raw
    parser.wrote(len(raw))
    first, second = list(parser.complete())
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    assert isinstance(first.payload, memoryview)
    assert (bytes(first.payload), bytes(second.payload)) == (b"abc", b"def")
    kept = first.kept()
    parser.writable()[:20] = b"\0" * 20
    assert kept.payload == b"abc"


def test_a_message_as_large_as_allowed_fits_whatever_stands_before_it() -> None:
    parser = Parser(buffer_bytes=1, payload_bytes_max=READ_BYTES_MIN * 2)
    large = bytes(range(256)) * (READ_BYTES_MIN * 2 // 256)
    found = parser.feed((b"MSG a 1 5\r\nsmall\r\n" + f"MSG b 2 {len(large)}\r\n".encode() + large + b"\r\n") * 3)
    assert [len(event.payload) for event in found if isinstance(event, Message)] == [5, len(large)] * 3
    assert found[-1] == Message("b", 2, "", large)


def test_the_status_of_a_message_without_a_sender_is_read() -> None:
    (message,) = small_parser().feed(b"HMSG _INBOX.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
    assert isinstance(message, Message)
    assert message.status == 503
    (plain,) = small_parser().feed(b"HMSG a 1 26 28\r\nNATS/1.0\r\nK: v\r\nX: y:z\r\n\r\nhi\r\n")
    assert isinstance(plain, Message)
    assert (plain.status, plain.headers(), plain.payload) == (0, {"K": "v", "X": "y:z"}, b"hi")


@pytest.mark.parametrize(
    ("text", "permission", "authorization", "fatal"),
    [
        ('Permissions Violation for Publish to "a"', True, False, False),
        ("Authorization Violation", False, True, True),
        ("User Authentication Expired", False, True, True),
        ("Slow Consumer", False, False, True),
        ("Invalid Subject", False, False, False),
    ],
)
def test_refusals_tell_their_kind(text: str, permission: bool, authorization: bool, fatal: bool) -> None:
    refusal = ServerRefusal(text)
    assert (refusal.is_permission, refusal.is_authorization, refusal.is_fatal) == (permission, authorization, fatal)


@pytest.mark.parametrize("value", [None, -1, "8", 0])
def test_an_odd_limit_in_info_falls_back_to_ours(value: Any) -> None:
    assert Info({"max_payload": value}).payload_bytes_max == 8 << 20
