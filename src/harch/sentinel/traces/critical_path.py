"""What would have to be faster for the trace to end earlier? The chain of spans that its duration hangs on.

Seen from the end: the child that ended last held its parent up, before that the child that ended last before it
began, and so on; where no child ran, the span itself did. Work that outlives the span that started it belongs to the
chain, too: a request that was answered at once may lead to hours of work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harch.sentinel.traces.tree import NO_PARENT, Node, TraceTree

NEAR_SHARE = 0.01  # of the trace's duration: ends that differ by less are taken for one
NEAR_MAX = 32  # children that are compared so


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the path: span `place` works by itself, or (`is_waiting`) has ended and nothing below it runs yet.

    With `place` -1 there is no span above that could have waited.
    """

    place: int
    start_ns: int
    end_ns: int
    is_waiting: bool = False

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def critical_path(tree: TraceTree) -> tuple[Segment, ...]:
    """In order of time, without holes from the first start to the last end."""
    ends = _last_ends(tree.nodes)
    found: list[Segment] = []
    tasks = [(NO_PARENT, tree.start_ns, tree.end_ns)]
    while tasks:
        place, begin, end = tasks.pop()
        children = tree.roots if place == NO_PARENT else tree.nodes[place].children
        reached = end
        for child in _held_up_by(tree, children, ends, begin, end):
            found += _own(tree, place, ends[child], reached)
            reached = max(tree.nodes[child].span.start_ns, begin)
            tasks.append((child, reached, ends[child]))
        found += _own(tree, place, begin, reached)
    return tuple(sorted(found, key=lambda one: one.start_ns))


def _held_up_by(tree: TraceTree, children: Sequence[int], ends: Sequence[int], begin: int, end: int) -> Iterator[int]:
    """Children that did not overlap, from the last to the first, each the one that ended last before the next began.

    Of those that end at nearly the same time, one with children of its own is taken: it tells more.
    """
    near_ns = int(tree.duration_ns * NEAR_SHARE)
    waiting = sorted(children, key=lambda one: (ends[one], one), reverse=True)
    reached, at = end, 0
    while at < len(waiting):
        if not _can_hold(tree, waiting[at], ends, begin, reached):
            at += 1
            continue
        last = ends[waiting[at]]
        near = [one for one in waiting[at : at + NEAR_MAX] if ends[one] >= last - near_ns]
        near = [one for one in near if _can_hold(tree, one, ends, begin, reached)]
        chosen = next((one for one in near if tree.nodes[one].children), near[0])
        yield chosen
        reached = max(tree.nodes[chosen].span.start_ns, begin)


def _can_hold(tree: TraceTree, child: int, ends: Sequence[int], begin: int, reached: int) -> bool:
    """Whether it ended before what was chosen began, and took some time."""
    return ends[child] <= reached and ends[child] > max(tree.nodes[child].span.start_ns, begin)


def _last_ends(nodes: Sequence[Node]) -> list[int]:
    """When each span and all below it have ended."""
    ends = [node.span.end_ns for node in nodes]
    for place in range(len(nodes) - 1, -1, -1):
        parent = nodes[place].parent
        if parent != NO_PARENT:
            ends[parent] = max(ends[parent], ends[place])
    return ends


def _own(tree: TraceTree, place: int, begin: int, end: int) -> list[Segment]:
    """The time of the span itself, cut where it ended."""
    own_end = tree.nodes[place].span.end_ns if place != NO_PARENT else begin
    cut = min(max(own_end, begin), end)
    pieces = [Segment(place, begin, cut), Segment(place, cut, end, is_waiting=True)]
    return [piece for piece in pieces if piece.duration_ns]


def time_on_path(path: Sequence[Segment]) -> dict[int, int]:
    """For each span on the path, how long it worked there by itself."""
    found: dict[int, int] = {}
    for segment in path:
        if not segment.is_waiting:
            found[segment.place] = found.get(segment.place, 0) + segment.duration_ns
    return found
