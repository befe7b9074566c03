"""The SQL sink on a real PostgreSQL server: one change per key, also when the server is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harch.base.errors import HarchError
from harch.pipelines.act.settings import SqlSink as Settings
from harch.pipelines.act.sinks.base import Effect, SinkRequest
from harch.pipelines.act.sinks.sql import SqlSinkAdapter
from harch.testing.ports import free_port

ADD = "UPDATE accounts SET amount = amount + :amount WHERE id = :device AND note <> '100%'"


class Postgres:
    """A server of its own in a temporary folder. As root it runs as `postgres`, because it refuses root."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.user = "postgres" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        command = ["initdb", "-D", self.folder / "data", "-U", "postgres", "--auth=trust", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, user=self.user, timeout=100)

    def start(self) -> None:
        options = ["-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder), "-c", "shared_buffers=16MB"]
        self._process = subprocess.Popen(
            ["postgres", "-D", self.folder / "data", *options],
            user=self.user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    named = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    assert "postgresql" in named, "without the mark `needs` the test fails where PostgreSQL is absent"
    # Below /tmp: the server's own user has to reach it, and its socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="harch-pg-"))
    server = Postgres(folder, free_port())
    try:
        if server.user:
            shutil.chown(folder, server.user)
        server.make()
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def order(number: int = 0) -> SinkRequest:
    return SinkRequest(
        key=f"{number}:0", cmd_id=str(number), device="d0", action="pay", args={"amount": 10}, fence=1, timeout_s=20,
        expires_ms=2**53,
    )  # fmt: skip


async def connected(server: Postgres) -> psycopg.Connection:
    async with asyncio.timeout(60):
        while True:
            try:
                return psycopg.connect(server.url, autocommit=True, connect_timeout=5)
            except psycopg.OperationalError:
                await asyncio.sleep(0.1)


@pytest.mark.needs("postgresql")
async def test_a_key_is_one_change_also_over_a_killed_server(postgres: Postgres) -> None:
    bank = await connected(postgres)
    bank.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, amount INTEGER, note TEXT DEFAULT '')")
    bank.execute("INSERT INTO accounts VALUES ('d0', 0)")
    sinks = [SqlSinkAdapter(Settings(url=postgres.url, statement=ADD, timeout_s=20.0)) for _ in range(2)]
    await sinks[0].prepare(order())  # makes the outbox
    outcomes = await asyncio.gather(*(sinks[at % 2].execute(order(at % 10), lambda: "") for at in range(200)))
    assert {outcome.effect for outcome in outcomes} == {Effect.YES}
    assert bank.execute("SELECT amount FROM accounts").fetchone() == (100,)
    assert (await sinks[0].execute(order(50), lambda: "expired")).effect is Effect.NO
    assert (await sinks[0].probe(order(50))).effect is Effect.NO

    postgres.kill()
    broken = await sinks[0].execute(order(60), lambda: "")
    assert broken.effect in (Effect.NO, Effect.MAYBE)
    postgres.start()
    bank = await connected(postgres)
    for _ in range(3):
        assert (await sinks[0].execute(order(60), lambda: "")).effect is Effect.YES
    assert (await sinks[0].probe(order(60))).effect is Effect.YES
    assert bank.execute("SELECT amount FROM accounts").fetchone() == (110,)
    bank.close()
    for sink in sinks:
        await sink.close()


def test_without_its_package_postgresql_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("harch.pipelines.act.sinks.addresses.import_module", missing)
    with pytest.raises(HarchError) as caught:
        SqlSinkAdapter(Settings(url="postgresql://localhost/x", statement="SELECT 1"))
    assert caught.value.code == "E0776"


@pytest.mark.needs("postgresql")
async def test_lists_of_hosts_and_sockets_lead_to_the_same_server(postgres: Postgres) -> None:
    (await connected(postgres)).close()
    urls = (
        f"postgresql://postgres@localhost:1,127.0.0.1:{postgres.port}/postgres",
        f"postgresql://postgres@nobody.example/postgres?hostaddr=127.0.0.1&port={postgres.port}",
        f"postgresql://postgres@/postgres?host={postgres.folder}&port={postgres.port}",
    )
    for number, url in enumerate(urls):
        sink = SqlSinkAdapter(Settings(url=url, statement="SELECT 1", timeout_s=30.0))
        assert (await sink.prepare(order(number))).refusal == ""
        assert (await sink.execute(order(number), lambda: "")).effect is Effect.YES, url
        await sink.close()
