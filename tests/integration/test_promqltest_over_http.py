"""The judge against a real server: samples by remote-write 2.0, questions over HTTP, a tenant for every `clear`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harch.testing.promqltest.runner import as_table, run_file
from harch.testing.promqltest.server import ServerTarget

_CASES = Path(__file__).parents[1] / "unit" / "sentinel_promql" / "cases"
CASES = [
    _CASES / f"{name}.test" for name in ("moments", "names", "native", "stale")
]  # the others ask nothing new of HTTP
_GREETING = "SENTINEL listens on "


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("judged")
    command = [sys.executable, "-m", "harch", "sentinel", "serve", "--data", str(folder), "--listen", "127.0.0.1:0"]
    log = (folder / "log").open("wb")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            assert greeting.startswith(_GREETING), (folder / "log").read_text()
            yield greeting.removeprefix(_GREETING).strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            log.close()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_server_answers_as_the_engine_does(path: Path, url: str) -> None:
    target = ServerTarget(url)
    try:
        outcome = run_file(path, target)
    finally:
        target.close()
    passed, total = outcome.counts()
    assert (passed, outcome.broken) == (total, ""), as_table([outcome], failures=5, totals=False)
    assert total > 0
