"""What is to be done with the blocks next?

Pure: from what there is and the policy of the operator (how long is what kept, how finely) to one step, or none.
"""

# harch: pure

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harch.sentinel.store.blocks.deletions import DeletionList
from harch.sentinel.store.blocks.meta import RAW_MS, BlockMeta

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

BLOCK_RANGES_MS = (2 * HOUR_MS, 6 * HOUR_MS, DAY_MS, 4 * DAY_MS, 16 * DAY_MS)  # each is a multiple of the one before
_LARGEST_SHARE = 10  # no block spans more than a tenth of the retention: it goes as a whole


@dataclass(frozen=True, slots=True)
class Downsampling:
    """From which age on there are samples of this resolution, and how long they are kept (None: forever)."""

    resolution_ms: int
    after_ms: int
    keep_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BlockPolicy:
    """Without limits of its own it keeps everything as it came in."""

    keep_ms: int | None = None  # of raw samples
    size_bytes_max: int | None = None  # of all blocks together; the oldest go first
    downsampling: tuple[Downsampling, ...] = ()  # from fine to coarse
    free_bytes_min: int = 256 << 20  # what rewriting leaves free on the disk, for those who write new samples

    def __post_init__(self) -> None:
        resolutions = [level.resolution_ms for level in self.downsampling]
        if resolutions != sorted(set(resolutions)) or any(HOUR_MS % resolution for resolution in resolutions):
            raise ValueError("resolutions must increase by level and divide an hour")

    def keep_of(self, resolution_ms: int) -> int | None:
        """How long are samples of this resolution kept?"""
        for level in self.downsampling:
            if level.resolution_ms == resolution_ms:
                return level.keep_ms
        return self.keep_ms

    def ranges_ms(self, resolution_ms: int) -> tuple[int, ...]:
        """Which spans may blocks have?"""
        keep = self.keep_of(resolution_ms)
        longest = BLOCK_RANGES_MS[-1] if keep is None else keep // _LARGEST_SHARE
        return tuple(span for span in BLOCK_RANGES_MS if span <= max(longest, BLOCK_RANGES_MS[0]))


# What is to be done with the blocks next? Pure: from what there is and the policy to one step, or none.


