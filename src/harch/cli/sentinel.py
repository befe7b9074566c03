"""`harch sentinel`: the telemetry store as a process, and questions to it."""

from __future__ import annotations

from pathlib import Path

import click

from harch.base.errors import HarchError
from harch.cli.sentinel_alerts import alerts
from harch.cli.sentinel_dash import dash
from harch.cli.sentinel_logs import logs
from harch.cli.sentinel_query import query
from harch.cli.sentinel_rules import rules
from harch.cli.sentinel_traces import traces


@click.group()
def command() -> None:
    """Ask telemetry: queries, logs, dashboards, traces, alerts; run a store of it.

    No telemetry leaves the perimeter. docs/sentinel/index.md is where to start.
    """


command.add_command(query)
command.add_command(alerts)
command.add_command(dash)
command.add_command(logs)
command.add_command(rules)
command.add_command(traces)


@command.command("serve")
@click.option("--data", "data", required=True, type=click.Path(file_okay=False), help="Folder for all telemetry.")
@click.option("--listen", default="127.0.0.1:9090", show_default=True, help="Address and port.")
@click.option(
    "--config", "configs", multiple=True, type=click.Path(dir_okay=False), help="Targets and rules: prometheus.yml."
)
@click.option("--alerts", "alert_config", type=click.Path(dir_okay=False), help="Settings as in alertmanager.yml.")
@click.option("--settings", type=click.Path(dir_okay=False), help="Limits, time window and retention, TOML.")
@click.option("--token-file", type=click.Path(dir_okay=False), help="Callers must show this token.")
@click.option("--hub-url", help="Let callers in who have a key of this hub.")
@click.option("--log-file", type=click.Path(dir_okay=False), help="Write a rotating log here instead of stderr.")
def serve(
    data: str,
    listen: str,
    configs: tuple[str, ...],
    alert_config: str | None,
    settings: str | None,
    token_file: str | None,
    hub_url: str | None,
    log_file: str | None,
) -> None:
    """Run a telemetry store until told to stop.

    It takes remote-write and OTLP, scrapes targets, answers PromQL, evaluates rules and sends alerts. Prometheus
    agents, OpenTelemetry SDKs and Grafana talk to it unchanged. Tenants are told apart by `X-Scope-OrgID`.
    """
    from harch.cli.lean_process import keep_out

    keep_out("pandas", "scipy")
    import uvloop

    from harch.api.telemetry.process import ServeOptions, serve_sentinel
    from harch.base.private_files import close_to_others, keep_files_private
    from harch.cli.process import calm_collector, end_with_parent, set_up_logging, stay_without_parent

    keep_files_private()
    host, port = _address(listen)
    if hub_url:
        end_with_parent()
    set_up_logging(log_file)
    options = ServeOptions(
        data=Path(data),
        host=host,
        port=port,
        configs=[Path(config) for config in configs],
        alerts=Path(alert_config) if alert_config else None,
        settings=Path(settings) if settings else None,
        token_file=Path(token_file) if token_file else None,
        hub_url=hub_url or "",
    )
    close_to_others(options.data)
    calm_collector()

    def listening(at: int) -> None:
        click.echo(f"SENTINEL listens on http://{host}:{at}")

    uvloop.run(serve_sentinel(options, listening=listening, recorded=stay_without_parent))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise HarchError("E0201", f"--listen is `{text}`", hint="write an address and a port, e.g. 127.0.0.1:9090")
    return host.strip("[]"), int(port)
