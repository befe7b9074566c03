"""Is `--plot` a flag or the name of a picture, and is what it writes one?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result
from hub_double import HubDouble
from test_cli_energy import STEP, plan

from harch.base.errors import HarchError
from harch.cli.plot import spelled_out
from harch.cli.telemetry.alert_view import panels_of
from harch.cli.views.chart import ChartCurve, ChartPanel
from harch.cli.views.plot_file import write_plot

Harch = Callable[..., Result]
PRICES = {
    "hub_id": "dakhla",
    "made_at": STEP["at"],
    "currency": "USD",
    "modelled": True,
    "contract": "c",
    "steps": [{"at": f"2026-01-01T0{hour}:00:00Z", "total_per_mwh": 100 + hour} for hour in range(6)],
}
CURVE = [(1_790_000_000.0 + 60 * step, float(step)) for step in range(60)]
PANEL = ChartPanel([ChartCurve("cost in $", CURVE), ChartCurve("other", CURVE)], "a $ title", "USD", "price")


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        (["--plot", "up"], ["--plot=terminal", "up"]),
        (["up", "--plot"], ["up", "--plot=terminal"]),
        (["--plot", "a.PNG", "up"], ["--plot", "a.PNG", "up"]),
        (["--plot", "a.pdf"], ["--plot", "a.pdf"]),
        (["--plot=a.svg"], ["--plot=a.svg"]),
        (["--", "--plot"], ["--", "--plot"]),
    ],
)
def test_the_word_after_plot_is_a_file_only_if_it_is_called_like_a_picture(
    words: list[str], understood: list[str]
) -> None:
    assert spelled_out(words) == understood


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_of_the_kind_its_name_says(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"curve.{suffix}"
    write_plot(path, [PANEL, ChartPanel([], why_empty="there is no metric `x`")], title="t", note="estimated")
    begin = path.read_bytes()[:200]
    assert begin.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in begin


def test_the_same_curves_make_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_plot(tmp_path / name, [PANEL])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_without_matplotlib_the_error_says_what_to_install(
    harch: Harch, hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harch.cli.views.plot_file.find_spec", lambda _name: None)
    hub.on("GET /energy/prices", PRICES)
    done = harch("energy", "prices", "--plot", str(tmp_path / "a.png"))
    assert done.exit_code == 2
    assert "pip install 'harch[plots]'" in done.stderr
    with pytest.raises(HarchError, match="matplotlib"):
        write_plot(tmp_path / "a.png", [PANEL])
    assert harch("energy", "prices", "--plot").exit_code == 0


def test_other_kinds_of_files_and_folders_that_are_not_there_are_refused_at_once(harch: Harch, tmp_path: Path) -> None:
    """Without a hub: nothing has been asked for."""
    other = harch("energy", "prices", "--plot", "a.pdf")
    assert other.exit_code == 2
    assert "`a.pdf` is not a .png or .svg file" in other.stderr
    nowhere = harch("energy", "prices", "--plot", str(tmp_path / "nowhere" / "a.png"))
    assert nowhere.exit_code == 2
    assert "check the folder" in nowhere.stderr


def test_prices_and_plans_become_pictures_and_say_that_they_are_modelled(
    harch: Harch, hub: HubDouble, tmp_path: Path
) -> None:
    hub.on("GET /energy/prices", PRICES)
    hub.on("GET /energy/plan", plan(modelled=True))
    for verb in ("prices", "plan"):
        path = tmp_path / f"{verb}.svg"
        done = harch("energy", verb, "--plot", str(path))
        assert done.exit_code == 0, done.output
        assert f"wrote {path}" in done.stderr
        assert path.is_file()
    assert harch("energy", "prices", "--plot", str(path), "--json").stdout.startswith("{")


def test_prices_are_drawn_in_the_terminal_with_times_and_names(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /energy/prices", PRICES)
    shown = harch("energy", "prices", "--plot").stdout
    assert "(MODELLED)" in shown
    assert "1 Jan UTC" in shown
    assert "● total  105 USD/MWh" in shown


def test_a_forecast_is_drawn_with_its_interval_and_is_called_estimated(harch: Harch, hub: HubDouble) -> None:
    hours = [
        {"at": f"2026-01-01T0{hour}:00:00Z", "g_per_kwh": 600 + hour, "low": 400, "high": 900, "onsite_kw": 5.0}
        for hour in range(6)
    ]
    answer = {"hub_id": "dakhla", "grid_zone": "MA", "made_at": STEP["at"], "hours": hours, "model": "level"}
    hub.on("GET /carbon/forecast", answer)
    done = harch("carbon", "forecast", "--plot")
    assert "9 of 10: high  900 g/kWh" in done.stdout
    assert "on-site power" in done.stdout
    assert "estimated" in done.stderr


def test_the_curves_around_an_alert_come_with_its_threshold_and_the_time_it_fired(tmp_path: Path) -> None:
    times = {"start": "2026-01-01T00:00:00Z", "fired": "2026-01-01T00:30:00Z", "end": "2026-01-01T01:00:00Z"}
    begin = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    metric = {
        "title": "measured",
        "query": "queue",
        "series": [{"metric": {"__name__": "queue"}, "values": [[begin + 60 * step, "7"] for step in range(61)]}],
        "seriesNotShown": 0,
        "threshold": {"comparison": ">", "value": 5},
    }
    (panel,) = panels_of({"window": times, "metrics": [metric]})
    assert [curve.name for curve in panel.curves] == ["queue", "fires > 5"]
    assert panel.moment == (begin + 1800, "fired")
    write_plot(tmp_path / "alert.svg", [panel])
    assert (tmp_path / "alert.svg").is_file()
