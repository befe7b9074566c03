"""An agent inside the test's own loop, connected to a hub in miniature."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from execution_fakes import API_KEY, AgentProcess, FakeHub, stop_supervisors

from harch.execution.admission import AgentConfig
from harch.execution.agent_process import serve
from harch.execution.isolation import cgroups


@pytest.fixture
async def hub():
    async with FakeHub().listening() as hub:
        yield hub


@pytest.fixture(params=[pytest.param("auto", marks=pytest.mark.needs("bubblewrap")), "off"])
def mode(request):
    return request.param


@pytest.fixture
async def run_agent(hub, tmp_path):
    """Starts an agent with the given settings; ends it, and all that it left, after the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings):
            stop = asyncio.Event()
            fields = {
                "hub_url": hub.url,
                "api_key": API_KEY,
                "agent_id": "agent-1",
                "state_dir": tmp_path / "state",
                "country": "MA",
                "stop_tasks_on_exit": True,
                **settings,
            }
            running = asyncio.create_task(serve(AgentConfig(**fields), stop=stop))

            async def end():
                stop.set()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await running

            stack.push_async_callback(end)
            await hub.until(lambda: bool(hub.hellos) or running.done())
            return running

        yield start
    stop_supervisors(tmp_path / "state")


@pytest.fixture
async def agent(run_agent, mode, monkeypatch):
    """Modes `bare …`: without cgroups, as for a user without special rights."""
    if mode.startswith("bare"):
        bare = cgroups.Cgroups(cgroups.host_capacity(), reason="switched off for this test")
        monkeypatch.setattr(cgroups, "detect", lambda tag: bare)
    return await run_agent(sandbox="auto" if "auto" in mode else "off")


@pytest.fixture
def agent_process(hub, tmp_path):
    """An agent in a process of its own, to be killed."""
    started: list[AgentProcess] = []

    def make(**settings) -> AgentProcess:
        process = AgentProcess(hub.url, tmp_path / "state", settings)
        started.append(process)
        return process

    yield make
    for process in started:
        if process.process is not None and process.process.returncode is None:
            process.kill()
    stop_supervisors(tmp_path / "state")


@pytest.fixture
def state(tmp_path) -> Path:
    return tmp_path / "state"
