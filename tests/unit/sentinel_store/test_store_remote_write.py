"""Remote-write bodies: what is taken, what is refused and why, and that no byte of a stranger does harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import BucketSpan, ResetHint
from harch.sentinel.model.labels import MetricMetadata, MetricType
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.head.arena_kernels import KEY_AT, KEY_LENGTH
from harch.sentinel.store.head.index_kernels import insert_key
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.series_encoding import encode_labels
from harch.sentinel.store.write_request import Receipt
from unit.sentinel_store.remote_write_bodies import (
    V2,
    bits,
    double,
    histogram,
    label,
    number,
    packed,
    part,
    sample,
    series_v1,
    varint,
)
from unit.sentinel_store.stores import ALL_TIMES, ANY_AGE, content, everything, matcher, open_database

UP = (("__name__", "up"), ("job", "a"))
ONE = 0x3FF0000000000000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TenantDatabase]:
    store = open_database(tmp_path)
    yield store
    store.close()


def test_all_bits_of_a_value_come_back(database: TenantDatabase) -> None:
    odd = [0, 1 << 63, 0x7FF0000000000002, 0x7FF4000000000123, 0xFFF8000000000001, 0x7FF0000000000000, 1, ONE]
    samples = [(bits(value), 1000 * place - 3000) for place, value in enumerate(odd)]
    assert database.write_v1(packed(series_v1(UP, samples))).samples == len(odd)
    assert everything(database) == {UP: {1000 * place - 3000: value for place, value in enumerate(odd)}}


def test_labels_in_any_order_name_the_same_series(database: TenantDatabase) -> None:
    database.write_v1(packed(series_v1(UP, [(1.0, 1)])))
    for time in (2, 3):  # the second time by the other way to write it, which is known by then
        assert database.write_v1(packed(series_v1(UP[::-1], [(1.0, time)]))).samples == 1
    assert everything(database) == {UP: {1: ONE, 2: ONE, 3: ONE}}


def test_labels_behind_samples_and_with_strange_fields_are_still_labels(database: TenantDatabase) -> None:
    strange = part(1, number(9, 7) + part(2, b"a") + part(1, b"job") + double(12, 1.0))
    series = part(1, label("__name__", "up") + sample(1.0, 5) + strange + part(77, b"?"))
    assert database.write_v1(packed(number(15, 3) + series)).samples == 1
    assert everything(database) == {UP: {5: ONE}}


def test_long_labels_and_empty_ones(database: TenantDatabase) -> None:
    long = "ö" * 1500
    database.write_v1(packed(series_v1([("__name__", "up"), ("empty", ""), ("long", long)], [(1.0, 1)])))
    assert everything(database) == {(("__name__", "up"), ("long", long)): {1: ONE}}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([("job", "a")], "no metric name"),
        ([("__name__", "")], "no metric name"),
        ([("__name__", "x"), ("a", "1"), ("a", "2")], "twice"),
        ([("__name__", "x"), ("", "1")], "no name"),
        ([("__name__", "x" * 5000)], "5000 bytes"),
        ([("__name__", "x"), ("y" * 1100, "1")], "1100"),
        ([("__name__", "x"), *((f"l{place}", "1") for place in range(70))], "71 labels"),
    ],
)
def test_a_series_that_is_not_valid_is_refused_and_others_are_kept(
    database: TenantDatabase, labels: list[tuple[str, str]], words: str
) -> None:
    body = packed(series_v1(labels, [(1.0, 1), (2.0, 2)]) + series_v1(UP, [(1.0, 1)]))
    for _ in range(2):
        receipt = database.write_v1(body)
        assert (receipt.samples, dict(receipt.refused)) == (1, {"E0607": 2})
        assert receipt.first_refusal is not None
        assert words in receipt.first_refusal.message
    assert everything(database) == {UP: {1: ONE}}
    second = V2().add(labels, sample(1.0, 1)).add(UP, sample(1.0, 2))
    assert dict(database.write_v2(second.body()).refused) == {"E0607": 1}


def test_names_that_are_not_utf8_are_refused(database: TenantDatabase) -> None:
    broken = part(1, label("__name__", "up") + label("job", b"\xff\xfe") + sample(1.0, 1))
    receipt = database.write_v1(packed(broken + series_v1(UP, [(1.0, 1)])))
    assert (receipt.samples, dict(receipt.refused)) == (1, {"E0607": 1})


def test_the_same_sample_again_is_fine_and_another_value_is_not(database: TenantDatabase) -> None:
    stale = bits(0x7FF0000000000002)
    assert database.write_v1(packed(series_v1(UP, [(1.0, 1), (stale, 2)]))).samples == 2
    assert database.write_v1(packed(series_v1(UP, [(1.0, 1), (stale, 2)]))).samples == 2
    receipt = database.write_v1(packed(series_v1(UP, [(-0.0, 1), (bits(0x7FF0000000000003), 2), (4.0, 4)])))
    assert (receipt.samples, dict(receipt.refused)) == (1, {"E0611": 2})
    assert receipt.first_refusal is not None
    assert 'job="a"' in receipt.first_refusal.message
    assert len(everything(database)[UP]) == 3


def test_limits_of_a_tenant_have_codes_of_their_own(tmp_path: Path) -> None:
    limits = TenantLimits(
        series_max=2, out_of_order_ms=10, age_ms_max=10**15, ahead_ms_max=1000, samples_in_memory_max=1 << 12
    )
    database = open_database(tmp_path, limits=limits)
    try:
        now = 1000 * int(database._clock.now().timestamp())
        for name, count in (("a", 1), ("b", 1), ("c", 0)):
            receipt = database.write_v1(packed(series_v1([("__name__", name)], [(1.0, now)])))
            assert receipt.samples == count
        assert dict(receipt.refused) == {"E0608": 1}
        late = database.write_v1(packed(series_v1([("__name__", "a")], [(1.0, now - 10), (1.0, now - 11)])))
        assert (late.samples, dict(late.refused)) == (1, {"E0610": 1})
        assert dict(database.write_v1(packed(series_v1([("__name__", "a")], [(1.0, now + 1001)]))).refused) == {
            "E0610": 1
        }
    finally:
        database.close()


def test_senders_beyond_their_rate_are_told_when_to_come_back(tmp_path: Path) -> None:
    limits = TenantLimits(samples_per_s_max=10, samples_burst_max=5, samples_in_memory_max=1 << 12)
    database = open_database(tmp_path, limits=limits)
    try:
        assert database.write_v1(packed(series_v1(UP, [(1.0, time) for time in range(25)]))).samples == 25
        with pytest.raises(HarchError, match="10 samples per second") as refused:
            database.write_v1(packed(series_v1(UP, [(1.0, 26)])))
        assert (refused.value.code, refused.value.kind.status) == ("E0609", 429)
        assert refused.value.retry_after_s == 3
        database._clock.jump(2.1)
        assert database.write_v1(packed(series_v1(UP, [(1.0, 27)]))).samples == 1
    finally:
        database.close()


def test_bombs_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    limits = TenantLimits(
        body_bytes_max=1000, request_bytes_max=5000, request_samples_max=4096, samples_in_memory_max=1 << 12
    )
    database = open_database(tmp_path, limits=limits)
    try:
        for body in (b"x" * 1001, varint(5001) + b"\x00a", packed(bytes(6000))):
            with pytest.raises(HarchError) as refused:
                database.write_v1(body)
            assert (refused.value.code, refused.value.kind.status) == ("E0606", 413)
    finally:
        database.close()


def test_more_samples_than_a_request_may_have(tmp_path: Path) -> None:
    database = open_database(tmp_path, limits=TenantLimits(request_samples_max=4096, samples_in_memory_max=1 << 12))
    try:
        with pytest.raises(HarchError, match="more than 4096 samples"):
            database.write_v1(packed(series_v1(UP, [(1.0, time) for time in range(4097)])))
    finally:
        database.close()


def test_version_2_brings_starts_metadata_and_the_same_series(database: TenantDatabase) -> None:
    database.write_v1(packed(series_v1(UP, [(1.0, 1000)])))
    request = V2().add(UP, sample(2.0, 2000, start=500) + sample(3.0, 3000), metadata=(1, "How often.", "calls"))
    request.add(UP, sample(4.0, 4000), metadata=(1, "How often.", "calls"))
    assert database.write_v2(request.body()).samples == 3
    assert database.write_v2(request.body()).samples == 3  # known by then: samples, series, metadata
    found = database.select([matcher("job", "a")], *ALL_TIMES, limit=100).samples
    assert found.starts is not None
    assert dict(zip(found.timestamps.tolist(), found.starts.tolist(), strict=True)) == {
        1000: 0,
        2000: 500,
        3000: 0,
        4000: 0,
    }
    assert database.metadata() == {"up": MetricMetadata(MetricType.COUNTER, "calls", "How often.")}
    changed = V2().add(UP, sample(5.0, 5000), metadata=(2, "Now.", ""))
    database.write_v2(changed.body())
    assert database.metadata() == {"up": MetricMetadata(MetricType.GAUGE, "", "Now.")}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("float_counts", [False, True])
def test_native_histograms_come_back_as_they_were(database: TenantDatabase, version: int, float_counts: bool) -> None:
    sent = histogram(1000, float_counts=float_counts, start=700)
    if version == 1:
        body = packed(part(1, b"".join(label(*pair) for pair in UP) + part(4, sent)))
        receipts = [database.write_v1(body) for _ in range(2)]
    else:
        receipts = [database.write_v2(V2().add(UP, part(3, sent)).body()) for _ in range(2)]
    assert [receipt.histograms for receipt in receipts] == [1, 1]
    samples = database.select([], *ALL_TIMES, limit=100).samples
    assert samples.histogram_at is not None
    (held,) = samples.histograms
    assert samples.values.tolist() == [18.25]
    assert (held.count, held.sum, held.schema, held.zero_threshold) == (11.5 if float_counts else 11, 18.25, 1, 0.001)
    assert (held.positive_spans, held.positive_counts) == ((BucketSpan(1, 2),), (3.0, 5.0))
    assert (held.negative_spans, held.negative_counts) == ((BucketSpan(0, 1),), (2.0,))
    assert (held.reset_hint, held.is_integer) == (ResetHint.NOT_RESET, not float_counts)
    assert samples.starts is not None
    assert samples.starts.tolist() == [700]
    other = packed(part(1, b"".join(label(*pair) for pair in UP) + part(4, histogram(1000, schema=2))))
    assert dict(database.write_v1(other).refused) == {"E0611": 1}


def test_a_histogram_that_does_not_add_up_is_refused(database: TenantDatabase) -> None:
    broken = histogram(1000) + part(12, varint(2))  # one bucket more than its spans say
    body = packed(part(1, b"".join(label(*pair) for pair in UP) + part(4, broken)) + series_v1(UP, [(1.0, 1)]))
    receipt = database.write_v1(body)
    assert (receipt.samples, receipt.histograms, dict(receipt.refused)) == (1, 0, {"E0607": 1})


def test_exemplars_of_both_versions(database: TenantDatabase) -> None:
    first = part(3, label("trace_id", "abc") + double(2, 0.5) + number(3, 900))
    assert database.write_v1(packed(series_v1(UP, [(1.0, 1000)], first))).exemplars == 1
    request = V2()
    second = part(4, part(1, request.references([("trace_id", "def")])) + double(2, 0.7) + number(3, 1900))
    assert database.write_v2(request.add(UP, sample(2.0, 2000) + second).body()).exemplars == 1
    (found,) = database.exemplars([matcher("__name__", "up")], 0, 10_000)
    assert found.series == UP
    assert found.exemplars == (
        Exemplar((("trace_id", "abc"),), 0.5, 900),
        Exemplar((("trace_id", "def"),), 0.7, 1900),
    )
    assert database.exemplars([matcher("job", "b")], 0, 10_000) == []


def test_metadata_of_version_1(database: TenantDatabase) -> None:
    described = part(3, number(1, 2) + part(2, b"up") + part(4, b"Is it up?") + part(5, b"bool"))
    database.write_v1(packed(described))
    assert database.metadata() == {"up": MetricMetadata(MetricType.GAUGE, "bool", "Is it up?")}


def _whole_v1() -> bytes:
    described = part(3, number(1, 2) + part(2, b"up") + part(4, b"Is it up?"))
    exemplar = part(3, label("trace_id", "abc") + double(2, 0.5) + number(3, 900))
    rare = part(1, label("__name__", "h") + part(4, histogram(5)))
    return described + series_v1(UP, [(1.0, 1), (2.0, 2)], exemplar) + rare + series_v1(UP[:1], [(3.0, 3)])


def _whole_v2() -> bytes:
    request = V2()
    exemplar = part(4, part(1, request.references([("trace_id", "def")])) + double(2, 0.7) + number(3, 1900))
    request.add(UP, sample(1.0, 1, start=1) + sample(2.0, 2) + exemplar, metadata=(1, "Help.", "s"))
    return request.add(UP[:1], part(3, histogram(7))).message()


edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.binary(max_size=4)), min_size=1, max_size=6)


def _damaged(message: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    out = bytearray(message)
    for place, kind, content_ in changes:
        at = place % (len(out) + 1)
        if kind == 0:
            out[at : at + len(content_)] = content_
        elif kind == 1:
            out[at:at] = content_
        else:
            del out[at : at + 1 + len(content_)]
    return bytes(out)


def _answer(write: Callable[[bytes], Receipt], body: bytes) -> Receipt | HarchError:
    try:
        return write(body)
    except HarchError as refused:
        return refused


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantDatabase]:
    store = open_database(tmp_path_factory.mktemp("fuzz"), limits=ANY_AGE)
    yield store
    store.close()


@pytest.mark.parametrize("version", [1, 2])
@given(changes=edits)
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_messages_are_refused_or_read_and_never_more(
    hardened: TenantDatabase, version: int, changes: list[tuple[int, int, bytes]]
) -> None:
    write, whole = (hardened.write_v1, _whole_v1()) if version == 1 else (hardened.write_v2, _whole_v2())
    before = hardened.head.sample_count
    answer = _answer(write, packed(_damaged(whole, changes)))
    if isinstance(answer, HarchError):
        assert 400 <= answer.kind.status < 500
        assert hardened.head.sample_count == before
    else:
        assert hardened.head.sample_count - before <= answer.samples + answer.histograms


@given(body=st.binary(max_size=200))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rubbish_is_refused_or_read_and_never_more(hardened: TenantDatabase, body: bytes) -> None:
    for write in (hardened.write_v1, hardened.write_v2):
        for sent in (body, packed(body)):
            answer = _answer(write, sent)
            assert not isinstance(answer, HarchError) or 400 <= answer.kind.status < 500


def test_what_was_damaged_left_a_store_that_works(hardened: TenantDatabase) -> None:
    labels = (("__name__", "afterwards"),)
    hardened.write_v1(packed(series_v1(labels, [(1.0, 1)])))
    found = content(hardened.select([matcher("__name__", "afterwards")], *ALL_TIMES, limit=10))
    assert found == {labels: {1: ONE}}
    assert sum(map(len, everything(hardened).values())) == hardened.head.sample_count


def test_equal_hashes_are_not_the_same_series(database: TenantDatabase) -> None:
    """An entry with the hash of other labels, of the same length, stands where those are looked for."""
    first, second = ((("__name__", name),) for name in ("m1", "m2"))
    database.write_v1(packed(series_v1(first, [(1.0, 1)])))
    index = database.head.index
    key = np.frombuffer(encode_labels(second), np.uint8)
    at, length = index.rows[0, KEY_AT], index.rows[0, KEY_LENGTH]
    insert_key(index.table, index._hash(key)[0], 0, at, length)
    for time in (1, 2):
        assert database.write_v1(packed(series_v1(second, [(1.0, time)]))).samples == 1
    assert everything(database) == {first: {1: ONE}, second: {1: ONE, 2: ONE}}


def test_senders_that_change_their_order_reach_the_same_series(database: TenantDatabase) -> None:
    names = [(("__name__", "m"), ("n", str(place))) for place in range(50)]
    rng = np.random.default_rng(3)
    for time in range(1, 20):
        order = rng.permutation(50).tolist()
        body = b"".join(series_v1(names[place], [(float(place), time)]) for place in order)
        assert database.write_v1(packed(body)).samples == 50
    expected = {name: int(np.float64(place).view(np.uint64)) for place, name in enumerate(names)}
    assert everything(database) == {name: dict.fromkeys(range(1, 20), value) for name, value in expected.items()}
