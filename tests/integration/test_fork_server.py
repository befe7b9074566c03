"""Are processes that are forked what they were asked to be? Real ones, from a server that has little loaded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harch.base.fork_server import ForkClient, ForkServerGone, socket_pair

PATIENCE_S = 60.0
# Two servers, as `harch up` has them. A child executes its first word.
SERVER = """
import os, socket, sys
from harch.base import ids
from harch.base.fork_server import ForkServer, freeze_loaded, socket_pair
from harch.sentinel.store.head.head import _pool
from datetime import UTC, datetime

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ids.new_id("x", now=NOW)
_pool().submit(int).result()
owner = socket.socket(fileno=int(sys.argv[1]))
first_end, second_end = socket_pair()
which = "first" if os.fork() else "second"
if which == "first":
    second_end.close()
    server = ForkServer(owner, first_end)
else:
    owner.close()
    first_end.close()
    server = ForkServer(second_end)
    over = iter([False, False, True])
    assert server.admit_until(lambda: next(over))
freeze_loaded()
request = server.serve()
if request is not None:
    exec(request.arguments[0])
"""
TELL = """
import json, pathlib
facts = {"pid": os.getpid(), "session": os.getsid(0), "parent": os.getppid(), "from": which}
facts |= {"MARK": os.environ.get("MARK"), "inherited": os.environ.get("INHERITED")}
facts |= {"id": ids.new_id("x", now=NOW), "pool": _pool().submit(int).result(5)}
facts |= {"words": open("/proc/self/cmdline").read().split(chr(0))[:4], "open": len(os.listdir("/proc/self/fd"))}
path = pathlib.Path(request.arguments[1])
path.with_suffix(".new").write_text(json.dumps(facts))
path.with_suffix(".new").rename(path)
"""
ASK_NEXT = """
import asyncio, pathlib
from harch.base.fork_server import next_server
client = next_server()
assert client is not None and "HARCH_FORK_SERVER" not in os.environ
asyncio.run(client.fork(request.arguments[1:], {}, pathlib.Path(os.devnull)))
"""


class Servers:
    def __init__(self) -> None:
        ours, theirs = socket_pair()
        self._connection = ours
        environment = {**os.environ, "INHERITED": "yes"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(theirs.fileno()), "." * 500],
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )

    def client(self) -> ForkClient:
        return ForkClient(self._connection)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    with suppress(ProcessLookupError):
        os.killpg(made.process.pid, signal.SIGKILL)
    made.process.wait()


def said(path: Path) -> Any:
    until(path.exists)
    return json.loads(path.read_text())


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_a_forked_process_is_what_was_asked_for_and_nobodys_child(servers: Servers, tmp_path: Path) -> None:
    client = servers.client()
    pid = await client.fork([TELL, str(tmp_path / "said")], {"MARK": "1"}, tmp_path / "errors")
    facts = said(tmp_path / "said")
    assert (facts["pid"], facts["session"], facts["from"]) == (pid, pid, "first")
    assert facts["parent"] != servers.process.pid
    assert (facts["MARK"], facts["inherited"]) == ("1", None)
    assert facts["words"][1:3] == ["-m", "harch"]
    assert facts["open"] <= 4  # what it began with, and the look at itself
    assert (tmp_path / "errors").read_bytes() == b""
    client.close()


async def test_forked_processes_draw_different_ids_and_have_threads_of_their_own(
    servers: Servers, tmp_path: Path
) -> None:
    client = servers.client()
    for name in ("a", "b"):
        await client.fork([TELL, str(tmp_path / name)], {}, tmp_path / "errors")
    one, other = said(tmp_path / "a"), said(tmp_path / "b")
    assert one["id"] != other["id"]
    assert one["pool"] == other["pool"] == 0
    client.close()


async def test_what_a_forked_process_says_last_is_kept(servers: Servers, tmp_path: Path) -> None:
    client = servers.client()
    await client.fork(["sys.exit('the disk is full')"], {}, tmp_path / "errors")
    until(lambda: (tmp_path / "errors").exists() and (tmp_path / "errors").read_text() == "the disk is full\n")
    client.close()


async def test_a_process_that_was_given_the_next_server_forks_from_that(servers: Servers, tmp_path: Path) -> None:
    client = servers.client()
    await client.fork([ASK_NEXT, TELL, str(tmp_path / "said")], {}, tmp_path / "errors", wants_next=True)
    assert said(tmp_path / "said")["from"] == "second", (tmp_path / "errors").read_text()
    client.close()


async def test_servers_end_with_their_owner_and_children_do_not(servers: Servers, tmp_path: Path) -> None:
    client = servers.client()
    pid = await client.fork(["import time; time.sleep(1000)"], {}, tmp_path / "errors")
    client.close()
    assert await asyncio.to_thread(servers.process.wait, PATIENCE_S) == 0
    until(lambda: not members(servers.process.pid))
    os.kill(pid, signal.SIGKILL)


async def test_a_server_that_is_gone_is_said(servers: Servers, tmp_path: Path) -> None:
    client = servers.client()
    servers.process.kill()
    servers.process.wait()
    for _ in range(2):
        with pytest.raises(ForkServerGone):
            await client.fork(["pass"], {}, tmp_path / "errors")


def members(session: int) -> list[int]:
    """Processes of a session, which the servers have to themselves."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                found += [int(name)] if int(fields[3]) == session and fields[0] not in "ZX" else []
    return found
