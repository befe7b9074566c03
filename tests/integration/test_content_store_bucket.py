"""A bucket serves as the place of content: the same promises as a folder, over a real protocol."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from harch.content.frames import unpack_chunk
from harch.content.store import ContentStore, StoreSettings, open_store
from harch.content.store.bucket import merge_ranges, read_location
from harch.testing.clock import SimClock
from unit.content_store.content_samples import MASTER_KEY, SampleTree, frames_of, names_of, refused

TREE = SampleTree({"a": random.Random(1).randbytes(40_000), "b": b"text " * 900})
_numbers = count()


class Bucket:
    """One of its own for each test."""

    def __init__(self, endpoint: str) -> None:
        self.name, self.endpoint = f"bucket-{next(_numbers)}", endpoint
        self.client = S3Store(
            self.name,
            endpoint=endpoint,
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        make_bucket(endpoint, self.name)

    def settings(self, **changes: Any) -> StoreSettings:
        given = {
            "location": f"s3://{self.name}/hub/content",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "secret",
            "timeout_s": 10.0,
        }
        return StoreSettings(**given | changes)

    def open(self, folder: Path, **changes: Any) -> ContentStore:
        return open_store(folder, master_key=MASTER_KEY, settings=self.settings(**changes), clock=SimClock())

    def objects(self, under: str = "hub/content/packs") -> list[str]:
        return sorted(found["path"] for some in obstore.list(self.client, prefix=under) for found in some)

    def content(self, path: str) -> bytes:
        return bytes(obstore.get(self.client, path).bytes())

    def put(self, path: str, content: bytes) -> None:
        obstore.put(self.client, path, content)


def make_bucket(endpoint: str, name: str) -> None:
    boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    ).create_bucket(Bucket=name)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    return Bucket(endpoint)


def test_a_tree_lives_in_a_bucket_and_leaves_it(bucket: Bucket, tmp_path: Path) -> None:
    store = bucket.open(tmp_path)
    assert store.location == f"s3://{bucket.name}/hub/content"
    assert store.bytes_free() is None
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    assert len(bucket.objects()) == 1
    assert not (tmp_path / "packs").exists()
    assert TREE.raw[TREE.ids[0]][:50] not in bucket.content(bucket.objects()[0])
    store.close()
    again = bucket.open(tmp_path)
    some = [TREE.ids[-1], TREE.ids[0], TREE.ids[20]]
    assert [unpack_chunk(frame) for frame in again.read("acme", some)] == [TREE.raw[name] for name in some]
    checked = again.check()
    assert (checked.chunks, checked.damaged, checked.missing) == (len(TREE.ids), [], [])
    again.release("acme", "data:1")
    assert again.collect(grace_s=0).chunks == len(TREE.ids)
    assert bucket.objects() == []
    again.close()


def test_packs_that_are_mostly_garbage_are_written_anew(bucket: Bucket, tmp_path: Path) -> None:
    store = bucket.open(tmp_path)
    store.put("acme", TREE.frames + frames_of(os.urandom(100_000)))
    store.hold("acme", TREE.digest, "data:1")
    before = bucket.objects()
    store.collect(grace_s=0)
    assert len(bucket.objects()) == 1
    assert bucket.objects() != before
    assert len(store.read("acme", TREE.ids)) == len(TREE.ids)
    store.close()


def test_the_index_is_made_anew_from_the_bucket(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = bucket.open(tmp_path / "lost")
    store.put("acme", TREE.frames)
    store.put("other", frames_of(b"of another tenant"))
    store.close()
    again = bucket.open(tmp_path / "new")
    assert "is made anew" in caplog.text
    assert again.missing("acme", TREE.ids) == []
    assert unpack_chunk(again.read("other", names_of(b"of another tenant"))[0]) == b"of another tenant"
    assert again.collect(grace_s=0).chunks == 0
    again.hold("acme", TREE.digest, "data:1")
    again.confirm_holders()
    assert again.collect(grace_s=0).chunks == 1
    again.close()


def test_an_upload_that_no_index_knows_is_taken_in_and_goes_later(bucket: Bucket, tmp_path: Path) -> None:
    store = bucket.open(tmp_path)
    store.put("acme", TREE.frames)
    (name,) = bucket.objects()
    content = bucket.content(name)
    store.collect(grace_s=0)
    store.close()
    bucket.put(name, content)  # as if a kill had come between the upload and the commit
    again = bucket.open(tmp_path)
    assert again.missing("acme", TREE.ids) == []
    again.collect(grace_s=0)
    assert bucket.objects() == []
    again.close()


@pytest.mark.parametrize("what", ["flipped", "cut", "gone"])
def test_damage_in_a_bucket_is_told_and_healed(bucket: Bucket, tmp_path: Path, what: str) -> None:
    store = bucket.open(tmp_path)
    store.put("acme", TREE.frames)
    store.hold("acme", TREE.digest, "data:1")
    (name,) = bucket.objects()
    content = bytearray(bucket.content(name))
    content[300] ^= 1
    if what == "gone":
        obstore.delete(bucket.client, name)
    else:
        bucket.put(name, bytes(content) if what == "flipped" else bytes(content[:5000]))
    with refused("E1101"):
        store.read("acme", TREE.ids)
    damaged = store.check().damaged
    assert len(damaged) == 1 if what == "flipped" else len(damaged) > 5
    assert sorted(one.hex() for one in store.missing("acme", TREE.ids)) == damaged
    store.put("acme", TREE.frames)
    assert [unpack_chunk(frame) for frame in store.read("acme", TREE.ids)] == list(TREE.raw.values())
    assert store.check().damaged == []
    store.close()


def test_two_hubs_cannot_share_a_prefix_and_can_share_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    bucket.open(tmp_path / "one").close()
    with refused("E1110"):
        open_store(tmp_path / "two", master_key=bytes(32), settings=bucket.settings(), clock=SimClock())
    other = bucket.settings(location=f"s3://{bucket.name}/hub/other")
    store = open_store(tmp_path / "two", master_key=bytes(32), settings=other, clock=SimClock())
    store.put("acme", TREE.frames)
    assert bucket.objects() == []
    store.close()
    with refused("E1110"):
        bucket.open(tmp_path / "two", location=f"s3://{bucket.name}/hub/other")


def test_a_service_that_is_gone_is_told_and_nothing_is_acknowledged(endpoint: str, tmp_path: Path) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    bucket = Bucket(f"http://{host}:{port}")
    store = bucket.open(tmp_path, timeout_s=1.0)
    store.put("acme", TREE.frames[:3])
    server.stop()
    for call in (
        lambda: store.put("acme", TREE.frames),
        lambda: store.read("acme", TREE.ids[:1]),
        lambda: store.check(),
    ):
        with refused("E1110"):
            call()
    assert store.missing("acme", TREE.ids) == TREE.ids[3:], "what is stored is not taken for damaged"
    store.close()
    with refused("E1110"):
        bucket.open(tmp_path, timeout_s=1.0)


def test_a_bucket_that_is_not_there_is_told_at_the_start(bucket: Bucket, tmp_path: Path) -> None:
    with refused("E1110"):
        bucket.open(tmp_path, location="s3://no-such-bucket-at-all")


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///prefix", "http://host/bucket", "/a/folder", "s3://key@bucket/x", "s3://bucket/x?y=1"]
)
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with refused("E1110"):
        read_location(url)


def test_ranges_that_are_near_to_each_other_are_read_at_once() -> None:
    assert merge_ranges([(50, 60), (0, 10), (10, 20), (25, 30)], 5) == [(0, 30), (50, 60)]
    assert merge_ranges([(0, 100), (10, 20), (101, 102)], 0) == [(0, 100), (101, 102)]
    assert merge_ranges([], 5) == []


def test_chunks_far_from_each_other_are_read_from_one_object(bucket: Bucket, tmp_path: Path) -> None:
    raws = [os.urandom(700_000) for _ in range(8)]
    store = bucket.open(tmp_path)
    store.put("acme", frames_of(*raws))
    some = [raws[7], raws[0], raws[4]]
    assert [unpack_chunk(frame) for frame in store.read("acme", names_of(*some))] == some
    store.close()


def test_bucket_and_prefix_are_read_from_the_url() -> None:
    assert read_location("s3://bucket") == ("bucket", "")
    assert read_location("s3://bucket/a/b/") == ("bucket", "a/b")


def test_keys_of_the_environment_are_used_where_the_settings_have_none(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = bucket.open(tmp_path, access_key_id="", secret_access_key="")
    assert store.put("acme", TREE.frames).stored == len(TREE.ids)
    store.close()


def test_without_the_package_an_error_names_the_extra(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['obstore'] = None; sys.modules['obstore.store'] = None\n"
        "from pathlib import Path\n"
        "from harch.base.clock import SystemClock\n"
        "from harch.base.errors import HarchError\n"
        "from harch.content.store import StoreSettings, open_store\n"
        "options = dict(master_key=bytes(32), clock=SystemClock())\n"
        "folder = Path(sys.argv[1])\n"
        "open_store(folder, settings=StoreSettings(), **options).close()\n"
        "try:\n"
        "    open_store(folder, settings=StoreSettings(location='s3://bucket'), **options)\n"
        "except HarchError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert "harch[s3]" in done.stdout
