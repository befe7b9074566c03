"""A look at a small federation."""

from __future__ import annotations

from datetime import UTC, datetime

from harch.cli.live_screen.snapshot import (
    AlertLine,
    EventLine,
    FederationSnapshot,
    HubLine,
    Missing,
    PipelineLine,
    WorkLine,
)

AT = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)


def hub(name: str, country: str, *, used: int, total: int, state: str = "ready", **more: object) -> HubLine:
    fields: dict[str, object] = {
        "id": name.lower(),
        "name": name,
        "country": country,
        "state": state,
        "own": name == "Dakhla",
        "age_s": 0.5,
        "gpus_total": total,
        "gpus_free": total - used,
        "gpus_are": "modelled",
        "running": used // 8,
        "waiting": 1,
        "power_kw": float(total) / 3,
        "power_is": "modelled",
        "g_per_kwh": float(total),
        "carbon_is": "estimated",
        "telemetry_lag_s": 4.0,
    }
    return HubLine(**{**fields, **more})  # type: ignore[arg-type]


def work(name: str, gpus: float, status: str = "running") -> WorkLine:
    return WorkLine(
        id=f"wl_{name}",
        name=name,
        tenant="acme",
        owner="dakhla",
        runner="dakar" if status == "running" else "",
        status=status,
        gpus=gpus,
        modelled=False,
        ran_s=90.0 if status == "running" else None,
    )


LOOK = FederationSnapshot(
    at=AT,
    seen_from="dakhla",
    hubs=(
        hub("Dakhla", "MA", used=64, total=640),
        hub("Dakar", "SN", used=200, total=214),
        hub("Abidjan", "CI", used=0, total=160, state="suspected", note="suspected: silent for 9 s", power_kw=None),
    ),
    workloads=(work("small", 1), work("waits", 64, "pending"), work("large", 32)),
    workloads_total=3,
    pipelines=(
        PipelineLine(name="fields", hub="dakar", state="running", workers="4/4", rate=120_000, lag=3, p99_ms=8.25),
    ),
    alerts=(
        AlertLine(hub="dakar", name="DiskNearlyFull", severity="warning", since="2026-03-01T12:00:00Z", summary="90 %"),
    ),
    events=tuple(
        EventLine(hub="dakhla", at=AT, kind="workload.running", subject=f"wl_{number}", message="runs \x1b[31mhere")
        for number in range(30)
    ),
    missing=(
        Missing(hub="abidjan", what="workloads", why="suspected"),
        Missing(hub="dakar", what="alerts", why="E0802: no SENTINEL answers at http://127.0.0.1:7714: refused"),
        Missing(hub="dakhla", what="telemetry", why="E0802: no SENTINEL answers at http://127.0.0.1:7711: refused"),
    ),
)
