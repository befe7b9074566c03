"""Does every command of every guide work, in the order in which a reader types them, on a real federation?

`guide_page.py` tells how a page says what is typed, written and expected. All guides share one federation, and each has
to leave it as it was: no work, no closed or damaged hardware, no policy and no pipeline of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guide_page import Commands, ShownFile, read_guide
from guide_ports import with_free_ports
from guide_shell import GuideFailed, GuideShell

from harch.testing.ports import free_port_base

pytestmark = [pytest.mark.uses("bubblewrap"), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [
    "docs/guides/sovereignty.md",
]
NEW_GUIDES = [
    "docs/guides/coming-from-slurm.md",
    "docs/guides/coming-from-nomad.md",
    "docs/guides/coming-from-skypilot.md",
    "docs/guides/coming-from-prometheus.md",
    "docs/guides/grafana-prometheus.md",
    "docs/guides/two-sites.md",
    "docs/guides/troubleshooting.md",
    "docs/guides/energy-setup.md",
]
HUBS = ("dakhla", "tangier", "casablanca", "dakar", "abidjan")


class Federation:
    """`harch up` in a folder of its own, and what of it a guide may have left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        others = {"HARCH_URL", "HARCH_API_KEY", "HARCH_CONTEXT", "HARCH_HUB"}
        others |= {"HARCH_SENTINEL"}  # tests run without it, readers with it
        kept = {name: value for name, value in os.environ.items() if name not in others}
        self.environment = {
            **kept,
            "HARCH_HOME": str(folder / ".harch"),
            "HARCH_PORT_BASE": str(free_port_base()),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        command = [sys.executable, "-m", "harch", "up"]
        self.process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"`harch up` ended: {said}")

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def ask(self, *words: str) -> Any:
        command = [sys.executable, "-m", "harch", *words, "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def left_behind(self) -> dict[str, list[str]]:
        """What a guide has to clean up, with what is there of it."""
        nodes = [node for hub in HUBS for node in self.ask("node", "ls", "--hub", hub)["items"]]
        return {
            "work": [row["name"] for row in self.ask("ps", "--all-hubs")["items"]],
            "hubs": [hub["id"] for hub in self.ask("hubs")["items"] if hub["status"] != "ready"],
            "hardware": [node["id"] for node in nodes if node["cordoned"] or node["conditions"]],
            "policies": [hub for hub in HUBS if self.ask("policy", "status", "--hub", hub)["active"]],
            "pipelines": [row["name"] for hub in HUBS for row in self.ask("pipeline", "ls", "--hub", hub)["items"]],
        }


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("guides"))
    yield made
    made.close()


@pytest.mark.parametrize("guide", [*GUIDES, *NEW_GUIDES])
def test_every_command_of_the_guide_works_in_order_and_it_cleans_up(
    federation: Federation, guide: str, tmp_path: Path
) -> None:
    shared_base = int(federation.environment["HARCH_PORT_BASE"])
    steps = with_free_ports(read_guide(ROOT / guide), shared_base, free_port_base)
    assert any(isinstance(step, Commands) for step in steps)
    shell = GuideShell(tmp_path, federation.environment)
    try:
        for step in steps:
            shell.follow(step)
    finally:
        shell.close()
    print(f"{guide}: {shell.commands} commands")
    assert not any(federation.left_behind().values())


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
    ],
)
def test_a_command_that_does_not_do_what_the_page_says_fails_the_guide(
    tmp_path: Path, last: str, output: str, fails: bool
) -> None:
    (tmp_path / "page.md").write_text(PAGE.replace("{last}", last).replace("{output}", output))
    shell = GuideShell(tmp_path, dict(os.environ))
    try:
        steps = read_guide(tmp_path / "page.md")
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


def test_ports_of_a_page_become_free_ones_and_other_numbers_stay(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        """
```yaml title="targets.yml"
targets: ["127.0.0.1:7711", "10.0.0.7:9090"]  # at 17:70, 7712 of them
```

```sh
export HARCH_PORT_BASE=7800
curl "http://127.0.0.1:7801/v1?limit=7800&since=177801" --max-time 7801 --join 10.1.0.7:7821 :7701.5
```
"""
    )
    shown, typed = with_free_ports(read_guide(tmp_path / "page.md"), 12_300, lambda: 20_100)
    assert isinstance(shown, ShownFile)
    assert shown.text == 'targets: ["127.0.0.1:12311", "10.0.0.7:9090"]  # at 17:70, 7712 of them\n'
    assert typed.text == (
        "export HARCH_PORT_BASE=20100\n"
        'curl "http://127.0.0.1:20101/v1?limit=7800&since=177801" --max-time 7801 --join 10.1.0.7:20121 :7701.5\n'
    )
