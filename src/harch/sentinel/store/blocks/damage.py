"""What if bytes on disk are not those that were written?"""

from __future__ import annotations

from pathlib import Path

from harch.base.errors import HarchError


class DamagedBlock(HarchError):
    """A block that cannot be trusted. Whoever keeps the set of blocks takes it out."""

    def __init__(self, block: Path, reason: str) -> None:
        hint = f"the other blocks go on; look at the disk under {block.parent}"
        super().__init__("E0613", f"block {block.name}: {reason}", hint=hint)
        self.block = block
        self.reason = reason
