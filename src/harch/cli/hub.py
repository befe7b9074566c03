"""`harch hub`: one hub's control plane as a process, and its place in a federation."""

from __future__ import annotations

import click

from harch.base.config import home_from_env, ports_from_env
from harch.cli.hub_init import init
from harch.cli.hub_invite import invite
from harch.cli.hub_join import join


@click.group("hub", help="Run a hub; found a federation, invite hubs, join one.")
def command() -> None:
    pass


for _verb in (init, invite, join):
    command.add_command(_verb)


@command.command("serve", help="Serve one hub of a fleet until it is told to stop (SIGTERM or Ctrl-C).")
@click.argument("hub", metavar="HUB")
@click.option("--fleet", default="five-hubs", show_default=True, help="A shipped fleet, or the path of a fleet file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--scheduling",
    type=click.Path(exists=True, dir_okay=False),
    help="A scheduling file; scheduling.toml in the state folder of the hub if absent.",
)
@click.option("--log-file", type=click.Path(dir_okay=False), help="Write a rotating log here instead of stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line once the hub listens.")
def serve(hub: str, fleet: str, host: str, scheduling: str | None, log_file: str | None, as_json: bool) -> None:
    import json
    from pathlib import Path

    import uvloop

    from harch.api.process import HubConfig, serve_hub
    from harch.cli.process import calm_collector, end_with_parent, open_fleet, set_up_logging

    end_with_parent()
    set_up_logging(log_file)
    loaded = open_fleet(fleet)
    config = HubConfig(
        loaded,
        hub.lower(),
        home_from_env(),
        ports_from_env(len(loaded.hubs)),
        host,
        scheduling=Path(scheduling) if scheduling else None,
    )

    def listening(port: int) -> None:
        url = f"http://{host}:{port}"
        click.echo(
            json.dumps({"hub": config.hub_id, "url": url}) if as_json else f"hub {config.hub_id} listens on {url}"
        )

    calm_collector()
    uvloop.run(serve_hub(config, listening=listening))
