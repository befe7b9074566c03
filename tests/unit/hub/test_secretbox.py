"""Secrets and their key: a flipped bit of the key is put right, another key opens nothing and stops nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from harch.base.errors import HarchError
from harch.hub.keys import SecretBox


def stored(folder: Path) -> list[tuple[str, str, bytes]]:
    box = SecretBox(folder / "secrets.key", [])
    return [("t", "token", box.seal("s3cr3t"))]


@pytest.mark.parametrize("bit", range(0, 8 * 54, 13))
def test_a_flipped_bit_of_the_key_is_put_right(tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture) -> None:
    kept, path = stored(tmp_path), tmp_path / "secrets.key"
    whole = path.read_bytes()
    raw = bytearray(whole)
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    assert SecretBox(path, kept).open("t", ["token"]) == {"token": "s3cr3t"}
    assert path.read_bytes() == whole
    assert path.stat().st_mode & 0o777 == 0o600
    assert "repaired" in caplog.text


def test_a_key_of_an_older_release_gets_its_seal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = Fernet.generate_key()
    (tmp_path / "secrets.key").write_bytes(key)
    kept = [("t", "token", Fernet(key).encrypt(b"s3cr3t"))]
    for _ in range(2):
        assert SecretBox(tmp_path / "secrets.key", kept).open("t", ["token"]) == {"token": "s3cr3t"}
    assert (tmp_path / "secrets.key").read_bytes().startswith(key + b"\n")
    assert caplog.text == ""


def test_another_key_opens_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept, path = stored(tmp_path), tmp_path / "secrets.key"
    path.write_bytes(Fernet.generate_key())
    box = SecretBox(path, kept)
    assert box.open("t", ["token"]) == {}
    assert "is not the key" in caplog.text
    assert "s3cr3t" not in caplog.text


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    kept, path = stored(tmp_path), tmp_path / "secrets.key"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(HarchError) as refused:
        SecretBox(path, kept)
    assert refused.value.code == "E1030"
