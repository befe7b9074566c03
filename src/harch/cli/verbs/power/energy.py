"""`harch energy`: see which power a hub plans to buy, what it has bid, and what a MWh costs with its carbon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.plot import TERMINAL, PlotCommand, PlotTarget, plot_option
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.cli.views.chart import ChartPanel
    from harch.sdk.energy_types import EnergyBid, EnergyBids, EnergyBook, EnergyPlan, EnergyPrices, PlanStep

PLAN_HOURS = 24
BAR_CHARS = 30
PAPER = "paper trading: no order leaves this machine"


@click.group(cls=VerbGroup)
def command() -> None:
    """Show the energy plan, prices and bids of a hub.

    Without an energy file a hub plans with a modelled contract, labelled as such; see docs/reference/energy.md.
    """


@command.command("plan", cls=PlotCommand)
@click.option(
    "--hours", metavar="N", type=click.IntRange(1, 60), default=PLAN_HOURS, show_default=True, help="Hours ahead."
)
@plot_option("Draw bars instead of numbers, or write curves to a PNG or SVG file.")
@remote_options
def plan(hours: int, plot: PlotTarget | None, hub: str | None, as_json: bool) -> None:
    """Show the power that the hub plans to buy, store, use and sell in the next hours.

    Values are mean kW per step; BATTERY is above 0 when discharging. All of it is estimated. Nothing moves a battery or
    a plant by it: the plan is advice, and the hub accounts for it as if it were followed.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        found = client.energy.plan()
    steps = found.steps[: hours * 3600 // found.step_s]
    if plot not in (None, TERMINAL):
        title = f"energy plan of {found.hub_id}, contract {found.contract}{_label(found)}"
        draw_plot(plot, _plan_panels(steps, found), title=title, note="estimated; mean power per step")
    if as_json:
        emit_json(found)
        return
    _show_bars(steps) if plot == TERMINAL else _show_steps(steps, found)
    _show_outcome(found)


@command.command("prices", cls=PlotCommand)
@click.option(
    "--hours", metavar="N", type=click.IntRange(1, 60), default=PLAN_HOURS, show_default=True, help="Hours ahead."
)
@plot_option("Draw curves instead of numbers, or write them to a PNG or SVG file.")
@remote_options
def prices(hours: int, plot: PlotTarget | None, hub: str | None, as_json: bool) -> None:
    """Show what a MWh costs in the next hours, carbon included.

    The price per tonne is the configured one, or the shadow price of the carbon budget where that is higher.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        found = client.energy.prices()
    if plot is not None and not (as_json and plot == TERMINAL):
        title = f"price of a MWh at {found.hub_id}, contract {found.contract}{_label(found)}"
        draw_plot(plot, [_prices_panel(found, hours)], title=title)
    if as_json:
        emit_json(found)
    else:
        _show_prices(found, hours, with_table=plot != TERMINAL)


@command.command("bids")
@hub_option
@list_options
def bids(hub: str | None, listing: Listing) -> None:
    """List recent bids, those of the next market day, and those that were not sent, with the reason."""
    from msgspec.structs import replace

    with connect(hub) as client:
        found = client.energy.bids()
    listing.show(
        found.items,
        _BIDS,
        _bid_row,
        name=lambda bid: bid.id,
        document=lambda bids: replace(found, items=tuple(bids)),
        none=f"{found.hub_id}: {found.why_none}" if found.why_none else "",
    )
    if listing.is_table and not found.why_none:
        _show_trading(found)


@command.command("book")
@click.option(
    "--days",
    metavar="N",
    type=click.IntRange(1, 400),
    default=30,
    show_default=True,
    help="Days of deliveries to include.",
)
@remote_options
def book(days: int, hub: str | None, as_json: bool) -> None:
    """Show the history of every bid (planned, submitted, filled, closed, settled) and the totals."""
    from harch.cli.output import emit_json

    with connect(hub) as client:
        found = client.energy.book(days=days)
    if as_json:
        emit_json(found)
    else:
        _show_book(found)


def _show_steps(steps: tuple[PlanStep, ...], found: EnergyPlan) -> None:
    from harch.cli.views.table import table

    columns = (
        TableColumn("STEP (UTC)"),
        TableColumn("LOAD", 1, right=True),
        TableColumn("GRID", 2, right=True),
        TableColumn("AGREED", 7, right=True),
        TableColumn("OWN", 6, right=True),
        TableColumn("BATTERY", 4, right=True),
        TableColumn("STORED", 8, right=True),
        TableColumn("SOLD", 9, right=True),
        TableColumn("PRICE", 3, right=True),
        TableColumn("G/KWH", 5, right=True),
    )
    rows = [
        (
            f"{step.at:%a %d %b %H:%M}",
            f"{step.load_kw + step.flexible_kw:.1f}",
            f"{step.grid_kw:.1f}",
            f"{step.agreements_kw:.1f}",
            f"{step.own_kw:.1f}",
            f"{step.battery_kw:+.1f}" if step.battery_kw else "0",
            f"{step.stored_kwh:.0f} kWh",
            f"{step.sold_kw:.1f}",
            f"{step.per_mwh:.2f} {found.currency}/MWh",
            f"{step.g_per_kwh:.0f}",
        )
        for step in steps
    ]
    table(columns, rows)


def _show_bars(steps: tuple[PlanStep, ...]) -> None:
    """One line per step: `#` grid, `=` agreements, `*` own plants, `+` out of the battery; then what goes into it."""
    widest = max((_drawn_kw(step) for step in steps), default=0.0) or 1.0
    for step in steps:
        own_used = max(0.0, step.own_kw - step.sold_kw - step.curtailed_kw)
        parts = (("#", step.grid_kw), ("=", step.agreements_kw), ("*", own_used), ("+", max(0.0, step.battery_kw)))
        bar = "".join(mark * round(BAR_CHARS * kw / widest) for mark, kw in parts)
        charge = f"  into the battery: {-step.battery_kw:.1f} kW" if step.battery_kw < 0 else ""
        click.echo(f"{step.at:%a %d %b %H:%M}  {bar:<{BAR_CHARS + 2}} {_drawn_kw(step):8.1f} kW{charge}")
    click.echo("# grid   = agreements   * own plants   + battery")


def _drawn_kw(step: PlanStep) -> float:
    own_used = max(0.0, step.own_kw - step.sold_kw - step.curtailed_kw)
    return step.grid_kw + step.agreements_kw + own_used + max(0.0, step.battery_kw)


def _label(found: EnergyPlan | EnergyPrices) -> str:
    return " (MODELLED)" if found.modelled else ""


def _plan_panels(steps: tuple[PlanStep, ...], found: EnergyPlan) -> list[ChartPanel]:
    from harch.cli.views.chart import ChartCurve, ChartPanel

    def curve(name: str, field: str) -> ChartCurve:
        return ChartCurve(name, _held([(step.at.timestamp(), getattr(step, field)) for step in steps], found.step_s))

    power = [
        curve("load", "load_kw"),
        curve("grid", "grid_kw"),
        curve("agreements", "agreements_kw"),
        curve("own plants", "own_kw"),
        curve("battery (above 0: discharging)", "battery_kw"),
        curve("sold", "sold_kw"),
    ]
    return [
        ChartPanel(power, title="power", unit="kW", quantity="power", zero_based=True),
        ChartPanel([curve("stored", "stored_kwh")], title="battery", unit="kWh", quantity="energy", zero_based=True),
        ChartPanel([curve("price", "per_mwh")], title="price", unit=f"{found.currency}/MWh", quantity="price"),
    ]


def _held(points: list[tuple[float, float]], step_s: float) -> list[tuple[float, float]]:
    """A value holds from the beginning of its step to the end, and does not lead to the next one."""
    return [corner for at, value in points for corner in ((at, value), (at + step_s, value))]


def _prices_panel(found: EnergyPrices, hours: int) -> ChartPanel:
    from harch.cli.views.chart import ChartCurve, ChartPanel

    steps = found.steps[: hours * 3600 // found.step_s]
    fields = (("total", "total_per_mwh"), ("tariff", "tariff_per_mwh"), ("carbon", "carbon_per_mwh"))
    curves = [
        ChartCurve(name, _held([(step.at.timestamp(), getattr(step, field)) for step in steps], found.step_s))
        for name, field in fields
    ]
    return ChartPanel(curves, unit=f"{found.currency}/MWh", quantity="price", zero_based=True)


def _show_outcome(found: EnergyPlan) -> None:
    from harch.cli.output import clean, note

    costs, carbon, standing = found.costs, found.carbon, found.standing
    hours = len(found.steps) * found.step_s // 3600
    click.echo(
        clean(
            f"{found.hub_id}, contract `{found.contract}`{_label(found)}: {costs.bill:.2f} {found.currency}"
            f" in {hours} h (energy {costs.energy:.2f}, agreements {costs.agreements:.2f}, demand {costs.demand:.2f},"
            f" sales {costs.sales + 0.0:.2f}); planned by the {found.planner} for {found.objective}"
        )
    )
    click.echo(f"bought energy emits {carbon.emitted_kg:.1f} kg CO2e (estimated){_budget_words(found)}")
    if standing is not None:
        click.echo(
            f"this month since {standing.since:%d %b %H:%M} UTC: {standing.emitted_kg:.1f} kg emitted,"
            f" {standing.rule_emitted_kg:.1f} kg by the plain rule (estimated)"
        )
    for text in (*found.notes, *(f"based on: {one}" for one in found.rests_on)):
        note(clean(text))


def _budget_words(found: EnergyPlan) -> str:
    carbon = found.carbon
    if carbon.budget_kg is None:
        return ""
    if not carbon.budget_kept:
        return f"; the carbon budget CANNOT be met: {carbon.over_kg:.1f} kg above the {carbon.budget_kg:.1f} kg left"
    words = f"; within the carbon budget of {carbon.budget_kg:.1f} kg for these hours"
    if carbon.shadow_per_t is None:
        return words
    return f"{words}, shadow price {carbon.shadow_per_t:.0f} {found.currency}"


def _show_prices(found: EnergyPrices, hours: int, *, with_table: bool) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import table

    rows = [
        (
            f"{step.at:%a %d %b %H:%M}",
            f"{step.tariff_per_mwh:.2f}",
            f"{step.carbon_per_mwh:.2f}",
            f"{step.total_per_mwh:.2f} {found.currency}/MWh",
            f"{step.g_per_kwh:.0f}",
        )
        for step in found.steps[: hours * 3600 // found.step_s]
    ]
    if with_table:
        table(
            (
                TableColumn("STEP (UTC)"),
                TableColumn("TARIFF", 2, right=True),
                TableColumn("CARBON", 3, right=True),
                TableColumn("TOTAL", right=True),
                TableColumn("G/KWH", 1, right=True),
            ),
            rows,
        )
        click.echo(clean(f"{found.hub_id}, contract `{found.contract}`{_label(found)}"))
    click.echo(clean(f"carbon at {found.carbon_per_t:.0f} {found.currency}/t: {found.carbon_basis}"))
    if found.shadow_per_t is not None:
        click.echo(f"the shadow price of the carbon budget is {found.shadow_per_t:.0f} {found.currency}")
    for text in found.notes:
        note(clean(text))


_BIDS = (
    TableColumn("BID"),
    TableColumn("DELIVERY (UTC)", 4),
    TableColumn("PART", 5),
    TableColumn("ENERGY", 2),
    TableColumn("LIMIT", 3),
    TableColumn("STATE", 1),
    TableColumn("FILLED", 7),
    TableColumn("AMOUNT", 6),
    TableColumn("MARKET", 8),
)


def _bid_row(bid: EnergyBid) -> tuple[object, ...]:
    return (
        bid.id,
        Sortable(f"{bid.delivery:%a %d %b %H:%M}", bid.delivery.timestamp()),
        bid.part,
        Sortable(f"{bid.kwh:.1f} kWh", bid.kwh),
        Sortable(f"{bid.limit_per_mwh:.2f} {bid.currency}/MWh", bid.limit_per_mwh),
        bid.state,
        Sortable(f"{bid.filled_kwh:.1f} kWh", bid.filled_kwh),
        Sortable(f"{bid.amount:.2f} {bid.currency}", bid.amount),
        bid.market,
    )


def _show_trading(found: EnergyBids) -> None:
    """What concerns all bids: those that were not sent, the market, and where prices come from."""
    from harch.cli.output import clean, note

    for no in found.refused:
        fix = f"; {no.nearest_fix}" if no.nearest_fix else ""
        click.echo(clean(f"not sent: {no.bid_id} ({no.rule}): {no.detail}{fix}"))
    if found.stopped_why:
        click.echo(clean(f"trading is stopped: {found.stopped_why}"))
    if found.trouble:
        click.echo(clean(f"the market: {found.trouble}"))
    if any(bid.state == "planned" for bid in found.items) and found.sends_from is not None:
        note(f"planned bids are sent from {found.sends_from:%Y-%m-%d %H:%M} UTC on")
    note(clean(f"prices: {found.prices}"))
    if found.paper:
        note(PAPER)


def _show_book(found: EnergyBook) -> None:
    from harch.cli.output import clean, note
    from harch.cli.views.table import table

    if found.why_none:
        click.echo(clean(f"{found.hub_id}: {found.why_none}"))
        return
    rows = [
        (
            f"{row.at:%d %b %H:%M:%S}",
            row.event,
            f"{row.delivery:%a %d %b %H:%M}",
            row.part,
            f"{row.kwh:.1f} kWh",
            f"{row.per_mwh:.2f}",
            f"{row.amount:.2f} {row.currency}",
            row.market,
        )
        for row in found.rows
    ]
    table(
        (
            TableColumn("AT (UTC)"),
            TableColumn("EVENT"),
            TableColumn("DELIVERY", 1),
            TableColumn("PART", 4),
            TableColumn("ENERGY", 3),
            TableColumn("PER MWH", 5),
            TableColumn("AMOUNT", 2),
            TableColumn("MARKET", 6),
        ),
        rows,
    )
    for one in found.sums:
        click.echo(clean(f"{one.event}, {one.market}: {one.kwh:.1f} kWh, {one.amount:.2f} {one.currency}"))
    if len(found.rows) < found.total:
        note(f"the newest {len(found.rows)} of {found.total} rows; totals cover all")
    if found.paper:
        note(PAPER)
