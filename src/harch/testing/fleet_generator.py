"""How does a larger fleet look? Believable fleets of any size from a seed, for scale tests, benchmarks and demos.

The same arguments always give the same fleet. Shares come from a hash of seed and hub instead of a random generator,
so that one more hub does not reshuffle what the others hold. Everything here is modelled: the cities are real, no
such sites are claimed to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

from harch.base.errors import HarchError
from harch.fleet.blueprint import FleetBlueprint, HubBlueprint, NodeKind, RackGroup, distance_km, expand
from harch.fleet.format import GPUS_MAX, HUBS_MAX
from harch.fleet.model import CoolingZone, Fleet, GpuModel, HubSafeguards, Link
from harch.testing.fleet_writer import to_toml

GPUS_PER_NODE = 8
RACKS_PER_ROW = 10
NEAREST_LINKED = 2  # each hub has a link to this many of its nearest, beside the links that join all hubs
FIBRE_KM_PER_MS = 204.0
DETOUR = 1.5  # cables follow coasts and roads
EQUIPMENT_RTT_MS = 2.0

H100 = GpuModel("h100-80gb", memory_gb=80, power_w=700, nvlink_gb_per_s=900, pcie_gb_per_s=128)
A100 = GpuModel("a100-80gb", memory_gb=80, power_w=400, nvlink_gb_per_s=600, pcie_gb_per_s=64)
CARD = GpuModel("inference-card", memory_gb=48, power_w=300, nvlink_gb_per_s=0, pcie_gb_per_s=64)

H100_8 = NodeKind("h100-8", H100, 8, 8, 2, 2, cpus=112, memory_gb=2048, storage_gb=30_000, host_power_w=4600)
A100_8 = NodeKind("a100-8", A100, 8, 8, 2, 2, cpus=128, memory_gb=2048, storage_gb=30_000, host_power_w=3300)
CARD_8 = NodeKind("inference-8", CARD, 8, 1, 4, 2, cpus=96, memory_gb=768, storage_gb=15_000, host_power_w=1200)
NODES_PER_RACK = {H100.name: 4, A100.name: 4, CARD.name: 8}
RACK_KW_MAX = {H100.name: 44.0, A100.name: 30.0, CARD.name: 32.0}


@dataclass(frozen=True, slots=True)
class Site:
    name: str
    country: str
    grid_zone: str
    latitude: float
    longitude: float
    pue: float  # an assumption: warmer places cool at a higher price


SITES = (
    Site("Casablanca", "MA", "MA", 33.57, -7.59, 1.25),
    Site("Dakar", "SN", "SN", 14.72, -17.47, 1.4),
    Site("Abidjan", "CI", "CI", 5.36, -4.01, 1.45),
    Site("Accra", "GH", "GH", 5.6, -0.19, 1.45),
    Site("Lagos", "NG", "NG", 6.52, 3.38, 1.45),
    Site("Nairobi", "KE", "KE", -1.29, 36.82, 1.25),
    Site("Johannesburg", "ZA", "ZA", -26.2, 28.05, 1.25),
    Site("Kigali", "RW", "RW", -1.94, 30.06, 1.25),
    Site("Tunis", "TN", "TN", 36.81, 10.18, 1.3),
    Site("Cairo", "EG", "EG", 30.04, 31.24, 1.4),
    Site("Addis-Ababa", "ET", "ET", 9.03, 38.74, 1.2),
    Site("Lisbon", "PT", "PT", 38.72, -9.14, 1.2),
    Site("Madrid", "ES", "ES", 40.42, -3.7, 1.2),
    Site("Marseille", "FR", "FR", 43.3, 5.37, 1.2),
    Site("Frankfurt", "DE", "DE", 50.11, 8.68, 1.2),
    Site("Milan", "IT", "IT-NO", 45.46, 9.19, 1.2),
    Site("Stockholm", "SE", "SE-SE3", 59.33, 18.07, 1.1),
    Site("Riyadh", "SA", "SA", 24.71, 46.68, 1.45),
    Site("Dubai", "AE", "AE", 25.2, 55.27, 1.45),
    Site("Amman", "JO", "JO", 31.95, 35.93, 1.3),
)


def generate_fleet(*, hub_count: int, gpu_count: int, seed: int = 1) -> Fleet:
    """A fleet of exactly that many hubs and GPUs. Raises HarchError E0201 for sizes that cannot be."""
    return expand(generate_blueprint(hub_count=hub_count, gpu_count=gpu_count, seed=seed))


def single_hub(gpus: int = 10_000) -> Fleet:
    """One hub that owns everything: what a benchmark of a single control plane needs."""
    return generate_fleet(hub_count=1, gpu_count=gpus)


def twenty_hubs_toml() -> str:
    """The text of the shipped `twenty-hubs.toml`; a test compares them."""
    return to_toml(
        generate_blueprint(hub_count=20, gpu_count=10_000, name="twenty-hubs"),
        comment=(
            "Twenty hubs in twenty countries, 10,000 GPUs: the size that HarchOS must grow to. All of it is modelled.\n"
            "\n"
            "Written by harch.testing.fleet_generator (twenty_hubs_toml); edit that and not this file.\n"
            "The cities are real, the sites are not: PUE, hardware and links are assumptions. Links name the\n"
            "countries of their ends only.\n"
            "Every site is assumed to encrypt at rest and in transit, with keys in its own country and nowhere else."
        ),
    )


def generate_blueprint(*, hub_count: int, gpu_count: int, seed: int = 1, name: str = "generated") -> FleetBlueprint:
    """As `generate_fleet`, in kinds and counts, ready for `to_toml`."""
    if not 1 <= hub_count <= HUBS_MAX or not GPUS_PER_NODE * hub_count <= gpu_count <= GPUS_MAX:
        raise HarchError(
            "E0201",
            f"cannot generate {hub_count} hubs with {gpu_count} GPUs",
            hint=f"use 1 to {HUBS_MAX} hubs, {GPUS_PER_NODE} GPUs per hub or more, at most {GPUS_MAX:,} in all",
        )
    sites = [_site(number) for number in range(hub_count)]
    node_counts = _shares(gpu_count // GPUS_PER_NODE, [_hash(seed, site.name, "size") % 1000 + 500 for site in sites])
    odd_kinds = [_odd_kind(gpu_count % GPUS_PER_NODE)] if gpu_count % GPUS_PER_NODE else []
    hubs = []
    for site, node_count in zip(sites, node_counts, strict=True):
        nodes = _mix(node_count, site, seed)
        if odd_kinds and site is sites[-1]:
            nodes.append((odd_kinds[0], 1))
        hubs.append(_hub(site, nodes))
    return FleetBlueprint(
        name=name,
        gpu_models=(H100, A100, CARD),
        node_kinds=(H100_8, A100_8, CARD_8, *odd_kinds),
        hubs=tuple(hubs),
        links=tuple(_links(hubs)),
    )


def _site(number: int) -> Site:
    """Beyond the list, further sites stand near the first ones, in the same country."""
    turn, index = divmod(number, len(SITES))
    site = SITES[index]
    if turn == 0:
        return site
    latitude, longitude = round(site.latitude + turn * 0.2, 2), round(site.longitude + turn * 0.2, 2)
    return Site(f"{site.name}-{turn + 1}", site.country, site.grid_zone, latitude, longitude, site.pue)


def _shares(total: int, weights: list[int]) -> list[int]:
    """`total` divided in proportion to the weights, at least one each; the parts add up exactly."""
    spread, weight_sum = total - len(weights), sum(weights)
    shares, passed = [], 0
    for weight in weights:
        before = spread * passed // weight_sum
        passed += weight
        shares.append(1 + spread * passed // weight_sum - before)
    return shares


def _mix(node_count: int, site: Site, seed: int) -> list[tuple[NodeKind, int]]:
    """30 to 50 % H100, 15 to 30 % inference cards, A100 for the rest."""
    h100 = node_count * (300 + _hash(seed, site.name, "h100") % 200) // 1000
    cards = node_count * (150 + _hash(seed, site.name, "cards") % 150) // 1000
    return [(H100_8, h100), (A100_8, node_count - h100 - cards), (CARD_8, cards)]


def _odd_kind(gpus: int) -> NodeKind:
    """The one node that holds what eight does not divide."""
    return NodeKind(f"inference-{gpus}", CARD, gpus, 1, min(4, gpus), 2, 12 * gpus, 96 * gpus, 15_000, 1000)


def _hub(site: Site, nodes: list[tuple[NodeKind, int]]) -> HubBlueprint:
    """Rows of equal racks, each row with its own cooling."""
    groups: list[RackGroup] = []
    zones: list[CoolingZone] = []
    for kind, count in nodes:
        per_rack, power_kw_max = NODES_PER_RACK[kind.gpu_model.name], RACK_KW_MAX[kind.gpu_model.name]
        while count > 0:
            racks = min(RACKS_PER_ROW, max(1, count // per_rack))
            nodes_each = min(per_rack, count)
            row = f"{len(zones) + 1:02d}"
            group = RackGroup(racks, row, f"row-{row}", power_kw_max, ((kind, nodes_each),))
            groups.append(group)
            # A tenth of reserve, in steps of ten as plants are sold.
            heat_kw_max = ceil(racks * group.power_kw_per_rack * 1.1 / 10) * 10.0
            zones.append(CoolingZone(group.cooling_zone, heat_kw_max))
            count -= racks * nodes_each
    return HubBlueprint(
        site.name,
        site.country,
        site.grid_zone,
        site.latitude,
        site.longitude,
        site.pue,
        cooling_zones=tuple(zones),
        racks=tuple(groups),
        safeguards=HubSafeguards(encrypts_at_rest=True, encrypts_in_transit=True, keys_in=(site.country,)),
    )


def _links(hubs: list[HubBlueprint]) -> list[Link]:
    """The shortest links that join all hubs, and from each hub to its nearest."""
    km = [[distance_km(one, other) for other in hubs] for one in hubs]
    pairs: set[tuple[int, int]] = set()
    outside = set(range(1, len(hubs)))
    while outside:
        joined = set(range(len(hubs))) - outside
        _, near, far = min((km[a][b], a, b) for a in joined for b in outside)
        pairs.add((min(near, far), max(near, far)))
        outside.remove(far)
    for a in range(len(hubs)):
        by_distance = sorted((km[a][b], b) for b in range(len(hubs)) if b != a)
        pairs.update((min(a, b), max(a, b)) for _, b in by_distance[:NEAREST_LINKED])
    return [_link(hubs[a], hubs[b]) for a, b in sorted(pairs)]


def _link(one: HubBlueprint, other: HubBlueprint) -> Link:
    km = distance_km(one, other)
    rtt_ms = round(EQUIPMENT_RTT_MS + 2 * DETOUR * km / FIBRE_KM_PER_MS, 1)
    bandwidth_gbps = 400.0 if km < 1500 else 200.0 if km < 3000 else 100.0
    return Link((one.id, other.id), rtt_ms, bandwidth_gbps, tuple(dict.fromkeys((one.country, other.country))))


def _hash(seed: int, *words: str) -> int:
    return int.from_bytes(blake2b(":".join((str(seed), *words)).encode(), digest_size=8).digest(), "big")
