"""A hub whose records lost their end: it notices, stops, says what is missing, and goes on only if somebody says so."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from harch.api.app import create_app
from harch.base.errors import HarchError
from harch.hub.audit.files import HeadFile
from harch.hub.audit.table import AuditQuery
from harch.hub.service import HubService
from harch.hub.views import Role
from harch.sovereignty.audit.chain import PLACED, ChainHead, Draft, line_of, link
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, check_offer, sign
from harch.sovereignty.audit.report import ReportBuilder
from harch.sovereignty.audit.verification import ChainVerifier, Loss, Tampering, acceptance, find_loss, verify
from harch.wire.audit import AcceptedLoss
from unit.sovereignty_audit.chains import AT, Chain, chain_of, key
from unit.sovereignty_audit.test_hub_audit import open_hub as open_in
from unit.sovereignty_audit.test_hub_audit import outcome_of, submit

Damage = Callable[[Path], None]


def open_hub(folder: Path) -> HubService:
    folder.mkdir(exist_ok=True)
    return open_in(folder)


async def copied(hub: HubService, source: Path, to: Path) -> Path:
    """The state of a hub as a kill would leave it, in another folder."""
    await hub._jobs.write([], [])
    shutil.copytree(source, to)
    return to


def without_wal(folder: Path) -> None:
    (folder / "hub.db-wal").unlink()
    (folder / "hub.db-shm").unlink(missing_ok=True)


def with_cut_wal(folder: Path) -> None:
    wal = folder / "hub.db-wal"
    wal.write_bytes(wal.read_bytes()[: wal.stat().st_size * 2 // 3])
    (folder / "hub.db-shm").unlink(missing_ok=True)


def with_damaged_wal(folder: Path) -> None:
    wal = folder / "hub.db-wal"
    text = bytearray(wal.read_bytes())
    text[len(text) * 2 // 3] ^= 0xFF
    wal.write_bytes(text)
    (folder / "hub.db-shm").unlink(missing_ok=True)


def sql(*statements: str) -> Damage:
    def run(folder: Path) -> None:
        with sqlite3.connect(folder / "hub.db") as rows:
            for statement in statements:
                rows.execute(statement)
        rows.close()

    return run


def without_database(folder: Path) -> None:
    for path in folder.glob("hub.db*"):
        path.unlink()


DAMAGE = {
    "the WAL deleted": without_wal,
    "the WAL cut": with_cut_wal,
    "the WAL damaged": with_damaged_wal,
    "the last audit rows deleted": sql("DELETE FROM audit WHERE seq > 4"),
    "the last audit row deleted": sql("DELETE FROM audit WHERE seq = (SELECT MAX(seq) FROM audit)"),
    "the last events deleted": sql("DELETE FROM events WHERE seq = (SELECT MAX(seq) FROM events)"),
    "the end rewritten": sql("UPDATE audit SET hash = printf('%064d', 7) WHERE seq = (SELECT MAX(seq) FROM audit)"),
    "the database deleted": without_database,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_a_hub_without_its_end_does_not_start_as_if_nothing_were(tmp_path: Path, damage: Damage) -> None:
    hub = open_hub(tmp_path / "hub")
    for number in range(6):
        await submit(hub, f"job-{number}")
    folder = await copied(hub, tmp_path / "hub", tmp_path / "copy")
    await hub.close()
    damage(folder)
    before = {path.name: path.read_bytes() for path in folder.glob("audit.*")}
    hub = open_hub(folder)
    assert hub.audit.loss is not None
    assert "its audit chain" in hub.ready()
    assert "harch audit accept-loss" in hub.ready()
    assert hub.summary().status == "error"
    with pytest.raises(HarchError) as refused:
        await submit(hub, "new")
    assert (refused.value.code, "accept-loss" in refused.value.hint) == ("E1020", True)
    with pytest.raises(HarchError):
        await hub.credentials.put_secret("A", "b", tenant="t")
    await hub.close()
    assert {path.name: path.read_bytes() for path in folder.glob("audit.*")} == before  # evidence is left alone
    hub = open_hub(folder)  # and a restart does not forget it
    assert hub.audit.loss is not None
    await hub.close()


async def test_an_unharmed_copy_starts_and_an_older_one_does_not(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "hub")
    await submit(hub, "one")
    older = await copied(hub, tmp_path / "hub", tmp_path / "older")
    await submit(hub, "two")
    newest = await copied(hub, tmp_path / "hub", tmp_path / "newest")
    await hub.close()
    for path in older.glob("hub.db*"):  # a backup of the database alone, put beside the present head
        shutil.copy(path, tmp_path / "hub")
    for folder, is_lost in ((newest, False), (tmp_path / "hub", True)):
        hub = open_hub(folder)
        assert (hub.audit.loss is not None, bool(hub.ready())) == (is_lost, is_lost)
        await hub.close()


async def test_the_right_database_put_back_makes_the_hub_ready_again(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "hub")
    await submit(hub, "one")
    folder = await copied(hub, tmp_path / "hub", tmp_path / "copy")
    await hub.close()
    (folder / "hub.db-wal").rename(tmp_path / "kept")
    hub = open_hub(folder)
    assert hub.ready()
    await hub.close()
    for path in folder.glob("hub.db*"):
        path.unlink()
    for path in (tmp_path / "hub").glob("hub.db*"):
        shutil.copy(path, folder)
    hub = open_hub(folder)
    assert not hub.ready()
    await submit(hub, "two")
    await hub.close()


async def test_a_head_file_from_the_future_stops_the_hub_and_none_does_not(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    await submit(hub, "one")
    await hub.close()
    file = HeadFile(tmp_path / "audit.head", "dakhla", lambda: 0.0)
    file.note(ChainHead(1000, "f" * 64), 1000)
    file.close()
    hub = open_hub(tmp_path)
    assert "it had 1000" in hub.ready()
    await hub.close()
    (tmp_path / "audit.head").unlink()
    hub = open_hub(tmp_path)  # as after an upgrade; other hubs' checkpoints are the second line
    assert not hub.ready()
    await submit(hub, "two")
    await hub.close()
    hub = open_hub(tmp_path)
    assert not hub.ready()
    await hub.close()


async def test_an_accepted_loss_is_in_the_chain_and_no_number_is_given_twice(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "hub")
    for number in range(3):
        await submit(hub, f"job-{number}")
    kept = [(await hub.audit.head())]
    events = hub.last_event()
    folder = await copied(hub, tmp_path / "hub", tmp_path / "copy")
    await hub.close()
    sql("DELETE FROM audit WHERE seq > 2", "DELETE FROM events WHERE seq > 1")(folder)
    hub = open_hub(folder)
    lost = hub.audit.loss
    assert lost is not None
    assert (lost.found.seq, lost.lost.seq) == (2, 4)
    with pytest.raises(HarchError) as wrong:
        await hub.audit.accept_loss(lost_seq=3, actor="key_admin", why="no")
    assert wrong.value.code == "E0304"
    accepted = await hub.audit.accept_loss(lost_seq=4, actor="key_admin", why="the disk of rack 3 is gone")
    assert (accepted.seq, accepted.found_seq, accepted.lost_seq) == (5, 2, 4)
    assert not hub.ready()
    await submit(hub, "after")
    assert hub.last_event() > events
    outcome = await outcome_of(hub, *kept, await hub.audit.head())
    assert outcome.is_sound
    assert (outcome.entries, outcome.checkpoints, outcome.checkpoints_lost) == (4, 1, 1)
    assert [loss.why for loss in outcome.losses] == ["the disk of rack 3 is gone"]
    with pytest.raises(HarchError) as nothing:
        await hub.audit.accept_loss(lost_seq=4, actor="key_admin", why="again")
    assert nothing.value.code == "E0304"
    await hub.close()
    hub = open_hub(folder)
    assert not hub.ready()
    assert [loss.lost_seq for loss in await hub.audit.losses()] == [4]
    await hub.close()


async def test_a_checkpoint_that_a_peer_kept_stops_a_hub_whose_whole_folder_is_older(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "hub")
    await submit(hub, "one")
    older = await copied(hub, tmp_path / "hub", tmp_path / "older")  # with its head file: nothing here can tell
    await submit(hub, "two")
    signed = await hub.audit.head()
    await hub.audit.confront(signed, "dakar")
    assert not hub.ready()
    await hub.close()
    hub = open_hub(older)
    assert not hub.ready()
    await submit(hub, "other")  # it even gave the same number to something else
    await hub.audit.confront(replace(signed, signature="00" * 64), "dakar")
    await hub.audit.confront(Chain(key(9)).checkpoint(), "dakar")  # by a key that never was this hub's
    assert not hub.ready()
    await hub.audit.confront(signed, "dakar")
    assert "by dakar" in hub.ready()
    with pytest.raises(HarchError):
        await submit(hub, "more")
    await hub.close()
    hub = open_hub(older)
    assert "by dakar" in hub.ready()
    await hub.audit.accept_loss(lost_seq=signed.checkpoint.seq, actor="key_admin", why="restored from a snapshot")
    await submit(hub, "more")
    await hub.audit.confront(signed, "dakar")
    assert not hub.ready()
    outcome = await outcome_of(hub, signed)
    assert (outcome.finding, outcome.checkpoints_lost) == (None, 1)
    await hub.close()


async def test_a_rotated_key_that_was_lost_is_settled_with_the_loss(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "hub")
    await submit(hub, "one")
    folder = await copied(hub, tmp_path / "hub", tmp_path / "copy")
    new = await hub.audit.rotate_key(actor="key_admin")
    signed = await hub.audit.head()
    await hub.close()
    shutil.copy(tmp_path / "hub" / "audit.key", folder)
    shutil.copy(tmp_path / "hub" / "audit.head", folder)
    hub = open_hub(folder)
    assert hub.ready()
    await hub.audit.accept_loss(lost_seq=signed.checkpoint.seq, actor="key_admin", why="x")
    outcome = await outcome_of(hub, signed)
    assert outcome.finding is not None
    assert outcome.finding.kind is Tampering.BAD_KEY  # nobody vouches for it any more: told forever
    assert (await hub.audit.head()).checkpoint.key == new
    await hub.close()


async def test_the_loss_over_the_api_is_seen_by_operators_and_settled_by_admins(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "hub")
    tokens = {}
    for role in (Role.USER, Role.OPERATOR, Role.ADMIN):
        _, tokens[role] = await hub.credentials.create_key(name=role.value, tenant="t", role=role)
    await submit(hub, "one")
    folder = await copied(hub, tmp_path / "hub", tmp_path / "copy")
    await hub.close()
    sql("DELETE FROM audit WHERE seq = (SELECT MAX(seq) FROM audit)")(folder)
    hub = open_hub(folder)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(hub)), base_url="http://hub/v1") as client:

        async def ask(method: str, path: str, role: Role, body: object = None) -> httpx.Response:
            return await client.request(method, path, json=body, headers={"x-api-key": tokens[role]})

        assert (await client.get("http://hub/readyz")).status_code == 503
        assert (await ask("GET", "/audit/loss", Role.USER)).status_code == 403
        told = (await ask("GET", "/audit/loss", Role.OPERATOR)).json()
        assert (told["held"], told["found_seq"], told["lost_seq"], told["source"]) == (True, 4, 5, "audit.head")
        assert (await ask("GET", "/audit/export", Role.OPERATOR)).status_code == 200
        assert (await ask("GET", "/workloads", Role.USER)).json()["total"] == 1
        work = {"name": "new", "modelled_duration_s": 9}
        refused = await ask("POST", "/workloads", Role.USER, work)
        assert (refused.status_code, refused.json()["code"]) == (503, "E1020")
        said = {"lost_seq": 5, "why": "it is gone"}
        assert (await ask("POST", "/audit/loss", Role.OPERATOR, said)).status_code == 403
        assert (await ask("POST", "/audit/loss", Role.ADMIN, {"lost_seq": 5})).status_code == 400
        done = (await ask("POST", "/audit/loss", Role.ADMIN, said)).json()
        assert (done["held"], done["accepted"][0]["why"]) == (False, "it is gone")
        assert (await client.get("http://hub/readyz")).status_code == 200
        assert (await ask("POST", "/workloads", Role.USER, work)).status_code == 201
        events = (await hub.audit.records(AuditQuery(kind="audit.loss")))[0].entry
        assert events.actor.startswith("key_")
    await hub.close()


async def test_a_hub_that_lost_everything_can_go_on_and_admits_it(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    await submit(hub, "one")
    signed = await hub.audit.head()
    await hub.close()
    without_database(tmp_path)
    hub = open_hub(tmp_path)
    await hub.audit.accept_loss(lost_seq=2, actor="key_admin", why="the disk is gone")
    await submit(hub, "two")
    outcome = await outcome_of(hub, signed)
    assert (outcome.finding, outcome.checkpoints_lost) == (None, 1)
    assert [(loss.seq, loss.found_seq, loss.lost_seq) for loss in outcome.losses] == [(3, 1, 2)]
    await hub.close()


async def test_keys_of_files_open_a_hub_that_lost_them(tmp_path: Path) -> None:
    hub = open_hub(tmp_path)
    await submit(hub, "one")
    await hub.close()
    without_database(tmp_path)
    hub = open_hub(tmp_path)
    await hub.credentials.adopt_key("hsk_of_a_file_0123456789", name="admin", tenant="default", role=Role.ADMIN)
    assert hub.ready()
    assert hub.authenticate("hsk_of_a_file_0123456789") is not None
    await hub.close()


# The chain that admits it


def with_loss(chain: Chain, *, found: int, lost: int) -> Chain:
    """The chain after it lost everything beyond entry `found`, up to `lost`, and went on."""
    ends = chain.linked[lost - 1].head if lost <= len(chain.linked) else ChainHead(lost, "f" * 64)
    del chain.linked[found:]
    loss = Loss(found=chain.head, lost=ends, source="audit.head")
    draft = acceptance(loss, actor="key_1", why="gone")
    chain.linked.append(link(ChainHead(loss.next_seq - 1, chain.head.hash), draft, hub=chain.hub, at=AT))
    return chain.fill(3)


def test_a_chain_that_admits_a_loss_is_sound_and_says_what_is_missing() -> None:
    chain = chain_of(9)
    before, inside = chain.linked[3].head, chain.checkpoint()
    kept = [replace_head(chain, before), inside]
    outcome = verify(with_loss(chain, found=6, lost=9).lines(), kept)
    assert (outcome.finding, outcome.checkpoints, outcome.checkpoints_lost) == (None, 1, 1)
    assert [(loss.found_seq, loss.lost_seq) for loss in outcome.losses] == [(6, 9)]
    assert "entries 7 to 9 are lost" in outcome.losses[0].sentence


def replace_head(chain: Chain, head: ChainHead) -> SignedCheckpoint:
    shorter = Chain(chain.key)
    shorter.linked = chain.linked[: head.seq]
    return shorter.checkpoint()


def test_what_is_admitted_does_not_explain_what_was_lost_before_or_beyond() -> None:
    chain = chain_of(12)
    beyond, long_before = chain.checkpoint(), replace_head(chain, chain.linked[3].head)
    lines = with_loss(chain, found=6, lost=9).lines()
    assert verify(lines, [long_before]).is_sound
    outcome = verify(lines, [beyond])  # entry 12 exists anew, with another hash
    assert outcome.finding is not None
    assert outcome.finding.kind is Tampering.REWRITTEN


@pytest.mark.parametrize("cut", [5, 6, 7])
def test_a_loss_that_does_not_fit_is_tampering(cut: int) -> None:
    chain = with_loss(chain_of(12), found=8, lost=10)
    lines = [line for number, line in enumerate(chain.lines(), 1) if number != cut]
    assert not verify(lines).is_sound
    forged = with_loss(chain_of(12), found=8, lost=10)
    wrong = Loss(found=ChainHead(3, "0" * 64), lost=ChainHead(20, "f" * 64), source="x")
    forged.linked.append(
        link(ChainHead(20, forged.head.hash), acceptance(wrong, actor="k", why="w"), hub="dakhla", at=AT)
    )
    outcome = verify(forged.lines())
    assert outcome.finding is not None
    assert outcome.finding.kind is Tampering.INSERTED


def test_a_jump_without_an_admission_is_a_removal() -> None:
    chain = chain_of(5)
    jumped = link(ChainHead(9, chain.head.hash), Draft(PLACED, "wl_x", "allowed"), hub="dakhla", at=AT)
    outcome = verify([line_of(one.body, one.hash) for one in (*chain.linked, jumped)])
    assert outcome.finding is not None
    assert outcome.finding.kind is Tampering.REMOVED


def test_a_report_on_a_month_with_a_hole_is_not_complete() -> None:
    chain = with_loss(chain_of(9), found=6, lost=9)
    for month, complete in (("2026-11", False), ("2026-12", True)):
        builder, verifier = ReportBuilder("wl_1", month), ChainVerifier()
        for line in chain.lines():
            if (entry := verifier.take(line)) is not None:
                builder.take(entry)
        builder.take_outcome(verifier.finish())
        report = builder.build(made_at="2027-01-01T00:00:00.000Z")
        assert report.complete is complete
    assert report.problems == []


def test_a_peer_notices_that_a_chain_got_shorter() -> None:
    longer, shorter = chain_of(9), chain_of(6)
    known = longer.checkpoint()
    later = replace(shorter.checkpoint().checkpoint, at="2026-12-01T00:00:00.000Z")
    offered = _signed(shorter, later.at)
    with pytest.raises(HarchError) as noticed:
        check_offer(offered, [known])
    assert (noticed.value.code, "had 9 entries" in noticed.value.message) == ("E0920", True)
    check_offer(_signed(shorter, "2026-10-01T00:00:00.000Z"), [known])  # an old one that was carried here late


def _signed(chain: Chain, at: str) -> SignedCheckpoint:
    return sign(chain.head, hub=chain.hub, at=at, key=chain.key)


def test_only_what_is_known_and_not_there_is_a_loss() -> None:
    here, known = ChainHead(5, "5" * 64), ChainHead(9, "9" * 64)
    accepted = AcceptedLoss(
        seq=10, at=AT, actor="k", found_seq=5, lost_seq=9, lost_hash="9" * 64, source="audit.head", why="w"
    )

    def found(known: ChainHead, there: str | None, *accepted: AcceptedLoss, events: int = 0) -> Loss | None:
        return find_loss(
            known, stored=here, hash_there=there, accepted=accepted, source="x", known_events=events, stored_events=3
        )

    assert found(known, None) is not None
    assert found(known, "8" * 64) is not None
    assert found(known, "9" * 64) is None
    assert found(known, "9" * 64, events=4) is not None
    assert found(known, None, accepted) is None
    assert found(ChainHead(10, "a" * 64), None, accepted) is not None
    assert found(ChainHead(), None) is None
