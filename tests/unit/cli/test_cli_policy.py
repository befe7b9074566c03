"""Do the policy verbs say what a bundle does, before and after it is in force?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from hub_double import HubDouble

from harch.cli.policy.trials import world_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.sovereignty.tags import parse_tag

Harch = Callable[..., Result]

MANIFEST = (
    'name = "acme"\nversion = "1.0.0"\n[entrypoints]\nworkload = "acme/allow"\n[reasons]\nworkload = "acme/deny"\n'
)
REGO = """package acme
import rego.v1
default allow := false
allow if count(deny) == 0
deny contains "no project" if not input.workload.labels.project
"""
CASES = [{"name": "no project", "input": {"workload": {"labels": {}}}, "allow": False}]
STATUS = {
    "active": True,
    "digest": "d" * 64,
    "name": "acme",
    "version": "1.0.0",
    "activated_at": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "policy.toml").write_text(MANIFEST)
    (folder / "acme.rego").write_text(REGO)
    (folder / "cases.json").write_text(json.dumps(CASES))
    return folder


def decision(count: int, labels: dict[str, str]) -> dict[str, Any]:
    workload = {"labels": labels, "countries_allowed": []}
    return {
        "question": "workload",
        "input": {"action": "workload", "hub": "dakhla", "workload": workload, "data": [], "not_found": []},
        "count": count,
        "allowed": True,
        "ground": "allowed",
        "policy": "builtin-1",
        "first_at": "2026-01-01T00:00:00Z",
        "last_at": "2026-01-01T00:00:00Z",
    }


def test_check_prints_the_digest(harch: Harch, bundle: Path) -> None:
    result = harch("policy", "check", str(bundle), "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["digest"]) == 64


def test_check_names_the_place_of_a_mistake(harch: Harch, bundle: Path) -> None:
    (bundle / "acme.rego").write_text(REGO + "allow if http.send({})\n")
    result = harch("policy", "check", str(bundle))
    assert result.exit_code == 2
    assert "acme.rego:6: `http.send`" in result.stderr


def test_a_failing_test_ends_with_1_and_says_what_came_instead(harch: Harch, bundle: Path) -> None:
    assert harch("policy", "test", str(bundle)).exit_code == 0
    (bundle / "cases.json").write_text(json.dumps([{**CASES[0], "allow": True}]))
    result = harch("policy", "test", str(bundle))
    assert result.exit_code == 1
    assert "expected allow, got denied" in result.stdout


def test_explain_shows_every_hub_and_all_rules_side_by_side(harch: Harch, bundle: Path, tmp_path: Path) -> None:
    work, tag = tmp_path / "work.yaml", tmp_path / "tag.yaml"
    work.write_text("name: train\ncommand: ['true']\nlabels: {project: rain}\n")
    tag.write_text("{process_in: [MA], rest_in: [MA], encrypt_at_rest: false, encrypt_in_transit: false}")
    words = ("policy", "explain", str(work), "--bundle", str(bundle), "--tag", str(tag), "--at", "dakhla")
    found = json.loads(harch(*words, "--json").stdout)["hubs"]
    assert {answer["hub"]: answer["allowed"] for answer in found} == {
        "dakhla": True,
        "tangier": True,
        "casablanca": True,
        "dakar": False,
        "abidjan": False,
    }
    assert all(answer["bundle"]["ground"] == "allowed" for answer in found)
    assert all(answer["compiled"] == (answer["default"]["ground"] == "allowed") for answer in found)
    shown = harch(*words)
    assert shown.exit_code == 0
    assert "dakar is in SN; allowed: MA" in shown.stdout


def test_explain_ends_with_4_if_no_hub_may_run_it(harch: Harch, bundle: Path, tmp_path: Path) -> None:
    work = tmp_path / "work.yaml"
    work.write_text("name: train\ncommand: ['true']\n")
    result = harch("policy", "explain", str(work), "--bundle", str(bundle))
    assert result.exit_code == 4
    assert "no project" in result.stdout


def test_diff_tells_what_would_have_changed(harch: Harch, hub: HubDouble, bundle: Path) -> None:
    items = [decision(90, {}), decision(10, {"project": "rain"})]
    hub.on("GET /policies/decisions", {"items": items, "total": 100})
    hub.on("GET /policies/world", {"world": world_of("five-hubs")[1]})
    result = harch("policy", "diff", "default", str(bundle), "--decisions", "100", "--json")
    assert result.exit_code == 5, result.output
    found = json.loads(result.stdout)
    assert (found["decisions"], found["changed"]) == (100, 90)
    assert found["items"][0]["new"]["reasons"] == ["no project"]
    shown = harch("policy", "diff", "default", str(bundle))
    assert "90 of the last 100 decisions would change" in shown.stdout
    assert harch("policy", "diff", "default", "default").exit_code == 0


def test_activate_sends_the_files_and_shows_what_is_in_force(harch: Harch, hub: HubDouble, bundle: Path) -> None:
    hub.on("PUT /policies/active", STATUS)
    hub.on("GET /policies/active", STATUS)
    hub.on("DELETE /policies/active", {"active": False, "digest": "builtin-1"})
    assert "acme 1.0.0 is active" in harch("policy", "activate", str(bundle)).stdout
    assert "digest dddd" in harch("policy", "status").stdout
    assert "only the built-in rules apply" in harch("policy", "deactivate").stdout


def test_jurisdictions_are_listed(harch: Harch) -> None:
    result = harch("policy", "jurisdictions")
    assert "ma-law-09-08" in result.stdout
    assert "UEMOA" in result.stdout
    assert "SN" in json.loads(harch("policy", "jurisdictions", "--json").stdout)["countries"]


def test_explain_asks_for_the_tags_of_the_data_that_work_names(
    harch: Harch, hub: HubDouble, bundle: Path, tmp_path: Path
) -> None:
    jurisdictions = jurisdictions_in_force()
    stored = parse_tag({"process_in": ["MA"], "rest_in": ["MA"], "encrypt_in_transit": False}, jurisdictions)
    tag = msgspec.to_builtins(stored)  # as a hub shows it
    work = tmp_path / "work.yaml"
    work.write_text("name: count\ncommand: [run]\nlabels: {project: p}\ndata: [census]\n")
    hub.on(
        "GET /data/census",
        {"id": "data_1", "name": "census", "kind": "dataset", "tenant": "default", "tag": tag, "hubs": ["dakhla"]},
    )
    result = harch("policy", "explain", str(work), "--bundle", str(bundle), "--json")
    allowed = {answer["hub"]: answer["allowed"] for answer in json.loads(result.stdout)["hubs"]}
    assert allowed["dakhla"]
    assert not allowed["dakar"]
    hub.fail("GET /data/census", 404, "E0906", "no data object `census`")
    assert harch("policy", "explain", str(work), "--bundle", str(bundle)).exit_code != 0


def test_explain_refuses_copies_at_a_hub_that_is_not_there(harch: Harch, bundle: Path, tmp_path: Path) -> None:
    work = tmp_path / "work.yaml"
    work.write_text("name: count\ncommand: [run]\n")
    result = harch("policy", "explain", str(work), "--bundle", str(bundle), "--at", "dakkhla", "--json")
    assert json.loads(result.stdout)["error"]["code"] == "E0305"
