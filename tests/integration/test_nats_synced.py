"""Is a message on disk before it is acknowledged? Not by trust in a setting: by the system calls of the real server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from nats_world import LIMITS, SENSE_MA, WANTED_MA, admin_of, until, world

from harch.pipelines.client.aio import AioClient
from harch.pipelines.engine.layout import EngineLayout
from harch.pipelines.engine.streams import plan_streams

CALLS = "trace=fsync,fdatasync,pwrite64,write,writev"
PAYLOAD = b"OPEN-THE-VALVE"


@pytest.mark.needs("strace")
@pytest.mark.parametrize("synced", [True, False])
async def test_the_synced_engine_syncs_between_the_write_and_the_acknowledgement(tmp_path: Path, synced: bool) -> None:
    """The other engine does not: that is why ACT has one of its own."""
    trace = tmp_path / "calls"
    async with world(tmp_path) as made:
        await made.start(EngineLayout(domains=(made.morocco(made.server("ma-1"), synced=synced),), limits=LIMITS))
        control, admin = await admin_of(made, "ma-1", "MA")
        await admin.apply(plan_streams(WANTED_MA, await admin.found()))
        async with AioClient(made.options("ma-1", SENSE_MA.user_name)) as worker:
            await worker.publish_stored("juris.ma.soil.act.0", b"the file is open now")
            pid = str(made.servers["ma-1"].pid)
            tracing = subprocess.Popen(
                ["strace", "-f", "-s", "400", "-e", CALLS, "-p", pid, "-o", str(trace)], stderr=subprocess.PIPE
            )
            try:
                assert tracing.stderr is not None
                assert b"attached" in tracing.stderr.readline()

                async def seen() -> bool:
                    await worker.publish_stored("juris.ma.soil.act.0", PAYLOAD)
                    return r"{\"stream\":\"ma-soil-act\"" in trace.read_text(errors="replace")

                await until(seen, "the trace shows an acknowledgement")
            finally:
                tracing.terminate()
                tracing.wait(timeout=30)
        await control.close()
    lines = trace.read_text(errors="replace").splitlines()
    written = next(at for at, line in enumerate(lines) if "pwrite64" in line and PAYLOAD.decode() in line)
    told = next(at for at in range(written, len(lines)) if r"{\"stream\":\"ma-soil-act\"" in lines[at])
    between = [line for line in lines[written:told] if re.search(r"f(data)?sync(\(\d+\)| resumed).*= 0", line)]
    assert bool(between) is synced
