"""Where do packs lie, if not in a folder? In a bucket of an S3-compatible service; needs the extra `s3`.

A pack is one object, which appears whole or not at all. The index stays in a folder of the hub. What a bucket cannot
promise is that an object whose upload was cut off by a kill does not appear later: it is found at the next start then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from harch.base.errors import HarchError
from harch.base.state_files import FOLDER as QUARANTINE
from harch.content.store.settings import StoreSettings
from harch.content.store.storage import PACKS, PackGone, storage_error

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3"
RETRIES_MAX = 3
CONNECT_TIMEOUT_S = 5.0
_GAP_BYTES = 1024 * 1024  # reading over it costs less than another request
_DELETED_AT_ONCE = 1000  # what the protocol allows
_BEHIND_THE_END = "416 "  # the answer to a range that begins there: the object was cut


class BucketStorage:
    """Packs as objects `PREFIX/packs/NAME`."""

    def __init__(self, settings: StoreSettings) -> None:
        """Raises E1110 for a URL that names no bucket, without the package, and if the bucket cannot be read."""
        self.location = settings.location
        bucket, prefix = read_location(settings.location)
        self._store = _open(bucket, prefix, settings)
        self.read_note("store")  # a wrong key or address is told now, and not to the first who stores something

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        self._put(f"{PACKS}/{name}", b"".join(pieces))

    def sync(self) -> None:
        """An upload that was confirmed is durable."""

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        import obstore
        from obstore.exceptions import BaseError

        path, runs = f"{PACKS}/{name}", merge_ranges(ranges, _GAP_BYTES)
        with self._errors(path):
            try:
                # Merged here: the client cannot cut what it merged itself out of an object that is too short.
                found = obstore.get_ranges(
                    self._store, path, starts=[run[0] for run in runs], ends=[run[1] for run in runs], coalesce=0
                )
                parts = {run: bytes(one) for run, one in zip(runs, found, strict=True)}
            except FileNotFoundError:
                raise PackGone(name) from None
            except BaseError as error:
                if _BEHIND_THE_END not in str(error):
                    raise
                parts = {(0, 1 << 62): self.read_whole(name)}
        return [
            next(part[begin - first : end - first] for (first, last), part in parts.items() if first <= begin < last)
            for begin, end in ranges
        ]

    def read_whole(self, name: str) -> bytes:
        import obstore

        path = f"{PACKS}/{name}"
        with self._errors(path):
            try:
                return bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                raise PackGone(name) from None

    def delete(self, names: Iterable[str]) -> None:
        import obstore

        paths = [f"{PACKS}/{name}" for name in names]
        for first in range(0, len(paths), _DELETED_AT_ONCE):
            with self._errors(PACKS):
                obstore.delete(self._store, paths[first : first + _DELETED_AT_ONCE])

    def set_aside(self, name: str) -> str:
        import obstore

        with self._errors(f"{PACKS}/{name}"):
            obstore.rename(self._store, f"{PACKS}/{name}", f"{QUARANTINE}/{name}")
        return f"{self.location.rstrip('/')}/{QUARANTINE}/{name}"

    def packs(self) -> dict[str, int]:
        return {path.rpartition("/")[2]: size for path, size in self._list(PACKS)}

    def bytes_free(self) -> int | None:
        return None

    def write_note(self, name: str, content: bytes) -> None:
        self._put(name, content)

    def read_note(self, name: str) -> bytes | None:
        import obstore

        with self._errors(name):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def delete_note(self, name: str) -> None:
        import obstore

        with self._errors(name):
            obstore.delete(self._store, name)

    def notes(self, folder: str) -> list[str]:
        return sorted(path for path, _ in self._list(folder))

    def _put(self, path: str, content: bytes) -> None:
        import obstore

        with self._errors(path):
            obstore.put(self._store, path, content, use_multipart=False)

    def _list(self, folder: str) -> list[tuple[str, int]]:
        import obstore

        with self._errors(folder):
            return [
                (found["path"], found["size"]) for some in obstore.list(self._store, prefix=folder) for found in some
            ]

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise storage_error(_FirstLine(error), f"{self.location.rstrip('/')}/{path}") from error


class _FirstLine(Exception):
    """What went wrong, without the inside of the client."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error).splitlines()[0][:300] if str(error) else type(error).__name__)


def merge_ranges(ranges: Sequence[tuple[int, int]], gap_bytes: int) -> list[tuple[int, int]]:
    """Fewer and longer ones, in order: none are closer to each other than that."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin - merged[-1][1] <= gap_bytes:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def read_location(url: str) -> tuple[str, str]:
    """Bucket and prefix. Raises E1110."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise HarchError(
            "E1110",
            f"`{url}` names no place for content",
            hint="write s3://BUCKET/PREFIX, or leave it empty for a folder; keys have settings of their own",
        )
    return parts.netloc, parts.path.strip("/")


def _open(bucket: str, prefix: str, settings: StoreSettings) -> S3Store:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise HarchError(
            "E1110", "a bucket as the place of content needs the package `obstore`", hint="pip install 'harch[s3]'"
        ) from error
    options: dict[str, Any] = {
        name: value
        for name, value in (
            ("endpoint", settings.endpoint),
            ("region", settings.region),
            ("access_key_id", settings.access_key_id),
            ("secret_access_key", settings.secret_access_key),
        )
        if value
    }
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={
            "timeout": timedelta(seconds=settings.timeout_s),
            "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, settings.timeout_s)),
            "allow_http": settings.endpoint.startswith("http://"),
        },
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=settings.timeout_s)},
        **options,
    )
