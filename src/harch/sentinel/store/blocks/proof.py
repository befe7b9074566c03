"""Is it really gone? After an erasure every block is asked again, past the list of deletions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.store.blocks.deletions import Deletion
from harch.sentinel.store.blocks.erasing import marked_series
from harch.sentinel.store.blocks.maintenance import Report
from harch.sentinel.store.blocks.names import BLOCK, REMOVING, numbered
from harch.sentinel.store.blocks.state import BlockState


@dataclass(frozen=True, slots=True)
class PurgeProof:
    """What was checked. Files were removed: what the medium keeps of removed files is for disk encryption to cover."""

    deletions: tuple[Deletion, ...]
    blocks_replaced: tuple[int, ...]
    blocks_checked: tuple[int, ...]


def prove_erasure(state: BlockState, deletions: Sequence[Deletion], before: set[int], report: Report) -> PurgeProof:
    """Raises E0616 with every reason why bytes of a deletion may still be there."""
    moment = state.moment()
    doubts = list(report.put_off)
    for deletion in deletions:
        for block in moment.blocks:
            if block.meta.newest > deletion.up_to:
                continue
            table = block.table()
            marked = np.flatnonzero(marked_series(table, deletion))
            if len(marked) and block.read(marked, *deletion.range_at(block.meta.resolution_ms)).count.any():
                doubts.append(f"{block.meta.name} still holds samples of deletion {deletion.id}")
    if deletions:
        doubts += [f"{name} in quarantine may hold some" for name in state.folder.quarantined()]
        there = {*numbered(state.folder.path, BLOCK), *numbered(state.folder.path, REMOVING)}
        left = (there & before) - {meta.sequence for meta in moment.metas()}
        doubts += [f"the files of block {number} are still there" for number in sorted(left)]
    if doubts:
        raise HarchError("E0616", "; ".join(doubts), hint="remove what is named, or mend the disk, and purge again")
    checked = tuple(sorted(meta.sequence for meta in moment.metas()))
    return PurgeProof(tuple(deletions), tuple(sorted(before - set(checked))), checked)
