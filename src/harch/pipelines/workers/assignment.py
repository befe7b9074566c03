"""Which worker should hold which partition? Evenly, and moving as few as possible from where they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Assignment(Struct, frozen=True):
    """Partitions by worker. `version` grows with every change, so that workers know the newest."""

    version: int
    partitions: dict[str, tuple[int, ...]]

    def of(self, worker: str) -> tuple[int, ...]:
        return self.partitions.get(worker, ())


NOBODY = Assignment(0, {})


def assign(partitions: int, workers: Iterable[str], before: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Every partition to exactly one of the workers, at most one more for any than for another.

    A partition stays where it is while its worker is there and has not too many. No workers: nobody has any.
    """
    names = sorted(set(workers))
    if not names:
        return {}
    held: dict[str, list[int]] = {name: [] for name in names}
    placed: set[int] = set()
    for name in names:
        for partition in sorted(set(before.get(name, ()))):
            if 0 <= partition < partitions and partition not in placed:
                held[name].append(partition)
                placed.add(partition)
    # The larger shares go to those who have most already: that moves the fewest.
    least, larger = divmod(partitions, len(names))
    ranked = sorted(names, key=lambda name: (-len(held[name]), name))
    room = {name: least + (place < larger) for place, name in enumerate(ranked)}
    homeless = [partition for partition in range(partitions) if partition not in placed]
    for name in names:
        homeless += held[name][room[name] :]
        del held[name][room[name] :]
    homeless.sort(reverse=True)
    for name in ranked:
        while homeless and len(held[name]) < room[name]:
            held[name].append(homeless.pop())
    return {name: tuple(sorted(held[name])) for name in names}


def reassigned(before: Assignment, partitions: int, workers: Iterable[str]) -> Assignment:
    """The next assignment; the same value if nothing changes."""
    wanted = assign(partitions, workers, before.partitions)
    return before if wanted == before.partitions else Assignment(before.version + 1, wanted)
