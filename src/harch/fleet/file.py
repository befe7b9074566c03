"""Which fleet does this file describe? TOML in, `Fleet` out, or one error that names every mistake and its fix."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NoReturn

from harch.base.errors import HarchError, Problems
from harch.fleet.blueprint import (
    FleetBlueprint,
    HubBlueprint,
    NodeKind,
    RackGroup,
    check_hub,
    check_link,
    check_node_kind,
    check_totals,
    expand,
)
from harch.fleet.format import FILE_BYTES_MAX, GPUS_MAX, HUBS_MAX, TomlTable, is_full, nearest, quoted
from harch.fleet.model import NOTHING_DECLARED, CoolingZone, Fleet, GpuModel, HubSafeguards, Link

CODE = "E0205"
HINT = "docs/reference/fleet.md describes every key and shows a complete file"
LINKS_MAX = HUBS_MAX * (HUBS_MAX - 1) // 2
_ENDLESS_NUMBER = re.compile(r"[0-9_]{1000}")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def load_fleet(path: Path | str) -> Fleet:
    """Reads and checks a fleet file. Raises HarchError E0205 for whatever is wrong, a missing file included."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        raise HarchError(
            CODE,
            f"{quoted(path)}: cannot be read ({reason.lower()})",
            hint=f"give the path of a fleet file, or use a shipped fleet: {', '.join(shipped_fleet_names())}",
        ) from error
    return expand(_parse(data, str(path)))


def parse_fleet(text: str, source_name: str = "fleet.toml") -> Fleet:
    """Checks the text of a fleet file; `source_name` names it in errors. Raises HarchError E0205."""
    return expand(parse_blueprint(text, source_name))


def parse_blueprint(text: str, source_name: str = "fleet.toml") -> FleetBlueprint:
    """As `parse_fleet`, but keeps kinds and counts as the file wrote them."""
    return _parse(text.encode("utf-8", errors="surrogatepass"), source_name)


