"""Which addresses does a section of the file name now? Listed ones, those in files, and those that a URL answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.config import Discoverable, StaticConfig, refresh_intervals
from harch.sentinel.collect.scrape.targets import groups_in_files, read_groups
from harch.sentinel.model.durations import parse_duration_ms

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
    told_ms = [parse_duration_ms(text) for text in refresh_intervals(section)]
    return max(1.0, min(told_ms) / 1000) if told_ms else REFRESH_S_MAX


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
                raise HarchError("E0674", f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
    return body.decode("utf-8", "replace")
