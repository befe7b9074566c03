"""The pipelines of a hub inside a test: its loop runs here, its message engine and its workers are real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from hub_pipeline_world import Webhook
from nats_world import until

from harch.base.clock import SystemClock
from harch.hub.pipelines.service import HubPipelines
from unit.hub_pipelines.pipeline_samples import Desk

MODELS = """
import numpy as np

def dry(rows):
    return rows[:, :1].astype(np.float32)
"""
FIELDS = """\
kind: pipeline
name: fields
jurisdiction:
  {process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}
sense:
  sources:
    - {kind: http, name: web, disorder_s: 0.1}
  devices: [field-0, field-1]
  devices_max: 2
  metrics: [moisture]
  statistics: [count, mean]
  windows: {size_s: 0.5, lateness_s: 0.2, skew_s: 60, future_s: 60}
  source_idle_s: 3600
  partitions: 1
  checkpoint: {every_s: 0.2}
think:
  models:
    - {name: dryness, inputs: [count, mean], outputs: [events], versions: [VERSION]}
act:
  sinks:
    valves: {kind: http, url: "SINK", honours_key: true, timeout_s: 10}
  actions:
    - {name: water, when: events > 0, ttl_s: 300, sink: valves, args: {events: "{events}"}}
durability: {act: stored, stream_bytes_max: 8388608, state_bytes_max: 8388608, dead_letters_bytes_max: 1048576}
"""
_VERSION = '{version: "1", runtime: python, callable: "field_models:dry"}'


class RunningHub:
    """`post` counts what the source said yes to; the webhook counts what was acted on."""

    def __init__(self, pipelines: HubPipelines, folder: Path, hook: Webhook) -> None:
        """`folder` is the state folder of the hub."""
        self.pipelines, self.folder, self.hook = pipelines, folder, hook
        self.accepted = 0
        self.key = ""
        self.at_ms = round(SystemClock().now().timestamp() * 1000)

    def text(self, *changes: tuple[str, str]) -> str:
        found = FIELDS.replace("VERSION", _VERSION).replace("SINK", self.hook.url)
        for old, new in changes:
            assert old in found, old
            found = found.replace(old, new)
        return found

    async def apply(self, text: str, name: str = "fields") -> Any:
        """Answers when all of its workers are ready."""
        files = self.folder / "pipelines" / "pipelines" / name / "files"
        files.mkdir(parents=True, exist_ok=True)
        (files / "field_models.py").write_text(MODELS)
        view = await self.pipelines.apply(text.encode(), "fields.yaml", tenant="default", actor="test")
        await until(lambda: self.is_running(name), f"{name} runs", within_s=120)  # several processes start
        return view

    async def is_running(self, name: str) -> bool:
        found = (await self.pipelines.show(name, tenant=None)).pipeline
        return found.state == "running" and bool(found.sources)

    async def post(self, client: httpx.AsyncClient) -> bool:
        """One event of each device, a quarter of a second after the last ones."""
        found = (await self.pipelines.show("fields", tenant=None)).pipeline.sources
        if not found:
            return False
        rows = [{"ts": self.at_ms + 250, "device": device, "v0": 0.5} for device in ("field-0", "field-1")]
        try:
            found_key = self.key or (await self.pipelines.source_key("fields", "web", tenant=None, actor="test")).key
            self.key, shown = found_key, {"authorization": f"Bearer {found_key}"}
            answer = await client.post(f"{found['web']}/v1/events", json=rows, headers=shown, timeout=20)
        except httpx.HTTPError:
            return False
        if answer.status_code != 202:
            return False
        self.at_ms += 250
        self.accepted += len(rows)
        return True

    async def feed(self, moments: int) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(moments):
                await until(lambda: self.post(client), "the source takes events")

    async def settled(self) -> None:
        """Closes the windows of all that was accepted so far, and waits until each event was acted on."""
        wanted = self.accepted
        self.at_ms += 5000
        await self.feed(1)
        self.accepted -= 2  # those close the windows of the others
        await until(lambda: self.hook.events() >= wanted, "every accepted event is acted on")
        assert self.hook.events() == wanted


class LoneHub(RunningHub):
    """A hub of its own, in no federation."""

    def __init__(self, folder: Path, hook: Webhook) -> None:
        self.desk = Desk(folder, SystemClock())
        super().__init__(self.desk.pipelines, folder, hook)


@contextlib.asynccontextmanager
async def running_hub(folder: Path, settings: str = "") -> AsyncIterator[LoneHub]:
    """`settings` is the text of its engine.toml."""
    folder.mkdir(exist_ok=True)
    if settings:
        (folder / "engine.toml").write_text(settings)
    hook = Webhook()
    hub = LoneHub(folder, hook)
    task = asyncio.create_task(hub.pipelines.run())
    try:
        yield hub
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await hub.pipelines.close()
        hub.desk.database.close()
        hook.close()
