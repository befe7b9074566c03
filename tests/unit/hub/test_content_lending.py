"""Does content go with lent work? What the owner tells, what the runner learns, and what comes back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from lending_world import MOROCCO, SENEGAL, TERMS, LendingHub
from msgspec.structs import replace

from harch.execution.protocol import ContentUse, StartTask, TaskArtifact, TaskContent, TaskEnded, TaskKey
from harch.federation.offers import KeptContent, Reports, WorkLease, WorkReport
from harch.hub.jobs import events as ev
from harch.hub.jobs.data_commands import artifact_id
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.tags import DataKind, DataObject
from harch.testing.clock import START
from harch.workloads.lifecycle import ExitReason, State
from harch.workloads.spec import Artifact, Environment, Resources, WorkloadSpec

DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32


def hub_with_code() -> LendingHub:
    hub = LendingHub(MOROCCO)
    tag = hub.state.guard.rules.open_tag()
    data = DataObject(id="data_c", kind=DataKind.CODE, name="code-1", tenant="t", tag=tag, hubs=(MOROCCO,))
    hub.handle(ev.DataAdded(CatalogEntry(object=data, created_at=START, updated_at=START, content=DIGEST)))
    return hub


def borrowed_spec() -> WorkloadSpec:
    return WorkloadSpec(
        name="theirs",
        command=("true",),
        resources=Resources(gpus=1),
        code="data_c",
        artifacts=(Artifact(name="model", path="out", keep_days=3),),
    )


def test_the_grant_names_the_tree_of_each_data_object_that_consists_of_files() -> None:
    hub = hub_with_code()
    workload = hub.lend(code="code-1")
    given = hub.state.lending.given[workload.id]
    assert given.grant is not None
    assert [data.id for data in given.grant.data] == ["data_c"]
    assert given.grant.contents == (KeptContent("data_c", DIGEST),)


@pytest.mark.parametrize(
    ("fields", "capability"),
    [
        ({"code": "code-1"}, "content"),
        ({"artifacts": (Artifact(name="o", path="out"),)}, "content"),
        ({"environment": Environment(packages=("numpy",))}, "environments"),
        ({"image": "registry.local/train:1"}, "images"),
    ],
)
def test_work_is_not_offered_to_a_hub_that_cannot_prepare_it(fields: dict[str, object], capability: str) -> None:
    hub = hub_with_code()
    hub.meet_peer()
    (peer,) = hub.state.lending.peers.values()
    assert peer.summary is not None
    assert capability in peer.summary.capabilities
    lacking = tuple(word for word in peer.summary.capabilities if word != capability)
    hub.handle(ev.PeersSeen((replace(peer, summary=replace(peer.summary, capabilities=lacking)),)))
    hub.submit(8, stay_home=True)
    hub.place()
    workload = hub.submit(8, **fields)
    assert hub.offer() is None
    assert f"cannot prepare {capability}" in hub.state.lending.answers[workload.id][SENEGAL]


def test_the_runner_tells_its_node_which_tree_to_fetch() -> None:
    hub = LendingHub(SENEGAL)
    spec = borrowed_spec()
    code = DataObject(
        id="data_c",
        kind=DataKind.CODE,
        name="code-1",
        tenant="t",
        tag=hub.state.guard.rules.open_tag(),
        hubs=(MOROCCO,),
    )
    assert hub.take(hub.grant(spec, data=(code,), contents=(KeptContent("data_c", DIGEST),))) == ""
    (order,) = hub.sent_to_agent(StartTask)
    assert order.task.contents == (TaskContent("data_c", "code-1", DIGEST, ContentUse.CODE),)
    assert hub.state.catalog.entries["data_c"].home == MOROCCO


def test_code_that_came_without_its_tag_is_not_taken() -> None:
    hub = LendingHub(SENEGAL)
    assert "E0907" in hub.take(hub.grant(borrowed_spec()))


def test_results_of_lent_work_are_known_to_their_owner_with_tree_place_and_end() -> None:
    runner = LendingHub(SENEGAL)
    spec = borrowed_spec()
    tag = runner.state.guard.rules.open_tag()
    code = DataObject(id="data_c", kind=DataKind.CODE, name="code-1", tenant="t", tag=tag, hubs=(MOROCCO,))
    runner.take(runner.grant(spec, data=(code,), contents=(KeptContent("data_c", DIGEST),)))
    key = TaskKey("wl_theirs", 1, 0)
    made = (TaskArtifact("model", OTHER_DIGEST, 77, 1),)
    end = TaskEnded(key=key, reason=ExitReason.EXITED, at=START, exit_code=0, artifacts=made)
    runner.handle(ev.TaskEndSeen("agent", end))
    (report,) = [one for message in runner.sent(Reports) for one in message.reports]
    work = runner.work("wl_theirs")
    assert work is not None
    expires = START + timedelta(seconds=runner.boot_s - 1000.0, days=3)
    assert report.contents == (KeptContent(artifact_id(work, 0), OTHER_DIGEST, expires),)

    owner = hub_with_code()
    lent = owner.lend(code="code-1", artifacts=(Artifact(name="model", path="out"),))
    told = WorkReport(
        lease=WorkLease(lent.id, 1), state=State.COMPLETED, produced=report.produced, contents=report.contents
    )
    owner.receive(Reports((told,)))
    entry = owner.state.catalog.get("model", tenant="t")
    assert (entry.content, entry.expires_at, entry.made_by) == (OTHER_DIGEST, expires, lent.id)
    assert entry.object.hubs == (SENEGAL,)
    assert TERMS.batch_s == lent.lease_s
