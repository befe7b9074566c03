"""Which states can each resource be in? The world and its pending changes, as tracks that are walked independently.

Changes of one resource keep their order and form one track; tracks are independent, so every order in which changes
can be applied passes only through choices of one stage per track, and every such choice is passed by some order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from harch.sovereignty.proof.model import Change, Kind, Resource, World, countries_named, everything

Key = tuple[Kind, str]
Choice = Mapping[int, int]  # track number to stage; a track that is not named is at its first stage
Box = Mapping[int, tuple[int, ...]]  # the same with several stages: all choices that take one of each


class Track(Struct, frozen=True):
    """One resource over time: what it is now, and after each pass of its changes. `steps[i]` led to `stages[i + 1]`."""

    key: Key
    stages: tuple[Resource | None, ...]
    steps: tuple[Change, ...]


class Book:
    """A world with its tracks, indexed. Nothing in it changes."""

    def __init__(self, world: World, changes: tuple[Change, ...] = ()) -> None:
        self.world = world
        self.changes = changes
        self.tracks = _tracks(world, changes)
        self.track_of = {track.key: number for number, track in enumerate(self.tracks)}
        self.universe = countries_named(world, changes)
        self.has_unknowns = any(resource.unknown for resource in everything(world, changes))
        self.hubs_known = self.everything(Kind.HUB)
        self.data_known = self.everything(Kind.DATASET)
        self.now: dict[Kind, dict[str, tuple[Resource, ...]]] = {
            kind: {key: (resource,) for key, resource in world.of(kind).items()} for kind in Kind
        }

    def box_of_all(self) -> Box:
        return {number: tuple(range(len(track.stages))) for number, track in enumerate(self.tracks)}

    def everything(self, kind: Kind) -> set[str]:
        """The ids of all that is there or may come to be."""
        return {*self.world.of(kind), *(key for of, key in self.track_of if of is kind)}

    def tracks_among(self, keys: Iterable[Key], kinds: Iterable[Kind]) -> tuple[int, ...]:
        """The tracks of these resources, and all tracks of these kinds."""
        found = {self.track_of[key] for key in keys if key in self.track_of}
        wanted = set(kinds)
        found.update(number for number, track in enumerate(self.tracks) if track.key[0] in wanted)
        return tuple(sorted(found))

    def applied(self, choice: Choice) -> tuple[tuple[Change, int], ...]:
        """The changes that a choice stands for, in the order of the plan, each with how many passes were made."""
        made: dict[str, int] = {}
        for number, stage in choice.items():
            for change in self.tracks[number].steps[:stage]:
                made[change.id] = made.get(change.id, 0) + 1
        return tuple((change, made[change.id]) for change in self.changes if change.id in made)


def _tracks(world: World, changes: tuple[Change, ...]) -> tuple[Track, ...]:
    stages: dict[Key, list[Resource | None]] = {}
    steps: dict[Key, list[Change]] = {}
    for change in changes:
        key = (change.kind, change.key)
        passed = stages.setdefault(key, [world.of(change.kind).get(change.key)])
        passed.extend(change.passes)
        steps.setdefault(key, []).extend(change for _ in change.passes)
    return tuple(Track(key, tuple(passed), tuple(steps[key])) for key, passed in stages.items())
