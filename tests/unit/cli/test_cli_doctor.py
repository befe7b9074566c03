"""Does the doctor find what is broken, and give the exact fix?"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from hub_double import HubDouble

from harch.base.config import Home, Ports
from harch.cli.checks import (
    CheckFinding,
    CheckMark,
    check_cgroups,
    check_clock,
    check_damage,
    check_home,
    check_images,
    check_kernels,
    check_key_file,
    check_peer,
    check_ports,
    check_python,
    check_sandbox,
    exit_code_of,
)
from harch.sdk import Hub

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_an_old_python_is_broken() -> None:
    assert check_python((3, 10)).mark is CheckMark.BROKEN
    assert check_python((3, 12)).mark is CheckMark.OK


def test_files_that_were_set_aside_as_damaged_are_named(tmp_path: Path) -> None:
    assert check_damage(Home(tmp_path)).mark is CheckMark.OK
    kept = tmp_path / "hub" / "tenants" / "a" / "00000001.damaged"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"x")
    (tmp_path / "hub" / "quarantine").mkdir()
    (tmp_path / "hub" / "quarantine" / "00000002.parquet").write_bytes(b"x")
    finding = check_damage(Home(tmp_path))
    assert finding.mark is CheckMark.WARNING
    assert str(kept) in finding.detail or "quarantine" in finding.detail
    assert "and 1 more" in finding.detail
    assert "delete" in finding.fix


def test_kernels_that_were_never_compiled_are_named_with_the_command_that_compiles_them() -> None:
    assert check_kernels([]).mark is CheckMark.OK
    finding = check_kernels(["placement", "SENTINEL"])
    assert finding.mark is CheckMark.WARNING
    assert "placement, SENTINEL" in finding.detail
    assert finding.fix.endswith("-m harch.cli.compiling")


def test_a_missing_sandbox_is_a_warning_with_the_package_to_install() -> None:
    finding = check_sandbox(None, {})
    assert finding.mark is CheckMark.WARNING
    assert "install bubblewrap" in finding.fix
    assert "tasks run without a sandbox" in finding.detail


@pytest.mark.parametrize("setting", ["HARCH_SANDBOX", "HARCH_PIPELINE_SANDBOX"])
def test_a_missing_sandbox_that_is_required_is_broken(setting: str) -> None:
    finding = check_sandbox(None, {setting: "required"})
    assert finding.mark is CheckMark.BROKEN
    assert "it is required, so no work runs" in finding.detail
    assert check_sandbox(None, {setting: "requird"}).mark is CheckMark.BROKEN


def test_a_sandbox_that_does_not_work_is_found_by_trying_it(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no permissions >&2\nexit 1\n")
    broken.chmod(0o755)
    assert "no permissions" in check_sandbox(str(broken), {}).detail
    assert check_sandbox(str(broken), {"HARCH_SANDBOX": "required"}).mark is CheckMark.BROKEN
    broken.write_text("#!/bin/sh\nexit 0\n")
    assert check_sandbox(str(broken), {"HARCH_SANDBOX": "required"}).mark is CheckMark.OK


def test_programs_that_images_need_are_named_by_their_packages() -> None:
    assert check_images(lambda program: f"/usr/bin/{program}").mark is CheckMark.OK
    finding = check_images(lambda program: None if program in {"bwrap", "umoci"} else f"/usr/bin/{program}")
    assert finding.mark is CheckMark.WARNING
    assert finding.detail == "no image can run: bubblewrap and umoci are not installed"
    assert finding.fix == "apt-get install bubblewrap umoci"


@pytest.mark.parametrize(
    ("membership", "folder", "version"),
    [
        ("0::/app.slice\n", "app.slice", "v2"),
        ("5:memory:/job\n", "memory/job", "v1"),
        ("5:memory:/x\n", "memory", "v1"),
    ],
)
def test_a_writable_control_group_is_found_in_both_versions(
    tmp_path: Path, membership: str, folder: str, version: str
) -> None:
    (tmp_path / "membership").write_text(membership)
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    finding = check_cgroups(tmp_path / "membership", tmp_path)
    assert finding.mark is CheckMark.OK
    assert version in finding.detail


def test_no_control_group_is_a_warning(tmp_path: Path) -> None:
    assert check_cgroups(tmp_path / "none", tmp_path).mark is CheckMark.WARNING


def test_a_key_file_that_others_can_read_is_broken(tmp_path: Path) -> None:
    key = tmp_path / "admin.key"
    key.write_text("hsk_x")
    key.chmod(0o644)
    finding = check_key_file(key)
    assert finding.mark is CheckMark.BROKEN
    assert finding.fix == f"chmod 600 {key}"
    key.chmod(0o600)
    assert check_key_file(key).mark is CheckMark.OK


def test_a_state_folder_that_is_not_there_yet_is_fine_and_a_file_in_its_place_is_not(tmp_path: Path) -> None:
    (finding,) = check_home(Home(tmp_path / "none"))
    assert finding.mark is CheckMark.OK
    (tmp_path / "file").touch()
    (finding,) = check_home(Home(tmp_path / "file"))
    assert finding.mark is CheckMark.BROKEN


def test_a_port_that_another_program_holds_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.cli.checks._is_hub", lambda port: False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        finding = check_ports(Ports(base=port - 1))
    assert finding.mark is CheckMark.BROKEN
    assert str(port) in finding.detail
    assert "HARCH_PORT_BASE" in finding.fix


def test_a_clock_that_disagrees_is_broken() -> None:
    assert check_clock("u", NOW + timedelta(seconds=2), NOW).mark is CheckMark.OK
    finding = check_clock("u", NOW - timedelta(minutes=3), NOW)
    assert finding.mark is CheckMark.BROKEN
    assert "3 min behind" in finding.detail


@pytest.mark.parametrize(
    ("hub", "error", "mark"),
    [
        (Hub(id="dakar", name="Dakar", status="ready", age_s=1.0), "", CheckMark.OK),
        (Hub(id="dakar", name="Dakar", status="ready", age_s=99.0), "", CheckMark.WARNING),
        (Hub(id="dakar", name="Dakar", status="draining", age_s=1.0), "", CheckMark.WARNING),
        (Hub(id="dakar", name="Dakar", status="ready", age_s=1.0), "no route", CheckMark.WARNING),
        (Hub(id="dakar", name="Dakar", age_s=2.0, reachable=False), "", CheckMark.WARNING),
        (Hub(id="dakar", name="Dakar", reachable=False), "nothing listens", CheckMark.BROKEN),
    ],
)
def test_each_peer_is_judged_by_what_its_peers_and_this_machine_hear(hub: Hub, error: str, mark: CheckMark) -> None:
    assert check_peer(hub, error).mark is mark


def test_only_what_is_broken_makes_the_doctor_fail() -> None:
    assert exit_code_of([CheckFinding("a", CheckMark.WARNING, "")]) == 0
    assert exit_code_of([CheckFinding("a", CheckMark.BROKEN, "")]) == 1


def test_the_whole_visit(harch: Callable[..., Result], hub: HubDouble) -> None:
    now = datetime.now(UTC).isoformat()
    hub.on("GET /health", {"status": "healthy", "version": "1", "timestamp": now})
    hub.on("GET /auth/me", {"id": "k", "name": "admin", "tenant": "default", "role": "admin"})
    peer = {"id": "dakar", "name": "Dakar", "status": "ready", "endpoint": hub.url, "age_s": 1.0}
    hub.on("GET /hubs", {"items": [{"id": "dakhla", "name": "Dakhla", "own": True}, peer], "total": 2})
    result = harch("doctor", "--json")
    items = {item["check"]: item for item in json.loads(result.stdout)["items"]}
    assert items["key"]["mark"] == "ok"
    assert items["hub dakar"]["mark"] == "ok"
    assert {"python", "sandbox", "cgroups", "state folder", "disk", "ports", "hub", "clock"} <= set(items)

    silent = {**peer, "id": "tangier", "reachable": False, "age_s": 1.8}
    gone = {**silent, "id": "abidjan", "endpoint": "http://127.0.0.1:9"}
    lost = {"id": "agadir", "name": "Agadir", "reachable": False}
    heard = {"id": "rabat", "name": "Rabat", "status": "ready", "age_s": 1.0}
    hub.on("GET /hubs", {"items": [silent, gone, lost, heard], "total": 4})
    items = {item["check"]: item for item in json.loads(harch("doctor", "--json").stdout)["items"]}
    assert items["hub tangier"]["mark"] == "warning"
    assert items["hub tangier"]["detail"] == f"answers at {hub.url}, but its peers last heard from it 1.8 s ago"
    assert [items[f"hub {name}"]["mark"] for name in ("abidjan", "agadir", "rabat")] == ["broken", "broken", "ok"]

    hub.fail("GET /auth/me", 401, "E0102", "this key is not known", "ask for another one")
    result = harch("doctor")
    assert result.exit_code == 1
    assert "broken   key: from HARCH_API_KEY: this key is not known" in result.stdout
    assert "fix: ask for another one" in result.stdout


def test_a_hub_that_was_told_to_be_there_and_is_not_is_broken(
    harch: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARCH_URL", "http://127.0.0.1:9")
    result = harch("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["broken"] is True
