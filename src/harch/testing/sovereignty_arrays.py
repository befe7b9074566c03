"""May they, all of them? The compiled rules on arrays: tags and hubs by number in, one truth value per case out.

For comparisons of millions of cases with another implementation of the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from harch.sovereignty.compiled import CompiledTag, Rules
from harch.sovereignty.tags import Tag

Numbers = NDArray[np.int64]
Truths = NDArray[np.bool_]
_Words = NDArray[np.uint64]
_WORD_BITS = 64
_WORD_MAX = (1 << _WORD_BITS) - 1


class TagTable:
    """Some tags, compiled for arrays, numbered as given; hubs by `Rules.bits`.

    A number out of range names nothing that is known, so the answer for it is no.
    """

    def __init__(self, rules: Rules, tags: Sequence[Tag | None]) -> None:
        self._hubs = len(rules.bits)
        self._tags = len(tags)
        self._words = self._hubs // _WORD_BITS + 1  # room for one hub more: unknown hubs are sent to its empty bit
        compiled = [rules.compile(tag) for tag in tags]
        self._process = self._pack(tag.process for tag in compiled)
        self._rest = self._pack(tag.rest for tag in compiled)
        self._move = self._pack(mask for tag in compiled for mask in _move_masks(tag, self._hubs))
        self._see = self._pack(mask for tag in compiled for mask in _view_masks(tag, self._hubs))

    def may_process(self, tags: Numbers, hubs: Numbers) -> Truths:
        return self._bits(self._process, _known(tags, self._tags), hubs)

    def may_rest(self, tags: Numbers, hubs: Numbers) -> Truths:
        return self._bits(self._rest, _known(tags, self._tags), hubs)

    def may_move(self, tags: Numbers, sources: Numbers, targets: Numbers) -> Truths:
        return self._bits(self._move, self._pairs(tags, sources), targets)

    def may_see(self, tags: Numbers, sources: Numbers, viewers: Numbers) -> Truths:
        return self._bits(self._see, self._pairs(tags, sources), viewers)

    def _pack(self, masks: Iterable[int]) -> _Words:
        """Masks as rows of words, and an empty row for what is not known."""
        rows = [mask >> shift & _WORD_MAX for mask in masks for shift in range(0, self._words * _WORD_BITS, _WORD_BITS)]
        return np.array([*rows, *[0] * self._words], dtype=np.uint64)

    def _pairs(self, tags: Numbers, hubs: Numbers) -> _Words:
        """Row numbers of (tag, hub); the empty last row if either is not known."""
        tag, hub = _known(tags, self._tags), _known(hubs, self._hubs)
        last = np.uint64(self._tags * self._hubs)
        rows = tag * np.uint64(self._hubs) + hub
        return np.where((hub == np.uint64(self._hubs)) | (tag == np.uint64(self._tags)), last, rows)

    def _bits(self, table: _Words, rows: _Words, hubs: Numbers) -> Truths:
        bit = _known(hubs, self._hubs)
        if self._words > 1:
            rows = rows * np.uint64(self._words) + (bit >> np.uint64(6))
            bit = bit & np.uint64(63)
        answer: Truths = (table[rows] >> bit & np.uint64(1)).astype(np.bool_)
        return answer


def _known(numbers: Numbers, count: int) -> _Words:
    """Numbers below `count` as they are, all others as `count`. Seen as unsigned, a negative number is a large one."""
    unsigned = np.ascontiguousarray(numbers, dtype=np.int64).view(np.uint64)
    return np.minimum(unsigned, np.uint64(count))


def _move_masks(tag: CompiledTag, hubs: int) -> list[int]:
    return [mask & tag.arrive for mask in tag.reach] or [0] * hubs  # an unknown tag reaches nothing


def _view_masks(tag: CompiledTag, hubs: int) -> list[int]:
    if tag.is_restricted:
        return [tag.view & 1 << number for number in range(hubs)]
    return [mask & tag.view for mask in tag.reach] or [0] * hubs
