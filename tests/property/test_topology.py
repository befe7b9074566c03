"""Placement by topology: devices are the best there are; gangs are whole or absent, and as close together as can be."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.fleet.model import CoolingZone, Gpu, GpuModel, Hub, Node, Provenance, Rack
from harch.placement.devices import best_devices
from harch.placement.gangs import place_gang
from harch.placement.query import ResourceQuery, apply_query, describe, parse_query
from harch.placement.request import PlacementRequest
from harch.placement.room import Neighbourhoods, Room, TaskSlot
from harch.placement.scoring import BestFit
from harch.workloads.spec import Level, Resources, Strategy, Topology, WorkloadSpec

BIG = GpuModel("big", memory_gb=80, power_w=700, nvlink_gb_per_s=900, pcie_gb_per_s=128)
SMALL = GpuModel("small", memory_gb=40, power_w=300, nvlink_gb_per_s=600, pcie_gb_per_s=64)


# Devices


@st.composite
def node_kinds(draw: st.DrawFn, sizes: tuple[int, ...]) -> Neighbourhoods:
    """Islands, switches and NUMA domains of equal size, nested in any order."""
    size = draw(st.sampled_from(sizes))
    chosen: list[int] = []
    for _ in range(3):
        nested = [
            part
            for part in range(1, size + 1)
            if size % part == 0 and all(part % other == 0 or other % part == 0 for other in chosen)
        ]
        chosen.append(draw(st.sampled_from(nested)))
    return tuple((index // chosen[0], index // chosen[1], index // chosen[2]) for index in range(size))


def worth(kind: Neighbourhoods, free: list[int], chosen: tuple[int, ...]) -> tuple[int, ...]:
    """The written order of preference, computed the slow way."""

    def pairs(devices: list[int] | tuple[int, ...], level: int) -> int:
        return sum(kind[one][level] == kind[other][level] for one, other in itertools.combinations(devices, 2))

    left = [device for device in free if device not in chosen]
    together = [len({kind[device][level] for device in chosen}) == 1 for level in range(3)]
    return (*together, *(pairs(chosen, level) for level in range(3)), *(pairs(left, level) for level in range(3)))


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_chosen_devices_are_the_best_of_all_subsets(data: st.DataObject) -> None:
    kind = data.draw(node_kinds((1, 2, 4, 6, 8, 9, 10, 12)))
    free = sorted(data.draw(st.sets(st.integers(0, len(kind) - 1), min_size=1)))
    count = data.draw(st.integers(1, len(free)))
    chosen = best_devices(kind, sum(1 << device for device in free), count)
    assert chosen is not None
    assert len(set(chosen)) == count
    assert set(chosen) <= set(free)
    best = max(worth(kind, free, subset) for subset in itertools.combinations(free, count))
    assert worth(kind, free, chosen) == best


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_large_nodes_use_one_neighbourhood_if_one_is_enough(data: st.DataObject) -> None:
    kind = data.draw(node_kinds((16, 36, 72)))
    free = data.draw(st.sets(st.integers(0, len(kind) - 1), min_size=1))
    count = data.draw(st.integers(1, len(free)))
    chosen = best_devices(kind, sum(1 << device for device in free), count)
    assert chosen is not None
    assert len(chosen) == count
    assert set(chosen) <= free
    for level in range(3):
        if max(Counter(kind[device][level] for device in free).values()) >= count:
            assert len({kind[device][level] for device in chosen}) == 1
            break


# Gangs


@st.composite
def hubs(draw: st.DrawFn, models: tuple[GpuModel, ...] = (BIG,)) -> Hub:
    """A few racks with tight power and cooling: plenty of ways not to fit."""
    zones = draw(st.integers(1, 3))
    power, cooling = draw(st.sampled_from([(1.0, 1.0), (0.5, 1.0), (0.5, 1.0), (1.0, 0.5), (0.7, 0.7)]))
    racks = []
    for rack in range(draw(st.integers(1, 5))):
        nodes = []
        for index in range(draw(st.integers(1, 3))):
            model = draw(st.sampled_from(models))
            gpus, island = draw(st.sampled_from([(8, 8), (8, 4), (4, 4), (4, 2), (2, 1)]))
            node_id = f"r{rack}-n{index}"
            devices = tuple(
                Gpu(f"{node_id}-g{gpu}", gpu, model, gpu // island, gpu // 2, gpu * 2 // gpus) for gpu in range(gpus)
            )
            nodes.append(Node(node_id, f"r{rack}", devices, 64, 512, 100, Provenance.MODELLED, 500))
        full_kw = sum(node.power_w_max for node in nodes) / 1000
        power_kw = full_kw * power
        row, zone = draw(st.integers(0, 2)), draw(st.integers(0, zones - 1))
        racks.append(Rack(f"r{rack}", f"row{row}", f"z{zone}", power_kw, tuple(nodes)))
    plants = []
    for zone in range(zones):
        heat_kw = sum(r.power_kw_max for r in racks if r.cooling_zone == f"z{zone}")
        plants.append(CoolingZone(f"z{zone}", heat_kw * cooling))
    return Hub("hub", "Hub", "MA", "MA", 0.0, 0.0, 1.2, tuple(plants), tuple(racks))


@st.composite
def rooms(draw: st.DrawFn, models: tuple[GpuModel, ...] = (BIG,)) -> Room:
    """A hub on which something already runs, some GPUs are broken and some nodes are cordoned."""
    room = Room(draw(hubs(models)))
    room.serve(room.row_of, True)
    for row, node in enumerate(room.hub.nodes):
        state = draw(st.sampled_from(["free"] * 6 + ["busy", "shared", "broken", "cordoned", "exclusive"]))
        some = draw(st.sets(st.integers(0, len(node.gpus) - 1)))
        if state == "cordoned":
            room.cordon(node.id, True)
        for device in some:
            if state == "broken":
                room.set_health(node.id, device, False)
            elif state in ("busy", "shared", "exclusive"):
                needs = Resources(gpus=1, gpu_fraction=0.5) if state == "shared" else Resources(gpus=1)
                if room.slots(needs)[row] or room.exclusive_on[row]:
                    room.take(needs, TaskSlot(row, (device,)), exclusive=state == "exclusive")
    return room


@st.composite
def requests(draw: st.DrawFn, models: tuple[str, ...] = ()) -> PlacementRequest:
    gpus = draw(st.sampled_from([0, 1, 1, 2, 4, 4, 8, 8]))
    fraction = draw(st.sampled_from([None, None, 0.25, 0.5])) if gpus == 1 else None
    needs = Resources(
        gpus=gpus,
        gpu_fraction=fraction,
        gpu_memory_gb=None if fraction is None else draw(st.sampled_from([None, 30, 40, 50, 80])),
        gpu_models=models if gpus else (),
        cpus=draw(st.sampled_from([1, 16, 40])),
    )
    strategy = draw(st.sampled_from([Strategy.PACK, Strategy.PACK, Strategy.SPREAD]))
    levels = list(Level) if strategy is Strategy.PACK else [Level.RACK, Level.ROW, Level.HUB]
    topology = Topology(
        required=draw(st.sampled_from(levels)),
        preferred=draw(st.sampled_from(list(Level))),
        strategy=strategy,
        exclusive=draw(st.booleans()),
    )
    tasks = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 6, 8, 12]))
    return PlacementRequest.of("w", WorkloadSpec(name="w", tasks=tasks, resources=needs, topology=topology))


def domain(room: Room, slot: TaskSlot, level: Level) -> set[tuple[int, ...]]:
    """The domains of that level that a task touches."""
    rack = int(room.rack[slot.row])
    match level:
        case Level.ISLAND:
            return {(slot.row, int(room.island[slot.row, device])) for device in slot.devices} or {(slot.row,)}
        case Level.NODE:
            return {(slot.row,)}
        case Level.RACK:
            return {(rack,)}
        case Level.ROW:
            return {(int(room.rack_row[rack]),)}
        case _:
            return {()}


def domains(room: Room, slots: tuple[TaskSlot, ...], level: Level) -> set[tuple[int, ...]]:
    return set().union(*(domain(room, slot, level) for slot in slots))


def fits_somewhere(room: Room, request: PlacementRequest, level: Level) -> bool:
    """Does any domain of that level hold the whole gang? Counted the slow way, for GPUs of equal power."""
    needs = request.needs
    milli = needs.gpu_milli_of(BIG.memory_gb)
    slots = room.slots(needs, exclusive=request.topology.exclusive).tolist()
    if level is Level.ISLAND:
        for row, node in enumerate(room.hub.nodes):
            for island in {gpu.island for gpu in node.gpus}:
                free = room.arrays.gpu_milli_free[row][room.island[row] == island]
                whole = int((free == 1000).sum()) // max(needs.gpus, 1)
                here = whole if milli == 1000 else int((free // milli).sum())
                if min(here, slots[row]) >= request.tasks:
                    return True
        return False
    if level is Level.NODE:
        return max(slots) >= request.tasks
    watts = BIG.power_w * needs.gpus * milli / 1000
    heat_w = (room.zone_heat_w_max - room.zone_heat_w).tolist()
    groups: dict[object, dict[int, int]] = {}
    for rack, zone in enumerate(room.rack_zone.tolist()):
        key = {Level.RACK: rack, Level.ROW: int(room.rack_row[rack])}.get(level, 0)
        here = sum(slots[row] for row in np.flatnonzero(room.rack == rack))
        if watts:
            here = min(here, int(max(room.rack_power_w_free[rack], 0) // watts))
        by_zone = groups.setdefault(key, {})
        by_zone[zone] = by_zone.get(zone, 0) + here
    return any(
        sum(min(n, int(max(heat_w[zone], 0) // watts)) if watts else n for zone, n in by_zone.items()) >= request.tasks
        for by_zone in groups.values()
    )


def check_safe(room: Room, request: PlacementRequest, slots: tuple[TaskSlot, ...]) -> None:
    """Booking it raises if a GPU, a CPU or memory is given twice; power, cooling and strangers are checked here."""
    assert len(slots) == request.tasks
    for slot in slots:
        assert room.arrays.available[slot.row]
        assert not room.exclusive_on[slot.row]
        assert not (request.topology.exclusive and room.tasks_on[slot.row])
    after = room.copy()
    for slot in slots:
        after.take(request.needs, slot, exclusive=request.topology.exclusive)
    if request.needs.gpus:
        racks = {int(room.rack[slot.row]) for slot in slots}
        assert all(after.rack_power_w_free[rack] >= -1e-6 for rack in racks)
        zones = {int(room.rack_zone[rack]) for rack in racks}
        assert all(after.zone_heat_w[zone] <= after.zone_heat_w_max[zone] + 1e-6 for zone in zones)
    assert len(domains(room, slots, request.topology.required)) == 1


def runs(values: list[object]) -> Iterator[object]:
    return (value for value, _ in itertools.groupby(values))


def check_contiguous(room: Room, slots: tuple[TaskSlot, ...]) -> None:
    for level in (Level.NODE, Level.RACK, Level.ROW):
        order = list(runs([min(domain(room, slot, level)) for slot in slots]))
        assert len(order) == len(set(order)), level
    whole = [next(iter(home)) for slot in slots if len(home := domain(room, slot, Level.ISLAND)) == 1]
    order = list(runs(list(whole)))
    assert len(order) == len(set(order))


@given(rooms(), requests())
@settings(max_examples=200, deadline=None)
def test_a_gang_is_whole_or_absent_and_in_the_lowest_domain_that_fits(room: Room, request: PlacementRequest) -> None:
    before = room.copy()
    slots = place_gang(room, request, request.tasks, rank_nodes=BestFit(room).node_scores)
    assert (room.arrays.gpu_milli_free == before.arrays.gpu_milli_free).all()
    assert (room.rack_power_w_free == before.rack_power_w_free).all()
    wish = request.topology
    if slots is None:
        assert not fits_somewhere(room, request, wish.required) or (
            not request.needs.gpus and wish.required is Level.ISLAND
        )
        return
    check_safe(room, request, slots)
    check_contiguous(room, slots)
    assert slots == place_gang(room, request, request.tasks, rank_nodes=BestFit(room).node_scores)
    if wish.strategy is Strategy.PACK and request.needs.gpus:
        for level in Level:
            if wish.preferred.rank <= level.rank <= wish.required.rank and fits_somewhere(room, request, level):
                assert len(domains(room, slots, level)) == 1
                break
    if wish.strategy is Strategy.SPREAD and wish.preferred.rank < Level.RACK.rank and wish.required is Level.HUB:
        counts = Counter(slot.row for slot in slots)
        if max(counts.values()) > 1:  # then no further node could have taken one
            free = room.slots(request.needs, exclusive=wish.exclusive)
            after = room.copy()
            for slot in slots:
                after.take(request.needs, slot)
            unused = [row for row in np.flatnonzero(free) if row not in counts]
            watts = after.watts(request.needs)
            full = after.watts_free() + watts * (request.needs.gpus > 0)  # giving up a double one frees its power
            assert all(request.needs.gpus and full[row] < 2 * watts[row] for row in unused)


@given(rooms(models=(BIG, SMALL)), requests(models=("small", "big")))
@settings(max_examples=100, deadline=None)
def test_mixed_fleets_are_safe_and_the_first_model_is_preferred(room: Room, request: PlacementRequest) -> None:
    slots = place_gang(room, request, request.tasks, rank_nodes=BestFit(room).node_scores)
    if slots is None:
        return
    check_safe(room, request, slots)
    check_contiguous(room, slots)
    models = {room.hub.nodes[slot.row].gpu_model.name for slot in slots}
    if request.needs.gpus and models != {"small"}:
        alone = Resources(gpus=request.needs.gpus, gpu_fraction=request.needs.gpu_fraction, gpu_model="small")
        alone_slots = room.slots(alone, exclusive=request.topology.exclusive)
        if request.topology.required is Level.NODE and request.needs.cpus == 1:
            assert alone_slots.max() < request.tasks


# Queries


@st.composite
def queries(draw: st.DrawFn) -> ResourceQuery:
    def maybe(strategy: st.SearchStrategy[object]) -> object:
        return draw(st.none() | strategy)

    amounts = st.integers(1, 4000).map(float) | st.integers(1, 400_000).map(lambda hundredths: hundredths / 100)
    required = draw(st.none() | st.sampled_from(Level))
    preferred = [level for level in Level if required is None or level.rank <= required.rank]
    strategies = [Strategy.PACK] if required in (Level.ISLAND, Level.NODE) else list(Strategy)
    gpus = draw(st.none() | st.integers(0, 72))
    fraction = draw(st.none() | st.integers(1, 999).map(lambda milli: milli / 1000)) if gpus == 1 else None
    query = ResourceQuery(
        tasks=draw(st.none() | st.integers(1, 4096)) if gpus is None else draw(st.integers(1, 4096)),
        gpus=gpus,
        gpu_fraction=fraction,
        gpu_models=tuple(draw(st.lists(st.sampled_from(["a100-80gb", "h100-80gb", "l4", "card-x"]), unique=True))),
        gpu_memory_gb=draw(st.none() | amounts) if gpus is None or fraction is not None else None,
        gpu_memory_gb_min=maybe(amounts),  # type: ignore[arg-type]
        cpus=maybe(amounts),  # type: ignore[arg-type]
        memory_gb=maybe(amounts),  # type: ignore[arg-type]
        storage_gb=maybe(amounts),  # type: ignore[arg-type]
        required=required,
        preferred=draw(st.none() | st.sampled_from(preferred)),
        strategy=draw(st.none() | st.sampled_from(strategies)),
        exclusive=draw(st.none() | st.just(True)),
        countries=tuple(draw(st.lists(st.sampled_from(["MA", "SN", "CI", "IN", "NO", "AT"]), unique=True))),
    )
    assume(query != ResourceQuery())
    return query


@given(queries())
@settings(max_examples=200, deadline=None)
def test_a_query_survives_being_described_and_parsed(query: ResourceQuery) -> None:
    assert parse_query(describe(query)) == query


WORDS = [
    *(
        "8",
        "0.5",
        "16",
        "x",
        "GPUs",
        "tasks",
        "of",
        "cpus",
        "GB",
        "memory",
        "storage",
        ">=",
        "at",
        "least",
        ",",
        "|",
        "with",
    ),
    *("any", "same", "in", "one", "MA", "Morocco", "prefer", "island", "rack", "node", "spread", "over", "exclusive"),
    *("h100-80gb", "or", "and", "é", "'", "\x00", "-"),
]


def refusal(call: Callable[[], object]) -> HarchError | None:
    try:
        call()
    except HarchError as error:
        return error
    return None


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_understood_or_refused_with_a_position(text: str) -> None:
    if refused := refusal(lambda: parse_query(text)):
        assert refused.code == "E0201"
        assert 1 <= int(str(refused.meta["position"])) <= len(text) + 1
        return
    query = parse_query(text)
    assert parse_query(describe(query)) == query
    spec = WorkloadSpec(name="w", query=text)
    if refused := refusal(lambda: apply_query(spec)):
        assert refused.code == "E0201"
    else:
        applied = apply_query(spec)
        assert apply_query(applied) == applied