@dataclass(frozen=True, slots=True)
class Remove:
    """Blocks that go for good."""

    blocks: tuple[BlockMeta, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Blocks of one resolution that become one, without what was deleted."""

    blocks: tuple[BlockMeta, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Downsample:
    """A part of a block that gets a coarser sibling; the block itself stays."""

    block: BlockMeta
    start_ms: int
    end_ms: int
    resolution_ms: int
    reason: str = "downsampling"


Step = Remove | Rewrite | Downsample


def plan_steps(metas: Sequence[BlockMeta], deletions: DeletionList, policy: BlockPolicy, now_ms: int) -> Iterable[Step]:
    """Steps that could be taken now, the most urgent first. After one is taken, plan anew: the others may be moot.

    Erasure comes first, since a law may wait for it; then what frees space; then what speeds up reading. What needs
    space comes after what frees it, but downsampling before the removal of what it reads.
    """
    ordered = sorted(metas, key=lambda meta: (meta.start_ms, meta.end_ms, meta.sequence))
    for meta in ordered:
        if deletions.concerning(meta):
            yield Rewrite((meta,), "erasure")
    yield from _downsampling(ordered, policy, now_ms)
    yield from _expired(ordered, policy, now_ms)
    yield from _too_large(ordered, policy)
    by_resolution: defaultdict[int, list[BlockMeta]] = defaultdict(list)
    for meta in ordered:
        by_resolution[meta.resolution_ms].append(meta)
    for alike in by_resolution.values():
        yield from _overlapping(alike)
    for resolution_ms, alike in sorted(by_resolution.items()):
        yield from _small(alike, policy.ranges_ms(resolution_ms))


def _expired(metas: Sequence[BlockMeta], policy: BlockPolicy, now_ms: int) -> Iterable[Step]:
    gone = []
    for meta in metas:
        keep_ms = policy.keep_of(meta.resolution_ms)
        if keep_ms is not None and meta.kept_from_ms <= now_ms - keep_ms:
            gone.append(meta)
    if gone:
        yield Remove(tuple(gone), "older than the retention")


def _too_large(metas: Sequence[BlockMeta], policy: BlockPolicy) -> Iterable[Step]:
    """The oldest go, raw before coarse, until the rest fits."""
    if policy.size_bytes_max is None:
        return
    excess = sum(meta.size_bytes for meta in metas) - policy.size_bytes_max
    gone = []
    for meta in sorted(metas, key=lambda meta: (meta.end_ms, meta.resolution_ms, meta.sequence)):
        if excess <= 0:
            break
        gone.append(meta)
        excess -= meta.size_bytes
    if gone:
        yield Remove(tuple(gone), "more bytes than the retention allows")


def _downsampling(metas: Sequence[BlockMeta], policy: BlockPolicy, now_ms: int) -> Iterable[Step]:
    """For each level the blocks old enough whose time it does not have yet, from the finest there are."""
    for level in policy.downsampling:
        done = [(meta.start_ms, meta.end_ms) for meta in metas if meta.resolution_ms == level.resolution_ms]
        for meta in sorted(metas, key=lambda meta: (meta.resolution_ms, meta.start_ms)):
            old = meta.end_ms <= now_ms - level.after_ms
            expired = level.keep_ms is not None and meta.kept_from_ms <= now_ms - level.keep_ms
            if meta.resolution_ms < level.resolution_ms and old and not expired:
                for start_ms, end_ms in subtract((meta.start_ms, meta.end_ms), done):
                    yield Downsample(meta, start_ms, end_ms, level.resolution_ms)
                    done.append((start_ms, end_ms))


def _overlapping(alike: Sequence[BlockMeta]) -> Iterable[Step]:
    """Blocks whose times overlap, chains of them included."""
    chain: list[BlockMeta] = []
    end_ms = 0
    for meta in [*alike, None]:
        if meta is not None and chain and meta.start_ms < end_ms:
            chain.append(meta)
            end_ms = max(end_ms, meta.end_ms)
            continue
        if len(chain) > 1:
            yield Rewrite(tuple(chain), "overlap")
        if meta is not None:
            chain, end_ms = [meta], meta.end_ms


def _small(alike: Sequence[BlockMeta], ranges_ms: Sequence[int]) -> Iterable[Step]:
    """Two or more blocks in one window of a longer range, when the window is over: something newer is there."""
    newest_ms = max((meta.start_ms for meta in alike), default=0)
    for span in ranges_ms[1:]:
        windows: defaultdict[int, list[BlockMeta]] = defaultdict(list)
        for meta in alike:
            window = meta.start_ms // span
            if meta.end_ms - meta.start_ms < span and meta.end_ms <= (window + 1) * span <= newest_ms:
                windows[window].append(meta)
        for _, blocks in sorted(windows.items()):
            if len(blocks) > 1:
                yield Rewrite(tuple(blocks), "compaction")


def subtract(span: tuple[int, int], taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of `start <= t < end` without the taken spans."""
    left = [span]
    for start, end in taken:
        left = [
            part for low, high in left for part in ((low, min(high, start)), (max(low, end), high)) if part[0] < part[1]
        ]
    return left


def visible_spans(meta: BlockMeta, metas: Iterable[BlockMeta]) -> list[tuple[int, int]]:
    """When is a block read? Where no finer one stands for the same samples; raw ones always.

    A finer block that was written after this one was made (its `oldest` is larger) holds other samples: late ones.
    """
    if meta.resolution_ms == RAW_MS:
        return [(meta.start_ms, meta.end_ms)]
    finer = [
        (other.start_ms, other.end_ms)
        for other in metas
        if other.resolution_ms < meta.resolution_ms and other.oldest <= meta.newest
    ]
    return subtract((meta.start_ms, meta.end_ms), finer)
