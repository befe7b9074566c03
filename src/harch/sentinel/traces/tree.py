"""What did a trace do?

Its spans as a tree: who called whom, how long each took by itself, what is odd, the chain that its duration hangs on,
and times in which nothing ran.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from harch.sentinel.model.spans import Span, SpanKind, SpanStatus

# What did a trace do? Its spans as a tree: who called whom, how long each took by itself, and what is odd about it.
#
# Spans of a trace come from several hubs and processes, and not all of them arrive. A span whose parent is not here
# stands at the top and says so. Spans that name each other as parents are cut apart at the earliest. Where a child
# begins before its parent, the clocks of two places differ: times are shown as they were recorded, with the difference.


NO_PARENT = -1
PLACES = ("hub", "agent", "node", "host.name", "service.instance.id")  # of a resource: whose clock it is


class Oddity(Enum):
    PARENT_MISSING = "parent missing"
    CYCLE = "cycle"
    CLOCK_SKEW = "clocks differ?"  # against a parent at another place; or the parent was recorded late
    EARLY = "before its parent"  # at the same place: recorded so, or not a child in time


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span in its tree. `parent` and `children` are places in `TraceTree.nodes`; children are in order of start.

    `self_ns` is the part of its duration in which none of its children ran. `skew_ns` says by how much, at least, the
    clock of this span is behind (above 0) or ahead of (below 0) that of its parent.
    """

    span: Span
    parent: int
    children: tuple[int, ...]
    depth: int
    self_ns: int
    skew_ns: int = 0
    oddities: tuple[Oddity, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceTree:
    """Nodes in the order of a walk: a parent stands before its children, and all below it before its next sibling."""

    trace_id: str
    nodes: tuple[SpanNode, ...]
    roots: tuple[int, ...]
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def errors(self) -> int:
        return sum(node.span.status is SpanStatus.ERROR for node in self.nodes)


def tree_of(spans: Sequence[Span]) -> TraceTree:
    """The tree of the spans of one trace; at least one. Of spans with the same id the first counts."""
    known: dict[str, Span] = {}
    for span in spans:
        known.setdefault(span.span_id, span)
    ordered = sorted(known.values(), key=lambda span: (span.start_ns, span.span_id))
    parents, cut = _parents(ordered)
    below: list[list[int]] = [[] for _ in ordered]
    roots: list[int] = []
    for place, parent in enumerate(parents):
        (roots if parent == NO_PARENT else below[parent]).append(place)
    walk, depths = _walk(roots, below)
    new_place = {old: new for new, old in enumerate(walk)}
    nodes = [
        _node(
            ordered[old],
            ordered[parents[old]] if parents[old] != NO_PARENT else None,
            new_place.get(parents[old], NO_PARENT),
            [(new_place[child], ordered[child]) for child in below[old]],
            depths[old],
            is_cut=old in cut,
        )
        for old in walk
    ]
    return TraceTree(
        trace_id=ordered[0].trace_id,
        nodes=tuple(nodes),
        roots=tuple(new_place[root] for root in roots),
        start_ns=ordered[0].start_ns,
        end_ns=max(span.end_ns for span in ordered),
    )


def _parents(spans: Sequence[Span]) -> tuple[list[int], set[int]]:
    """For each span the place of its parent, and the places where a ring of parents was cut open."""
    place_of = {span.span_id: place for place, span in enumerate(spans)}
    parents = [place_of.get(span.parent_id, NO_PARENT) if span.parent_id else NO_PARENT for span in spans]
    cut: set[int] = set()
    settled = [False] * len(spans)
    for start in range(len(spans)):
        path: list[int] = []
        on_path: set[int] = set()
        place = start
        while place != NO_PARENT and not settled[place] and place not in on_path:
            path.append(place)
            on_path.add(place)
            place = parents[place]
        if place in on_path:
            earliest = min(path[path.index(place) :])  # spans are in order of start
            parents[earliest] = NO_PARENT
            cut.add(earliest)
        for seen in path:
            settled[seen] = True
    return parents, cut


def _walk(roots: Sequence[int], below: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, int]]:
    """All places, parents first, and how deep each stands. Without recursion: a chain may be as long as the trace."""
    order: list[int] = []
    depths = dict.fromkeys(roots, 0)
    waiting = list(reversed(roots))
    while waiting:
        place = waiting.pop()
        order.append(place)
        for child in reversed(below[place]):
            depths[child] = depths[place] + 1
            waiting.append(child)
    return order, depths


