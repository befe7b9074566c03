"""Bodies are unpacked within their limit: a small body may not become a large one."""

from __future__ import annotations

import gzip
import zlib

import cramjam
import pytest

from harch.base.errors import HarchError
from harch.sentinel.http.ingest.bodies import decompressed

LIMIT = 100_000
PLAIN = b"telemetry " * 1000
PACKED = {
    "gzip": gzip.compress(PLAIN),
    "deflate": zlib.compress(PLAIN),
    "zstd": bytes(cramjam.zstd.compress(PLAIN)),
    "identity": PLAIN,
    "": PLAIN,
}
BOMBS = {
    "gzip": gzip.compress(bytes(50_000_000)),
    "deflate": zlib.compress(bytes(50_000_000)),
    "zstd": bytes(cramjam.zstd.compress(bytes(50_000_000))),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_what_was_packed_comes_back(encoding: str) -> None:
    assert decompressed(PACKED[encoding], encoding, LIMIT) == PLAIN


def test_gzip_in_several_members_and_deflate_without_its_head_are_read_whole() -> None:
    assert decompressed(PACKED["gzip"] * 3, "gzip", LIMIT) == PLAIN * 3
    assert decompressed(PACKED["deflate"][2:-4], "deflate", LIMIT) == PLAIN
    for body, encoding in ((PACKED["gzip"] + b"more", "gzip"), (gzip.compress(b"") * 2000, "gzip")):
        with pytest.raises(HarchError) as refusal:
            decompressed(body, encoding, LIMIT)
        assert refusal.value.code == "E0677"
    with pytest.raises(HarchError) as refusal:
        decompressed(PACKED["gzip"] * 11, "gzip", LIMIT)
    assert refusal.value.code == "E0204"


@pytest.mark.parametrize("encoding", BOMBS)
def test_a_body_that_grows_beyond_its_limit_is_refused(encoding: str) -> None:
    assert len(BOMBS[encoding]) < LIMIT
    with pytest.raises(HarchError) as refusal:
        decompressed(BOMBS[encoding], encoding, LIMIT)
    assert refusal.value.code == "E0204"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("damage", [lambda body: body[: len(body) // 2], lambda body: b"rubbish" + body])
def test_a_body_that_is_cut_or_broken_is_refused_whole(encoding: str, damage: object) -> None:
    with pytest.raises(HarchError) as refusal:
        decompressed(damage(PACKED[encoding]), encoding, LIMIT)  # type: ignore[operator]
    assert refusal.value.code == "E0677"


def test_other_encodings_are_named() -> None:
    with pytest.raises(HarchError, match="gzip, deflate or zstd"):
        decompressed(b"x", "br", LIMIT)
