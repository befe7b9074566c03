"""Which hosts would a pipeline connect to? All of its sinks and sources, as their clients read the addresses."""

from __future__ import annotations

from collections.abc import Mapping

from harch.base.hosts import NamedHost, read_host
from harch.pipelines.act.sinks.addresses import sink_hosts
from harch.pipelines.sense.source_settings import MqttSource
from harch.pipelines.spec.places import PipelineHosts
from harch.pipelines.spec.settings import PipelineSpec


def hosts_of(spec: PipelineSpec, variables: Mapping[str, str] | None = None) -> PipelineHosts:
    """`variables`: secrets that addresses may stand in. Raises E0776 where a package that reads one is missing."""
    known = variables or {}
    return PipelineHosts(
        sinks={name: sink_hosts(sink, known) for name, sink in (spec.act.sinks if spec.act else {}).items()},
        sources={source.name: (_broker(source),) for source in spec.sense.sources if isinstance(source, MqttSource)},
    )


def _broker(source: MqttSource) -> NamedHost:
    try:
        return NamedHost(field="host", host=read_host(source.host))
    except ValueError as error:
        return NamedHost(field="host", problem=str(error))
