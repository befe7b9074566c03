"""Two hubs of one process, linked for real: what they see of each other, what they lend, and how one leaves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from pair_world import CLOCK, LiveHub, Pair, make_pair, until

from harch.base.errors import HarchError
from harch.federation.identity.authority import FederationAuthority
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.hub.audit.table import AuditQuery
from harch.hub.jobs.state import Closed
from harch.hub.views import PeerReach, WorkloadQuery
from harch.placement.explanation import Verdict
from harch.sentinel.federated.messages import MetricPart, Question
from harch.workloads.lifecycle import State
from harch.workloads.spec import WorkloadSpec
from unit.sovereignty_policy.bundles import files


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = make_pair(tmp_path)
    await made.ready()
    yield made
    await asyncio.gather(made.dakhla.stop(), made.dakar.stop())


async def test_each_sees_the_other_fresh_and_with_its_figures(pair: Pair) -> None:
    seen, real = pair.dakhla.other(), pair.dakar.service.summary()
    assert seen.summary is not None
    assert (seen.reach, seen.error, seen.url) == (PeerReach.LINKED, "", "http://dakar")
    assert seen.age_s is not None
    assert seen.age_s < 2
    assert seen.summary.models == real.models
    assert (seen.summary.gpus_free, seen.summary.country) == (real.gpus_free, "SN")
    await until(lambda: pair.dakhla.other().rtt_ms is not None)
    await pair.dakhla.notes("hub.appeared", "dakar")


async def test_lent_work_runs_is_read_and_ends_as_if_it_were_at_home(pair: Pair) -> None:
    workload = await pair.dakhla.submit(countries_allowed=("SN",))
    await until(lambda: workload.state is State.RUNNING)
    assert (workload.runner_hub, workload.epoch, workload.placement) == ("dakar", 1, ())
    page = await pair.dakhla.service.read_log(workload.id, tenant="t", rank=0, attempt=None, offset=7, bytes_max=1000)
    assert (page.offset, page.data, page.eof) == (7, b"of attempt 1", True)
    page = await pair.dakhla.service.read_log(
        workload.id, tenant="t", rank=0, attempt=None, offset=7, bytes_max=1000, since_s=5.0
    )
    assert page.data == b"of attempt 1 since 5"
    sentence = (await pair.dakhla.service.why(workload.id, tenant="t")).sentence
    assert sentence.startswith("running at dakar under lease, epoch 1; dakar last answered")
    (key,) = pair.dakar.agent.agent.running
    pair.dakar.agent.end(key)
    await until(lambda: workload.state is State.COMPLETED)
    page = await pair.dakhla.service.read_log(workload.id, tenant="t", rank=0, attempt=None, offset=0, bytes_max=6)
    assert page.data == b"output of attempt 1"
    assert pair.dakar.agent.agent.starts.total() == 1


async def test_a_plan_knows_that_another_hub_would_run_it(pair: Pair) -> None:
    spec = WorkloadSpec(name="job", command=("true",), countries_allowed=("SN",))
    plan = pair.dakhla.service.plan(spec, tenant="t")
    assert plan.verdict is Verdict.FITS_NOW
    assert "it would fit now at dakar" in plan.sentence
    homely = pair.dakhla.service.plan(replace(spec, stay_home=True), tenant="t")
    assert homely.verdict is Verdict.NEVER_FITS


async def test_only_its_owner_reads_what_lent_work_has_written(pair: Pair) -> None:
    workload = await pair.dakar.submit()
    await until(lambda: workload.state is State.RUNNING)
    workload.runner_hub, workload.runner_placement = "dakhla", workload.placement  # dakhla knows nothing of it
    with pytest.raises(HarchError) as refused:
        await pair.dakar.service.read_log(workload.id, tenant="t", rank=0, attempt=None, offset=0, bytes_max=10)
    assert refused.value.code == "E0301"


async def test_any_hub_lists_the_work_of_all_and_only_what_the_caller_may_see(pair: Pair) -> None:
    lent = await pair.dakhla.submit(countries_allowed=("SN",))
    await until(lambda: lent.state is State.RUNNING)
    for hub in (pair.dakhla, pair.dakar):
        work = await hub.service.federation.work(tenant=None)
        (row,) = work.rows
        assert (row.id, row.owner_hub, row.runner_hub, row.epoch) == (lent.id, "dakhla", "dakar", 1)
        assert (work.total, work.silent) == (1, [])
        assert (await hub.service.federation.work(tenant="another")).rows == []
    borrowed = await pair.dakar.service.workloads(WorkloadQuery(tenant=None, borrowed=True))
    assert [borrowed.id for borrowed in borrowed.items] == [lent.id]
    assert (await pair.dakar.service.workloads(WorkloadQuery(tenant=None))).total == 0


async def test_a_silent_hub_is_suspected_and_named_as_missing_and_nothing_is_evicted(pair: Pair) -> None:
    lent = await pair.dakhla.submit(countries_allowed=("SN",))
    await until(lambda: lent.state is State.RUNNING and pair.dakhla.told("gpus_allocated") == 1)
    await pair.dakar.stop()
    await until(lambda: pair.dakhla.other().reach is PeerReach.SUSPECTED)
    seen = pair.dakhla.other()
    assert not seen.reachable
    assert seen.error.startswith("suspected: silent for")
    work = await pair.dakhla.service.federation.work(tenant=None)
    (silent,) = work.silent
    assert (silent.hub_id, [row.id for row in work.rows]) == ("dakar", [lent.id])
    assert silent.age_s is not None
    assert silent.age_s > 1
    assert (lent.state, lent.leased) == (State.RUNNING, True)
    with pytest.raises(HarchError) as unheard:
        await pair.dakhla.service.read_log(lent.id, tenant="t", rank=0, attempt=None, offset=0, bytes_max=10)
    assert unheard.value.code == "E0802"
    await pair.dakhla.notes("hub.suspected", "dakar")
    pair.dakar = LiveHub(pair.home, 1)
    await pair.ready()
    await until(lambda: pair.dakhla.other().reach is PeerReach.LINKED)


async def test_the_policy_of_the_runner_binds_what_others_lend_it(pair: Pair) -> None:
    bundle = {name: text.decode() for name, text in files().items()}
    await pair.dakar.service.policies.activate(bundle, actor="test")
    refused = await pair.dakhla.submit(countries_allowed=("SN",))
    async with asyncio.timeout(20):
        while "E0931" not in (await pair.dakhla.service.why(refused.id, tenant="t")).sentence:
            await asyncio.sleep(0.01)
    assert pair.dakar.agent.agent.starts.total() == 0
    assert pair.dakar.service.summary().gpus_allocated == 0
    await pair.dakhla.service.delete(refused.id, tenant="t")
    permitted = await pair.dakhla.submit(countries_allowed=("SN",), labels={"project": "x"})
    await until(lambda: permitted.state is State.RUNNING)


async def test_hubs_keep_the_checkpoints_of_each_other(pair: Pair) -> None:
    async with asyncio.timeout(20):
        while not (kept := await pair.dakar.service.audit.checkpoints("dakhla")):
            await asyncio.sleep(0.01)
    assert kept[-1].holds
    assert kept[-1].checkpoint.hub == "dakhla"


async def test_a_hub_that_was_set_back_with_its_head_file_learns_it_from_its_peer(pair: Pair, tmp_path: Path) -> None:
    folder, older = pair.home.hub("dakhla"), tmp_path / "older"
    await pair.dakhla.stop()
    shutil.copytree(folder, older)
    pair.dakhla = LiveHub(pair.home, 0)
    await pair.ready()
    await pair.dakhla.submit()
    seq = (await pair.dakhla.service.audit.head()).checkpoint.seq
    await pair.dakar.stop()
    pair.dakar = LiveHub(pair.home, 1)  # a new link: it is shown the newest checkpoint
    async with asyncio.timeout(20):
        while max((c.checkpoint.seq for c in await pair.dakar.service.audit.checkpoints("dakhla")), default=0) < seq:
            await asyncio.sleep(0.01)
    await pair.dakhla.stop()
    for path in folder.glob("hub.db*"):
        path.unlink()
    for path in (*older.glob("hub.db*"), older / "audit.head"):
        shutil.copy(path, folder)
    pair.dakhla = LiveHub(pair.home, 0)
    await until(lambda: "by dakar" in pair.dakhla.service.ready())
    with pytest.raises(HarchError) as refused:
        await pair.dakhla.submit()
    assert refused.value.code == "E1020"
    await pair.dakhla.stop()
    await pair.dakar.stop()
    pair.dakhla, pair.dakar = LiveHub(pair.home, 0), LiveHub(pair.home, 1)
    assert "by dakar" in pair.dakhla.service.ready()  # neither restart forgets it
    await until(lambda: pair.dakar.told("status") == "error")
    loss = pair.dakhla.service.audit.loss
    assert loss is not None
    await pair.dakhla.service.audit.accept_loss(lost_seq=loss.lost.seq, actor="key_admin", why="a snapshot")
    await until(lambda: not pair.dakhla.service.ready())
    await pair.dakar.stop()
    pair.dakar = LiveHub(pair.home, 1)
    async with asyncio.timeout(20):  # what it shows from now on does not contradict what is kept
        while (await pair.dakar.service.audit.checkpoints("dakhla"))[-1].checkpoint.seq <= loss.lost.seq:
            await asyncio.sleep(0.01)
    assert not pair.dakhla.service.ready()


async def test_a_hub_without_telemetry_says_so_and_a_stranger_cannot_be_asked(pair: Pair) -> None:
    part = MetricPart(expression="sum(up)", start_ms=0, end_ms=0, step_ms=0)
    question = msgspec.msgpack.encode(Question(id="q_1", tenant="t", requested_by="key_1", parts=(part,)))
    federation = pair.dakhla.service.federation
    with pytest.raises(HarchError, match="`nador` is not another hub") as stranger:
        await federation.query_telemetry("nador", question, within_s=5)
    with pytest.raises(HarchError) as silent:
        await federation.query_telemetry("dakar", question, within_s=5)
    assert (stranger.value.code, silent.value.code) == ("E0699", "E0698")
    (record,) = await pair.dakar.service.audit.records(AuditQuery(kind="telemetry"))
    assert (record.entry.verdict, record.entry.details["refused_rules"]) == ("refused", ("E0698",))


async def test_a_hub_leaves_only_without_work_and_then_for_good_until_it_is_invited_anew(pair: Pair) -> None:
    workload = await pair.dakar.submit()
    await until(lambda: workload.state is State.RUNNING)
    operations = pair.dakar.service.operations
    with pytest.raises(HarchError, match="1 running"):
        await operations.close_hub(Closed.RETIRED, why="")
    with pytest.raises(HarchError, match="authority"):
        await pair.dakhla.service.operations.close_hub(Closed.RETIRED, why="")
    closure = await operations.close_hub(Closed.DRAINING, why="sold")
    assert (closure.state, closure.why, closure.remaining_total) == ("draining", "sold", 1)
    await until(lambda: pair.dakhla.told("status") == "draining")
    await until(lambda: workload.runner_hub == "dakhla" and workload.state is State.RUNNING)
    assert (await operations.closure()).remaining.lent == 1
    (key,) = pair.dakhla.agent.agent.running
    pair.dakhla.agent.end(key)
    await until(lambda: workload.state is State.COMPLETED)
    await operations.close_hub(Closed.RETIRED, why="sold")
    await until(lambda: pair.dakhla.other().reach is PeerReach.RETIRED and pair.dakhla.other().summary is None)
    await pair.dakhla.notes("hub.retired", "dakar")
    assert not await pair.dakhla.has_noted("hub.suspected", "dakar")
    with pytest.raises(HarchError, match="has been retired"):
        await operations.close_hub(Closed.OPEN, why="")

    await pair.dakar.stop()
    identity = HubIdentity(identity_folder(pair.home, "dakar"))
    authority = FederationAuthority(HubIdentity(identity_folder(pair.home, "dakhla")))
    key_of_dakar = identity.state_key.public_key().public_bytes_raw()
    record = authority.admit("dakar", key_of_dakar, identity.member.address, now=CLOCK.now())
    identity.learn([record])
    pair.dakar = LiveHub(pair.home, 1)
    await until(lambda: pair.dakar.service.summary().status == "ready")
