"""What a hub promises about pipelines is on disk, in the audit chain, and found again by the next process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.hub.pipelines import files, packages, planning, records
from harch.hub.pipelines.loop import AlertThrottle
from harch.pipelines.workers.config import Egress
from harch.pipelines.workers.parts import access_digest, egress_of
from harch.pipelines.workers.telemetry import WorkerAlert
from harch.sovereignty.jurisdictions import DeclaredPlace, Places
from harch.testing.clock import SimClock
from unit.hub_pipelines.pipeline_samples import Desk, text


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, SimClock())


async def apply(
    desk: Desk, *changes: tuple[str, str], tenant: str = "t", dry_run: bool = False, drop_state: bool = False
) -> str:
    done = await desk.pipelines.apply(
        text(*changes).encode(), "pipeline.yaml", tenant=tenant, actor="me", dry_run=dry_run, drop_state=drop_state
    )
    return done.result


async def test_the_same_file_again_changes_nothing_and_a_changed_one_is_the_next_version(desk: Desk) -> None:
    assert await apply(desk, dry_run=True) == "created"
    assert (await desk.pipelines.listed(tenant=None)).total == 0
    assert not desk.drafts
    assert await apply(desk) == "created"
    assert await apply(desk) == "unchanged"
    assert await apply(desk, ("need >= 1", "need >= 2")) == "updated"
    found = await desk.again().pipelines.show("fields", tenant="t")
    assert found.pipeline.version == 2
    assert [one.version for one in found.versions] == [2, 1]
    assert found.spec["act"]["actions"][0]["when"] == "need >= 2"
    assert [(draft.kind, draft.verdict) for draft in desk.drafts] == [("pipeline.applied", "done")] * 2
    assert desk.drafts[0].countries == ("MA",)
    assert desk.drafts[0].details["edges_proved"] == 8


async def test_a_refused_edge_stores_nothing_and_is_in_the_chain(desk: Desk) -> None:
    with pytest.raises(HarchError) as refused:
        await apply(desk, ('headers: {authorization: "env:VALVE_KEY"}', "country: SN"))
    assert refused.value.code == "E0907"
    assert (await desk.pipelines.listed(tenant=None)).total == 0
    assert [(draft.kind, draft.details["code"]) for draft in desk.drafts] == [("pipeline.refused", "E0907")]


async def test_tenants_do_not_see_each_other_s_pipelines(desk: Desk) -> None:
    await apply(desk)
    assert (await desk.pipelines.listed(tenant="other")).total == 0
    with pytest.raises(HarchError) as hidden:
        await desk.pipelines.show("fields", tenant="other")
    assert hidden.value.code == "E0710"
    with pytest.raises(HarchError) as taken:
        await apply(desk, tenant="other")
    assert taken.value.code == "E0711"


async def test_numbers_that_a_person_sets_are_kept_and_given_back(desk: Desk) -> None:
    await apply(desk)
    await desk.pipelines.scale("fields", {"think": 3, "sense": 4}, tenant="t", actor="me")
    restarted = desk.again()
    (record,) = records.all_records(restarted.database)
    assert record.fixed == {"think": 3, "sense": 4}
    await restarted.pipelines.scale("fields", {"think": None}, tenant="t", actor="me")
    assert records.all_records(restarted.database)[0].fixed == {"sense": 4}
    for impossible in ({"sense": 5}, {"think": 0}, {"source": 2}, {"nothing": 1}):
        with pytest.raises(HarchError) as refused:
            await restarted.pipelines.scale("fields", impossible, tenant="t", actor="me")  # type: ignore[arg-type]
        assert refused.value.code == "E0201"


async def test_a_drained_pipeline_runs_again_when_its_file_is_applied(desk: Desk) -> None:
    await apply(desk)
    await desk.pipelines.drain("fields", tenant="t", actor="me")
    assert records.all_records(desk.database)[0].desired == "drain"
    more = ("partitions: 4", "partitions: 8")  # which a running one refuses
    assert await apply(desk, more, drop_state=True) == "updated"
    assert records.all_records(desk.database)[0].desired == "run"


async def test_changed_code_of_a_model_gets_new_workers_of_think_alone(desk: Desk) -> None:
    async def send(code: bytes) -> None:
        digest = hashlib.sha256(code).hexdigest()
        await desk.pipelines.data.put_file(
            "fields", "field_models.py", code, offset=0, total=len(code), sha256=digest, tenant="t"
        )

    await send(b"one = 1")
    assert await apply(desk) == "created"
    await send(b"one = 1")
    assert await apply(desk) == "unchanged"
    await send(b"one = 2")
    assert await apply(desk) == "updated"
    assert records.all_records(desk.database)[0].generations == {"source": 1, "sense": 1, "think": 2, "act": 1}


async def test_removal_is_final_and_the_versions_of_a_name_go_on(desk: Desk) -> None:
    await apply(desk)
    assert (await desk.pipelines.remove("fields", tenant="t", actor="me")).state == "removing"
    await desk.pipelines.drain("fields", tenant="t", actor="me")
    assert records.all_records(desk.database)[0].desired == "remove"
    with pytest.raises(HarchError) as leaving:
        await apply(desk)
    assert leaving.value.code == "E0711"
    desk.database.write(records.forget("fields"))
    restarted = desk.again()
    assert await apply(restarted) == "created"
    assert records.all_records(restarted.database)[0].version == 2


async def test_what_only_workers_import_is_asked_for_before_anything_is_kept(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "crc32c" else object())
    with pytest.raises(HarchError, match="crc32c") as missing:
        await apply(desk)
    assert missing.value.code == "E0740"
    assert records.all_records(desk.database) == []


async def test_without_the_packages_the_answer_says_what_to_install(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "harch.hub.pipelines.loop", None)
    with pytest.raises(HarchError) as missing:
        await apply(desk)
    assert missing.value.code == "E0740"
    assert "pip install" in missing.value.hint
    assert (await desk.pipelines.listed(tenant=None)).total == 0


async def test_a_hub_that_lost_the_packages_works_on_without_its_pipelines(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply(desk)
    monkeypatch.setitem(sys.modules, "harch.hub.pipelines.loop", None)
    await desk.again().pipelines.run()  # returns instead of ending the hub


def test_a_hub_without_pipelines_loads_nothing_of_them() -> None:
    code = "import sys, harch.hub.service, harch.api.app; print([m for m in sys.modules if 'harch.pipelines' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_alerts_are_told_but_not_in_floods() -> None:
    told: list[str] = []
    alerts = AlertThrottle(lambda kind, subject, message: told.append(message))
    alert = WorkerAlert(pipeline="p", worker="sense-0", stage="sense", rule="shed", detail="5 events", count=5, at_ms=0)
    for at_s in (0.0, 1.0, 2.0, 11.0):
        alerts.hear(msgspec.json.encode(alert), at_s)
    alerts.hear(b"nonsense", 12.0)
    assert told == ["sense-0: shed: 5 events", "sense-0: shed: 5 events; 2 more held back"]


def test_files_come_in_pieces_and_are_whole_or_not_there(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    digest = hashlib.sha256(data).hexdigest()

    def send(part: bytes, offset: int, sha256: str = digest, path: str = "models/m.onnx") -> object:
        return files.take_part(tmp_path, path, part, offset=offset, total=len(data), sha256=sha256)

    assert send(data[:1000], 0) is None
    assert send(data[:1000], 0) is None  # again: the answer was lost
    assert files.missing(tmp_path, {"models/m.onnx": digest}) == ("models/m.onnx",)
    assert send(data[1000:], 1000) is not None
    assert (tmp_path / "models/m.onnx").read_bytes() == data
    assert files.missing(tmp_path, {"models/m.onnx": digest, "absent.onnx": None}) == ("absent.onnx",)
    for bad in ("../m.onnx", "/etc/passwd", "", ".parts/x"):
        with pytest.raises(HarchError) as refused:
            send(data, 0, path=bad)
        assert refused.value.code == "E0201"
    with pytest.raises(HarchError) as damaged:
        send(data, 0, sha256="0" * 64, path="other.onnx")
    assert damaged.value.code == "E0713"
    assert not (tmp_path / "other.onnx").exists()
    with pytest.raises(HarchError) as running:
        files.check_replaced({"models/m.onnx": digest}, "models/m.onnx", "1" * 64)
    assert running.value.code == "E0713"


PLACES = Places((DeclaredPlace(id="souss", country="MA", networks=("10.1.0.0/16",), names=("valves.souss.example",)),))


def declared(desk: Desk) -> None:
    """As if the operator's jurisdictions.toml had said so when the hub started."""
    ground = desk.pipelines._open().ground
    known = structs.replace(ground.jurisdictions, places=PLACES)
    desk.pipelines._open().ground = structs.replace(ground, jurisdictions=known)


