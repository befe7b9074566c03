"""Which site is this hub? From the energy file in its state folder, or the modelled one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harch.base.errors import HarchError
from harch.carbon.signals.sites import OnSite
from harch.energy.modelled import modelled_site
from harch.energy.procurement.problem import Battery
from harch.energy.site import EnergySite
from harch.energy.site_file import load_sites
from harch.fleet.model import Fleet, Hub

FILE_NAME = "energy.toml"
CONNECTION_HEADROOM = 1.25  # of everything that stands there at full power, cooling included


def open_site(fleet: Fleet, hub: Hub, folder: Path, onsite: OnSite) -> EnergySite:
    """`onsite` is what the carbon file says stands there: its battery counts if the energy file names none.

    Raises HarchError E0243 or E0240 with the mistakes of the file.
    """
    path = folder / FILE_NAME
    sites = load_sites(path) if path.exists() else {}
    for name in sites:
        if fleet.hub(name) is None:
            raise HarchError(
                "E0243",
                f"{path}: hubs.{name[:64]}: the fleet has no such hub",
                hint="`harch hubs` lists the hubs",
                field=f"hubs.{name[:64]}",
            )
    site = sites.get(hub.id) or modelled_site()
    if site.battery is None and onsite.battery_kwh > 0 and onsite.battery_kw > 0:
        site = replace(site, battery=Battery(energy_kwh=onsite.battery_kwh, power_kw=onsite.battery_kw))
    return site


def import_kw_max(site: EnergySite, hub: Hub) -> float:
    """What may come through the connection: as the file says, else what the hub can draw at most and a quarter more."""
    if site.import_kw_max is not None:
        return site.import_kw_max
    plates_w = sum(node.host_power_w + sum(gpu.model.power_w for gpu in node.gpus) for node in hub.nodes)
    charging_kw = site.battery.power_kw if site.battery is not None else 0.0
    return CONNECTION_HEADROOM * (plates_w / 1000 * hub.pue + charging_kw)
