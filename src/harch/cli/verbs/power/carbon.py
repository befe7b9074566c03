"""`harch carbon`: see what power the hubs run on, what it will be, and what work used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.plot import TERMINAL, PlotCommand, PlotTarget, plot_option
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import connect, hub_option, json_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.verbs.power.carbon_accounts import export, report, verify, why
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.cli.views.chart import ChartPanel
    from harch.sdk.carbon_types import CarbonPlanView, Figure, GridForecast, HubPower, PowerView

HOURS_DEFAULT = 24
GRID, ONSITE, PUE = "grid-average-lifecycle", "onsite-lifecycle", "pue"


@click.group(cls=VerbGroup)
def command() -> None:
    """Show the power that hubs run on, its forecast, and what work used.

    Intensities are grams of CO2 equivalent per kWh over the life of the plants. Whatever was not measured is labelled
    `estimated`; docs/guides/carbon.md lists the sources.
    """


command.add_command(report)
command.add_command(why)
command.add_command(verify)
command.add_command(export)


@command.command("now")
@click.option("--details", is_flag=True, help="Show every signal of every hub, and why other sources were not used.")
@hub_option
@list_options
def now(details: bool, hub: str | None, listing: Listing) -> None:
    """Show the power of every hub.

    GRID is the average intensity of the hub's grid, ONE MORE KWH what one more kWh of computing would emit:
    on-site power as far as it suffices, then the grid, times the PUE. AGE is the age of the grid value.
    """
    from harch.cli.output import note

    with connect(hub) as client:
        views = client.carbon.now()
    listing.show(views, _HUBS, _hub_row, name=lambda view: view.hub_id)
    if not listing.is_table:
        return
    if any(view.own for view in views):
        note("* the queried hub")
    for view in views:
        if view.power is not None:
            _show_reasons(view.power, details)


@command.command("forecast", cls=PlotCommand)
@click.option("--hub", "hub", metavar="NAME", help="Hub to show (default: the one at HARCH_URL).")
@click.option(
    "--hours",
    type=click.IntRange(1, 96),
    default=HOURS_DEFAULT,
    show_default=True,
    metavar="N",
    help="Hours ahead.",
)
@plot_option("Draw curves instead of numbers, or write them to a PNG or SVG file.")
@json_option
def forecast(hub: str | None, hours: int, plot: PlotTarget | None, as_json: bool) -> None:
    """Forecast the grid intensity of a hub, with intervals and past forecast errors.

    All values are estimates. 9 OF 10 is the interval that should hold nine of ten values; ON-SITE what the hub's own
    plants are expected to produce.
    """
    from harch.cli.output import emit_json

    with connect() as client:
        found = client.carbon.forecast(hub, hours=hours)
    if plot is not None and not (as_json and plot == TERMINAL):
        title = f"carbon forecast of {found.hub_id}, zone {found.grid_zone}"
        how = f"{', '.join((found.evidence, *found.kind))}; by {found.model}"
        draw_plot(plot, _forecast_panels(found), title=title, note="" if plot == TERMINAL else how)
    if as_json:
        emit_json(found)
    else:
        _show_forecast(found, with_table=plot != TERMINAL)


@command.command("plan", cls=PlotCommand)
@plot_option("Draw curves instead of numbers, or write them to a PNG or SVG file.")
@remote_options
def plan(plot: PlotTarget | None, hub: str | None, as_json: bool) -> None:
    """Show the carbon plan of a hub, the data behind it, and how much work it defers.

    CLEANEST is the hour with the most unclaimed on-site power; among equals, the one in which the grid is
    cleanest. All values are forecasts.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        found = client.carbon.plan()
    if plot is not None and not (as_json and plot == TERMINAL):
        draw_plot(plot, _plan_panels(found), title=f"carbon plan of {found.hub_id}", note="estimated: forecasts")
    if as_json:
        emit_json(found)
    else:
        _show_plan(found, with_table=plot != TERMINAL)


