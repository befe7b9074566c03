"""Where does a hub keep its identity? In `HARCH_HOME/HUB/federation`: secrets in files that only their owner reads.

    ca.pem                       the authority's certificate: public, the same at every hub
    hub.pem                      the hub's TLS key and certificate, in one file so that both change in one step
    state.key                    the key that signs the hub's own state; stays for the life of the hub
    members.json                 the signed records of all members
    authority/ca.key             only at a hub that holds the authority
    authority/invitations.json   what was invited; secrets as digests only

A file appears whole or not at all, and is on disk before anybody hears of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from harch.base.config import Home
from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.state_files import read_sealed
from harch.federation.identity.members import SignedMember

_FOLDER = "federation"


class IdentityFolder:
    """The files of one hub. Nothing here is checked beyond its form; `identity.py` does that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority_file = path / "ca.pem"
        self.hub_file = path / "hub.pem"
        self._state_key = path / "state.key"
        self._members = path / "members.json"
        self._authority = path / "authority"
        self._authority_key = self._authority / "ca.key"
        self.invitations_file = self._authority / "invitations.json"

    @property
    def is_complete(self) -> bool:
        """True once a hub has its certificate: it is written last."""
        return self.hub_file.exists()

    @property
    def has_authority(self) -> bool:
        return self._authority_key.exists()

    def authority(self) -> bytes:
        with self._readable(self.authority_file):
            found = x509.load_pem_x509_certificate(self.authority_file.read_bytes())
            found.verify_directly_issued_by(found)  # by itself: a flipped bit is noticed here, not by peers
            return found.public_bytes(Encoding.DER)

    def certificate(self) -> bytes:
        with self._readable(self.hub_file):
            return x509.load_pem_x509_certificate(self.hub_file.read_bytes()).public_bytes(Encoding.DER)

    def members(self) -> list[SignedMember]:
        with self._readable(self._members):
            return msgspec.json.decode(read_sealed(self._members), type=list[SignedMember])

    def state_key(self) -> Ed25519PrivateKey:
        return self._key(self._state_key)

    def ensure_state_key(self) -> Ed25519PrivateKey:
        """The hub's own key; made once. A second attempt to join uses the key of the first."""
        if not self._state_key.exists():
            self._write_key(self._state_key, Ed25519PrivateKey.generate())
        return self.state_key()

    def authority_key(self) -> Ed25519PrivateKey:
        return self._key(self._authority_key)

    def write_authority(self, certificate: bytes, key: Ed25519PrivateKey) -> None:
        self._write_key(self._authority_key, key)
        self.write_authority_certificate(certificate)

    def write_authority_certificate(self, certificate: bytes) -> None:
        write_private(self.authority_file, _pem(certificate))

    def write_hub(self, certificate: bytes, key: Ed25519PrivateKey) -> None:
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(self.hub_file, secret + _pem(certificate))

    def write_members(self, records: Iterable[SignedMember]) -> None:
        write_private(self._members, LINE.seal(msgspec.json.format(msgspec.json.encode(list(records)))))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Invitations are written by the CLI and by the serving hub: one at a time."""
        descriptor = os.open(self._authority / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _key(self, path: Path) -> Ed25519PrivateKey:
        with self._readable(path):
            return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))

    def _write_key(self, path: Path, key: Ed25519PrivateKey) -> None:
        write_private(path, key.private_bytes_raw().hex().encode() + b"\n")

    @contextlib.contextmanager
    def _readable(self, path: Path) -> Iterator[None]:
        """Says which file is missing or broken, and never what stands in it."""
        try:
            yield
        except FileNotFoundError as error:
            raise HarchError(
                "E0113", f"{path} is missing", hint="`harch hub init` founds a federation, `harch hub join` enters one"
            ) from error
        except (OSError, ValueError, TypeError, InvalidSignature, msgspec.DecodeError):
            raise HarchError(
                "E1005", f"{path} cannot be used", hint="restore it, or remove the folder and join again"
            ) from None


def identity_folder(home: Home, hub_id: str) -> IdentityFolder:
    return IdentityFolder(home.hub(hub_id) / _FOLDER)


def authority_holders(home: Home) -> list[str]:
    """The hubs of this machine that hold an authority."""
    return sorted(key.parents[2].name for key in home.root.glob(f"*/{_FOLDER}/authority/ca.key"))


def write_private(path: Path, content: bytes) -> None:
    """Mode 0600 from its first byte on; replaces an older file in one step; on disk when this returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise HarchError(
            "E1005", f"cannot write {path}: {error.strerror}", hint="set HARCH_HOME to a folder you may write"
        ) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pem(certificate: bytes) -> bytes:
    return x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
