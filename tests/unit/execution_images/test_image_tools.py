"""Are the programs that read foreign images ended in time, heard, and kept away from all else?"""

from __future__ import annotations

import gzip
import os
import threading
import time
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.images import tools
from harch.execution.images.registry import archive_kind, decompressed, explained
from harch.execution.images.tools import Hooks, ToolRunner, ToolView, confinement, plain_message
from harch.execution.isolation.sandbox import HostLayout
from harch.testing.images import LayerFile, layer

HOST = HostLayout((("/lib", "usr/lib"),), ("/opt/python",))
NOTHING = ToolView(())


class Stopped(Exception):
    pass


@pytest.fixture
def runner(tmp_path: Path) -> ToolRunner:
    """Its sandbox is none: it runs what comes after `--`."""
    program = tmp_path / "bwrap"
    program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    program.chmod(0o755)
    return ToolRunner(str(program), HOST)


def hooks(lines: list[str] | None = None, *, stop: threading.Event | None = None) -> Hooks:
    def check() -> None:
        if stop is not None and stop.is_set():
            raise Stopped

    return Hooks((lines if lines is not None else []).append, lambda detail: None, check)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_output_and_messages_are_told_apart_and_messages_go_to_the_log(runner: ToolRunner) -> None:
    lines: list[str] = []
    command = ["sh", "-c", "echo out; echo one >&2; printf 'two' >&2; exit 3"]
    done = runner.run(command, NOTHING, hooks(lines), timeout_s=30)
    assert (done.status, done.output, done.message) == (3, b"out\n", "two")
    assert lines == ["one", "two"]


def test_a_cancelled_tool_is_killed_with_all_that_it_started(runner: ToolRunner, tmp_path: Path) -> None:
    stop, pids = threading.Event(), tmp_path / "pids"
    script = f"sleep 1000 & echo $! > {pids}.part; echo $$ >> {pids}.part; mv {pids}.part {pids}; wait"

    def stop_once_it_runs() -> None:
        if pids.exists():
            stop.set()

    with pytest.raises(Stopped):
        runner.run(["sh", "-c", script], NOTHING, hooks(stop=stop), timeout_s=60, watch=stop_once_it_runs)
    give_up_at = time.monotonic() + 30
    for pid in map(int, pids.read_text().split()):
        while alive(pid):  # it has closed its pipes, and may need a moment to be gone
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


def test_a_tool_that_does_not_end_in_time_is_killed(runner: ToolRunner) -> None:
    began = time.monotonic()
    with pytest.raises(HarchError, match=r"`sleep` did not end within 0.2 s") as refused:
        runner.run(["sleep", "1000"], NOTHING, hooks(), timeout_s=0.2)
    assert refused.value.code == "E1113"
    assert time.monotonic() - began < 500


def test_a_tool_that_never_stops_talking_fills_neither_memory_nor_log(
    runner: ToolRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "LOG_LINES_MAX", 10)
    lines: list[str] = []
    runner.run(["sh", "-c", "seq 100 >&2"], NOTHING, hooks(lines), timeout_s=30)
    assert lines[9:] == ["10", "(more than 10 lines: the rest is left out)"]
    monkeypatch.setattr(tools, "OUTPUT_BYTES_MAX", 1000)
    with pytest.raises(HarchError, match="wrote more than it may"):
        runner.run(["sh", "-c", "yes"], NOTHING, hooks(), timeout_s=30)


def test_a_line_without_an_end_is_cut(runner: ToolRunner) -> None:
    lines: list[str] = []
    runner.run(["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2"], NOTHING, hooks(lines), timeout_s=30)
    assert sum(map(len, lines)) <= 2 * tools.READ_BYTES


