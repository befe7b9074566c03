"""`harch up`: the whole federation on this machine, in the foreground."""

from __future__ import annotations

import click

from harch.base.config import home_from_env, ports_from_env
from harch.cli.options import fleet_option


@click.command("up", help="Start every hub of a fleet, with an agent each; Ctrl-C stops them all.")
@fleet_option
@click.option(
    "--share",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Folder that workloads may use as working_dir (default: the current one). Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line once every hub is ready or stuck.")
def command(fleet: str, share: tuple[str, ...], as_json: bool) -> None:
    import asyncio
    import os

    from harch.base.state_files import close_to_others, keep_files_private
    from harch.cli.local_federation import LocalFederation
    from harch.cli.process import open_fleet

    keep_files_private()
    loaded = open_fleet(fleet)
    home = home_from_env()
    federation = LocalFederation(
        fleet=loaded,
        fleet_argument=fleet,
        home=home,
        ports=ports_from_env(len(loaded.hubs)),
        share=share or (os.getcwd(),),
        as_json=as_json,
    )
    close_to_others(home.root, deep=False)
    asyncio.run(federation.run())
