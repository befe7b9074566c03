"""What would have to be faster for the trace to end earlier? The chain of spans that its duration hangs on.

Seen from the end: the child that ended last held its parent up, before that the child that ended last before it
began, and so on; where no child ran, the span itself did. Work that outlives the span that started it belongs to the
chain, too: a request that was answered at once may lead to hours of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harch.sentinel.traces.tree import NO_PARENT, Node, TraceTree


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
        for child in sorted(children, key=lambda one: (ends[one], one), reverse=True):
            child_begin = max(tree.nodes[child].span.start_ns, begin)
            if ends[child] > reached or ends[child] <= child_begin:
                continue  # it ran beside what was chosen, or took no time
            found += _own(tree, place, ends[child], reached)
            tasks.append((child, child_begin, ends[child]))
            reached = child_begin
        found += _own(tree, place, begin, reached)
    return tuple(sorted(found, key=lambda one: one.start_ns))


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
