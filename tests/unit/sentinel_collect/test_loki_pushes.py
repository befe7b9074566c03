"""Pushes of Loki's clients are read as Loki reads them; what names no stream or time is refused alone."""

from __future__ import annotations

import json

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from push_bodies import PROMTAIL, packed, protobuf

from harch.base.errors import HarchError
from harch.sentinel.collect.loki import parse_stream, read_json, read_protobuf, unpacked
from harch.sentinel.model.logs import LogBatch

NS = 1_700_000_000_000_000_000
STREAM = (("job", "api"), ("site", "dakhla"))


def test_a_push_of_promtail_is_read_with_its_nanoseconds() -> None:
    labels = (("filename", "/var/log/messages"), ("job", "varlogs"))
    assert read_protobuf(PROMTAIL).batches == [LogBatch(labels, [NS + 42], ["hello"])]
    assert unpacked(packed(PROMTAIL), 1000) == PROMTAIL


def test_protobuf_and_json_say_the_same() -> None:
    message = protobuf(
        {
            '{job="api", site="dakhla"}': [(NS, "one", {"trace_id": "ab"}), (NS + 1, "", {})],
            '{job="db"}': [(NS + 2, 'a "quoted" line é', {"http.method": "GET", "user.id": "7"})],
        }
    )
    told = {
        "streams": [
            {
                "stream": {"job": "api", "site": "dakhla"},
                "values": [[str(NS), "one", {"trace_id": "ab"}], [str(NS + 1), ""]],
            },
            {
                "stream": {"job": "db"},
                "values": [[NS + 2, 'a "quoted" line é', {"http.method": "GET", "user.id": "7"}]],
            },
        ]
    }
    pushed = read_protobuf(message)
    assert pushed.batches == read_json(json.dumps(told).encode()).batches
    assert pushed.batches[0] == LogBatch(STREAM, [NS, NS + 1], ["one", ""], [(("trace_id", "ab"),), ()])
    assert pushed.batches[1].metadata == [(("http_method", "GET"), ("user_id", "7"))]  # names that LogQL can write
    assert (pushed.refused, pushed.reason) == (0, "")


def test_the_older_json_with_label_texts_and_written_times_is_read_too() -> None:
    entries = [
        {"ts": "2023-11-14T22:13:20.000000042Z", "line": "one"},
        {"ts": "2023-11-14T23:13:20+01:00", "line": "two"},
        {"ts": "2023-11-14T22:13:20.5Z", "line": "three"},
    ]
    body = {"streams": [{"labels": '{job="api",site="dakhla"}', "entries": entries}]}
    batch = read_json(json.dumps(body).encode()).batches[0]
    assert (batch.labels, batch.times_ns) == (STREAM, [NS + 42, NS, NS + 500_000_000])


def test_a_bad_stream_or_time_takes_no_other_line_with_it() -> None:
    values = [[str(NS), "good"], ["yesterday", "bad"], ["0", "bad"], [str(2**63), "bad"], ["-5", "bad"]]
    body = {"streams": [{"stream": {"a-b": "1"}, "values": [["1", "x"]]}, {"stream": {"job": "a"}, "values": values}]}
    pushed = read_json(json.dumps(body).encode())
    assert [batch.bodies for batch in pushed.batches] == [["good"]]
    assert pushed.refused == 5
    assert "`a-b`" in pushed.reason
    pushed = read_protobuf(protobuf({"{}": [(NS, "x", {})], "job": [(NS, "y", {})], '{a="b"}': [(0, "z", {})]}))
    assert (pushed.batches, pushed.refused) == ([], 3)


def test_bytes_that_are_no_text_are_shown_as_such_and_lose_no_line() -> None:
    pushed = read_protobuf(protobuf({'{job="api"}': [(NS, b"caf\xe9", {}), (NS, b"ok", {})]}))
    assert pushed.batches[0].bodies == ["caf�", "ok"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('{a="b"}', (("a", "b"),)),
        ('  { b = "2" , a="1" , }  ', (("a", "1"), ("b", "2"))),
        ("{a='x\"y', b=`c\\d`}", (("a", 'x"y'), ("b", "c\\d"))),
        ('{a="line\\nend \\"q\\" \\u00e9"}', (("a", 'line\nend "q" é'),)),
        ('{a="}", b=","}', (("a", "}"), ("b", ","))),
        ('{a="", b="x"}', (("b", "x"),)),
    ],
)
def test_streams_are_named_as_prometheus_writes_them(text: str, labels: object) -> None:
    assert parse_stream(text) == labels


@pytest.mark.parametrize(
    "text",
    ["", "a", "{", "{}", "{a}", '{a=b}', '{a="b"', 'a="b"', '{a="b" c="d"}', '{a="b",,c="d"}', '{a="b",a="c"}',
     '{1a="b"}', '{a!="b"}', '{a=~"b"}', '{a="b"} x', '{a="\\q"}', '{a="\\xff"}', '{a=""}', '{a="b\n"}',
     '{"a"="b"}', "{a=\"b'}"],
)  # fmt: skip
def test_what_names_no_stream_is_refused(text: str) -> None:
    with pytest.raises(HarchError) as refusal:
        parse_stream(text)
    assert refusal.value.code == "E0681"


@given(st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True), st.text(min_size=1), min_size=1))
def test_any_labels_are_read_back_from_their_text(pairs: dict[str, str]) -> None:
    escaped = {
        key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, value in pairs.items()
    }
    text = "{" + ", ".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"
    assert parse_stream(text) == tuple(sorted(pairs.items()))


def test_a_block_that_promises_too_much_is_refused_before_it_is_unpacked() -> None:
    bomb = bytes(cramjam.snappy.compress_raw(bytes(10_000_000)))
    with pytest.raises(HarchError) as refusal:
        unpacked(bomb, 1_000_000)
    assert refusal.value.code == "E0204"
    for body in (b"", b"\xff\xff\xff\xff\xff\xff", b"\x05abc", bomb[:-10]):
        with pytest.raises(HarchError):
            unpacked(body, 1_000_000)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"streams":{}}', b'{"streams":[{"stream":{"a":1},"values":[]}]}', b"[" * 100_000,
     b'{"streams":[{"stream":{"a":"b"},"values":[["1"]]}]}', b'{"streams":[{"stream":{"a":"b"},"values":[["1",2]]}]}',
     b'{"streams":[{"stream":{"a":"b"},"values":[["1","l",{"a":1}]]}]}', b'{"streams":[{"stream":{"a":"\xff"}}]}',
     b'{"streams":[{"stream":{"a":"b"},"values":[["1","l",{},"more"]]}]}'],
)  # fmt: skip
def test_json_that_is_no_push_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(HarchError) as refusal:
        read_json(body)
    assert refusal.value.code == "E0680"
