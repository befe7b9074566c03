"""Which links can a transfer take? Those that lie on a simple path between two hubs, in one pass over the graph.

A link lies on a simple path from `source` to `target` exactly if it shares a biconnected block with a line drawn
straight from one to the other: two lines of one block lie on a common circle, and a circle through the drawn line is a
simple path without it. So every re-routing is covered without listing the paths, whose number grows exponentially.

Failed links need no case of their own: a path in what is left is a path in the whole, so what no path of the whole may
take is taken by no path of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

Line = tuple[str, str]


def lines_between(lines: Sequence[Line], source: str, target: str) -> set[int]:
    """The numbers of the lines that some simple path from `source` to `target` takes; none if they are one hub."""
    if source == target:
        return set()
    drawn = len(lines)
    beside: dict[str, list[tuple[str, int]]] = {}
    for number, (one, other) in enumerate((*lines, (source, target))):
        if one != other:
            beside.setdefault(one, []).append((other, number))
            beside.setdefault(other, []).append((one, number))
    return _block_of(drawn, beside, source) - {drawn}


def _block_of(wanted: int, beside: dict[str, list[tuple[str, int]]], root: str) -> set[int]:
    """Tarjan's blocks, without recursion; stops at the block that holds the line `wanted`."""
    depth = {root: 0}
    low = {root: 0}
    stack: list[int] = []  # lines that belong to no finished block yet
    way: list[tuple[str, int, int]] = [(root, -1, 0)]  # hub, the line taken to it, how many of its lines were seen
    while way:
        here, came_by, seen = way.pop()
        if seen < len(beside[here]):
            way.append((here, came_by, seen + 1))
            there, number = beside[here][seen]
            if number == came_by:
                continue
            if there not in depth:
                depth[there] = low[there] = len(way)
                stack.append(number)
                way.append((there, number, 0))
            elif depth[there] < depth[here]:
                stack.append(number)
                low[here] = min(low[here], depth[there])
        elif way:
            parent = way[-1][0]
            low[parent] = min(low[parent], low[here])
            if low[here] >= depth[parent]:  # nothing below reaches above the parent: a block ends here
                start = stack.index(came_by)
                block = set(stack[start:])
                del stack[start:]
                if wanted in block:
                    return block
    return set()
