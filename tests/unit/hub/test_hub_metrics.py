"""A hub's page of metrics has figures of its links, under names that do not change by accident."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harch.federation.identity.members import Address
from harch.federation.links.mesh import LinkStatus
from harch.hub.metrics import DAMAGE_EVERY_S, PIPELINE_GAUGES, WORKER_COUNTERS, HubMetrics
from harch.hub.views import PeerReach, PeerView

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def summary() -> Any:
    raise AssertionError("not asked for here")


def hub_metrics() -> HubMetrics:
    metrics = HubMetrics(lambda: NOW)
    metrics.watch_summary(summary)
    return metrics


def test_links_are_told_by_peer() -> None:
    metrics = hub_metrics()
    link = LinkStatus(
        hub_id="dakar",
        address=Address("127.0.0.1", 7724),
        up=True,
        trouble="",
        rtt_ms=35.5,
        features=(),
        bytes_sent=10,
        bytes_received=20,
        messages_sent=1,
        messages_received=2,
        messages_refused=3,
    )
    metrics.watch_links(lambda: [link])
    page = metrics.exposition().decode()
    assert 'harch_link_rtt_ms{peer="dakar"} 35.5' in page
    assert 'harch_link_messages_refused_total{peer="dakar"} 3.0' in page
    assert 'harch_link_up{peer="dakar"} 1.0' in page


def test_figures_that_name_pipelines_are_told_apart_and_name_their_tenant() -> None:
    metrics = hub_metrics()
    metrics.watch_pipelines(lambda: {("valves", "think", "acme"): dict.fromkeys(PIPELINE_GAUGES, 7.0)})
    shown = b'harch_pipeline_lag{pipeline="valves",stage="think",tenant="acme"} 7.0'
    assert shown not in metrics.exposition()
    assert shown in metrics.exposition(of_tenants=True)
    page = metrics.exposition(openmetrics=True, of_tenants=True)
    assert shown in page
    assert page.count(b"# EOF") == 1
    assert page.endswith(b"# EOF\n")


def test_files_that_were_set_aside_are_counted_and_sentinels_own_are_not(tmp_path: Path) -> None:
    now_s, metrics = 0.0, hub_metrics()
    metrics.watch_damage(tmp_path, lambda: now_s)
    assert "harch_damaged_files 0.0" in metrics.exposition().decode()
    for name in ("hub.db-wal.damaged", "sentinel/00000001.damaged", "tasks/of-a-user.damaged"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert "harch_damaged_files 0.0" in metrics.exposition().decode(), "not every scrape looks through the folder"
    now_s += DAMAGE_EVERY_S
    assert "harch_damaged_files 1.0" in metrics.exposition().decode()


def test_of_other_hubs_it_is_told_whether_they_live_and_nothing_else() -> None:
    metrics = hub_metrics()
    views = [
        PeerView(hub_id=reach.name.lower(), url="u", reachable=False, age_s=None, summary=None, reach=reach)
        for reach in PeerReach
    ]
    metrics.watch_peers(lambda: views)
    lines = [line for line in metrics.exposition().decode().splitlines() if line.startswith("harch_peer_alive{")]
    assert sorted(lines) == [
        'harch_peer_alive{peer="cut_off"} 1.0',
        'harch_peer_alive{peer="linked"} 1.0',
        'harch_peer_alive{peer="suspected"} 0.0',
        'harch_peer_alive{peer="unheard"} 0.0',
    ]


def test_when_something_alarming_happened_last_is_known_over_a_restart() -> None:
    metrics = hub_metrics()
    metrics.remember({"audit.contradicted": NOW - timedelta(hours=1), "workload.running": NOW})
    metrics.count("sovereignty.violation")
    metrics.count("workload.running")
    page = metrics.exposition().decode()
    at_s = NOW.timestamp()
    told = {
        line.split('"')[1]: float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("harch_event_last_seconds{")
    }
    assert told == {"audit.contradicted": at_s - 3600, "sovereignty.violation": at_s}


def test_what_workers_lose_is_counted_by_worker() -> None:
    metrics = hub_metrics()
    counts = {("valves", "think", "acme", name): dict.fromkeys(WORKER_COUNTERS, n) for name, n in (("a", 3), ("b", 4))}
    metrics.watch_workers(lambda: counts)
    page = metrics.exposition(of_tenants=True).decode()
    for name, count in (("a", 3), ("b", 4)):
        labels = f'pipeline="valves",stage="think",tenant="acme",worker="{name}"'
        assert f"harch_pipeline_worker_dropped_total{{{labels}}} {count}.0" in page
    assert "harch_pipeline_worker" not in metrics.exposition().decode()
