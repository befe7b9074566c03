"""Does a hub show what its listeners refuse?"""

from __future__ import annotations

from harch.base.listen.gate import Gates, ListenLimits
from harch.hub.metrics import HubMetrics


def test_what_listeners_hold_and_refuse_is_counted_by_listener_and_reason() -> None:
    gates = Gates(ListenLimits(connections_max=8))
    metrics = HubMetrics(lambda: None)  # type: ignore[arg-type]
    metrics.watch_listeners(gates)
    gates.gate("api").refuse("head_large", "10.0.0.1")
    gates.gate("api").admit("10.0.0.1", lambda: None)
    gates.gate("peers")
    lines = [line for line in metrics.exposition().decode().splitlines() if line.startswith("harch_listener")]
    assert sorted(lines) == [
        'harch_listener_connections_max{listener="api"} 8.0',
        'harch_listener_connections_max{listener="peers"} 8.0',
        'harch_listener_connections{listener="api"} 1.0',
        'harch_listener_connections{listener="peers"} 0.0',
        'harch_listener_refused_total{listener="api",reason="head_large"} 1.0',
    ]
