"""Does `harch carbon verify` believe a ledger only as far as the audit chain vouches for it?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from hub_double import HubDouble

from harch.carbon.ledger.chain import checkpoint_draft
from unit.carbon.ledger.charges import booked_hours, job
from unit.sovereignty_audit.chains import Chain

Harch = Callable[..., Result]
ROWS, HEAD = booked_hours(3)
LEDGER = b"".join(linked.line for linked in ROWS)


def audit_chain() -> Chain:
    chain = Chain()
    chain.add(checkpoint_draft("dakhla", HEAD))
    return chain


@pytest.fixture
def booked(hub: HubDouble) -> HubDouble:
    own = {"id": "dakhla", "name": "Dakhla", "country": "MA", "own": True, "reachable": True}
    hub.on("GET /hubs", {"items": [own], "total": 1})
    hub.on("GET /audit/export", b"".join(audit_chain().lines()))
    hub.on("GET /carbon/ledger", LEDGER)
    return hub


def test_a_sound_ledger_ends_with_zero_and_names_what_agrees(booked: HubDouble, harch: Harch) -> None:
    result = harch("carbon", "verify")
    assert (result.exit_code, result.stdout) == (
        0,
        f"ok: 6 rows of hub dakhla, 1 checkpoint agrees; head {HEAD.hash}\n",
    )
    questions = [asked.path for asked in booked.asked]
    assert questions.index("/audit/export") < questions.index("/carbon/ledger"), "else a new row looks like a cut"


def test_a_ledger_that_was_cut_or_written_anew_is_shown_by_the_audit_chain(booked: HubDouble, harch: Harch) -> None:
    booked.on("GET /carbon/ledger", b"".join(linked.line for linked in ROWS[:4]))
    result = harch("carbon", "verify")
    assert (result.exit_code, result.stdout) == (
        1,
        "TAMPERED: ledger: row 5: truncated: the audit chain has a checkpoint of row 6\n",
    )
    other, _ = booked_hours(3, [job(it_kwh=5)])
    booked.on("GET /carbon/ledger", b"".join(linked.line for linked in other))
    report = json.loads(harch("carbon", "verify", "--json").stdout)
    assert (report["sound"], report["finding"]["kind"], report["audit"]["sound"]) == (False, "rewritten", True)


def test_an_audit_chain_that_was_tampered_with_cannot_vouch(booked: HubDouble, harch: Harch) -> None:
    lines = audit_chain().lines()
    booked.on("GET /audit/export", b"".join([lines[0], lines[1].replace(b"carbon", b"carbom"), lines[2]]))
    result = harch("carbon", "verify")
    assert result.exit_code == 1
    assert result.stdout.startswith("TAMPERED: audit chain: entry 2: edited")
    assert "ok:" not in result.stdout


def test_files_are_verified_without_a_hub(harch: Harch, tmp_path: Path) -> None:
    ledger, audit = tmp_path / "ledger", tmp_path / "audit"
    ledger.write_bytes(LEDGER)
    audit.write_bytes(b"".join(audit_chain().lines()))
    alone = harch("carbon", "verify", "--file", str(ledger))
    assert (alone.exit_code, "add --audit FILE" in alone.stderr) == (0, True)
    both = harch("carbon", "verify", "--file", str(ledger), "--audit", str(audit))
    assert (both.exit_code, "1 checkpoint agrees" in both.stdout) == (0, True)
    stdin = harch("carbon", "verify", "--file", "-", stdin=LEDGER[:-10])
    assert (stdin.exit_code, "row 6: truncated: the last line is cut off" in stdin.stdout) == (1, True)
    absent = harch("carbon", "verify", "--file", str(tmp_path / "absent"))
    assert "error[E0202]" in absent.stderr


def test_an_audit_file_without_a_ledger_file_is_a_usage_error(harch: Harch, tmp_path: Path) -> None:
    result = harch("carbon", "verify", "--audit", str(tmp_path / "audit"))
    assert (result.exit_code, "hint: " in result.stderr) == (2, True)


def test_an_export_is_written_whole_or_not_at_all(booked: HubDouble, harch: Harch, tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    assert json.loads(harch("carbon", "export", "-o", str(file), "--json").stdout) == {
        "file": str(file),
        "bytes": len(LEDGER),
    }
    assert file.read_bytes() == LEDGER
    booked.fail("GET /carbon/ledger", 403, "E0103", "not for you")
    assert harch("carbon", "export", "-o", str(tmp_path / "other")).exit_code != 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["ledger"]
