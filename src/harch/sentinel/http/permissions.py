"""Who may call which route of SENTINEL, and whose telemetry is it about? One table, and nothing is served beside it.

A route that stands in no row cannot be registered: `Routes` refuses to be made. docs/sentinel/api.md shows the same
rows, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from harch.base.errors import HarchError, InvariantBroken

SOCKET = "WEBSOCKET"  # stands for a method in the table


class CallerRole(StrEnum):
    """What a caller is. A SENTINEL that runs alone knows operators only."""

    AGENT = "agent"
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"
    HUB = "hub"  # the hub that this SENTINEL stands beside, with the key that the two share


class AccessScope(Enum):
    """What a call is about."""

    NOTHING = "no tenant data"
    TENANT = "the caller's tenant; any tenant for operators"
    WRITTEN = "the caller's tenant; agents write for the tenants of their tasks"
    ALERTS = "alerts and silences of the caller's tenant; all of them for operators"
    ALL = "everything in this SENTINEL"


OPERATORS = frozenset({CallerRole.OPERATOR, CallerRole.ADMIN, CallerRole.HUB})
_USERS = OPERATORS | {CallerRole.USER}


@dataclass(frozen=True, slots=True)
class Access:
    """`roles` None: whoever reaches the port, without a key."""

    roles: frozenset[CallerRole] | None
    scope: AccessScope
    who: str  # as the documentation says it

    def check(self, role: CallerRole) -> None:
        """Raises E0103."""
        if self.roles is not None and role not in self.roles:
            hint = f"allowed roles: {self.who}"
            raise HarchError("E0103", f"a key with role `{role}` is not allowed to do this", hint=hint)


PUBLIC = Access(None, AccessScope.NOTHING, "anyone")
READ = Access(_USERS | {CallerRole.VIEWER}, AccessScope.TENANT, "viewers, users, operators")
WRITE = Access(_USERS | {CallerRole.AGENT}, AccessScope.WRITTEN, "agents, users, operators")
SEE_ALERTS = Access(_USERS | {CallerRole.VIEWER}, AccessScope.ALERTS, "viewers, users, operators")
CHANGE_ALERTS = Access(_USERS, AccessScope.ALERTS, "users, operators")
OPERATE = Access(OPERATORS, AccessScope.ALL, "operators")
ERASE = Access(OPERATORS, AccessScope.TENANT, "operators")
HUB_ALONE = Access(frozenset({CallerRole.HUB}), AccessScope.ALL, "the local hub")

_GET, _BOTH, _PUT = "GET", "GET POST", "POST PUT"
_LOKI, _OWN = "/loki/api/v1", "/harchos/api/v1"

_ROWS: tuple[tuple[Access, str, tuple[str, ...]], ...] = (
    (PUBLIC, "GET HEAD", ("/-/healthy", "/-/ready", "/ready")),
    # Metrics
    (READ, _BOTH, ("/api/v1/query", "/api/v1/query_range", "/api/v1/format_query", "/api/v1/query_exemplars")),
    (READ, _BOTH, ("/api/v1/labels", "/api/v1/series")),
    (READ, _GET, ("/api/v1/label/{name}/values", "/api/v1/metadata", "/federate", "/version")),
    (READ, _GET, ("/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo", "/api/v1/status/tsdb")),
    (READ, _GET, ("/api/v1/status/walreplay",)),
    (READ, _BOTH, (f"{_OWN}/energy/query", f"{_OWN}/energy/query_range", f"{_OWN}/sovereignty/query")),
    (WRITE, "POST", ("/api/v1/write", "/v1/metrics", "/api/v1/otlp/v1/metrics")),
    (ERASE, _PUT, ("/api/v1/admin/tsdb/delete_series", "/api/v1/admin/tsdb/clean_tombstones")),
    # Logs
    (READ, _BOTH, tuple(f"{_LOKI}/{name}" for name in ("query", "query_range", "format_query", "labels", "label"))),
    (READ, _BOTH, (f"{_LOKI}/label/{{name}}/values", f"{_LOKI}/series", f"{_LOKI}/index/stats")),
    (READ, _BOTH, (f"{_LOKI}/index/volume", f"{_LOKI}/index/volume_range", f"{_LOKI}/patterns")),
    (READ, _BOTH, (f"{_LOKI}/detected_labels", f"{_LOKI}/detected_fields", f"{_LOKI}/detected_field/{{name}}/values")),
    (READ, _GET, (f"{_LOKI}/status/buildinfo", f"{_LOKI}/tail")),
    (READ, SOCKET, (f"{_LOKI}/tail",)),
    (WRITE, "POST", (f"{_LOKI}/push", "/api/prom/push", "/v1/logs", "/otlp/v1/logs")),
    (ERASE, _PUT, (f"{_LOKI}/delete",)),
    # Traces
    (READ, _BOTH, ("/api/traces/search", f"{_OWN}/traces", f"{_OWN}/traces/statistics")),
    (READ, _GET, (f"{_OWN}/traces/{{id}}", f"{_OWN}/traces/{{id}}/otlp", "/api/traces/{id}", "/api/v2/traces/{id}")),
    (READ, _GET, ("/api/echo", "/api/search", "/api/search/tags", "/api/v2/search/tags")),
    (READ, _GET, ("/api/search/tag/{tag}/values", "/api/v2/search/tag/{tag}/values", f"{_OWN}/archive")),
    (WRITE, "POST", ("/v1/traces", "/otlp/v1/traces")),
    (ERASE, "DELETE", (f"{_OWN}/traces",)),
    (ERASE, _PUT, (f"{_OWN}/erasures/purge",)),
    # Alerts: those with a label `tenant` are that tenant's, all others are the operators'
    (SEE_ALERTS, _GET, ("/api/v1/alerts", "/api/v2/alerts", "/api/v2/alerts/groups")),
    (SEE_ALERTS, _GET, ("/api/v2/silences", "/api/v2/silence/{id}", f"{_OWN}/alerts/{{fingerprint}}/around")),
    (CHANGE_ALERTS, "POST", ("/api/v2/silences", "/api/v2/alert/{id}/ack")),
    (CHANGE_ALERTS, "DELETE", ("/api/v2/silence/{id}",)),
    (OPERATE, "POST", ("/api/v2/alerts",)),
    # How SENTINEL is set up
    (OPERATE, _GET, ("/api/v1/rules", "/api/v1/targets", "/api/v1/scrape_pools", "/api/v2/receivers")),
    (OPERATE, _GET, ("/api/v1/status/flags", "/api/v1/status/config", "/api/v1/status/redaction", "/api/v2/status")),
    (OPERATE, _GET, ("/metrics", "/api/v1/targets/metadata")),
    (OPERATE, _PUT, ("/-/reload",)),
    (HUB_ALONE, "POST", (f"{_OWN}/federated/answer",)),
)

Table = Mapping[tuple[str, str], Access]  # by method and path

ACCESS: Table = {
    (method, path): access for access, methods, paths in _ROWS for path in paths for method in methods.split()
}


def allowed(table: Table, method: str, path: str) -> Access:
    """Raises InvariantBroken: what nobody decided about is open to nobody, and that is found at the start."""
    access = table.get((method, path))
    if access is None:
        raise InvariantBroken("every route of SENTINEL declares who may call it", method, path)
    return access
