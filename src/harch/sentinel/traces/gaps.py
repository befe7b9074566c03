"""When did nothing of a trace run? Times between its first start and its last end that no span covers."""

from __future__ import annotations

from dataclasses import dataclass

from harch.sentinel.traces.tree import TraceTree


@dataclass(frozen=True, slots=True)
class Gap:
    """From the end of span `after` to the start of span `before` (places in the tree)."""

    start_ns: int
    end_ns: int
    after: int
    before: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def gaps_of(tree: TraceTree, limit: int) -> tuple[Gap, ...]:
    """The longest ones, in order of time."""
    order = sorted(range(len(tree.nodes)), key=lambda place: tree.nodes[place].span.start_ns)
    found: list[Gap] = []
    last = order[0]
    for place in order[1:]:
        span, reached = tree.nodes[place].span, tree.nodes[last].span.end_ns
        if span.start_ns > reached:
            found.append(Gap(reached, span.start_ns, last, place))
        if span.end_ns > reached:
            last = place
    longest = sorted(found, key=lambda gap: -gap.duration_ns)[:limit]
    return tuple(sorted(longest, key=lambda gap: gap.start_ns))
