"""What may a fleet file say? Every table and key with type, limits and example; reader and docs follow it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FILE_BYTES_MAX = 4 * 1024 * 1024
HUBS_MAX = 64
GPUS_MAX = 100_000
NODE_GPUS_MAX = 72  # the widest machines that exist


@dataclass(frozen=True, slots=True)
class Shape:
    """What a text must look like, for the machine and in words."""

    pattern: re.Pattern[str]
    words: str


# Names become ids, folder names and parts of addresses, so they are kept plain.
SITE = Shape(re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*"), "letters, digits and inner dashes")
LABEL = Shape(re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*"), "lower-case letters, digits, inner dots and dashes")
ROW = Shape(re.compile(r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*"), "letters, digits, inner dots and dashes")
COUNTRY = Shape(re.compile(r"[A-Z]{2}"), "two capital letters (ISO 3166-1)")
GRID_ZONE = Shape(re.compile(r"[A-Z0-9]+([_-][A-Z0-9]+)*"), "capital letters and digits, e.g. a country code")
TEXT_CHARS_MAX = 48

KeyType = Literal["text", "texts", "integer", "number", "boolean", "table", "tables", "named tables"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. Without a default it must be there."""

    name: str
    type: KeyType
    example: str
    low: float = 0
    high: float = 0
    shape: Shape | None = None
    default: int | None = None


def _text(name: str, shape: Shape, example: str) -> Key:
    return Key(name, "text", f'"{example}"', shape=shape)


def _integer(name: str, low: int, high: int, example: int, default: int | None = None) -> Key:
    return Key(name, "integer", str(example), low, high, default=default)


def _number(name: str, low: float, high: float, example: float) -> Key:
    return Key(name, "number", str(example), low, high)


# A key's path in the file, without the numbers: `hubs.racks` holds the keys of each `[[hubs.racks]]`.
FORMAT: dict[str, tuple[Key, ...]] = {
    "": (
        _text("name", LABEL, "my-fleet"),
        Key("gpu_models", "named tables", "[gpu_models.h100-80gb]"),
        Key("node_kinds", "named tables", "[node_kinds.h100-8]"),
        Key("hubs", "tables", "[[hubs]]"),
        Key("links", "tables", "[[links]]", default=0),
    ),
    "gpu_models": (
        _integer("memory_gb", 1, 10_000, 80),
        _integer("power_w", 1, 100_000, 700),
        _integer("nvlink_gb_per_s", 0, 100_000, 900),
        _integer("pcie_gb_per_s", 1, 100_000, 128),
    ),
    "node_kinds": (
        _text("gpu_model", LABEL, "h100-80gb"),
        _integer("gpus", 1, NODE_GPUS_MAX, 8),
        _integer("nvlink_island_size", 1, NODE_GPUS_MAX, 8),
        _integer("pcie_switch_size", 1, NODE_GPUS_MAX, 2),
        _integer("numa_nodes", 1, 16, 2),
        _integer("cpus", 1, 4_096, 112),
        _integer("memory_gb", 1, 1_000_000, 2_048),
        _integer("storage_gb", 1, 100_000_000, 30_000),
        _integer("host_power_w", 0, 100_000, 4_600, default=0),
    ),
    "hubs": (
        _text("name", SITE, "Dakhla"),
        _text("country", COUNTRY, "MA"),
        _text("grid_zone", GRID_ZONE, "MA"),
        _number("latitude", -90, 90, 23.7),
        _number("longitude", -180, 180, -15.9),
        _number("pue", 1, 5, 1.2),
        Key("cooling_zones", "tables", "[[hubs.cooling_zones]]"),
        Key("racks", "tables", "[[hubs.racks]]"),
        Key("safeguards", "table", "[hubs.safeguards]", default=0),
    ),
    "hubs.safeguards": (
        Key("encrypts_at_rest", "boolean", "true", default=0),
        Key("encrypts_in_transit", "boolean", "true", default=0),
        Key("keys_in", "texts", '["MA"]', 0, 32, COUNTRY, default=0),
        Key("frameworks", "texts", '["gdpr"]', 0, 32, LABEL, default=0),
    ),
    "hubs.cooling_zones": (
        _text("name", LABEL, "hall-1"),
        _number("heat_kw_max", 0.1, 1_000_000, 540),
    ),
    "hubs.racks": (
        _integer("count", 1, GPUS_MAX, 6, default=1),
        _text("row", ROW, "A"),
        _text("cooling_zone", LABEL, "hall-1"),
        _number("power_kw_max", 0.1, 10_000, 44),
        Key("nodes", "tables", 'nodes = [{ kind = "h100-8", count = 4 }]'),
    ),
    "hubs.racks.nodes": (
        _text("kind", LABEL, "h100-8"),
        _integer("count", 1, GPUS_MAX, 4, default=1),
    ),
    "links": (
        Key("between", "texts", '["Dakhla", "Tangier"]', 2, 2, SITE),
        _number("rtt_ms", 0.01, 1_000, 20),
        _number("bandwidth_gbps", 0.001, 1_000_000, 100),
        Key("countries_crossed", "texts", '["MA"]', 1, 32, COUNTRY),
    ),
}
