"""Which sources does a hub listen to? Those of its carbon file, or the model alone: then nobody is asked.

The file is `carbon.toml` in the state folder of the hub. Web sources, and the library that they need, are loaded only
if it names one.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.carbon.signals.board import SignalBoard, SourcePlan
from harch.carbon.signals.config import EMPTY, CarbonConfig, load_config
from harch.carbon.signals.sites import Site, site_of
from harch.carbon.signals.sources.modelled import NAME as MODELLED
from harch.carbon.signals.sources.modelled import modelled
from harch.fleet.model import Fleet, Hub

if TYPE_CHECKING:
    import httpx

FILE_NAME = "carbon.toml"


@dataclass(frozen=True, slots=True)
class Sources:
    """The board of one hub, and where it stands."""

    board: SignalBoard
    site: Site
    config: CarbonConfig
    client: httpx.AsyncClient | None = None  # None: no source speaks to anybody

    async def close(self) -> None:
        if self.client is not None:
            await self.client.aclose()


def open_sources(fleet: Fleet, hub: Hub, folder: Path, clock: Clock) -> Sources:
    """Raises HarchError E0220 with the mistakes of the carbon file."""
    path = folder / FILE_NAME
    config = load_config(path) if path.exists() else EMPTY
    for name in config.hubs:
        if fleet.hub(name) is None:
            raise HarchError(
                "E0220", f"hubs.{name[:64]}: the fleet has no such hub", hint="`harch hubs` lists the hubs"
            )
    entry = config.hubs.get(hub.id)
    site = site_of(hub, config.onsite(hub.id), grid_zone=(entry.grid_zone if entry else "") or None)
    if not config.entries:
        return Sources(_modelled_board(site, config, clock), site, config)
    return _with_sources(fleet, hub, config, site, folder, clock)


def _modelled_board(site: Site, config: CarbonConfig, clock: Clock) -> SignalBoard:
    model = modelled()
    orders = {site.hub: dict.fromkeys(model.provides, (MODELLED,))}
    return SignalBoard([site], [SourcePlan(source=model, is_model=True)], orders, clock, limits=config.limits)


def _with_sources(fleet: Fleet, hub: Hub, config: CarbonConfig, site: Site, folder: Path, clock: Clock) -> Sources:
    import httpx

    from harch.carbon.signals.assembly import Surroundings, build_board

    client = httpx.AsyncClient(follow_redirects=False)
    world = Surroundings(
        client=client,
        clock=clock,
        jitter=random.random,
        environment=os.environ,
        folder=folder,
    )
    # One file may serve the whole fleet; each hub asks for itself and hears of the others through them.
    own = replace(config, hubs={name: entry for name, entry in config.hubs.items() if name == hub.id})
    return Sources(build_board(own, replace(fleet, hubs=(hub,), links=()), world), site, config, client)
