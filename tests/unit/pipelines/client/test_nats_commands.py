"""Can anything that we send be read as something else? Subjects, headers, keys, addresses, replies and acks."""

from __future__ import annotations

import json

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.pipelines.client import protocol
from harch.pipelines.client.connection import ClientSession
from harch.pipelines.client.errors import JetStreamRefused, NatsError, NoResponders, PermissionDenied, as_harch_error
from harch.pipelines.client.jetstream import (
    AckBook,
    Acked,
    PublishAck,
    PublishRefused,
    delivery_of,
    publish_headers,
    read_ack,
)
from harch.pipelines.client.options import (
    ClientOptions,
    Credentials,
    backoff_s,
    connect_line,
    new_user_seed,
    parse_address,
    public_key,
    read_credentials,
    sign,
)
from harch.pipelines.client.protocol import Info, Message


@given(st.text(max_size=60))
def test_a_subject_is_refused_or_stays_one_word_of_one_line(subject: str) -> None:
    try:
        head = protocol.publish_head(subject, 3)
    except NatsError:
        return
    assert head.count(b"\r\n") == 1
    assert head.decode().split() == ["PUB", subject, "3"]


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", "a b", "a\r\nPING", "a.*", ">", "a\tb", "x" * 5000])
def test_what_is_no_subject_of_a_message_is_refused(subject: str) -> None:
    with pytest.raises(NatsError):
        protocol.publish_head(subject, 0)


def test_wildcards_are_for_subscriptions_and_the_last_one_only_at_the_end() -> None:
    assert protocol.subscribe("a.*.>", 3, "q") == b"SUB a.*.> q 3\r\n"
    with pytest.raises(NatsError):
        protocol.subscribe("a.>.b", 3)
    assert protocol.unsubscribe(3) == b"UNSUB 3\r\n"


def test_headers_travel_with_their_lengths_and_cannot_be_forged() -> None:
    block = protocol.header_block({"Nats-Msg-Id": "7"})
    head = protocol.publish_head_with_headers("a.b", block, 5, reply="r")
    assert head == b"HPUB a.b r %d %d\r\n" % (len(block), len(block) + 5) + block
    for headers in ({"a": "x\r\nEvil: 1"}, {"a:b": "x"}, {"": "x"}, {"a": "x" * 20_000}):
        with pytest.raises(NatsError):
            protocol.header_block(headers)


def test_keys_are_those_of_the_reference_implementation() -> None:
    seed = new_user_seed(bytes(range(32)))
    reference = nkeys.from_seed(seed.encode())
    assert reference.public_key.decode() == public_key(seed)
    assert public_key(seed).startswith("U")
    assert seed.startswith("SU")
    assert sign(seed, "nonce") == sign(seed, "nonce") != sign(new_user_seed(), "nonce")


@pytest.mark.parametrize("seed", ["", "SUnonsense", "SU" + "A" * 56, public_key(new_user_seed())])
def test_what_is_no_seed_of_a_user_is_refused(seed: str) -> None:
    with pytest.raises(NatsError):
        public_key(seed)


def test_credentials_never_show() -> None:
    seed = new_user_seed()
    options = ClientOptions(servers=("nats://h:1",), credentials=Credentials(seed=seed))
    for shown in (repr(options), str(options.credentials), repr(Credentials(user="u", password="hidden"))):
        assert seed not in shown
        assert "hidden" not in shown


def test_connect_signs_the_nonce_and_never_sends_the_seed() -> None:
    seed = new_user_seed()
    options = ClientOptions(servers=("h",), credentials=Credentials(seed=seed))
    line = connect_line(options, Info({"nonce": "abc"}))
    fields = json.loads(line.removeprefix(b"CONNECT ").split(b"\r\n")[0])
    assert (fields["nkey"], fields["sig"]) == (public_key(seed), sign(seed, "abc"))
    assert seed.encode() not in line
    assert line.endswith(b"\r\nPING\r\n")
    with pytest.raises(NatsError):
        connect_line(options, Info({}))


def test_a_token_alone_is_one_that_all_clients_share() -> None:
    line = connect_line(ClientOptions(servers=("h",), credentials=Credentials(token="t0k")), Info({"nonce": "abc"}))
    fields = json.loads(line.removeprefix(b"CONNECT ").split(b"\r\n")[0])
    assert fields["auth_token"] == "t0k"
    assert fields.keys().isdisjoint({"jwt", "nkey", "user"})


