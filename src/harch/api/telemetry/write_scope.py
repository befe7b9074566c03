"""What may a caller write? Operators anything, agents what is about themselves, users nothing in HarchOS's own name.

Rules run over the tenant `default`: whoever could write `up{job="harchos"}` there would forge an alert as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from harch.api.telemetry.access import Caller
from harch.api.telemetry.permissions import Role
from harch.base.errors import HarchError
from harch.base.tenants import DEFAULT_TENANT
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.model.spans import Span
from harch.sentinel.store.ingest.judging import Judge

OWN = "harchos"  # how jobs and services of HarchOS begin
AGENT_SERIES = frozenset({"harchos-node", "harchos-gpu", "harchos-workload"})
AGENT_STREAMS = frozenset({"harchos-agent", "harchos-task"})
_PREFIXES = ("harch_", "harchos_")
_NAMES = frozenset(
    {
        "ALERTS",
        "ALERTS_FOR_STATE",
        "carbon_emissions_grams",
        "carbon_intensity_forecast_gco2_kwh",
        "carbon_intensity_gco2_kwh",
        "carbon_savings_grams",
        "energy_consumption_watts",
        "energy_renewable_percent",
        "sovereignty_compliance",
    }
)


def series_judge(caller: Caller, tenant: str) -> Judge | None:
    """For samples. None: whatever the caller writes is its own."""
    if caller.role is Role.AGENT:
        return Judge(lambda own: _of_agent(caller, own, "instance", AGENT_SERIES))
    return None if _is_free(caller, tenant) else Judge(_reserved, markers=(b"harch", *(one.encode() for one in _NAMES)))


def check_stream(caller: Caller, tenant: str, stream: Labels) -> None:
    """For lines. Raises E0103."""
    own = dict(stream)
    if caller.role is Role.AGENT:
        _of_agent(caller, own, "agent", AGENT_STREAMS)
    elif not _is_free(caller, tenant) and (why := _reserved(own)):
        raise HarchError("E0103", why, hint="use another `job`, or a key of a tenant of your own")


def check_span(caller: Caller, tenant: str, span: Span) -> None:
    """For spans. Raises E0103."""
    if caller.role is Role.AGENT:
        _of_agent(caller, {"agent": str(dict(span.resource).get("agent", "")), "job": span.service}, "agent", _SERVICES)
    elif not _is_free(caller, tenant) and span.service.startswith(OWN):
        hint = "use another `service.name`, or a key of a tenant of your own"
        raise HarchError("E0103", f"spans of `{span.service[:80]}` are written by HarchOS itself", hint=hint)


_SERVICES = frozenset({"harchos-agent"})


def _is_free(caller: Caller, tenant: str) -> bool:
    return caller.is_operator or tenant != DEFAULT_TENANT


def _of_agent(caller: Caller, own: Mapping[str, str], label: str, jobs: frozenset[str]) -> str:
    """Raises E0103 for all of the request: an agent whose hub does not know it yet sends it again."""
    if own.get("job", "") in jobs and own.get(label, "") in caller.agents:
        return ""
    about = f"job `{own.get('job', '')[:80]}` and {label} `{own.get(label, '')[:80]}`"
    hint = "an agent's key sends what is about agents that connected to the hub with it"
    raise HarchError("E0103", f"this key may not send telemetry of {about}", hint=hint)


def _reserved(own: Mapping[str, str]) -> str:
    name, job = own.get(METRIC_NAME, ""), own.get("job", "")
    if job.startswith(OWN):
        return f"`job` `{job[:80]}` is written by HarchOS itself"
    if name.startswith(_PREFIXES) or name in _NAMES:
        return f"`{name[:80]}` is written by HarchOS itself in the operators' tenant"
    return ""
