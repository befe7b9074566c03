"""In which country does a sink stand? As its settings say, or at the hub itself if its address cannot leave it."""

from __future__ import annotations

import re

from harch.pipelines.act.settings import HttpSink, ModbusSink, MqttSink, NatsSink, SinkSettings, SqlSink

_LOOPBACK = re.compile(r"^(localhost|127(\.\d{1,3}){3}|\[?::1\]?)$")
_HOST = re.compile(r"^[a-z]+://(?:[^@/]*@)?(\[[^\]]*\]|[^:/?]+)")


def sink_place(sink: SinkSettings) -> str | None:
    """A country; empty for the hub's own machine; None if nobody said and it may be anywhere."""
    if sink.country:
        return sink.country
    match sink:
        case HttpSink(url=url) | NatsSink(url=url):
            found = _HOST.match(url)
            return _local(found[1] if found else "")
        case SqlSink(url=url):
            found = _HOST.match(url)
            return "" if url.startswith("sqlite:///") else _local(found[1] if found else "")
        case MqttSink(host=host) | ModbusSink(host=host):
            return _local(host)


def _local(host: str) -> str | None:
    return "" if _LOOPBACK.match(host) else None