def _plan_panels(found: CarbonPlanView) -> list[ChartPanel]:
    from harch.cli.views.chart import ChartCurve, ChartPanel

    begin = 0.0 if found.at is None else found.at.timestamp()

    def curve(name: str, values: Sequence[float]) -> ChartCurve:
        return ChartCurve(name, [(begin + step * found.step_s, value) for step, value in enumerate(values)])

    grid = [curve(one.hub_id, one.grid_g_per_kwh) for one in found.hubs if found.at is not None]
    spare = [curve(one.hub_id, one.spare_kw) for one in found.hubs if found.at is not None]
    why = f"{found.hub_id} has no plan yet; the first one is made within a minute"
    return [
        ChartPanel(grid, "grid intensity", "g/kWh", "intensity", zero_based=True, why_empty=why),
        ChartPanel(spare, "on-site power to spare", "kW", "power", zero_based=True, why_empty=why),
    ]


def _forecast_panels(found: GridForecast) -> list[ChartPanel]:
    from harch.cli.views.chart import ChartCurve, ChartPanel

    def curve(name: str, field: str) -> ChartCurve:
        known = ((hour.at.timestamp(), getattr(hour, field)) for hour in found.hours)
        return ChartCurve(name, [(at, value) for at, value in known if value is not None])

    grid = [curve("grid", "g_per_kwh"), curve("9 of 10: low", "low"), curve("9 of 10: high", "high")]
    panels = [ChartPanel(grid, "grid intensity", "g/kWh", "intensity", why_empty="there is no forecast yet")]
    onsite = curve("on-site", "onsite_kw")
    return [*panels, ChartPanel([onsite], "on-site power", "kW", "power", zero_based=True)] if onsite.points else panels


def _show_plan(found: CarbonPlanView, *, with_table: bool) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import table

    if found.at is None:
        click.echo(clean(f"{found.hub_id} has no plan yet; work with slack waits a minute for the first one"))
        return
    rows = []
    for one in found.hubs:
        steps = range(len(one.grid_g_per_kwh))
        best = max(steps, key=lambda step: (one.spare_kw[step], -one.grid_g_per_kwh[step], -step))
        when = found.at + best * timedelta(seconds=found.step_s)
        rows.append(
            (
                one.hub_id,
                f"{one.grid_g_per_kwh[0]:.0f} g/kWh",
                f"{one.spare_kw[0]:.0f} kW",
                f"{when:%a %d %b %H:%M}",
                f"{one.grid_g_per_kwh[best]:.0f} g/kWh",
                f"{one.spare_kw[best]:.0f} kW",
                one.rests_on,
            )
        )
    if with_table:
        table(
            (
                TableColumn("HUB"),
                TableColumn("GRID NOW", 1, right=True),
                TableColumn("SPARE NOW", 4, right=True),
                TableColumn("CLEANEST (UTC)", 2),
                TableColumn("GRID THEN", 3, right=True),
                TableColumn("SPARE THEN", 5, right=True),
                TableColumn("BASED ON", 6, takes_rest=True),
            ),
            rows,
        )
    fresh = "" if found.fresh else "; it is too old, so work starts without a plan"
    offered = found.requested_elsewhere
    click.echo(f"made {found.at:%Y-%m-%d %H:%M:%S} UTC{fresh}; {found.held} deferred, {offered} offered")
    for tenant, grams in sorted(found.tenant_g_left.items()):
        click.echo(clean(f"budget of {tenant}: {grams / 1000:,.3g} kg left this month"))
    if found.all_g_left is not None:
        click.echo(f"budget of the hub: {found.all_g_left / 1000:,.3g} kg left this month")
    for text in found.notes:
        note(clean(text))


_HUBS = (
    TableColumn("HUB"),
    TableColumn("ZONE", 5),
    TableColumn("GRID", 1),
    TableColumn("EVIDENCE", 2),
    TableColumn("ONE MORE KWH", 3),
    TableColumn("ON-SITE", 4),
    TableColumn("PRICE", 7),
    TableColumn("PUE", 8),
    TableColumn("AGE", 6),
    TableColumn("SOURCE", 9, takes_rest=True),
)


