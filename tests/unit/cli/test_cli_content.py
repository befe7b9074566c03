"""`harch content` for operators, and what lists, `show`, `logs` and `run` say of work that is being prepared."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result
from hub_double import HubDouble

from harch.cli.views.counted import counted

Harch = Callable[..., Result]
USAGE = {"tenant": "vision", "trees": 3, "chunks": 40, "bytes_raw": 5_000_000, "bytes_stored": 2_000_000}
STATUS = {
    "hub": "dakhla",
    "location": "/var/lib/harch/content",
    "tenants": [{**USAGE, "bytes_max": 10**10}, {**USAGE, "tenant": "audio", "bytes_stored": 900}],
    "bytes_stored": 2_000_900,
    "bytes_garbage": 1000,
    "bytes_free": 10**12,
    "transfers": [{"digest": "ab" * 32, "source_hub": "dakar", "bytes_done": 10**6, "bytes_total": 10**7}],
}


def work(status: str, preparing: str = "", **more: Any) -> dict[str, Any]:
    return {
        "id": "wl_1",
        "name": "train",
        "status": status,
        "metadata": {"id": "wl_1", "name": "train", "created_at": "2026-01-02T03:04:05Z", "labels": {}},
        "spec": {
            "name": "train",
            "command": ["true"],
            "code": "data_1",
            "image": "a:1",
            "environment": {"python": "3.12", "packages": ["torch", "rich"]},
            "artifacts": [{"name": "model", "path": "out"}],
        },
        "attempt": 1,
        "preparing": preparing,
    } | more


def test_the_store_of_a_hub_is_described(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /content", STATUS)
    text = harch("content", "status").stdout
    assert text.splitlines() == [
        "dakhla keeps 2 MB in /var/lib/harch/content",
        "  garbage    1 kB",
        "  disk free  1 TB",
        "  tenants    2",
        "  transfer   abababababab from dakar: 1 MB of 10 MB",
    ]
    assert json.loads(harch("content", "status", "--json").stdout)["bytes_garbage"] == 1000


def test_tenants_are_listed_with_what_they_keep_and_may(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /content", STATUS)
    assert harch("content", "tenants", "-o", "name", "--sort", "stored").stdout == "audio\nvision\n"
    lines = harch("content", "tenants").stdout.splitlines()
    assert lines[1].split() == ["vision", "3", "40", "5", "MB", "2", "MB", "10", "GB"]


def test_a_collection_says_what_it_has_removed(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /content/collect", {"chunks": 1, "bytes": 2050})
    assert harch("content", "collect", "--grace", "10m").stdout == "removed 1 chunk, 2.05 kB\n"
    assert hub.asked[-1].params == {"grace_s": "600"}


def test_a_check_fails_if_chunks_cannot_be_read(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /content/check", {"chunks": 9, "bytes": 2050})
    result = harch("content", "check")
    assert (result.exit_code, result.stdout) == (0, "9 chunks, 2.05 kB: all are as they should be\n")
    hub.on("POST /content/check", {"chunks": 90, "bytes": 2050, "damaged": ["ab"] * 15, "missing": ["cd"] * 10})
    result = harch("content", "check")
    assert result.exit_code == 1
    assert "25 chunks of them cannot be read" in result.stdout
    assert result.stdout.count("damaged ab") == 15
    assert "and 5 more" in result.stderr
    assert harch("content", "check", "--json").exit_code == 1


def test_work_that_is_prepared_is_listed_so_and_says_with_what(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads", {"items": [work("scheduled", "environment: 12 packages")], "total": 1, "pagination": {}})
    text = harch("ps", "--columns", "status,note").stdout
    assert text.splitlines()[1].split("  ") == ["preparing", "environment: 12 packages"]
    hub.on("GET /workloads", {"items": [work("scheduled"), work("running", "late")], "total": 2, "pagination": {}})
    assert harch("ps", "--columns", "status", "--no-headers").stdout.split() == ["scheduled", "running"]


def test_show_says_what_it_brings_and_what_is_prepared(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/wl_1", work("scheduled", "code: 4 of 9 MB"))
    hub.on("GET /workloads/wl_1/why", {"subject": "wl_1", "verdict": "fits_now", "sentence": "It starts.", "hubs": []})
    text = harch("show", "wl_1", "--events", "0").stdout
    assert text.startswith("train (wl_1): preparing\n")
    for line in (
        "  preparing   code: 4 of 9 MB",
        "  code        data_1",
        "  image       a:1",
        "  packages    python 3.12, packages torch, rich",
        "  artifacts   model from out",
    ):
        assert line in text.splitlines()


def test_run_names_each_step_of_the_preparation_once(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", work("pending", attempt=0), status=201)
    hub.on(
        "GET /workloads/wl_1",
        work("scheduled", "code: 1 of 9 MB"),
        work("scheduled", "code: 8 of 9 MB"),
        work("scheduled", "environment: 12 packages"),
        work("scheduled"),
        work("running", started_at="2026-01-02T03:04:06Z"),
        work("completed", started_at="2026-01-02T03:04:06Z"),
    )
    hub.on("GET /workloads/wl_1/logs", b"hello\n", b"")
    result = harch("run", "--", "true")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert [line for line in result.stderr.splitlines() if line.startswith("preparing")] == [
        "preparing: code: 1 of 9 MB",
        "preparing: environment: 12 packages",
    ]


def test_work_that_fails_while_it_is_prepared_ends_the_wait(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", work("scheduled", "environment: 12 packages"), status=201)
    why = "E1120 no such package: torchh"
    hub.on("GET /workloads/wl_1", work("failed", "environment: 12 packages", error_message=why))
    result = harch("run", "--", "true")
    assert result.exit_code == 1
    assert "no such package: torchh" in result.stderr


def test_the_log_of_the_preparation_is_printed_and_followed(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/wl_1", work("scheduled"))
    hub.on("GET /workloads/wl_1/logs", b"resolving\n", b"")
    assert harch("logs", "wl_1", "--preparation").stdout == "resolving\n"
    assert {asked.params.get("preparation") for asked in hub.asked if asked.path.endswith("/logs")} == {"true"}
    hub.asked.clear()
    hub.on("GET /workloads/wl_1/logs", b"a\n")
    assert harch("logs", "wl_1", "--preparation", "-f").stdout == "a\n"
    (asked,) = (asked for asked in hub.asked if asked.path.endswith("/logs"))
    assert (asked.params["preparation"], asked.params["follow"]) == ("true", "true")


def test_numbers_agree() -> None:
    assert (counted(1, "file"), counted(0, "file"), counted(2, "chunk")) == ("1 file", "0 files", "2 chunks")
