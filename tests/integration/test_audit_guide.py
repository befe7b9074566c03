"""Does what docs/guides/audit.md tells people to type work, in that order, on a real hub?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "audit.md"
ALONE = TINY_FLEET_TOML.split('\n[[hubs]]\nname = "Dakar"')[0]
SAFE = '[hubs.safeguards]\nencrypts_at_rest = true\nencrypts_in_transit = true\nkeys_in = ["MA"]\n'
FLEET = ALONE.replace("pue = 1.2\n", f"pue = 1.2\n{SAFE}")
MOROCCO = {"process_in": ["MA"], "rest_in": ["MA"], "frameworks": ["ma-law-09-08"]}
WITHIN_S = 30


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_every_command_of_the_guide_does_what_the_guide_says(tmp_path: Path) -> None:
    told = commands()
    assert len(told) >= 6
    (tmp_path / "hub").mkdir()
    (tmp_path / "here").mkdir()
    with HubProcess(FLEET, "dakhla", tmp_path / "hub") as hub:
        with hub.client() as client:
            assert client.post("/v1/data", json={"name": "census", "tag": MOROCCO}).status_code == 201
            body = {"name": "count", "command": ["true"], "data": ["census"]}
            assert client.post("/v1/workloads", json=body).status_code == 201
            until = time.monotonic() + WITHIN_S
            while client.get("/v1/workloads/count").json()["status"] != "completed":
                assert time.monotonic() < until, "the work does not end"
                time.sleep(0.05)
        programs = f"{Path(sys.executable).parent}{os.pathsep}{hub.environment['PATH']}"
        for command in told:
            done = subprocess.run(
                ["bash", "-ec", command],
                cwd=tmp_path / "here",
                env={**hub.environment, "PATH": programs},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            if "report" in command:
                assert "processed in MA (1)" in done.stdout
                assert "Complete: the chains of 1 hub(s)" in (tmp_path / "here" / "census.html").read_text()
