"""How long is what kept, and how finely? What an operator decides about the blocks of a tenant."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

BLOCK_RANGES_MS = (2 * HOUR_MS, 6 * HOUR_MS, DAY_MS, 4 * DAY_MS, 16 * DAY_MS)  # each is a multiple of the one before
_LARGEST_SHARE = 10  # no block spans more than a tenth of the retention: it goes as a whole


@dataclass(frozen=True, slots=True)
class Downsampling:
    """From which age on there are samples of this resolution, and how long they are kept (None: for ever)."""

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
            raise ValueError("resolutions grow from level to level and divide an hour")

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