def test_a_tool_sees_what_it_works_on_and_the_network_only_if_it_fetches(tmp_path: Path) -> None:
    view = ToolView((("/scratch", "/a/scratch"),), (("/auth.json", "/a/auth"),))
    environment = {"HTTPS_PROXY": "proxy.example:3128", "AWS_SECRET_ACCESS_KEY": "x", "HOME": "/root"}
    closed = confinement(HOST, view, environment)
    opened = confinement(HOST, ToolView(view.writable, view.readable, network=True), environment)
    assert "--unshare-net" in closed
    assert "--unshare-net" not in opened
    assert [word for word in opened if word.startswith("proxy")] == ["proxy.example:3128"]
    for words in (closed, opened):
        assert words[words.index("/scratch") - 2 : words.index("/scratch")] == ["--bind", "/a/scratch"]
        assert words[words.index("/auth.json") - 2 : words.index("/auth.json")] == ["--ro-bind", "/a/auth"]
        assert "/opt/python" not in words, "nor anything else of ours"
        assert not {"x", "/root"} & set(words)
        assert words.count("--bind") == 1
        assert "--clearenv" in words


def test_messages_of_go_programs_are_shown_without_their_wrapping() -> None:
    line = 'time="2026-01-02T03:04:05Z" level=fatal msg="Error parsing image name \\"docker://x\\": EOF"'
    assert plain_message(line) == 'Error parsing image name "docker://x": EOF'
    assert plain_message("Copying blob sha256:1") == "Copying blob sha256:1"


@pytest.mark.parametrize(
    ("message", "why", "hint"),
    [
        ("reading manifest 1 in r/x: manifest unknown: manifest unknown", "has no such image", "list-tags"),
        ("unauthorized: authentication required", "asks for credentials", "HARCH_REGISTRY_AUTH_FILE"),
        ("dial tcp 10.0.0.1:443: connect: connection refused", "does not answer", "data object"),
        ("x509: certificate signed by unknown authority", "does not prove who it is", "HARCH_INSECURE_REGISTRIES"),
        ("http: server gave HTTP response to HTTPS client", "does not prove who it is", "HARCH_INSECURE_REGISTRIES"),
        ("toomanyrequests: rate limit", "too often", "mirror"),
        ("Source image rejected: no signature", "policy for signatures", "policy.json"),
        ("write /scratch/x: no space left on device", "disk of this node is full", "free"),
        ("something new", "something new", "logs"),
    ],
)
def test_what_a_registry_answers_is_explained_with_what_helps(message: str, why: str, hint: str) -> None:
    error = explained("the image r/x:1", message)
    assert error.code == "E1132"
    assert why in error.message
    assert message in error.message
    assert hint in (error.hint or "")


def test_an_archive_is_known_by_the_names_in_it(tmp_path: Path) -> None:
    def archive(*names: str) -> Path:
        path = tmp_path / "image.tar"
        path.write_bytes(layer([LayerFile(name, b"x" * 1000) for name in names]))
        return path

    assert archive_kind(archive("blobs/a", "./index.json", "./oci-layout")) == "oci-archive"
    assert archive_kind(archive("a.tar", "manifest.json", "repositories")) == "docker-archive"
    with pytest.raises(HarchError, match="is no archive of an image"):
        archive_kind(archive("index.html"))
    (tmp_path / "image.tar").write_bytes(os.urandom(3) + b"x" * 5000)
    with pytest.raises(HarchError, match="is no archive of an image"):
        archive_kind(tmp_path / "image.tar")


def test_a_compressed_archive_is_decompressed_under_the_same_limits(tmp_path: Path) -> None:
    path, target = tmp_path / "image.tar.gz", tmp_path / "plain"
    path.write_bytes(gzip.compress(b"x" * 3_000_000))
    looks: list[int] = []
    assert decompressed(path, target, hooks(), lambda: looks.append(target.stat().st_size)) == target
    assert target.read_bytes() == b"x" * 3_000_000
    assert len(looks) == 3
    assert decompressed(target, path, hooks(), lambda: None) == target, "it is not compressed"
    path.write_bytes(path.read_bytes()[:-20])
    target.unlink()
    with pytest.raises(HarchError, match="cannot be decompressed") as refused:
        decompressed(path, target, hooks(), lambda: None)
    assert refused.value.code == "E1133"


def test_an_archive_that_claims_endless_files_is_read_no_further_than_it_is_long(tmp_path: Path) -> None:
    head = bytearray(layer([LayerFile("x")])[:512])
    head[124:136] = b"\x80" + b"\xff" * 11
    (tmp_path / "image.tar").write_bytes(bytes(head))
    with pytest.raises(HarchError, match="is no archive of an image"):
        archive_kind(tmp_path / "image.tar")
