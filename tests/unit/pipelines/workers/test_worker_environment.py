"""No variable of its environment leads a worker's connections elsewhere."""

from __future__ import annotations

from harch.pipelines.workers.__main__ import forget_what_leads_elsewhere


def test_proxies_and_defaults_of_libpq_are_forgotten_and_nothing_else() -> None:
    leading = ("http_proxy", "HTTPS_PROXY", "all_proxy", "mqtt_proxy", "NO_PROXY", "PGHOST", "PGHOSTADDR", "PGSERVICE")
    kept = {"PATH": "/bin", "PGPASSFILE": "/p", "VALVE_KEY": "k", "PYTHONPATH": "."}
    environment = {**dict.fromkeys(leading, "10.77.0.1"), **kept}
    forget_what_leads_elsewhere(environment)
    assert environment == kept
