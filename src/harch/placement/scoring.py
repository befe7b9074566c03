"""Which node is best for one task?

Plain best fit or the learned policy, less points for slow links, weak cooling and sick neighbours.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.topology import TopologyGraph

# Which node is best for one task? Two answers to the same question: plain best fit, and the learned policy.
#
# A scorer follows every change of the room (`take`, `release`, `set_available`), so that it may keep values of its own.


POLICY_BEST_FIT, POLICY_HARCH = "best-fit", "harch"


class Choice(NamedTuple):
    """A node for one task. `device` is given for a share of a GPU; whole GPUs are chosen by topology afterwards."""

    row: int
    device: int | None
    score: float
    parts: dict[str, float]


class Scorer(Protocol):
    """Higher scores are better. `allowed` holds one boolean per node: what the hard checks left over."""

    name: str

    def observe(self, kind: Kind) -> None:
        """A request of this kind has arrived; scorers may learn from it."""
        ...

    def choose(self, kind: Kind, allowed: Bools) -> Choice | None: ...

    def candidates(self, kind: Kind, allowed: Bools, limit: int) -> list[Choice]: ...

    def node_scores(self, kind: Kind, allowed: Bools) -> Floats:
        """One score per node, -inf where the task does not fit; for gangs."""
        ...

    def take(self, kind: Kind, slot: TaskSlot) -> None: ...

    def release(self, kind: Kind, slot: TaskSlot) -> None: ...

    def set_available(self, row: int, available: bool) -> None: ...

    def withhold(self, row: int, device: int, gpu_milli: int) -> None:
        """So much more (less, if negative) of this device is free and yet not to be given: it is not healthy."""
        ...


class BestFit:
    """The node that is left with the least free GPU, then the least free CPU: whole nodes stay whole for others."""

    name = POLICY_BEST_FIT

    def __init__(self, room: Room) -> None:
        self._room = room

    def observe(self, kind: Kind) -> None:
        pass

    def choose(self, kind: Kind, allowed: Bools) -> Choice | None:
        scores = self.node_scores(kind, allowed)
        row = int(scores.argmax())
        return None if scores[row] == -np.inf else self._choice(kind, row, float(scores[row]))

    def candidates(self, kind: Kind, allowed: Bools, limit: int) -> list[Choice]:
        scores = self.node_scores(kind, allowed)
        order = np.argsort(-scores, kind="stable")[:limit]
        return [self._choice(kind, int(row), float(scores[row])) for row in order if scores[row] > -np.inf]

    def node_scores(self, kind: Kind, allowed: Bools) -> Floats:
        arrays = self._room.arrays
        fits = allowed & arrays.available & (arrays.cpu_milli_free >= kind.cpu_milli)
        fits &= arrays.memory_mib_free >= kind.memory_mib
        if kind.gpus:
            fits &= (np.int64(1) << arrays.model) & np.int64(kind.models) != 0
            fits &= (arrays.gpu_milli_free >= kind.gpu_milli).sum(axis=1) >= kind.gpus
        left = arrays.gpu_milli_free_sum - kind.gpu_milli_total
        # CPU only breaks ties: a node has fewer than a million thousandths of a core for each thousandth of a GPU.
        score = -(left + (arrays.cpu_milli_free - kind.cpu_milli) / 1e7)
        return np.where(fits, score, -np.inf)

    def _choice(self, kind: Kind, row: int, score: float) -> Choice:
        device = None
        if kind.gpus == 1 and kind.gpu_milli < GPU_MILLI:
            free = self._room.arrays.gpu_milli_free[row]
            device = int(np.where(free >= kind.gpu_milli, free, 2 * GPU_MILLI).argmin())  # the fullest that fits
        return Choice(row, device, score, {"best_fit": score})

    def take(self, kind: Kind, slot: TaskSlot) -> None:
        pass  # it reads the room itself

    def release(self, kind: Kind, slot: TaskSlot) -> None:
        pass

    def set_available(self, row: int, available: bool) -> None:
        pass

    def withhold(self, row: int, device: int, gpu_milli: int) -> None:
        pass


# What does worn hardware cost a request? Slow links, weak cooling and sick neighbours, as points off a node's score.
#
# Nothing is forbidden here: what cannot be used at all is the room's to say, and this is about better and worse. Points
# are those of the policy, thousandths of a GPU:
#
# - **links**: whoever talks s times slower holds its GPUs up to s times as long, so it pays for (s - 1) times what it
#   holds. s is modelled (`topology`), for as many GPUs as it would have on that node; one GPU alone pays nothing.
# - **cooling**: the share of the heat that the plant of the zone no longer removes. Work there is the first to be in
# the
#   way when it gets worse.
# - **health**: the share of the node's GPUs that are marked unhealthy. The node is about to be repaired, and its work
# to
#   be moved.
#
# Links that are down to half of their speed or less are used last, whatever the score says: learned prices can be
# large.


# As the price of a scarce model, which is the other thing that a placement can cost others.
LINKS_WEIGHT = 3.0
COOLING_WEIGHT = 1.0
HEALTH_WEIGHT = 1.0
SLOWDOWN_MAX = 20.0  # beyond it nothing gets worse
CRIPPLED_FROM = 2.0  # times slower
LAYERS_MAX = 12  # each is one more layout of a gang


@dataclass(frozen=True)
class Burden:
    """For one request, per node. Slowdowns are 1 where links are whole; uplinks matter to a gang of several racks."""

    slowdown: Floats
    uplink_slowdown: Floats
    links: Floats
    cooling: Floats
    health: Floats

    @cached_property
    def points(self) -> Floats:
        return self.links + self.cooling + self.health

    @cached_property
    def is_free(self) -> Bools:
        """Nodes that cost nothing extra."""
        free: Bools = self.points == 0
        return free

    @cached_property
    def crippled(self) -> Bools:
        return self.slowdown >= CRIPPLED_FROM

    def layers(self) -> list[Bools]:
        """Sets of nodes for a gang, the best first: whole ones, then by octaves of their slowdown, and all at last.

        A gang fails if one of its GPUs does, so it stays away from sick nodes and weak plants before anything else.
        """
        octaves, uplink_octaves = np.ceil(np.log2(self.slowdown)), np.ceil(np.log2(self.uplink_slowdown))
        layers = [self.is_free]
        for most in np.unique(octaves):
            layers += [(octaves <= most) & (uplink_octaves <= uplink) for uplink in np.unique(uplink_octaves)]
        distinct = {layer.tobytes(): layer for layer in layers if layer.any()}
        everything = np.ones(len(octaves), np.bool_)
        return [*list(distinct.values())[: LAYERS_MAX - 1], everything]

    def parts(self, row: int) -> dict[str, float]:
        found = {name: -float(getattr(self, name)[row]) for name in ("links", "cooling", "health")}
        return {name: value for name, value in found.items() if value}


class Degradation:
    """Follows what `refresh` is given, so that a hub whose hardware is whole asks one boolean per decision."""

    def __init__(self, topology: TopologyGraph) -> None:
        self._topology = topology
        self._zone_w_built = topology.room.zone_heat_w_max.copy()
        self.refresh()

    def refresh(self) -> None:
        """A link, a cooling plant or a GPU has changed."""
        room, topology = self._topology.room, self._topology
        zone_lost = 1.0 - room.zone_heat_w_max / np.maximum(self._zone_w_built, 1.0)
        self._cooling_lost: Floats = np.maximum(zone_lost, 0.0)[room.rack_zone[room.rack]]
        gpus = room.arrays.gpus
        self._sick_share: Floats = 1.0 - room.healthy.sum(axis=1) / np.maximum(gpus, 1)
        self._uplink_slowdown: Floats = np.minimum(1.0 / topology.uplink_factor[room.rack], SLOWDOWN_MAX)
        self._slowdowns: dict[int, Floats] = {}  # by the number of GPUs on the node
        self._is_whole = not (topology.is_degraded or self._cooling_lost.any() or self._sick_share.any())

    def of(self, request: PlacementRequest, tasks: int = 1) -> Burden | None:
        """For so many tasks of it; None: all hardware that matters to it is whole."""
        needs = request.needs
        if self._is_whole or not needs.gpus:
            return None
        milli = float(self._topology.room.kind(needs).gpu_milli_total)
        slowdown = self._slowdown(needs.gpus * tasks)
        uplink_slowdown = self._uplink_slowdown if tasks > 1 else np.ones_like(slowdown)
        burden = Burden(
            slowdown=slowdown,
            uplink_slowdown=uplink_slowdown,
            links=LINKS_WEIGHT * milli * (np.maximum(slowdown, uplink_slowdown) - 1.0),
            cooling=COOLING_WEIGHT * milli * self._cooling_lost,
            health=HEALTH_WEIGHT * milli * self._sick_share,
        )
        return burden if burden.points.any() else None

    def _slowdown(self, gpus: int) -> Floats:
        room = self._topology.room
        gpus = min(gpus, int(room.arrays.gpu_milli_free.shape[1]))
        if gpus not in self._slowdowns:
            self._slowdowns[gpus] = np.minimum(self._topology.node_slowdowns(gpus), SLOWDOWN_MAX)
        return self._slowdowns[gpus]


def choose(scorer: Scorer, kind: Kind, allowed: Bools, burden: Burden | None) -> Choice | None:
    """The best node, with what its wear costs taken off its score."""
    if burden is None:
        return scorer.choose(kind, allowed)
    best = scorer.choose(kind, allowed & burden.is_free)
    worn = allowed & ~burden.is_free
    if worn.any():
        scores = scorer.node_scores(kind, worn) - burden.points
        row = int(scores.argmax())
        if scores[row] > (-np.inf if best is None else best.score):
            return _worn_choice(scorer, kind, row, burden)
    return best


def candidates(scorer: Scorer, kind: Kind, allowed: Bools, burden: Burden | None, limit: int) -> list[Choice]:
    """The best nodes, best first."""
    if burden is None:
        return scorer.candidates(kind, allowed, limit)
    scores = scorer.node_scores(kind, allowed) - burden.points
    best = np.argsort(-scores, kind="stable")[:limit]
    found = (_worn_choice(scorer, kind, int(row), burden) for row in best if scores[row] > -np.inf)
    return [choice for choice in found if choice is not None]


def _worn_choice(scorer: Scorer, kind: Kind, row: int, burden: Burden) -> Choice | None:
    only = np.zeros(len(burden.points), np.bool_)
    only[row] = True
    choice = scorer.choose(kind, only)
    if choice is None:
        return None
    return choice._replace(score=choice.score - float(burden.points[row]), parts=choice.parts | burden.parts(row))
