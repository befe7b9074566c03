"""Which targets are there now? Addresses of a job with the labels that their samples will carry."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import yaml

from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.config import ScrapeConfig, StaticConfig
from harch.sentinel.collect.scrape.relabel import relabelled
from harch.sentinel.model.labels import Labels, labels

TARGETS_MAX = 20_000
_HIDDEN = "__"


@dataclass(frozen=True, slots=True)
class Target:
    """One address to ask."""

    job: str
    url: str
    labels: Labels  # what its samples carry: job, instance, and what discovery says
    discovered: Labels = field(compare=False, default=())  # before relabelling, for people who look for a mistake

    @property
    def key(self) -> tuple[str, str, Labels]:
        return self.job, self.url, self.labels


def targets_of(job: ScrapeConfig, groups: Iterable[StaticConfig]) -> list[Target]:
    """The targets of the groups after relabelling. Raises E0674 if there are too many."""
    found: dict[tuple[str, str, Labels], Target] = {}
    for group in groups:
        for address in group.targets:
            target = _target(job, address, group.labels)
            if target is not None:
                found[target.key] = target
            if len(found) > TARGETS_MAX:
                raise HarchError("E0674", f"job `{job.job_name}` has more than {TARGETS_MAX} targets")
    return list(found.values())


def _target(job: ScrapeConfig, address: str, said: dict[str, str]) -> Target | None:
    discovered = {
        "job": job.job_name,
        "__address__": address,
        "__scheme__": job.scheme,
        "__metrics_path__": job.metrics_path,
        **{f"__param_{name}": values[0] for name, values in job.params.items() if values},
        **said,
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
    shown = {name: value for name, value in final.items() if not name.startswith(_HIDDEN)}
    shown.setdefault("instance", final["__address__"])
    return Target(job.job_name, url, labels(shown), labels(discovered))


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
        raise HarchError("E0674", f"no list of target groups: {problem}") from problem