def test_a_file_of_credentials_is_read_as_nats_tools_write_it() -> None:
    seed = new_user_seed()
    text = (
        f"-----BEGIN NATS USER JWT-----\neyJ0.eyJq.sig_-1\n------END NATS USER JWT------\n\n"
        f"************************* IMPORTANT *************************\nNKEY Seed printed below\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n****\n"
    )
    found = read_credentials(text)
    assert (found.token, found.seed) == ("eyJ0.eyJq.sig_-1", seed)
    assert seed not in repr(found)
    for wrong in ("", text.replace("USER NKEY", "OTHER"), text[: len(text) // 3]):
        with pytest.raises(NatsError):
            read_credentials(wrong)


@pytest.mark.parametrize(
    ("reply", "numbers"),
    [
        ("$JS.ACK.KV_x.watch.1.17.3.1700000000.5", (17, 3)),
        ("$JS.ACK.dom.hash.KV_x.watch.1.17.3.1700000000.5", (17, 3)),
        ("$JS.ACK.dom.hash.KV_x.watch.1.17.3.1700000000.5.token", (17, 3)),
        ("", None),
        ("$JS.ACK.KV_x.watch.1.a.3.1700000000.5", None),
        ("_INBOX.x.1", None),
    ],
)
def test_a_delivery_names_its_place_in_stream_and_consumer(reply: str, numbers: tuple[int, int] | None) -> None:
    found = delivery_of(Message("s", 1, reply, b"", b""))
    assert (None if found is None else (found.stream_seq, found.consumer_seq)) == numbers


def test_addresses_are_read_and_credentials_in_them_refused() -> None:
    assert parse_address("tls://hub.example:4333").port == 4333
    assert parse_address("h").port == 4222
    for wrong in ("http://h:1", "nats://u:p@h:1", "nats://h:99999", "nats://", "nats://h/path"):
        with pytest.raises(HarchError):
            parse_address(wrong)
    with pytest.raises(HarchError):  # TLS without an authority would trust anybody
        ClientOptions(servers=("tls://h:1",))
    with pytest.raises(HarchError):
        ClientOptions(servers=())


@given(attempt=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_a_limit_and_are_never_nothing(attempt: int, jitter: float) -> None:
    options = ClientOptions(servers=("h",))
    assert 0 < backoff_s(attempt, options, jitter) <= options.backoff_s_max


def test_each_request_has_a_reply_subject_of_its_own_and_subscriptions_are_told_again() -> None:
    session = ClientSession("_INBOX.me", token="t")
    assert session.open_inbox() == b"SUB _INBOX.me.t.* 1\r\n"
    assert session.open_inbox() == b""
    assert session.new_reply() != session.new_reply()
    sid, _ = session.subscribe("a.b", "q")
    gone, _ = session.subscribe("c")
    session.unsubscribe(gone)
    assert session.resubscribe() == b"SUB _INBOX.me.t.* 1\r\nSUB a.b q %d\r\n" % sid


def _answer(reply: str, payload: bytes, header: bytes = b"") -> Message:
    return Message(reply, 1, "", payload, header)


def test_acks_are_matched_by_reply_subject_in_any_order_and_late_ones_to_nobody() -> None:
    book: AckBook[str] = AckBook(outstanding_max=3)
    for number in range(3):
        book.sent(f"r.{number}", f"key-{number}", deadline_s=10.0 + number)
    assert book.is_full
    with pytest.raises(NatsError):
        book.sent("r.9", "key-9", deadline_s=1)
    assert book.received(_answer("r.2", b'{"stream":"S","seq":5}')) == Acked("key-2", PublishAck("S", 5))
    refused = book.received(_answer("r.0", b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes"}}'))
    assert isinstance(refused, PublishRefused)
    assert isinstance(refused.error, JetStreamRefused)
    assert refused.error.code == 10077
    assert book.overdue(10.5) == []
    assert book.overdue(11.0) == ["key-1"]
    assert book.received(_answer("r.1", b'{"stream":"S","seq":6}')) is None
    book.sent("r.3", "key-3", deadline_s=99)
    assert book.abandoned() == ["key-3"]
    assert len(book) == 0


def test_an_answer_without_a_stream_is_no_ack() -> None:
    with pytest.raises(NoResponders):
        read_ack(_answer("r", b"", b"NATS/1.0 503\r\n\r\n"))
    for payload in (b"", b"[]", b"{}", b'{"stream":1,"seq":1}', b'{"stream":"S"}'):
        with pytest.raises(NatsError):
            read_ack(_answer("r", payload))
    assert read_ack(_answer("r", b'{"stream":"S","seq":1,"duplicate":true}')).duplicate


def test_publish_headers_say_only_what_was_asked() -> None:
    assert publish_headers() == {}
    assert publish_headers(msg_id="7", expected_last_subject_seq=0) == {
        "Nats-Msg-Id": "7",
        "Nats-Expected-Last-Subject-Sequence": "0",
    }


def test_people_get_a_code_and_a_hint() -> None:
    error = as_harch_error(PermissionDenied("no"), "publishing to `a`")
    assert error.code == "E0701"
    assert "publishing to `a`" in str(error)
    assert error.hint
