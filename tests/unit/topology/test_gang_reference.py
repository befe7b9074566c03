"""Does a gang go where the written order says? Against the same order over plain lists, where power is ample."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from harch.fleet.model import CoolingZone, Hub, Rack
from harch.placement.devices import choose_among
from harch.placement.gangs import levels_tried, place_gang
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot, neighbourhoods
from harch.workloads.spec import Level, Resources, Strategy
from unit.placement.mixed_hub import BIG, CARD, SMALL, node, request_of

Slots = tuple[TaskSlot, ...] | None


def wide_room() -> Room:
    """Five racks in two rows: big, small and mixed ones."""
    models = (("bb", "a"), ("bs", "a"), ("ss", "b"), ("bbb", "b"), ("bc", "b"))
    kinds = {"b": (BIG, 8, 4), "s": (SMALL, 4, 2), "c": (CARD, 2, 1)}
    racks = []
    for rack, (letters, row) in enumerate(models):
        nodes = tuple(node(f"r{rack}n{at}", f"r{rack}", *kinds[letter]) for at, letter in enumerate(letters))
        racks.append(Rack(f"r{rack}", row, "z", 1000, nodes))
    room = Room(Hub("hub", "Hub", "MA", "MA", 0.0, 0.0, 1.2, (CoolingZone("z", 10_000),), tuple(racks)))
    room.serve(room.row_of, True)
    return room


class NaiveGang:
    def __init__(self, room: Room, request: PlacementRequest, tasks: int, allowed: np.ndarray, scores: list[float]):
        self.room, self.request, self.tasks, self.scores = room, request, tasks, scores
        slots = room.slots(request.needs, exclusive=request.topology.exclusive).tolist()
        self.all_slots = [count if may else 0 for count, may in zip(slots, allowed, strict=True)]
        self.nodes = range(len(slots))
        self.rack, self.row = room.rack.tolist(), room.rack_row.tolist()
        self.slots: list[int] = []
        self.tight: list[int] = []

    def place(self) -> Slots:
        room, needs = self.room, self.request.needs
        wanted, suits = needs.models_wanted, room.suits(needs).tolist()
        choices = [suits]
        if len(wanted) > 1 and needs.gpus:
            named = [[self.model(at) == model for at in self.nodes] for model in wanted if model in room.models]
            choices = [*named, suits]
        for usable in choices:
            if sum(self.all_slots[at] for at in self.nodes if usable[at]) < self.tasks:
                continue
            for level in levels_tried(self.request):
                for part in self.parts(usable, level):
                    self.use(part)
                    placed = self.at(level)
                    if placed is not None:
                        return placed
        return None

    def model(self, at: int) -> str:
        return self.room.hub.nodes[at].gpu_model.name

    def use(self, usable: list[bool]) -> None:
        self.slots = [count if may else 0 for count, may in zip(self.all_slots, usable, strict=True)]
        arrays = self.room.arrays
        free = [int(arrays.gpu_milli_free_sum[at]) if usable[at] and arrays.available[at] else 0 for at in self.nodes]
        self.tight = free if self.request.needs.gpus else self.slots

    def parts(self, usable: list[bool], level: Level) -> list[list[bool]]:
        """One model before several, the best liked first."""
        self.use(usable)
        found = sorted({self.model(at) for at in self.nodes if self.slots[at]})
        pack = self.request.topology.strategy is Strategy.PACK
        if level in (Level.ISLAND, Level.NODE) or len(found) < 2 or not pack or not self.request.needs.gpus:
            return [usable]
        means = {}
        for model in found:
            here = [at for at in self.nodes if self.slots[at] and self.model(at) == model]
            if sum(self.slots[at] for at in here) >= self.tasks:
                means[model] = sum(self.scores[at] for at in here) / len(here)
        ordered = sorted(means, key=lambda model: -means[model])
        return [[usable[at] and self.model(at) == model for at in self.nodes] for model in ordered] + [usable]

    def score(self, nodes: list[int]) -> float:
        taking = [self.scores[at] for at in nodes if self.slots[at]]
        return sum(taking) / max(1, len(taking))

    def racks_score(self, racks: list[int]) -> float:
        return sum(self.score(self.of_rack(rack)) for rack in racks) / len(racks)

    def of_rack(self, rack: int) -> list[int]:
        return [at for at in self.nodes if self.rack[at] == rack]

    def at(self, level: Level) -> Slots:
        if level is Level.ISLAND and self.request.needs.gpus:
            return self.in_island()
        if level in (Level.ISLAND, Level.NODE):
            fitting = [at for at in self.nodes if self.slots[at] >= self.tasks]
            if not fitting:
                return None
            best = min(fitting, key=lambda at: (self.tight[at], -self.scores[at], at))
            return self.on({best: self.tasks})
        return self.in_racks(level)

    def in_island(self) -> Slots:
        milli, gpus = self.room.kind(self.request.needs).gpu_milli, self.request.needs.gpus
        found = []
        for at in self.nodes:
            free = self.room.arrays.gpu_milli_free[at].tolist()
            for island in sorted({gpu.island for gpu in self.room.hub.nodes[at].gpus}):
                here = [gpu.index for gpu in self.room.hub.nodes[at].gpus if gpu.island == island]
                whole = sum(free[index] == 1000 for index in here) // gpus
                holds = whole if milli == 1000 else sum(free[index] // milli for index in here)
                if holds >= self.tasks and self.slots[at] >= self.tasks:
                    found.append(((sum(free[index] for index in here), self.tight[at], -self.scores[at]), at, here))
        if not found:
            return None
        _, at, here = min(found, key=lambda one: one[0])
        return self.on({at: self.tasks}, sum(1 << index for index in here))

    def in_racks(self, level: Level) -> Slots:
        racks = list(range(len(self.row)))
        domains = {
            Level.RACK: [[rack] for rack in racks],
            Level.ROW: [[rack for rack in racks if self.row[rack] == row] for row in sorted(set(self.row))],
        }.get(level, [racks])
        fitting = [domain for domain in domains if self.cap(domain) >= self.tasks]
        if not fitting:
            return None
        best = min(fitting, key=lambda domain: (self.tightness(domain), -self.racks_score(domain)))
        counts: dict[int, int] = {}
        if self.request.topology.strategy is Strategy.SPREAD:
            self.spread(best, counts)
        else:
            rows = [[rack for rack in racks if self.row[rack] == row] for row in {self.row[rack] for rack in best}]
            self.fill([[rack for rack in row if rack in best] for row in rows], rows, self.tasks, counts)
        return self.on(
            dict(sorted(counts.items(), key=lambda item: (self.row[self.rack[item[0]]], self.rack[item[0]], item[0])))
        )

    def cap(self, racks: list[int]) -> int:
        return sum(self.slots[at] for rack in racks for at in self.of_rack(rack))

    def tightness(self, racks: list[int]) -> int:
        return sum(self.tight[at] for rack in racks for at in self.of_rack(rack))

    def fill(self, rows: list[list[int]], whole_rows: list[list[int]], left: int, counts: dict[int, int]) -> None:
        """Part by part: the tightest that holds all that is left, else the tightest of the largest."""
        closed: set[int] = set()
        while left:
            options = [index for index in range(len(rows)) if index not in closed]
            index = self.choose(
                options,
                lambda at: self.cap(rows[at]),
                lambda at: self.tightness(whole_rows[at]),
                lambda at: self.racks_score(whole_rows[at]),
                left,
            )
            into = min(left, self.cap(rows[index]))
            left -= into
            closed.add(index)
            taken: set[int] = set()
            while into:
                racks = [rack for rack in rows[index] if rack not in taken]
                rack = self.choose(
                    racks,
                    lambda one: self.cap([one]),
                    lambda one: self.tightness([one]),
                    lambda one: self.racks_score([one]),
                    into,
                )
                here = min(into, self.cap([rack]))
                into -= here
                taken.add(rack)
                self.fill_rack(rack, here, counts)

    @staticmethod
    def choose(options, cap, tightness, score, left: int) -> int:
        enough = [option for option in options if cap(option) >= left]
        largest = max(cap(option) for option in options)
        pool = enough or [option for option in options if cap(option) == largest]
        return min(pool, key=lambda option: (tightness(option), -score(option), option))

    def fill_rack(self, rack: int, left: int, counts: dict[int, int]) -> None:
        free = {at: self.slots[at] for at in self.of_rack(rack)}
        while left:
            wanted = min(left, max(free.values()))
            pool = [at for at in free if free[at] >= wanted]
            at = min(pool, key=lambda one: (self.tight[one], -self.scores[one], one))
            counts[at] = counts.get(at, 0) + wanted
            free[at] -= wanted
            left -= wanted

    def spread(self, racks: list[int], counts: dict[int, int]) -> None:
        order = []
        for rack in racks:
            here = [at for at in self.of_rack(rack) if self.slots[at]]
            here.sort(key=lambda at: (self.tight[at], -self.scores[at], at))
            order += [(nth, self.tightness([rack]), rack, at) for nth, at in enumerate(here)]
        left = self.tasks
        while left:
            for _, _, _, at in sorted(order):
                if left and counts.get(at, 0) < self.slots[at]:
                    counts[at] = counts.get(at, 0) + 1
                    left -= 1

    def on(self, counts: dict[int, int], within: int = -1) -> tuple[TaskSlot, ...]:
        """Devices task by task, ranks by island."""
        needs, placed = self.request.needs, []
        milli = self.room.kind(needs).gpu_milli
        for at, tasks in counts.items():
            free, kind = self.room.arrays.gpu_milli_free[at].tolist(), neighbourhoods(self.room.hub.nodes[at])
            here = []
            for _ in range(tasks):
                devices = choose_among(kind, free, needs.gpus, milli, within=within)
                assert devices is not None
                for device in devices:
                    free[device] -= milli
                here.append(devices)
            if needs.gpus:
                here.sort(key=lambda devices: (kind[devices[0]][0], kind[devices[-1]][0], devices))
            placed += [TaskSlot(at, devices) for devices in here]
        return tuple(placed)


@pytest.mark.parametrize("seed", range(30))
def test_a_gang_goes_where_the_written_order_says(seed: int) -> None:
    random, room = Random(seed), wide_room()
    for at, made in enumerate(room.hub.nodes):
        match random.randrange(6):
            case 0 | 1:
                for device in random.sample(range(len(made.gpus)), random.randint(0, len(made.gpus))):
                    room.take(
                        random.choice((Resources(gpus=1), Resources(gpus=1, gpu_fraction=0.5))), TaskSlot(at, (device,))
                    )
            case 2:
                room.cordon(made.id, random.random() < 0.5)
    for _ in range(20):
        needs = random.choice(
            (
                Resources(gpus=1),
                Resources(gpus=2),
                Resources(gpus=4),
                Resources(gpus=8),
                Resources(gpus=1, gpu_fraction=0.5),
                Resources(gpus=2, gpu_models=("small", "big")),
                Resources(gpus=1, gpu_model="big", cpus=20),
                Resources(cpus=10),
            )
        )
        strategy = random.choice((Strategy.PACK, Strategy.PACK, Strategy.SPREAD))
        levels = list(Level) if strategy is Strategy.PACK else [Level.RACK, Level.ROW, Level.HUB]
        request = request_of(
            needs,
            random.choice((1, 2, 3, 4, 6, 9, 14)),
            required=random.choice([*levels, Level.HUB]),
            preferred=random.choice(list(Level)),
            strategy=strategy,
            exclusive=random.random() < 0.2,
        )
        allowed = np.array([random.random() < 0.9 for _ in room.hub.nodes])
        scores = [float(random.choice((1, 2, 3))) for _ in room.hub.nodes]
        found = place_gang(
            room, request, request.tasks, rank_nodes=lambda *_, scores=scores: np.array(scores), allowed=allowed
        )
        assert found == NaiveGang(room, request, request.tasks, allowed, scores).place()


def test_a_domain_whose_power_was_overrated_gives_way_to_the_next() -> None:
    """By its smallest GPUs the first rack carries four tasks of 300 W; spread over both nodes it carries three."""
    racks = (
        Rack("r0", "a", "z", 2.4, (node("n0", "r0", BIG, 8, 4), node("n1", "r0", SMALL, 4, 2))),
        Rack("r1", "a", "z", 100, (node("n2", "r1", BIG, 8, 4), node("n3", "r1", BIG, 8, 4))),
    )
    room = Room(Hub("hub", "Hub", "MA", "MA", 0.0, 0.0, 1.2, (CoolingZone("z", 1000),), racks))
    room.serve(room.row_of, True)
    levels = {"preferred": Level.RACK, "required": Level.RACK, "strategy": Strategy.SPREAD}
    for tasks, rows in ((3, [0, 1, 1]), (4, [2, 2, 3, 3]), (5, [2, 2, 2, 3, 3])):
        request = request_of(Resources(gpus=1), tasks, **levels)
        found = place_gang(room, request, tasks, rank_nodes=lambda kind, nodes: np.zeros(nodes.size))
        assert found is not None
        assert [slot.row for slot in found] == rows