def shipped_fleet(name: str) -> Fleet:
    """A fleet that comes with HarchOS: `five-hubs` (1,798 GPUs) or `twenty-hubs` (10,000 GPUs), both modelled."""
    if name not in shipped_fleet_names():
        hint = nearest(name, shipped_fleet_names())
        raise HarchError(CODE, f"no shipped fleet named `{quoted(name)}`", hint=hint)
    return parse_fleet(_shipped().joinpath(f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


def shipped_fleet_names() -> tuple[str, ...]:
    files = (file.name for file in _shipped().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def _shipped() -> Traversable:
    return resources.files("harch.fleet").joinpath("shipped")


def _parse(data: bytes, source_name: str) -> FleetBlueprint:
    problems = Problems()
    fleet = _read_fleet(TomlTable(_read_toml(data, source_name), "", "", problems))
    if problems:
        _refuse(problems, source_name)
    return fleet


def _read_toml(data: bytes, source_name: str) -> dict[str, object]:
    if len(data) > FILE_BYTES_MAX:
        raise HarchError(
            CODE,
            f"{source_name}: larger than {FILE_BYTES_MAX // 1024**2} MiB",
            hint="use `count` for racks and nodes that repeat",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _position(data[: error.start].decode("utf-8", errors="replace"))
        _refuse_syntax(source_name, line, column, "not UTF-8 text", "save the file as UTF-8")
    try:
        return tomllib.loads(text)
    except RecursionError:
        _refuse_syntax(source_name, 1, 1, "arrays or tables are nested too deeply", HINT)
    except ValueError as error:  # TOMLDecodeError, and int() on numbers of thousands of digits
        what, line, column = _syntax_error(text, error)
        reads = quoted(text.split("\n")[line - 1].strip())
        _refuse_syntax(source_name, line, column, f"not valid TOML: {what}; the line reads `{reads}`", HINT)


def _syntax_error(text: str, error: ValueError) -> tuple[str, int, int]:
    if found := _POSITION.search(str(error)):
        place = (int(found[1]), int(found[2])) if found[1] else _position(text)
        return quoted(str(error)[: found.start()]), *place
    number = _ENDLESS_NUMBER.search(text)
    return "a number has too many digits", *_position(text[: number.start()] if number else text)


def _position(text: str) -> tuple[int, int]:
    """Line and column, both from 1, of the place after `text`."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _refuse_syntax(source_name: str, line: int, column: int, what: str, hint: str) -> NoReturn:
    meta: dict[str, object] = {"source": source_name, "line": line, "column": column}
    raise HarchError(CODE, f"{source_name}, line {line}, column {column}: {what}", hint=hint, meta=meta)


def _refuse(problems: Problems, source_name: str) -> NoReturn:
    lines = [f"{where}: {what}" for where, what in problems.found]
    if len(lines) == 1:
        message = f"{source_name}: {lines[0]}"
    else:
        many = f"the first {len(lines)} problems" if is_full(problems) else f"{len(lines)} problems"
        message = f"{source_name}: {many}\n" + "\n".join(f"  {line}" for line in lines)
    meta: dict[str, object] = {
        "source": source_name,
        "problems": [{"where": where, "what": what} for where, what in problems.found],
    }
    raise HarchError(CODE, message, hint=HINT, field=problems.found[0][0], meta=meta)


def _read_fleet(root: TomlTable) -> FleetBlueprint:
    name = root.text("name")
    models = {name: _read_gpu_model(name, table) for name, table in root.named_tables("gpu_models").items()}
    kinds = {name: _read_node_kind(name, table, models) for name, table in root.named_tables("node_kinds").items()}
    hubs = _read_hubs(root, kinds)
    links = _read_links(root, hubs)
    fleet = FleetBlueprint(name, tuple(models.values()), tuple(kinds.values()), tuple(hubs), tuple(links))
    check_totals(fleet, root.problems)
    return fleet


def _read_gpu_model(name: str, table: TomlTable) -> GpuModel:
    return GpuModel(
        name,
        memory_gb=table.integer("memory_gb"),
        power_w=table.integer("power_w"),
        nvlink_gb_per_s=table.integer("nvlink_gb_per_s"),
        pcie_gb_per_s=table.integer("pcie_gb_per_s"),
    )


def _read_node_kind(name: str, table: TomlTable, models: dict[str, GpuModel]) -> NodeKind:
    model_name = table.text("gpu_model")
    if model_name and model_name not in models:
        _unknown(table, "gpu_model", "GPU model", model_name, models)
    kind = NodeKind(
        name,
        models.get(model_name, GpuModel("", 0, 0, 0, 0)),
        gpus=table.integer("gpus"),
        nvlink_island_size=table.integer("nvlink_island_size"),
        pcie_switch_size=table.integer("pcie_switch_size"),
        numa_nodes=table.integer("numa_nodes"),
        cpus=table.integer("cpus"),
        memory_gb=table.integer("memory_gb"),
        storage_gb=table.integer("storage_gb"),
        host_power_w=table.integer("host_power_w"),
    )
    check_node_kind(kind, table.path, table.problems)
    return kind


def _read_hubs(root: TomlTable, kinds: dict[str, NodeKind]) -> list[HubBlueprint]:
    hubs: list[HubBlueprint] = []
    seen: dict[str, str] = {}
    for table in root.tables("hubs", limit=HUBS_MAX):
        hub = _read_hub(table, kinds)
        _once(table, "name", hub.id, seen, "hub names differ in more than capitals")
        hubs.append(hub)
    return hubs


def _read_hub(table: TomlTable, kinds: dict[str, NodeKind]) -> HubBlueprint:
    zones: list[CoolingZone] = []
    seen: dict[str, str] = {}
    for zone in table.tables("cooling_zones", limit=GPUS_MAX):
        zones.append(CoolingZone(zone.text("name"), zone.number("heat_kw_max")))
        _once(zone, "name", zones[-1].id, seen, "cooling zones of a hub have different names")
    hub = HubBlueprint(
        name=table.text("name"),
        country=table.text("country"),
        grid_zone=table.text("grid_zone"),
        latitude=table.number("latitude"),
        longitude=table.number("longitude"),
        pue=table.number("pue"),
        cooling_zones=tuple(zones),
        racks=tuple(_read_racks(rack, seen, kinds) for rack in table.tables("racks", limit=GPUS_MAX)),
        safeguards=_read_safeguards(table.table("safeguards")),
    )
    check_hub(hub, table.path, table.problems)
    return hub


def _read_safeguards(table: TomlTable | None) -> HubSafeguards:
    if table is None:
        return NOTHING_DECLARED
    return HubSafeguards(
        encrypts_at_rest=table.boolean("encrypts_at_rest"),
        encrypts_in_transit=table.boolean("encrypts_in_transit"),
        keys_in=tuple(table.strings("keys_in")),
        frameworks=tuple(table.strings("frameworks")),
    )


def _read_racks(table: TomlTable, zones: Collection[str], kinds: dict[str, NodeKind]) -> RackGroup:
    zone_name = table.text("cooling_zone")
    if zone_name and zone_name not in zones:
        _unknown(table, "cooling_zone", "cooling zone of this hub", zone_name, zones)
    nodes = []
    for entry in table.tables("nodes", limit=GPUS_MAX):
        kind_name, count = entry.text("kind"), entry.integer("count")
        if kind_name in kinds:
            nodes.append((kinds[kind_name], count))
        elif kind_name:
            _unknown(entry, "kind", "node kind", kind_name, kinds)
    return RackGroup(table.integer("count"), table.text("row"), zone_name, table.number("power_kw_max"), tuple(nodes))


def _read_links(root: TomlTable, hubs: list[HubBlueprint]) -> list[Link]:
    by_name = {hub.name: hub for hub in hubs if hub.name}
    links: list[Link] = []
    seen: dict[str, str] = {}
    for table in root.tables("links", limit=LINKS_MAX):
        names = table.strings("between")
        countries = table.strings("countries_crossed")
        for country in sorted({country for country in countries if countries.count(country) > 1}):
            table.add("countries_crossed", f'names "{country}" twice; name each country once')
        rtt_ms, bandwidth_gbps = table.number("rtt_ms"), table.number("bandwidth_gbps")
        dedicated, reserved_gbps = table.boolean("dedicated"), table.number("reserved_gbps")
        for index, name in enumerate(names):
            if name not in by_name:
                _unknown(table, f"between[{index}]", "hub", name, by_name)
        if len(names) != 2 or not all(name in by_name for name in names):
            continue
        if names[0] == names[1]:
            table.add("between", f"links {names[0]} to itself; name two hubs")
            continue
        ends = by_name[names[0]], by_name[names[1]]
        between = (ends[0].id, ends[1].id)
        link = Link(between, rtt_ms, bandwidth_gbps, tuple(countries), dedicated, reserved_gbps)
        _once(table, "between", " and ".join(sorted(link.ends)), seen, "two hubs have one link; remove one")
        check_link(link, ends, table.path, table.problems)
        links.append(link)
    return links


def _unknown(table: TomlTable, key: str, noun: str, name: str, known: Collection[str]) -> None:
    if not is_full(table.problems):  # suggestions are slow; a file may hold thousands of bad names
        table.add(key, f"no {noun} named `{quoted(name)}`; {nearest(name, known)}")


def _once(table: TomlTable, key: str, name: str, seen: dict[str, str], rule: str) -> None:
    if name in seen:
        table.add(key, f"`{quoted(name)}` is already used by {seen[name]}; {rule}")
    elif name:
        seen[name] = table.path
