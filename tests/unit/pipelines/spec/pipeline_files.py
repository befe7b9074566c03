"""A pipeline file that is right, for tests that break it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from harch.fleet.file import shipped_fleet
from harch.hub.pipelines.planning import hosts_of
from harch.pipelines.spec.file import parse_pipelines
from harch.pipelines.spec.residency import ResidencyProof, prove_residency
from harch.pipelines.spec.settings import PipelineSpec
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import Safeguards, SiteSafeguards, Terrain, terrain_of
from harch.sovereignty.jurisdiction_file import parse_jurisdictions

IRRIGATION = """\
kind: pipeline
name: souss-irrigation
jurisdiction:
  process_in: [MA]
  rest_in: [MA]
  classification: confidential
  encrypt_at_rest: false
  encrypt_in_transit: false
origins:
  fields: MA
sense:
  sources:
    - {kind: mqtt, name: fields, host: broker.souss.example, topics: ["souss/{device}/{metric}"]}
    - {kind: http, name: weather}
    - {kind: nats, name: gateways, subject: "juris.ma.souss-irrigation.in.>"}
  devices_max: 200
  metrics: [moisture, flow]
  windows: {size_s: 60}
  partitions: 64
think:
  models:
    - name: thirst
      inputs: [moisture.mean, flow.mean]
      outputs: [need_mm]
      versions:
        - {version: "1", runtime: python, callable: "farm.models:thirst"}
act:
  sinks:
    valves: {kind: modbus, host: 10.1.0.5, register: 40, country: MA, keyed: true, units: {}}
    book: {kind: sql, url: "sqlite:///book.db", statement: "insert into book values (:device)"}
  actions:
    - {name: water, when: need_mm > 2, ttl_s: 600, sink: valves, args: {value: "{need_mm}"}}
scaling:
  sense: {workers_min: 2, workers_max: 8}
latency: {p99_ms_target: 50}
exports:
  - {name: water-used, to: [SN], tag: {process_in: [MA, SN], rest_in: [MA, SN], transit_in: [MA, SN, MR],
     may_cross_borders: true, classification: public, encrypt_at_rest: false, encrypt_in_transit: false}}
"""
PLACES = """\
[places.souss]
country = "MA"
networks = ["10.1.0.0/16"]
names = ["broker.souss.example", "*.valves.souss.example"]

[places.dakar]
country = "SN"
networks = ["10.2.0.0/16", "2001:db8:5::/48"]
names = ["hook.dakar.example"]
"""
JURISDICTIONS = parse_jurisdictions(PLACES, "jurisdictions.toml")
FLEET = shipped_fleet("five-hubs")


def irrigation() -> PipelineSpec:
    return parse(IRRIGATION)


def parse(text: str) -> PipelineSpec:
    return parse_pipelines(text.encode(), "farm.yaml", JURISDICTIONS)[0]


def raw() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(IRRIGATION)
    return loaded


def changed(**fields: Any) -> PipelineSpec:
    """The same with other values: `sense__partitions=8` reaches into a table."""
    data = raw()
    for path, value in fields.items():
        *tables, name = path.split("__")
        table = data
        for key in tables:
            table = table.setdefault(key, {})
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
    return parse(yaml.safe_dump(data))


def proved(spec: PipelineSpec, *, declassified: Iterable[str] = (), **variables: str) -> ResidencyProof:
    return prove_residency(spec, hosts_of(spec, variables), rules(), JURISDICTIONS, declassified=declassified)


def terrain() -> Terrain:
    """The shipped fleet; every hub encrypts and every link is encrypted."""
    sites = {hub.id: SiteSafeguards(encrypts_at_rest=True, keys_in=(hub.country,)) for hub in FLEET.hubs}
    links = tuple(link.ends for link in FLEET.links)
    return terrain_of(FLEET, JURISDICTIONS, Safeguards(sites=sites, links_encrypted=links))


def rules() -> Rules:
    return Rules(terrain())