@pytest.mark.parametrize(
    "address",
    [
        "http://evil.example:8099?@127.0.0.1/valves",
        "http://127.0.0.1:9/valve, undo_url: http://evil.example/",
        "http://127.0.0.1:9/valve, status_url: 'http://evil.example/{key}'",
        "http://10.77.0.1/valve, country: MA",
    ],
)
async def test_a_sink_elsewhere_is_refused_however_it_is_written(desk: Desk, address: str) -> None:
    declared(desk)
    url, _, rest = address.partition(", ")
    written = f'"{url}"' + (f", {rest}" if rest else "")
    with pytest.raises(HarchError) as refused:
        await apply(desk, ('"http://127.0.0.1:9/valve"', written))
    assert refused.value.code == "E0907"
    assert "jurisdictions.toml" in refused.value.message


async def test_workers_are_told_the_proved_country_and_the_places_to_compare_with(desk: Desk) -> None:
    declared(desk)
    await apply(desk, ("http://127.0.0.1:9/valve", "http://valves.souss.example/valve"))
    record = records.all_records(desk.database)[0]
    loop = desk.pipelines._open()
    planned = planning.plan(planning.spec_of(record), loop.ground)
    parts = planning.parts_of(record, planned, loop.ground, ".")
    assert parts.act is not None
    assert parts.act.sinks["valves"].country == "MA", "for the look at every command's jurisdiction"
    rule = egress_of(parts, "act").sink("valves")
    assert rule.refusal("10.1.0.5") == ""
    assert rule.refusal("10.77.0.1")
    assert rule.refusal("127.0.0.1")
    assert access_digest(parts, "act")
    assert egress_of(parts, "think") == Egress()
    moved = structs.replace(
        loop.ground.jurisdictions, places=Places((structs.replace(PLACES.entries[0], networks=()),))
    )
    elsewhere = planning.parts_of(record, planned, structs.replace(loop.ground, jurisdictions=moved), ".")
    assert access_digest(elsewhere, "act") != access_digest(parts, "act"), "so its workers are replaced"


