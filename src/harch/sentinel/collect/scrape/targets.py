"""Which targets are there now?

Addresses that a section lists, reads from files or gets from a URL, with the labels that their samples will carry.
"""

from __future__ import annotations

import asyncio
import glob
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import yaml

from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.config import Discoverable, ScrapeConfig, StaticConfig, refresh_intervals
from harch.sentinel.collect.scrape.relabel import relabelled
from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.model.labels import Labels, labels

TARGETS_MAX = 20_000
_HIDDEN = "__"


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """One address to ask."""

    job: str
    url: str
    labels: Labels  # what its samples carry: job, instance, and what discovery says
    discovered: Labels = field(compare=False, default=())  # before relabelling, for people who look for a mistake

    @property
    def key(self) -> tuple[str, str, Labels]:
        return self.job, self.url, self.labels


def targets_of(job: ScrapeConfig, groups: Iterable[StaticConfig]) -> list[ScrapeTarget]:
    """The targets of the groups after relabelling. Raises E0674 if there are too many."""
    found: dict[tuple[str, str, Labels], ScrapeTarget] = {}
    for group in groups:
        for address in group.targets:
            target = _target(job, address, group.labels)
            if target is not None:
                found[target.key] = target
            if len(found) > TARGETS_MAX:
                raise HarchError("E0674", f"job `{job.job_name}` has more than {TARGETS_MAX} targets")
    return list(found.values())


def _target(job: ScrapeConfig, address: str, declared: dict[str, str]) -> ScrapeTarget | None:
    discovered = {
        "job": job.job_name,
        "__address__": address,
        "__scheme__": job.scheme,
        "__metrics_path__": job.metrics_path,
        **{f"__param_{name}": values[0] for name, values in job.params.items() if values},
        **declared,
    }
    final = relabelled(discovered, job.relabel_configs)
    if final is None or not final.get("__address__"):
        return None
    parameters = [(name, value) for name, values in job.params.items() for value in values]
    for name, value in final.items():
        if name.startswith("__param_"):
            short = name.removeprefix("__param_")
            parameters = [(other, kept) for other, kept in parameters if other != short] + [(short, value)]
    url = f"{final.get('__scheme__', job.scheme)}://{final['__address__']}{final.get('__metrics_path__', '')}"
    if parameters:
        url = f"{url}?{urlencode(parameters)}"
    visible = {name: value for name, value in final.items() if not name.startswith(_HIDDEN)}
    visible.setdefault("instance", final["__address__"])
    return ScrapeTarget(job.job_name, url, labels(visible), labels(discovered))


def groups_in_files(patterns: Sequence[str], base: Path) -> list[StaticConfig]:
    """Target groups from JSON or YAML files. Raises E0674 naming the file that cannot be read."""
    groups: list[StaticConfig] = []
    for pattern in patterns:
        for name in sorted(glob.glob(str(base / pattern))):
            try:
                groups.extend(read_groups(Path(name).read_text("utf-8")))
            except (OSError, UnicodeDecodeError, HarchError) as problem:
                raise HarchError("E0674", f"{name}: {problem}") from problem
    return groups


def read_groups(text: str) -> list[StaticConfig]:
    """A list of `{targets, labels}` in JSON or YAML."""
    try:
        found: Any = json.loads(text) if text.lstrip()[:1] == "[" else yaml.safe_load(text)
        return msgspec.convert(found or [], list[StaticConfig])
    except (ValueError, yaml.YAMLError, msgspec.ValidationError, RecursionError) as problem:
        raise HarchError("E0674", f"not a list of target groups: {problem}") from problem


# Which addresses does a section of the file name now? Listed ones, those in files, and those that a URL answers.


ANSWER_BYTES_MAX = 16 * 1024 * 1024
REFRESH_S_MAX = 3600.0  # of what nobody refreshes


async def discover(section: Discoverable, base: Path) -> list[StaticConfig]:
    """The groups of all its sources. Raises HarchError or httpx errors: the caller keeps what it knew."""
    groups = [*section.static_configs]
    for files in section.file_sd_configs:
        groups.extend(await asyncio.to_thread(groups_in_files, files.files, base))
    for source in section.http_sd_configs:
        groups.extend(read_groups(await _answer_of(source.url)))
    return groups


def refresh_s(section: Discoverable) -> float:
    """How long until the first of its discoveries looks again."""
    intervals_ms = [parse_duration_ms(text) for text in refresh_intervals(section)]
    return max(1.0, min(intervals_ms) / 1000) if intervals_ms else REFRESH_S_MAX


async def _answer_of(url: str) -> str:
    """The body of an HTTP discovery, read no further than its limit."""
    async with (
        httpx.AsyncClient(timeout=10, trust_env=False) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise HarchError("E0674", f"{url} returned more than {ANSWER_BYTES_MAX} bytes")
    return body.decode("utf-8", "replace")
