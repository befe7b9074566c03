"""How does a stage survive its own end? Its state, the last number of each source and the watermark in one value.

One value, so that no crash can separate them: whoever starts from it skips what is in it and takes what is not. Only
cells in use are saved. What is read back is checked like any input: it is loaded whole or not at all (E0741).
"""

# harch: pure

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.sense.sources import SavedSource
from harch.pipelines.wire.header import Buffer, crc32c

FORMAT = 1
VALUE_BYTES_MAX = 8 << 20  # what the store takes as one value
STATE_BYTES_MAX = 1 << 30  # of a compressed value, opened: a limit for what claims to be a checkpoint
_MAGIC = b"HRCK"
_HEAD_BYTES = len(_MAGIC) + 2 + 4  # magic, format, is compressed, checksum


class Meaning(Struct, frozen=True, kw_only=True):
    """What the saved arrays mean: which events, devices, metrics, values and pieces of time their places stand for."""

    schema: int
    devices_max: int
    metrics: tuple[str, ...]
    values: tuple[str, ...]
    pane_ns: int
    panes_open: int
    panes_per_window: int
    forecast: tuple[int, int] | None  # steps, and how long one is

    @property
    def slots(self) -> int:
        return self.panes_open + self.panes_per_window - 1

    @property
    def keys(self) -> int:
        return self.devices_max * len(self.metrics) * len(self.values)


class SavedForecast(Struct, frozen=True, kw_only=True):
    step: int
    filled: int
    history: bytes  # f32 (steps, keys in use)
    history_keys: bytes  # i64
    count: bytes
    sum: bytes


class SenseCheckpoint(Struct, frozen=True, kw_only=True):
    """The state of one partition. Arrays are their bytes, little-endian."""

    pipeline: str
    partition: int
    fingerprint: str  # of the settings that give the arrays their meaning
    devices: int
    devices_hash: str
    first_pane: int
    watermark_ns: int
    sources: list[SavedSource]
    next_seq: int  # of the features
    policy_version: int
    pane_masks: list[int]
    history_mask: int
    cell_places: bytes  # i64: places in (slots x keys)
    cells: bytes  # f64 (places, 8)
    forecast: SavedForecast | None
    counters: dict[str, int]
    quarantine: dict[str, int]
    meaning: Meaning | None = None  # absent in values of earlier releases, which cannot be carried over

    def seq_of(self, source: int) -> int:
        """The last batch of a source that is in here; 0 if there is none."""
        return next((one.seq for one in self.sources if one.source == source), 0)


def encode_checkpoint(checkpoint: SenseCheckpoint, *, compress: bool = False) -> bytes:
    """The value to store. Pure, and fine to run in a thread beside the stage."""
    body = msgspec.msgpack.encode(checkpoint)
    if compress:
        body = _zstandard().ZstdCompressor(level=1).compress(body)
    return b"".join((_MAGIC, bytes((FORMAT, compress)), crc32c(body).to_bytes(4, "little"), body))


def decode_checkpoint(value: Buffer) -> SenseCheckpoint:
    """The checkpoint, or E0741."""
    view = bytes(value)
    if len(view) < _HEAD_BYTES or view[:4] != _MAGIC:
        raise unusable("not a checkpoint")
    if view[4] != FORMAT or view[5] > 1:
        raise unusable(f"format {view[4]} is unknown; this release reads {FORMAT}")
    body = view[_HEAD_BYTES:]
    if crc32c(body) != int.from_bytes(view[6:_HEAD_BYTES], "little"):
        raise unusable("the checksum does not match")
    try:
        if view[5]:
            body = _decompressed(body)
        return msgspec.msgpack.decode(body, type=SenseCheckpoint)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise unusable(f"cannot be read: {error}") from error


def meaning_of(settings: SenseSettings) -> Meaning:
    return Meaning(
        schema=settings.event_schema.id,
        devices_max=settings.devices_max,
        metrics=settings.metrics,
        values=settings.aggregated,
        pane_ns=settings.windows.pane_ns,
        panes_open=settings.windows.panes_open,
        panes_per_window=settings.windows.panes_per_window,
        forecast=(settings.forecast.steps, settings.forecast.step_ns) if settings.forecast else None,
    )


def fingerprint_of(settings: SenseSettings) -> str:
    """Changes when the saved arrays would mean something else: not with limits, sources or the features' form."""
    meaning = [
        settings.event_schema.id,
        settings.devices_max,
        settings.metrics,
        settings.aggregated,
        settings.windows.pane_ns,
        settings.windows.slots,
        settings.windows.panes_per_window,
        (settings.forecast.steps, settings.forecast.step_ns) if settings.forecast else None,
    ]
    return hashlib.sha256(msgspec.json.encode(meaning)).hexdigest()[:16]


def unusable(why: str) -> HarchError:
    return HarchError("E0741", why, hint="start from an older checkpoint, or without one and replay the sources")


def _decompressed(body: bytes) -> bytes:
    library = _zstandard()
    try:
        size = library.frame_content_size(body)
        if not 0 <= size <= STATE_BYTES_MAX:
            raise unusable(f"claims {size} bytes of state; at most {STATE_BYTES_MAX}")
        opened: bytes = library.ZstdDecompressor().decompress(body, max_output_size=STATE_BYTES_MAX)
    except library.ZstdError as error:
        raise unusable(f"cannot be decompressed: {error}") from error
    return opened


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as missing:
        raise HarchError(
            "E0740", "the package `zstandard` is not installed", hint="pip install 'harch[pipelines]'"
        ) from missing
    return zstandard
