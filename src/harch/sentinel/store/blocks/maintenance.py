"""Who carries out the plan, and is erased data really gone?

One step after the other; after an erasure every block is read again, past the list of deletions.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.store.blocks.block import BLOCK, REMOVING, Block, DamagedBlock, numbered
from harch.sentinel.store.blocks.deletions import Deletion
from harch.sentinel.store.blocks.downsampling import DownsampledSource
from harch.sentinel.store.blocks.meta import BlockMeta, block_name
from harch.sentinel.store.blocks.planning import BlockPolicy, Downsample, Remove, Rewrite, Step, plan_steps
from harch.sentinel.store.blocks.sources import BlocksSource, marked_series
from harch.sentinel.store.blocks.state import BlockState, Moment
from harch.sentinel.store.blocks.writer import Recipe, write_from
from harch.sentinel.store.disk import FileSystem

_STEPS_MAX = 1000  # of one maintenance; the next one goes on
_SPACE_SHARE = 1.2  # of what is read, that a rewrite may take


@dataclass(slots=True)
class MaintenanceReport:
    """What a maintenance did, and what it put off and why."""

    done: list[str] = field(default_factory=list)
    put_off: list[str] = field(default_factory=list)


class Maintenance:
    def __init__(self, state: BlockState, policy: BlockPolicy, disk: FileSystem) -> None:
        self._state = state
        self._policy = policy
        self._disk = disk

    def run(self, now_ms: int, *, only_erasure: bool = False) -> MaintenanceReport:
        """Takes steps until none is due or possible: a full disk, a damaged block or a file that stays are reasons."""
        report = MaintenanceReport()
        refused: set[tuple[int, ...]] = set()
        self._try("removal of leftovers", self._state.sweep, report)
        for _ in range(_STEPS_MAX):
            step = self._next_step(now_ms, refused, only_erasure=only_erasure)
            if step is None:
                break
            if self._try(_words(step), partial(self._take, step), report):
                report.done.append(_words(step))
            else:
                refused.add(_key(step))
        self._try("removal of completed deletions", self._state.forget_done_deletions, report)
        return report

    def _try(self, words: str, work: Callable[[], None], report: MaintenanceReport) -> bool:
        try:
            work()
        except DamagedBlock as damaged:
            self._state.set_aside(damaged)
            report.put_off.append(f"{words}: {damaged.message}")
            return False
        except OSError as failed:
            report.put_off.append(f"{words}: {failed.strerror or failed}")
            return False
        return True

    def _next_step(self, now_ms: int, refused: set[tuple[int, ...]], *, only_erasure: bool) -> Step | None:
        moment = self._state.moment()
        for step in plan_steps(moment.metas(), moment.deletions, self._policy, now_ms):
            if only_erasure and step.reason != "erasure":
                return None
            if _key(step) not in refused:
                return step
        return None

    def _take(self, step: Step) -> None:
        moment = self._state.moment()
        match step:
            case Remove(blocks):
                self._state.remove([moment.block(meta) for meta in blocks])
            case Rewrite(blocks):
                self._rewrite(moment, [moment.block(meta) for meta in blocks])
            case Downsample(meta, start_ms, end_ms, resolution_ms):
                self._downsample(moment, moment.block(meta), start_ms, end_ms, resolution_ms)

    def _rewrite(self, moment: Moment, old: list[Block]) -> None:
        metas = [block.meta for block in old]
        self._check_space(sum(meta.size_bytes for meta in metas))
        recipe = Recipe(
            min(meta.start_ms for meta in metas),
            max(meta.end_ms for meta in metas),
            metas[0].resolution_ms,
            (min(meta.oldest for meta in metas), max(meta.newest for meta in metas)),
            self._parents(metas),
            tuple(deletion.id for deletion in moment.deletions.waiting),
            max(meta.came_ms for meta in metas),
        )
        meta = write_from(self._state.folder.path, BlocksSource(old, moment.deletions), recipe, self._disk)
        if meta is None:
            self._state.remove(old)
        else:
            self._state.put_in_place_of(old, self._state.folder.open(meta.sequence))

    def _downsample(self, moment: Moment, block: Block, start_ms: int, end_ms: int, resolution_ms: int) -> None:
        meta = block.meta
        self._check_space(meta.size_bytes // 2)
        source = DownsampledSource(
            BlocksSource([block], moment.deletions), resolution_ms, source_resolution_ms=meta.resolution_ms
        )
        erased = tuple(deletion.id for deletion in moment.deletions.waiting)
        recipe = Recipe(start_ms, end_ms, resolution_ms, (meta.oldest, meta.newest), (), erased, meta.came_ms)
        new = write_from(self._state.folder.path, source, recipe, self._disk)
        if new is not None:
            self._state.add([self._state.folder.open(new.sequence)])

    def _parents(self, metas: list[BlockMeta]) -> tuple[int, ...]:
        """What the new block replaces; also blocks that its parents replaced and that could not be removed then."""
        left = {parent for meta in metas for parent in meta.parents}
        there = {parent for parent in left if (self._state.folder.path / block_name(parent)).exists()}
        return tuple(sorted(there | {meta.sequence for meta in metas}))

    def _check_space(self, size_bytes: int) -> None:
        free = self._disk.free_bytes(self._state.folder.path)
        needed = int(_SPACE_SHARE * size_bytes) + self._policy.free_bytes_min
        if free < needed:
            raise OSError(errno.ENOSPC, f"{free} bytes free, {needed} needed; new samples take precedence")


def _key(step: Step) -> tuple[int, ...]:
    match step:
        case Downsample(meta, start_ms, _, resolution_ms):
            return (meta.sequence, start_ms, resolution_ms)
        case Remove(blocks) | Rewrite(blocks):
            return (-1 if isinstance(step, Remove) else -2, *(meta.sequence for meta in blocks))


def _words(step: Step) -> str:
    blocks = (step.block,) if isinstance(step, Downsample) else step.blocks
    return f"{step.reason} of {', '.join(meta.name for meta in blocks)}"


# Is it really gone? After an erasure every block is asked again, past the list of deletions.


@dataclass(frozen=True, slots=True)
class PurgeProof:
    """What was checked. Files were removed: what the medium keeps of removed files is for disk encryption to cover."""

    deletions: tuple[Deletion, ...]
    blocks_replaced: tuple[int, ...]
    blocks_checked: tuple[int, ...]


def prove_erasure(
    state: BlockState, deletions: Sequence[Deletion], before: set[int], report: MaintenanceReport
) -> PurgeProof:
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
        doubts += [f"{name} in quarantine may hold deleted samples" for name in state.folder.quarantined()]
        there = {*numbered(state.folder.path, BLOCK), *numbered(state.folder.path, REMOVING)}
        left = (there & before) - {meta.sequence for meta in moment.metas()}
        doubts += [f"the files of block {number} are still there" for number in sorted(left)]
    if doubts:
        raise HarchError("E0616", "; ".join(doubts), hint="remove what is named, or fix the disk, and purge again")
    checked = tuple(sorted(meta.sequence for meta in moment.metas()))
    return PurgeProof(tuple(deletions), tuple(sorted(before - set(checked))), checked)
