"""`harch hub`: one hub's control plane as a process, and its place in a federation."""

from __future__ import annotations

import click

from harch.base.config import home_from_env, ports_from_env
from harch.cli.hub_close import cordon, drain, open_, retire
from harch.cli.hub_init import init
from harch.cli.hub_invite import invite
from harch.cli.hub_join import join

LEASE_S_MIN, LEASE_S_MAX = 3.0, 86_400.0  # as in `federation.leases`, which `--help` need not import


@click.group("hub", help="Run a hub; found a federation, invite hubs, join one; take a hub out of use.")
def command() -> None:
    pass


for _verb in (init, invite, join, cordon, drain, retire, open_):
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
@click.option(
    "--peer-listen",
    metavar="HOST:PORT",
    help="Where links of peers are accepted; the address that the federation knows if absent.",
)
@click.option(
    "--lease-batch",
    type=click.FloatRange(LEASE_S_MIN, LEASE_S_MAX),
    default=600.0,
    show_default=True,
    help="Seconds for which a peer may run work of this hub after its last word.",
)
@click.option(
    "--lease-service",
    type=click.FloatRange(LEASE_S_MIN, LEASE_S_MAX),
    default=30.0,
    show_default=True,
    help="The same for inference.",
)
@click.option("--log-file", type=click.Path(dir_okay=False), help="Write a rotating log here instead of stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line once the hub listens.")
def serve(
    hub: str,
    fleet: str,
    host: str,
    scheduling: str | None,
    peer_listen: str | None,
    lease_batch: float,
    lease_service: float,
    log_file: str | None,
    as_json: bool,
) -> None:
    import json
    from pathlib import Path

    import uvloop

    from harch.api.process import HubConfig, serve_hub
    from harch.base.private_files import close_to_others, keep_files_private
    from harch.cli.peer_address import parse_address
    from harch.cli.process import calm_collector, end_with_parent, open_fleet, set_up_logging
    from harch.federation.leases import LeaseTerms

    keep_files_private()
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
        peer_listen=parse_address(peer_listen) if peer_listen else None,
        leases=LeaseTerms(batch_s=lease_batch, service_s=lease_service),
    )

    def listening(port: int) -> None:
        url = f"http://{host}:{port}"
        click.echo(
            json.dumps({"hub": config.hub_id, "url": url}) if as_json else f"hub {config.hub_id} listens on {url}"
        )

    close_to_others(config.home.root, deep=False)
    close_to_others(config.state_dir)
    calm_collector()
    uvloop.run(serve_hub(config, listening=listening))
