"""How are hubs and regions shown? In the shapes of the SDKs, and flat for the Terraform client.

Carbon figures are left out until they are known: a zero would read as "perfectly clean".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import UNSET, Struct, UnsetType

from harch.hub.views import PeerView
from harch.sovereignty.jurisdictions import COUNTRIES, region_word
from harch.wire.carbon import HubPower
from harch.wire.hubs import Hub, HubCapacity, HubSpec, HubSummary
from harch.wire.pages import Metadata

TIER = "standard"  # hubs have no tiers here; the SDKs demand one of their words
SOVEREIGNTY = "strict"
_PUBLIC_STATUS = {"ready": "ready", "cordoned": "draining", "draining": "draining", "error": "error"}


class HubView(Hub, frozen=True, kw_only=True):
    """What goes over the wire, with what every hub of ours says."""

    created_at: datetime
    metadata: Metadata
    spec: HubSpec
    endpoint: str


class TerraformHub(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    region: str
    sovereignty: str
    capacity: int
    tags: dict[str, str]
    status: str


class RegionView(Struct, frozen=True, kw_only=True):
    """A country with hubs. The first fields are the SDKs', the others the Terraform client's."""

    name: str
    code: str
    country: str
    available: bool
    hub_count: int
    total_gpus: int
    latency_ms_from_casablanca: float | None
    compliance_frameworks: list[str]
    id: str
    latitude: float
    longitude: float
    sovereignty_default: str
    available_gpu_models: list[str]
    gpu_count: int
    active_workloads: int
    pue: float
    status: str
    # Left out where nobody knows them: 0 would be a claim.
    avg_carbon_intensity: float | UnsetType = UNSET
    carbon_intensity: float | UnsetType = UNSET
    avg_renewable_percentage: float | UnsetType = UNSET
    renewable_percentage: float | UnsetType = UNSET


def hub_view(peer: PeerView, known_since: datetime) -> HubView:
    """`known_since` stands in as creation time for hubs that have never answered."""
    summary = peer.summary
    name = summary.name if summary else peer.hub_id
    region = region_word(summary.country) if summary else "unknown"
    labels = hub_labels(peer)
    created_at = summary.started_at if summary else known_since
    gpus = summary.gpus_total if summary else 0
    return HubView(
        id=peer.hub_id,
        name=name,
        region=region,
        country=summary.country if summary else "",
        tier=TIER,
        status=hub_status(peer),
        standing=hub_standing(peer),
        created_at=created_at,
        metadata=Metadata(
            id=peer.hub_id,
            name=name,
            created_at=created_at,
            updated_at=summary.at if summary else None,
            labels=labels,
            annotations={},
        ),
        spec=HubSpec(
            name=name,
            region=region,
            tier=TIER,
            sovereignty_level=SOVEREIGNTY,
            gpu_types=[capacity.model for capacity in summary.models] if summary else [],
            auto_scale=False,
            min_gpu_count=gpus,
            max_gpu_count=max(1, gpus),
            carbon_aware_scheduling=False,
            labels=labels,
        ),
        capacity=hub_capacity(summary) if summary else UNSET,
        endpoint=peer.url,
        active_workloads=active_workloads(summary),
        provenance=summary.provenance if summary else "",
        reachable=peer.reachable,
        own=peer.own,
        age_s=peer.age_s,
        error=peer.error,
        rtt_ms=peer.rtt_ms,
        via=peer.via,
        summary=summary,
    )


def hub_status(peer: PeerView) -> str:
    """One of the words that the public clients know."""
    return _PUBLIC_STATUS.get(hub_standing(peer), "offline")


def hub_standing(peer: PeerView) -> str:
    return peer.summary.status if peer.reachable and peer.summary else peer.reach.value


def hub_labels(peer: PeerView) -> dict[str, str]:
    if peer.summary is None:
        return {}
    return {
        "country": peer.summary.country,
        "grid_zone": peer.summary.grid_zone,
        "provenance": peer.summary.provenance,
    }


def hub_capacity(summary: HubSummary) -> HubCapacity:
    """Whole cores, rounded down. Storage is not counted per workload, so all of it shows as available."""
    return HubCapacity(
        total_gpus=summary.gpus_total,
        available_gpus=summary.gpus_free,
        total_cpu_cores=int(summary.cpus_total),
        available_cpu_cores=int(summary.cpus_free),
        total_memory_gb=summary.memory_gb_total,
        available_memory_gb=summary.memory_gb_free,
        total_storage_gb=summary.storage_gb_total,
        available_storage_gb=summary.storage_gb_total if summary.storage_gb_free is None else summary.storage_gb_free,
    )


def active_workloads(summary: HubSummary | None) -> int:
    return sum(summary.workloads.values()) if summary else 0


def terraform_hub(peer: PeerView) -> TerraformHub:
    summary = peer.summary
    return TerraformHub(
        id=peer.hub_id,
        name=summary.name if summary else peer.hub_id,
        region=region_word(summary.country) if summary else "",
        sovereignty=SOVEREIGNTY,
        capacity=summary.gpus_total if summary else 0,
        tags=hub_labels(peer),
        status=hub_status(peer),
    )


def region_views(peers: list[PeerView], powers: Iterable[HubPower] = ()) -> list[RegionView]:
    """One per country, in the order of the hubs. Hubs that have never answered have no country yet."""
    known = {power.hub_id: power for power in powers}
    by_country: dict[str, list[tuple[PeerView, HubSummary]]] = {}
    for peer in peers:
        if peer.summary:
            by_country.setdefault(peer.summary.country, []).append((peer, peer.summary))
    return [_region_view(country, hubs, known) for country, hubs in by_country.items()]


def _region_view(country: str, hubs: list[tuple[PeerView, HubSummary]], powers: Mapping[str, HubPower]) -> RegionView:
    reported = [powers[peer.hub_id] for peer, _ in hubs if peer.hub_id in powers]
    grid = _mean(reported, "grid-average-lifecycle", 1.0)
    renewable = _mean(reported, "renewable-share", 100.0)
    summaries = [summary for _, summary in hubs]
    gpus = sum(summary.gpus_total for summary in summaries)
    available = any(hub_status(peer) == "ready" for peer, _ in hubs)
    code = region_word(country)
    return RegionView(
        name=COUNTRIES[country],
        code=code,
        country=country,
        available=available,
        hub_count=len(hubs),
        total_gpus=gpus,
        latency_ms_from_casablanca=None,
        compliance_frameworks=[],
        id=code,
        latitude=sum(summary.latitude for summary in summaries) / len(hubs),
        longitude=sum(summary.longitude for summary in summaries) / len(hubs),
        sovereignty_default=SOVEREIGNTY,
        available_gpu_models=sorted({capacity.model for summary in summaries for capacity in summary.models}),
        gpu_count=gpus,
        active_workloads=sum(active_workloads(summary) for summary in summaries),
        pue=sum(summary.pue for summary in summaries) / len(hubs),
        status="available" if available else "unavailable",
        avg_carbon_intensity=grid,
        carbon_intensity=grid,
        avg_renewable_percentage=renewable,
        renewable_percentage=renewable,
    )


def _mean(powers: Iterable[HubPower], signal: str, factor: float) -> float | UnsetType:
    values = [value for power in powers if (value := power.figure(signal).value) is not None]
    return factor * sum(values) / len(values) if values else UNSET
