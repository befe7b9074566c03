"""What is known of a block without opening it? One line of JSON and its checksum."""

from __future__ import annotations

import msgspec

from harch.base.seal import LINE

META_FILE = "meta.json"
INDEX_FILE = "index"
SAMPLES_FILE = "samples"
SAMPLES_MAGIC = b"HARCHSA1"

VERSION = 1
LATE_MS = 86_400_000  # behind the end of their block
RAW_MS = 0  # the resolution of samples as they came in


class BlockMeta(msgspec.Struct, frozen=True, kw_only=True):
    """A block holds samples of `start_ms <= t < end_ms`.

    `sequence` is its name: blocks written later have larger ones. `oldest` and `newest` are the smallest and the
    largest sequence among the blocks it was made of, down to those that the head wrote: what was written later wins.
    """

    version: int
    sequence: int
    start_ms: int
    end_ms: int
    first_ms: int  # of the samples that are really in it
    last_ms: int
    resolution_ms: int
    oldest: int
    newest: int
    series: int
    samples: int
    index_bytes: int
    samples_bytes: int
    parents: tuple[int, ...] = ()  # blocks that this one replaces: where one of them still exists, it is superseded
    erased: tuple[int, ...] = ()  # deletions that were carried out when it was written
    came_ms: int = 0  # when the last of its samples came from the head; 0: before this was noted

    @property
    def kept_from_ms(self) -> int:
        """When retention begins to count: with the samples' own time, or with their arrival if they came late.

        Whoever brings old samples got them acknowledged, and finds them for as long as new ones.
        """
        return self.came_ms if self.came_ms - self.end_ms > LATE_MS else self.end_ms

    @property
    def size_bytes(self) -> int:
        return self.index_bytes + self.samples_bytes

    @property
    def name(self) -> str:
        return block_name(self.sequence)

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        """Has it anything of `start_ms <= t < end_ms`, judged by its range?"""
        return self.start_ms < end_ms and start_ms < self.end_ms


def block_name(sequence: int) -> str:
    return f"block-{sequence:012d}"


def meta_bytes(meta: BlockMeta) -> bytes:
    return LINE.seal(msgspec.json.encode(meta))
