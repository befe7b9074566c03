"""What does a hub say of itself in the gossip? What hardly ever changes once, what changes often in few bytes.

Other signals of a hub (carbon, price) get keys of their own: whoever knows them reads them, others pass them on.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from harch.federation.gossip.news import HubView
from harch.hub.carbon.views import GridForecast, HubPower
from harch.hub.views import HubSummary, ModelCapacity, NodeMaxima

FIXED, NOW, POLICY = "hub.fixed", "hub.now", "policy"
# Power and price now, every half minute; the forecast, every hour; what is to start at other hubs, with every plan.
CARBON, CARBON_AHEAD, CARBON_PLAN = "carbon", "carbon.ahead", "carbon.plan"
CARBON_SPENT = "carbon.spent"  # of tenants' budgets, where the hub has any


class FixedModel(Struct, frozen=True, array_like=True, gc=False):
    model: str
    memory_gb: int
    total: int
    gpus_per_node_max: int


class HubFixed(Struct, frozen=True, kw_only=True):
    """Changes with the fleet file, the version, or a restart."""

    name: str
    country: str
    grid_zone: str
    latitude: float
    longitude: float
    pue: float
    provenance: str
    version: str
    started_at: datetime
    url: str
    gpus_total: int
    models: tuple[FixedModel, ...]
    node_max: NodeMaxima
    nodes_total: int
    cpus_total: float
    memory_gb_total: float
    storage_gb_total: float
    counts_gpu_memory: bool = False


class HubNow(Struct, frozen=True, array_like=True):
    """Without names and without the time, which would make it different at every look; new fields go to the end."""

    status: str
    status_detail: str
    gpus_free: int
    gpus_allocated: int
    models: tuple[tuple[int, list[int]], ...]  # free, and nodes by free GPUs; in the order of `HubFixed.models`
    nodes_up: int
    cpus_free: float
    memory_gb_free: float
    process_slots_total: int
    process_slots_free: int
    workloads: dict[str, int]
    agents: int
    storage_gb_free: float | None = None
    lent: dict[str, int] = {}
    guests: dict[str, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_fixed = msgspec.msgpack.Decoder(HubFixed).decode
_now = msgspec.msgpack.Decoder(HubNow).decode
_power = msgspec.msgpack.Decoder(HubPower).decode
_forecast = msgspec.msgpack.Decoder(GridForecast).decode


def said_by(summary: HubSummary, *, policy_version: str) -> dict[str, bytes]:
    """The entries of this hub's state."""
    fixed = HubFixed(
        models=tuple(FixedModel(m.model, m.memory_gb, m.total, m.gpus_per_node_max) for m in summary.models),
        **{name: getattr(summary, name) for name in HubFixed.__struct_fields__ if name != "models"},
    )
    now = HubNow(
        models=tuple((m.free, m.free_shapes) for m in summary.models),
        **{name: getattr(summary, name) for name in HubNow.__struct_fields__ if name != "models"},
    )
    return {FIXED: _encode(fixed), NOW: _encode(now), POLICY: policy_version.encode()}


def power_said(power: HubPower | None, forecast: GridForecast | None) -> dict[str, bytes]:
    """The entries about power; what is not known yet has none."""
    said = {CARBON: power, CARBON_AHEAD: forecast}
    return {key: _encode(value) for key, value in said.items() if value is not None}


def power_heard(said: bytes | None) -> HubPower | None:
    """None if the hub has not said it, or in words that this version does not know."""
    try:
        return None if said is None else _power(said)
    except msgspec.DecodeError:
        return None


def forecast_heard(said: bytes | None) -> GridForecast | None:
    try:
        return None if said is None else _forecast(said)
    except msgspec.DecodeError:
        return None


class Summaries:
    """The summaries of other hubs, put together again. Each is decoded once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, bytes, HubSummary | None]] = {}

    def of(self, view: HubView, heard_at: datetime) -> HubSummary | None:
        """None until both parts have come, or if they cannot be read: a hub of another version may say more or less.

        `heard_at` is when it last gave a sign of life, by this hub's clock: until then what it said was true.
        """
        fixed, now = view.values.get(FIXED), view.values.get(NOW)
        if fixed is None or now is None:
            return None
        known = self._read.get(view.hub)
        if known is None or known[0] != fixed or known[1] != now:
            known = self._read[view.hub] = (fixed, now, _joined(view.hub, fixed, now, heard_at))
        summary = known[2]
        return msgspec.structs.replace(summary, at=heard_at) if summary is not None else None

    def forget(self, hub_id: str) -> None:
        self._read.pop(hub_id, None)


def _joined(hub_id: str, fixed_bytes: bytes, now_bytes: bytes, at: datetime) -> HubSummary | None:
    try:
        fixed, now = _fixed(fixed_bytes), _now(now_bytes)
    except msgspec.DecodeError:
        return None
    models = [
        ModelCapacity(
            model=model.model,
            memory_gb=model.memory_gb,
            total=model.total,
            free=free,
            gpus_per_node_max=model.gpus_per_node_max,
            free_shapes=shapes,
        )
        for model, (free, shapes) in zip(fixed.models, now.models, strict=False)
    ]
    facts = {name: getattr(fixed, name) for name in HubFixed.__struct_fields__}
    facts |= {name: getattr(now, name) for name in HubNow.__struct_fields__}
    return HubSummary(**facts | {"hub_id": hub_id, "at": at, "models": models})
