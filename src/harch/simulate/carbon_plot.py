"""How does a carbon replay look? Power from on site and from the grid over the first week, one row per policy.

matplotlib comes with the extra `plots` and is imported here only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harch.base.errors import HarchError
from harch.simulate.carbon import POLICIES, Outcome


def save_plot(outcome: Outcome, path: Path) -> None:
    """One column per case. Raises HarchError E0202 if matplotlib is missing or the file cannot be written."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise HarchError(
            "E0202", "plots need matplotlib, which is not installed", hint="pip install 'harch[plots]'"
        ) from error
    cases: Any = outcome.report["cases"]
    figure, axes = pyplot.subplots(
        len(POLICIES), len(cases), squeeze=False, sharex="col", sharey="col", figsize=(7 * len(cases), 8)
    )
    for column, (case, hourly) in enumerate(zip(cases, outcome.hourly, strict=True)):
        for row, policy in enumerate(POLICIES):
            hours = sorted(hourly[policy])
            own = [hourly[policy][hour][0] for hour in hours]
            grid = [hourly[policy][hour][1] for hour in hours]
            axis = axes[row][column]
            days = [hour / 24 for hour in hours]
            axis.stackplot(days, own, grid, labels=("on site", "grid"), colors=("#3a9d5d", "#555555"))
            axis.set_title(f"{policy}: {case['policies'][policy]['g_per_kwh']} g/kWh over all weeks", fontsize=10)
            axis.set_ylabel("kW")
        axes[-1][column].set_xlabel(f"days of the first week; {100 * case['utilisation_asked']:.0f} % asked")
    axes[0][0].legend(loc="upper right", fontsize=8)
    figure.suptitle(f"{outcome.report['scenario']}: modelled, {outcome.report['evidence']}")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise HarchError("E0202", f"cannot write `{path}`: {error}") from error
    finally:
        pyplot.close(figure)
