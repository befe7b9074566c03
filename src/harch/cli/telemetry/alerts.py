"""`harch sentinel alerts`: what fires, and who takes care of it."""

from __future__ import annotations

import getpass
from datetime import timedelta
from typing import Any

import click

from harch.base.errors import HarchError
from harch.cli.listing import Listing, list_options
from harch.cli.options import reason_option, renamed
from harch.cli.plot import TERMINAL, PlotCommand, PlotTarget, plot_option
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import json_option
from harch.cli.telemetry.query import SPAN, tenant_option, url_option
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

_COLUMNS = (
    TableColumn("ID"),
    TableColumn("ALERT"),
    TableColumn("SEVERITY", 1),
    TableColumn("SINCE", 4),
    TableColumn("STATE", 3),
    TableColumn("SUMMARY", 2, takes_rest=True),
)


_author = click.option(
    "--author", metavar="NAME", help="Who does it, where SENTINEL runs alone; beside a hub, the name of your key."
)


@click.group(cls=VerbGroup)
def alerts() -> None:
    """List, silence and acknowledge alerts."""


@alerts.command("ls")
@click.option("--all", "show_all", is_flag=True, help="Include silenced and inhibited alerts.")
@url_option
@tenant_option
@list_options
def listed(show_all: bool, url: str | None, tenant: str | None, listing: Listing) -> None:
    """List firing alerts. `show` and `ack` take the ID."""
    from harch.sdk.sentinel import SentinelClient

    hidden = {} if show_all else {"silenced": "false", "inhibited": "false"}
    with SentinelClient(url, tenant=tenant) as client:
        found = client.get("/api/v2/alerts", hidden)
    listing.show(found, _COLUMNS, _row, name=lambda one: str(one["fingerprint"]), none="no alerts firing")


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["fingerprint"],
        one["labels"].get("alertname", ""),
        one["labels"].get("severity", ""),
        one["startsAt"],
        _state(one),
        one["annotations"].get("summary", "") or one["annotations"].get("description", ""),
    )


@alerts.command("show", cls=PlotCommand)
@click.argument("alert_id")
@click.option(
    "--before", type=SPAN, default="30m", show_default=True, metavar="DURATION", help="Time to show before it began."
)
@click.option(
    "--after", type=SPAN, default="30m", show_default=True, metavar="DURATION", help="Time to show after it fired."
)
@plot_option("Write the curves to a PNG or SVG file, too.")
@url_option
@tenant_option
@json_option
def show(
    alert_id: str,
    before: float,
    after: float,
    plot: PlotTarget | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Show an alert in context: curves, log lines, traces, related alerts."""
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant) as client:
        page = client.alert_page(alert_id, before=f"{before:g}s", after=f"{after:g}s")
    from harch.cli.telemetry.alert_view import draw_page, panels_of

    if plot not in (None, TERMINAL):
        draw_plot(plot, panels_of(page), title=f"alert {page['alert']['labels'].get('alertname', alert_id)}")
    if as_json:
        emit_json(page)
        return
    draw_page(page)


@alerts.command("silence")
@click.argument("matchers", metavar="MATCHER...", nargs=-1, required=True)
@click.option(
    "--for",
    "duration",
    type=SPAN,
    default="2h",
    show_default=True,
    metavar="DURATION",
    help="Duration of the silence.",
)
@reason_option("Reason, shown with the silence.", required=True)
@renamed("--comment", "--reason")
@_author
@renamed("--by", "--author")
@url_option
@tenant_option
@json_option
def silence(
    matchers: tuple[str, ...],
    duration: float,
    reason: str,
    author: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Silence all alerts with these labels: `alertname=DiskNearlyFull`, `hub_name=~dak.*`."""
    from harch.base.clock import SystemClock, iso
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    now = SystemClock().now()
    document = {
        "matchers": [_matcher(text) for text in matchers],
        "startsAt": iso(now),
        "endsAt": iso(now + timedelta(seconds=duration)),
        "createdBy": author or getpass.getuser(),
        "comment": reason,
    }
    with SentinelClient(url, tenant=tenant) as client:
        made = client.post("/api/v2/silences", document)
    if as_json:
        emit_json(made)
    else:
        click.echo(f"silenced until {document['endsAt']}: {made['silenceID']}")
        click.echo(f"`harch sentinel alerts unsilence {made['silenceID']}` ends it early")


@alerts.command("unsilence")
@click.argument("silence_id")
@url_option
@tenant_option
@json_option
def unsilence(silence_id: str, url: str | None, tenant: str | None, as_json: bool) -> None:
    """Expire a silence early."""
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant) as client:
        client.delete(f"/api/v2/silence/{silence_id}")
    if as_json:
        emit_json({"silenceID": silence_id, "state": "expired"})
    else:
        click.echo("ended")


@alerts.command("ack")
@click.argument("alert_id")
@reason_option("What is being done.")
@renamed("--comment", "--reason")
@_author
@renamed("--by", "--author")
@url_option
@tenant_option
@json_option
def ack(alert_id: str, reason: str, author: str | None, url: str | None, tenant: str | None, as_json: bool) -> None:
    """Acknowledge an alert: it stays visible, and is not sent again until it fires again."""
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant) as client:
        acknowledgement = {"by": author or getpass.getuser(), "comment": reason}
        reply = client.post(f"/api/v2/alert/{alert_id}/ack", acknowledgement)
    if as_json:
        emit_json(reply)
    else:
        click.echo("acknowledged")


def _state(alert: dict[str, Any]) -> str:
    status = alert["status"]
    if status.get("silencedBy"):
        return "silenced"
    if status.get("inhibitedBy"):
        return "inhibited"
    return "acknowledged" if alert.get("acknowledgedBy") else str(status["state"])


def _matcher(text: str) -> dict[str, object]:
    for sign, is_equal, is_regex in (("!~", False, True), ("=~", True, True), ("!=", False, False), ("=", True, False)):
        name, found, value = text.partition(sign)
        if found and name.strip():
            plain = value.strip().strip('"')
            return {"name": name.strip(), "value": plain, "isRegex": is_regex, "isEqual": is_equal}
    raise HarchError("E0644", f"`{text}` is not a matcher", hint="write e.g. `alertname=DiskNearlyFull`")
