"""Does every command of every guide work, in the order in which a reader types them, on a real federation?

`guide_page.py` tells how a page says what is typed, written and expected. All guides share one federation, and each has
to leave it as it was: no work, no closed or damaged hardware, no policy and no pipeline of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from guide_page import GUIDES, Commands, GuidePorts, fences, read_guide
from guide_shell import GuideFailed, GuideShell, readers_folder

from harch.sdk.operations import PER_PAGE_MAX
from harch.testing.ports import free_port_base

pytestmark = [pytest.mark.uses("bubblewrap", "skopeo", "umoci", "docker-registry"), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
CLEANED_UP_WITHIN_S = 20.0  # hubs tell each other what has changed, e.g. that a silence has ended
UNFINISHED = ("pending", "scheduled", "queued", "running", "paused")
HUBS = ("dakhla", "tangier", "casablanca", "dakar", "abidjan")


class Federation:
    """`harch up` in a folder of its own, and what of it a guide may have left behind."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / ".harch"
        self.ports = GuidePorts(free_port_base(), free_port_base(hubs=1))
        others = {"HARCH_URL", "HARCH_API_KEY", "HARCH_CONTEXT", "HARCH_HUB", "HARCH_SENTINEL"}
        kept = {name: value for name, value in os.environ.items() if name not in others}
        self.environment = {
            **kept,
            "HARCH_HOME": str(self.home),
            "HARCH_PORT_BASE": str(self.ports.federation),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        command = [sys.executable, "-m", "harch", "up"]
        self.process = subprocess.Popen(command, env=self.environment, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if "Ctrl-C" in line:
                break
        else:
            raise AssertionError(f"`harch up` ended: {said}")
        self.files = self._files()

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def left_behind(self) -> dict[str, list[str]]:
        """What a guide has to clean up, with what is there of it."""
        left = [self._left_behind_at(hub, self.ports.federation + number) for number, hub in enumerate(HUBS, start=1)]
        found = {what: [name for hub in left for name in hub[what]] for what in left[0]}
        return {**found, "files": sorted(self._files() - self.files)}

    def _left_behind_at(self, hub: str, port: int) -> dict[str, list[str]]:
        key = {"X-API-Key": (self.home / "admin.key").read_text().strip()}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", headers=key, timeout=30) as client:

            def items(path: str) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = (
                    client.get(path, params={"per_page": PER_PAGE_MAX}).raise_for_status().json()["items"]
                )
                return found

            return {
                "work": [one["name"] for one in items("/workloads") if one["status"] in UNFINISHED],
                "hubs": [one["id"] for one in items("/hubs") if one["status"] != "ready"],
                "nodes": [one["id"] for one in items("/nodes") if one["cordoned"] or one["conditions"]],
                "uplinks": [one["id"] for one in items("/racks") if one["uplink_factor"] != 1],
                "cooling": [one["id"] for one in items("/cooling-zones") if one["heat_kw_max"] != one["heat_kw_built"]],
                "policies": [hub for _ in range(client.get("/policies/active").raise_for_status().json()["active"])],
                "pipelines": [one["name"] for one in items("/pipelines")],
                "silences": [one["id"] for one in self._silences(port + 10, key) if one["status"]["state"] == "active"],
            }

    def _silences(self, port: int, key: dict[str, str]) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v2/silences", headers=key, timeout=30)
        except httpx.ConnectError:  # a SENTINEL that has not started has no silences
            return []
        silences: list[dict[str, Any]] = answer.raise_for_status().json()
        return silences

    def _files(self) -> set[str]:
        """What operators put into state folders: settings, rules and other texts; stores have other names."""
        return {
            file.relative_to(self.home).as_posix()
            for kind in ("*.toml", "*.yml", "*.yaml", "*.csv")
            for file in (*self.home.glob(kind), *self.home.glob(f"*/{kind}"))
        }


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("guides"))
    yield made
    made.close()


def needs_curl(guide: str) -> bool:
    return any(fence.language == "sh" and "curl " in fence.body for fence in fences(ROOT / guide))


@pytest.mark.parametrize(
    "guide", [pytest.param(one, marks=[pytest.mark.needs("curl")] * needs_curl(one)) for one in GUIDES]
)
def test_every_command_of_the_guide_works_in_order_and_it_cleans_up(
    federation: Federation, guide: str, tmp_path: Path
) -> None:
    steps = read_guide(ROOT / guide, federation.ports)
    assert any(isinstance(step, Commands) for step in steps)
    readers_folder(tmp_path, federation.home, federation.ports)
    shell = GuideShell(tmp_path, federation.environment)
    try:
        for step in steps:
            shell.follow(step)
    finally:
        shell.close()
    print(f"{guide}: {shell.commands} commands")
    until = time.monotonic() + CLEANED_UP_WITHIN_S
    while left := {what: found for what, found in federation.left_behind().items() if found}:
        assert time.monotonic() < until, left
        time.sleep(0.2)


PAGE = """
```toml title="notes/one.toml"
name = "one"
```

```sh
greet() {
  echo "hello $1"
}
where=$(cat notes/one.toml)   # a variable stays
```

```sh
greet "$where"
yes | head -2   # until Ctrl-C
{last}
```

```text
{output}
```
"""


@pytest.mark.parametrize(
    ("last", "output", "fails"),
    [
        ("true", "", False),
        ("false; true", "", True),
        ("if false; then true; fi", "", False),
        ("echo 'error[E0901]: no' >&2; false", "error[E0901]: no", False),
        ("echo 'error[E0902]: no' >&2; false", "error[E0901]: no", True),
        ("true", "error[E0901]: no", True),
        ("(exit 5)   # exits with 5", "", False),
        ("(exit 4)   # exits with 5", "", True),
        ("true   # exits with 5", "", True),
        ("echo one of 3 hubs", "one of 5 hubs", False),
        ("echo one of 3 nodes", "one of 5 hubs", True),
    ],
)
def test_a_command_that_does_not_do_what_the_page_says_fails_the_guide(
    tmp_path: Path, last: str, output: str, fails: bool
) -> None:
    (tmp_path / "page.md").write_text(PAGE.replace("{last}", last).replace("{output}", output))
    shell = GuideShell(tmp_path, dict(os.environ))
    try:
        steps = read_guide(tmp_path / "page.md", GuidePorts())
        assert [len(step.commands) for step in steps if isinstance(step, Commands)] == [2, 3]
        said = "".join(shell.follow(step) for step in steps[:-1])
        assert said == ""
        if fails:
            with pytest.raises(GuideFailed, match="line 13"):
                shell.follow(steps[-1])
        else:
            assert 'hello name = "one"' in shell.follow(steps[-1])
    finally:
        shell.close()


def test_ports_of_a_page_become_those_of_the_federation_and_other_free_ones() -> None:
    ports = GuidePorts(federation=10_000, others=20_000)
    page = "127.0.0.1:7701 HARCH_PORT_BASE=7800 :7824 :9090 :8099 80 77 17701 27.01"
    made = "127.0.0.1:10001 HARCH_PORT_BASE=20000 :20024 :20090 :20099 80 77 17701 27.01"
    assert ports.put_into(page) == made


SESSION = """
```text title="notes"
one
```

```text title="Append to notes"
two
```

```sh title="In a terminal of its own"
harch up
```

```sh title="In a terminal of its own"
echo up
trap 'echo over > ended; exit' INT
while sleep 0.1; do :; done
```

```sh
cat notes
```

```sh title="After Ctrl-C in those terminals"
cat ended
```
"""


def test_files_are_added_to_and_other_terminals_end_when_the_page_says_so(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(SESSION)
    shell = GuideShell(tmp_path, dict(os.environ))
    try:
        said = "".join(shell.follow(step) for step in read_guide(tmp_path / "page.md", GuidePorts()))
    finally:
        shell.close()
    assert said == "one\ntwo\nover\n"


WITH_PROGRAMS = """
```sh title="With curl"
curl --version > seen
```

```sh title="In a terminal of its own, with curl and serf"
serf agent
```

```sh
test ! -e seen
```
"""


def test_what_needs_absent_programs_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(WITH_PROGRAMS)
    shell = GuideShell(tmp_path, {**os.environ, "PATH": programs_of_everybody(tmp_path / "bin")})
    try:
        for step in read_guide(tmp_path / "page.md", GuidePorts()):
            shell.follow(step)
        assert shell.commands == 1
    finally:
        shell.close()


def programs_of_everybody(folder: Path) -> str:
    folder.mkdir()
    for name in ("bash", "sh"):
        (folder / name).symlink_to(shutil.which(name) or "")
    return str(folder)
