"""Who is measured? SENTINEL, and Debian's Prometheus and VictoriaMetrics where installed, in folders of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from harch.testing.ports import free_port

READY_S = 90.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """One store under test. `query_path` is where its Prometheus API begins."""

    name: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arguments(self) -> list[str]:
        raise NotImplementedError

    def flush(self) -> None:
        """Everything into its files on disk, so that bytes can be counted and queries come from them."""

    def disk_bytes(self) -> int:
        raise NotImplementedError

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = (self.folder.parent / f"{self.name}.log").open("ab")
        self.process = subprocess.Popen(self.arguments(), stdout=log, stderr=log, cwd=self.folder)
        log.close()
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/api/v1/query", params={"query": "1"}, timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit(f"{self.name} did not start; see {self.folder.parent}/{self.name}.log")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def cpu_s(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


class Sentinel(Server):
    def arguments(self) -> list[str]:
        serve = ["sentinel", "serve", "--data", str(self.folder), "--listen", f"127.0.0.1:{self.port}"]
        return [sys.executable, "-m", "harch", *serve]

    def flush(self) -> None:
        httpx.post(f"{self.url}/api/v1/admin/tsdb/clean_tombstones", timeout=120).raise_for_status()

    def disk_bytes(self) -> int:
        return sum(bytes_below(path) for path in self.folder.glob("tenants/*/blocks"))


class Prometheus(Server):
    """With its remote-write receiver. Its blocks are those of a snapshot: the head is cut only after hours."""

    snapshot: Path | None = None

    def arguments(self) -> list[str]:
        config = self.folder / "prometheus.yml"
        config.write_text("global: {}\n")
        data = self.snapshot or self.folder / "data"
        return [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver",
            "--web.enable-admin-api",
            "--log.level=error",
        ]

    def flush(self) -> None:
        answer = httpx.post(f"{self.url}/api/v1/admin/tsdb/snapshot", timeout=120)
        answer.raise_for_status()
        self.snapshot = self.folder / "data" / "snapshots" / answer.json()["data"]["name"]

    def disk_bytes(self) -> int:
        return bytes_below(self.snapshot) if self.snapshot is not None else 0


class VictoriaMetrics(Server):
    def arguments(self) -> list[str]:
        return [
            "victoria-metrics",
            f"-storageDataPath={self.folder / 'data'}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            "-retentionPeriod=10y",
            "-search.disableCache",
            "-loggerLevel=ERROR",
        ]

    def flush(self) -> None:
        for path in ("/internal/force_flush", "/internal/force_merge"):
            httpx.get(f"{self.url}{path}", timeout=120)
        time.sleep(3)

    def disk_bytes(self) -> int:
        return bytes_below(self.folder / "data" / "data") + bytes_below(self.folder / "data" / "indexdb")


def servers(folder: Path) -> list[Server]:
    """SENTINEL first; peers only where they are installed."""
    found: list[Server] = [Sentinel("sentinel", folder / "sentinel")]
    if shutil.which("prometheus"):
        found.append(Prometheus("prometheus", folder / "prometheus"))
    if shutil.which("victoria-metrics"):
        found.append(VictoriaMetrics("victoria-metrics", folder / "victoria"))
    return found


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