class Ledger:
    """A pipeline that runs, as far as a halt is concerned."""

    def __init__(self) -> None:
        self.stops: list[str] = []
        self.fails = False

    async def write_stop(self, reason: str) -> None:
        if self.fails:
            raise HarchError("E0775", "the ledger cannot be written", hint="check that it is running")
        self.stops.append(reason)


def with_ledger(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    found = Ledger()
    monkeypatch.setattr(desk.pipelines, "_acting_pipeline", lambda name: found)
    return found


async def test_a_halt_is_in_the_ledger_on_disk_and_in_the_chain_until_somebody_resumes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply(desk)
    ledger = with_ledger(desk, monkeypatch)
    await desk.pipelines.halt("fields", "fire", tenant="t", actor="me")
    await desk.pipelines.halt("fields", "fire", tenant="t", actor="me")
    assert set(ledger.stops) == {"fire"}
    assert records.all_records(desk.database)[0].halted == "fire"
    assert await apply(desk, ("need >= 1", "need >= 2")) == "updated"
    assert records.all_records(desk.database)[0].halted == "fire", "another version of the file is no reason to act"
    view = await desk.pipelines.resume("fields", tenant="t", actor="me")
    assert (view.halted, ledger.stops[-1], records.all_records(desk.database)[0].halted) == ("", "", "")
    halts = [(one.kind, one.actor, one.details["reason"]) for one in desk.drafts if "reason" in one.details]
    assert halts == [("pipeline.halted", "me", "fire"), ("pipeline.resumed", "me", "")]


async def test_what_fails_on_the_way_leaves_a_pipeline_halted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await apply(desk)
    ledger = with_ledger(desk, monkeypatch)
    ledger.fails = True
    with pytest.raises(HarchError, match="the halt is stored"):
        await desk.pipelines.halt("fields", "", tenant="t", actor="me")
    assert records.all_records(desk.database)[0].halted == "halted by me"
    with pytest.raises(HarchError) as unreachable:
        await desk.pipelines.resume("fields", tenant="t", actor="me")
    assert unreachable.value.code == "E0775"
    assert records.all_records(desk.database)[0].halted == "halted by me"


async def test_a_pipeline_without_actions_cannot_be_halted(desk: Desk) -> None:
    act = text()[text().index("act:") : text().index("scaling:")]
    await apply(desk, (act, ""))
    with pytest.raises(HarchError) as refused:
        await desk.pipelines.halt("fields", "fire", tenant="t", actor="me")
    assert refused.value.code == "E0755"
    with pytest.raises(HarchError) as hidden:
        await desk.pipelines.halt("fields", "fire", tenant="other", actor="me")
    assert hidden.value.code == "E0710"