def _hub_row(view: PowerView) -> tuple[object, ...]:
    from harch.cli.output import age_text

    name = f"{view.hub_id} *" if view.own else view.hub_id
    power = view.power
    if power is None:
        unknown = Sortable("unknown", None)
        return (name, "-", unknown, "-", "-", "-", "-", "-", age_text(None), view.error)
    grid = power.figure(GRID)
    more, price, pue = power.marginal_g_per_kwh, power.price_per_mwh, power.figure(PUE).value or 0
    return (
        name,
        power.grid_zone,
        Sortable("unknown" if grid.value is None else f"{grid.value:.0f} g/kWh", grid.value),
        grid.evidence or "-",
        Sortable("unknown" if more is None else f"{more:.0f} g/kWh (estimated)", more),
        Sortable(_onsite(power), power.onsite_kw),
        Sortable("unknown" if price is None else f"{price:g} {power.currency}/MWh", price),
        Sortable(f"{pue:g}", pue),
        Sortable(age_text(view.age_s), view.age_s),
        f"{grid.source}: {grid.note}" if grid.note else grid.source,
    )


def _onsite(power: HubPower) -> str:
    plants = [power.figure(name) for name in ("pv-power", "wind-power")]
    if not any(plant.value for plant in plants):
        return "none"
    evidence = "measured" if all(plant.evidence == "measured" for plant in plants if plant.value) else "estimated"
    return f"{power.onsite_kw:.0f} kW ({evidence})"


def _show_reasons(power: HubPower, details: bool) -> None:
    """Without `--details`, what is wrong with the figures of the table; with it, everything."""
    from harch.cli.output import clean, note

    if details:
        click.echo(clean(f"{power.hub_id}: one more kWh, estimated: {power.marginal_rests_on}"))
    for figure in power.readings:
        if details:
            click.echo(f"  {clean(_sentence(figure))}")
        if details or figure.signal == GRID:
            for no in figure.not_used:
                text = f"{power.hub_id}, {figure.signal}: not {no.source} ({no.rule}): {no.detail}"
                if details:
                    click.echo(f"    {clean(f'not {no.source} ({no.rule}): {no.detail}')}")
                elif no.rule != "order":
                    note(clean(text))


def _sentence(figure: Figure) -> str:
    if figure.value is None:
        return f"{figure.signal}: no value; {figure.note}" if figure.note else f"{figure.signal}: no value"
    kind = f" ({', '.join(figure.kind)})" if figure.kind else ""
    at = f"{figure.at:%Y-%m-%d %H:%M:%S} UTC" if figure.at is not None else "unknown"
    text = f"{figure.signal}: {figure.value:.6g} {figure.unit}{kind} [{figure.evidence}, {figure.source}, {at}"
    return f"{text}; {figure.note}]" if figure.note else f"{text}]"


def _show_forecast(found: GridForecast, *, with_table: bool) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import table

    rows = [
        (
            f"{hour.at:%a %d %b %H:%M}",
            f"{hour.g_per_kwh:.0f} g/kWh",
            f"{hour.low:.0f} to {hour.high:.0f}",
            f"{hour.low_half:.0f} to {hour.high_half:.0f}",
            "-" if hour.onsite_kw is None else f"{hour.onsite_kw:.0f} kW",
        )
        for hour in found.hours
    ]
    if with_table:
        table(
            (
                TableColumn("HOUR (UTC)"),
                TableColumn("GRID"),
                TableColumn("9 OF 10", 1),
                TableColumn("1 OF 2", 3),
                TableColumn("ON-SITE", 2),
            ),
            rows,
        )
    kind = ", ".join((found.evidence, *found.kind))
    note(clean(f"{found.hub_id}, zone {found.grid_zone}: {kind}; by {found.model}"))
    if found.error_pct_by_day:
        errors = ", ".join(f"{error:.1f} %" for error in found.error_pct_by_day)
        naive = ", ".join(f"{error:.1f} %" for error in found.persistence_error_pct_by_day)
        note(f"error of the last {found.error_days} days, by day ahead: {errors}; yesterday's value again: {naive}")
    else:
        note("error: unknown; needs two days of readings from a source other than the model")
    for text in found.notes:
        note(clean(text))
    if found.onsite_rests_on:
        note(f"on-site: {clean(found.onsite_rests_on)}")
