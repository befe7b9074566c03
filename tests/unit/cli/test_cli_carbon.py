"""`harch carbon`: nothing estimated is shown without saying so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result
from hub_double import HubDouble

Harch = Callable[..., Result]


AT = "2026-01-01T00:00:00Z"


def figure(signal: str, value: float | None, **more: Any) -> dict[str, Any]:
    base = {
        "signal": signal,
        "value": value,
        "evidence": "estimated",
        "source": "modelled",
        "at": AT,
    }
    return base | more


def power(*readings: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"hub_id": "dakhla", "grid_zone": "MA", "marginal_g_per_kwh": 756.0, "marginal_rests_on": "the grid"}
    return base | {"at": AT, "figures": readings} | more


GRID = figure("grid-average-lifecycle", 630.0, unit="g/kWh", note="yearly mean")
FAILING = {"source": "maps", "rule": "failing", "detail": "answers 500"}


def show(hub: HubDouble, *views: dict[str, Any]) -> None:
    hub.on("GET /carbon/now", {"items": views, "total": len(views)})


def test_now_shows_figures_with_provenance_and_hubs_that_are_silent(hub: HubDouble, harch: Harch) -> None:
    show(hub, {"hub_id": "dakhla", "own": True, "age_s": 4, "power": power(GRID)}, {"hub_id": "dakar", "error": "gone"})
    done = harch("carbon", "now")
    assert done.exit_code == 0, done.output
    line = next(line for line in done.stdout.splitlines() if line.startswith("dakhla *"))
    for words in ("630 g/kWh", "estimated", "756 g/kWh (estimated)", "unknown", "4.0 s", "modelled: yearly mean"):
        assert words in line
    assert "gone" in done.stdout
    assert harch("carbon", "now", "--sort", "-grid", "--columns", "hub", "--no-headers").stdout == "dakhla *\ndakar\n"
    assert harch("carbon", "now", "-o", "name").stdout == "dakhla\ndakar\n"


def test_own_plants_are_measured_only_if_all_that_run_are(hub: HubDouble, harch: Harch) -> None:
    pv, wind = figure("pv-power", 80.0, evidence="measured"), figure("wind-power", 20.0)
    still = figure("wind-power", 0.0)
    for plants, words in (((pv, wind), "100 kW (estimated)"), ((pv, still), "100 kW (measured)")):
        show(hub, {"hub_id": "dakhla", "power": power(GRID, *plants, onsite_kw=100.0)})
        assert words in harch("carbon", "now").stdout


def test_a_source_that_fails_is_named_and_details_show_every_signal(hub: HubDouble, harch: Harch) -> None:
    show(
        hub,
        {"hub_id": "dakhla", "power": power(GRID | {"not_used": [FAILING]}, figure("price", None, note="no source"))},
    )
    assert "not maps (failing): answers 500" in harch("carbon", "now").stderr
    details = harch("carbon", "now", "--details").stdout
    for words in ("one more kWh, estimated: the grid", "not maps (failing): answers 500", "price: no value; no source"):
        assert words in details


def test_json_is_the_answer_and_nothing_else(hub: HubDouble, harch: Harch) -> None:
    show(hub, {"hub_id": "dakhla", "power": power(GRID)})
    assert json.loads(harch("carbon", "now", "--json").stdout)["items"][0]["power"]["figures"][0]["value"] == 630


def forecast(**more: Any) -> dict[str, Any]:
    hour = {"at": "2026-01-01T05:00:00Z", "g_per_kwh": 400, "low": 300, "high": 520, "low_half": 380, "high_half": 430}
    base = {"hub_id": "dakar", "grid_zone": "SN", "hours": [hour], "model": "persistence", "evidence": "estimated"}
    return base | {"made_at": AT} | more


def test_a_forecast_has_intervals_and_its_errors_beside_the_naive_ones(hub: HubDouble, harch: Harch) -> None:
    errors = {"error_days": 30, "error_pct_by_day": [4.2, 6.0], "persistence_error_pct_by_day": [8.0, 9.9]}
    hub.on("GET /carbon/forecast", forecast(**errors))
    done = harch("carbon", "forecast", "--hub", "dakar", "--hours", "1")
    assert "300 to 520" in done.stdout
    assert "last 30 days, by day ahead: 4.2 %, 6.0 %; yesterday's value again: 8.0 %, 9.9 %" in done.stderr
    assert hub.asked[-1].params == {"hub": "dakar", "hours": "1"}


def test_an_error_that_nobody_knows_is_not_shown_as_none(hub: HubDouble, harch: Harch) -> None:
    hub.on("GET /carbon/forecast", forecast())
    assert "error: unknown" in harch("carbon", "forecast").stderr


def totals(**more: Any) -> dict[str, Any]:
    base = {
        "name": "acme",
        "energy_kwh": 2.0,
        "grid_kwh": 1.5,
        "onsite_kwh": 0.5,
        "ppa_kwh": 0.0,
        "estimated_share": 1.0,
        "scope2_location_based_kgco2e": 0.9,
        "scope2_market_based_kgco2e": 1.1,
        "onsite_kgco2e": 0.01,
        "saved": None,
    }
    return base | more


SAVED = {
    "location_with_onsite_kgco2e": 0.3,
    "naive_location_with_onsite_kgco2e": 1.2,
    "estimated": True,
    "methods": ["naive-1"],
}
FACTOR = {
    "use": "grid",
    "source": "modelled",
    "kind": "average, lifecycle, location",
    "evidence": "estimated",
    "note": "yearly mean",
    "g_per_kwh_min": 600.0,
    "g_per_kwh_max": 600.0,
}


WORKLOAD = {
    "id": "wl_1",
    "name": "job",
    "type": "batch",
    "status": "running",
    "metadata": {"id": "wl_1", "name": "job", "created_at": "2026-01-02T03:04:05Z", "labels": {}},
    "spec": {"name": "job", "command": ["true"]},
    "hub_id": "dakhla",
    "tenant": "default",
}


def plain(*lines: dict[str, Any], total: dict[str, Any]) -> dict[str, Any]:
    return {"lines": lines, "total": total, "factors": [FACTOR], "energy_methods": ["modelled power"]}


def hubs(hub: HubDouble) -> None:
    own = {"id": "dakhla", "name": "Dakhla", "own": True, "reachable": True, "endpoint": hub.url}
    gone = {"id": "dakar", "name": "Dakar", "own": False, "reachable": False, "error": "suspected"}
    hub.on("GET /hubs", {"items": [own, gone], "total": 2, "pagination": {}})


def test_a_report_keeps_methods_apart_says_what_is_estimated_and_who_is_missing(hub: HubDouble, harch: Harch) -> None:
    hubs(hub)
    report = plain(totals(saved=SAVED), total=totals(saved=SAVED))
    answer = {"hub_id": "dakhla", "at": AT, "not_booked_kwh": 0.25, "report": report, "csv": "h\n1\n"}
    hub.on("GET /carbon/report", answer)
    done = harch("carbon", "report", "--month", "2026-03")
    assert done.exit_code == 0, done.output
    line = next(line for line in done.stdout.splitlines() if line.startswith("acme"))
    for words in ("2 kWh", "900 g", "1.1 kg", "100%", "300 g (estimated)"):
        assert words in line
    for words in (
        "600 g/kWh (average, lifecycle, location) [estimated, modelled; yearly mean]",
        "0.25 kWh",
        "suspected",
    ):
        assert words in done.stderr
    asked = next(one for one in hub.asked if one.path == "/carbon/report")
    assert asked.params == {"by": "tenant", "month": "2026-03"}


def test_a_report_as_csv_names_the_hub_of_each_line_and_as_json_who_is_silent(hub: HubDouble, harch: Harch) -> None:
    hubs(hub)
    report = {"hub_id": "dakhla", "at": AT, "report": plain(total=totals()), "csv": "name,kwh\nacme,2\n"}
    hub.on("GET /carbon/report", report)
    assert harch("carbon", "report", "--csv").stdout == "hub,name,kwh\ndakhla,acme,2\n"
    answer = json.loads(harch("carbon", "report", "--json").stdout)
    assert (answer["items"][0]["hub_id"], answer["silent_hubs"][0]["hub_id"]) == ("dakhla", "dakar")


def test_why_shows_the_power_the_naive_choice_and_what_all_rests_on(hub: HubDouble, harch: Harch) -> None:
    hubs(hub)
    hub.on("GET /workloads/job", WORKLOAD)
    piece = {
        "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-01T00:05:00Z",
        "kwh": 2.0,
        "g": 910.0,
        "grid_g_per_kwh": 600.0,
    }
    known = piece | {"naive_g": 1200.0, "naive_home": "dakar", "grid_evidence": "estimated", "booked": False}
    lost = piece | {"naive_missing": "the conditions at dakar are not known"}
    for shown, saved, words in ((known, SAVED, "1.2 kg at dakar"), (lost, None, "not known; the conditions at dakar")):
        answer = {"workload_id": "wl_1", "hub_id": "dakhla", "pieces": [shown], "pieces_total": 1}
        hub.on("GET /carbon/why/wl_1", answer | {"report": plain(total=totals(saved=saved))})
        done = harch("carbon", "why", "job")
        assert done.exit_code == 0, done.output
        assert "job at dakhla: 2 kWh, 100% estimated" in done.stdout
        assert words in done.stdout
    hub.on("GET /carbon/why/wl_1", {"workload_id": "wl_1", "hub_id": "dakhla", "report": {}})
    assert "has no recorded energy use yet" in harch("carbon", "why", "job").stdout
