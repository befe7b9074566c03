"""Which adapters does a pipeline need? One per sink of its settings; packages are imported for those only.

Each has a guard of its own, which judges every address before a connection is made. A sink without one stays at home.
"""

from __future__ import annotations

from collections.abc import Mapping

from harch.base.egress import EgressGuard
from harch.pipelines.act import settings as spec
from harch.pipelines.act.sinks.base import Sink, at_home


def build_sinks(
    settings: spec.ActSettings,
    *,
    guards: Mapping[str, EgressGuard] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Sink]:
    """Opens no connection. Raises E0776 for a missing package or variable."""
    longest_ttl_s = max((action.ttl_s for action in settings.actions), default=0.0)
    known = guards or {}
    return {
        name: _build(sink, known.get(name) or at_home(), longest_ttl_s, environment)
        for name, sink in settings.sinks.items()
    }


async def close_sinks(sinks: Mapping[str, Sink]) -> None:
    for sink in sinks.values():
        await sink.close()


def _build(
    sink: spec.SinkSettings, guard: EgressGuard, longest_ttl_s: float, environment: Mapping[str, str] | None
) -> Sink:
    match sink:
        case spec.HttpSink():
            from harch.pipelines.act.sinks.http import HttpSinkAdapter

            return HttpSinkAdapter(sink, guard=guard, environment=environment)
        case spec.MqttSink():
            from harch.pipelines.act.sinks.mqtt import MqttSinkAdapter

            return MqttSinkAdapter(sink, guard=guard, environment=environment)
        case spec.ModbusSink():
            from harch.pipelines.act.sinks.modbus import ModbusSinkAdapter

            return ModbusSinkAdapter(sink, guard=guard)
        case spec.SqlSink():
            from harch.pipelines.act.sinks.sql import SqlSinkAdapter

            return SqlSinkAdapter(sink, guard=guard, environment=environment)
        case spec.NatsSink():
            from harch.pipelines.act.sinks.nats import NatsSinkAdapter

            return NatsSinkAdapter(sink, longest_ttl_s=longest_ttl_s, guard=guard, environment=environment)