def _node(
    span: Span, above: Span | None, parent: int, children: Sequence[tuple[int, Span]], depth: int, *, is_cut: bool
) -> SpanNode:
    oddities: list[Oddity] = []
    if is_cut:
        oddities.append(Oddity.CYCLE)
    elif above is None and span.parent_id:
        oddities.append(Oddity.PARENT_MISSING)
    skew_ns = _skew_ns(span, above) if above is not None else 0
    if skew_ns and above is not None:
        oddities.append(Oddity.CLOCK_SKEW if place_of(span) != place_of(above) else Oddity.EARLY)
    return SpanNode(
        span=span,
        parent=parent,
        children=tuple(place for place, _ in children),
        depth=depth,
        self_ns=span.duration_ns - _covered_ns(span, [child for _, child in children]),
        skew_ns=skew_ns,
        oddities=tuple(oddities),
    )


def _skew_ns(span: Span, above: Span) -> int:
    """A child begins after its parent; and what a client waits for ends before the client stops waiting."""
    if span.start_ns < above.start_ns:
        return above.start_ns - span.start_ns
    is_call = above.kind is SpanKind.CLIENT and span.kind is SpanKind.SERVER and place_of(span) != place_of(above)
    if is_call and span.end_ns > above.end_ns and span.duration_ns <= above.duration_ns:
        return above.end_ns - span.end_ns
    return 0


def place_of(span: Span) -> tuple[str, ...]:
    """Whose clock the times of a span are of."""
    resource = dict(span.resource)
    found = tuple(str(resource[name]) for name in PLACES if name in resource)
    return found or (span.service,)


def _covered_ns(span: Span, children: Sequence[Span]) -> int:
    """How much of the span its children cover; children are in order of start."""
    covered, reached = 0, span.start_ns
    for child in children:
        begin, end = max(child.start_ns, reached), min(child.end_ns, span.end_ns)
        if end > begin:
            covered += end - begin
            reached = end
    return covered


# What would have to be faster for the trace to end earlier? The chain of spans that its duration hangs on.
#
# Seen from the end: the child that ended last held its parent up, before that the child that ended last before it
# began, and so on; where no child ran, the span itself did. Work that outlives the span that started it belongs to the
# chain, too: a request that was answered at once may lead to hours of work.


NEAR_SHARE = 0.01  # of the trace's duration: ends that differ by less are taken for one
NEAR_MAX = 32  # children that are compared so


@dataclass(frozen=True, slots=True)
class CriticalSegment:
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


def critical_path(tree: TraceTree) -> tuple[CriticalSegment, ...]:
    """In order of time, without holes from the first start to the last end."""
    ends = _last_ends(tree.nodes)
    found: list[CriticalSegment] = []
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


def _last_ends(nodes: Sequence[SpanNode]) -> list[int]:
    """When each span and all below it have ended."""
    ends = [node.span.end_ns for node in nodes]
    for place in range(len(nodes) - 1, -1, -1):
        parent = nodes[place].parent
        if parent != NO_PARENT:
            ends[parent] = max(ends[parent], ends[place])
    return ends


def _own(tree: TraceTree, place: int, begin: int, end: int) -> list[CriticalSegment]:
    """The time of the span itself, cut where it ended."""
    own_end = tree.nodes[place].span.end_ns if place != NO_PARENT else begin
    cut = min(max(own_end, begin), end)
    pieces = [CriticalSegment(place, begin, cut), CriticalSegment(place, cut, end, is_waiting=True)]
    return [piece for piece in pieces if piece.duration_ns]


def time_on_path(path: Sequence[CriticalSegment]) -> dict[int, int]:
    """For each span on the path, how long it worked there by itself."""
    found: dict[int, int] = {}
    for segment in path:
        if not segment.is_waiting:
            found[segment.place] = found.get(segment.place, 0) + segment.duration_ns
    return found


# When did nothing of a trace run? Times between its first start and its last end that no span covers.


@dataclass(frozen=True, slots=True)
class TraceGap:
    """From the end of span `after` to the start of span `before` (places in the tree)."""

    start_ns: int
    end_ns: int
    after: int
    before: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def gaps_of(tree: TraceTree, limit: int) -> tuple[TraceGap, ...]:
    """The longest ones, in order of time."""
    order = sorted(range(len(tree.nodes)), key=lambda place: tree.nodes[place].span.start_ns)
    found: list[TraceGap] = []
    last = order[0]
    for place in order[1:]:
        span, reached = tree.nodes[place].span, tree.nodes[last].span.end_ns
        if span.start_ns > reached:
            found.append(TraceGap(reached, span.start_ns, last, place))
        if span.end_ns > reached:
            last = place
    longest = sorted(found, key=lambda gap: -gap.duration_ns)[:limit]
    return tuple(sorted(longest, key=lambda gap: gap.start_ns))
