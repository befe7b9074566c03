"""Does the hub ask once per question, obey the stricter of all rules, and tell somebody when rules disagree?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.hub.policy.service import HubPolicies
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import POLICY_BUILTIN, Draft
from harch.sovereignty.policy.document import ChangeQuestion
from harch.sovereignty.policy.evaluation import shipped_files
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import WorkloadSpec

MANIFEST = 'name = "acme"\nversion = "1.0.0"\n[entrypoints]\nworkload = "acme/allow"\nchange = "acme/change"\n'
REGO = """package acme
import rego.v1
default allow := false
allow if input.workload.labels.project
default change := false
change if input.operation != "delete"
"""
ACME = {"policy.toml": MANIFEST, "acme.rego": REGO}
OPEN = {**ACME, "acme.rego": REGO.replace("allow if input.workload.labels.project", "allow := true")}
GOOD = WorkloadSpec(name="good", labels={"project": "rain"})


class Desk:
    """The policies of one hub over a database of its own, with what they wrote and told."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.drafts: list[Draft] = []
        self.notes: list[tuple[str, str]] = []
        self.policies = self.open()

    def open(self) -> HubPolicies:
        fleet = tiny_fleet()
        return HubPolicies(
            fleet=fleet,
            hub_id=fleet.hubs[0].id,
            database=self.database,
            clock=SystemClock(),
            write=self.write,
            note=lambda kind, subject, message: self.notes.append((kind, message)),
        )

    def write(self, statements: list[Statement], drafts: list[Draft]) -> asyncio.Future[None]:
        self.database.write(statements)
        self.drafts += drafts
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def code_of(self, spec: WorkloadSpec) -> str:
        try:
            await self.policies.admit(spec, tenant="t")
        except HarchError as error:
            return error.code
        return ""


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    found = Desk(tmp_path / "hub.db")
    yield found
    await found.policies.close()
    found.database.close()


def elsewhere() -> WorkloadSpec:
    country = tiny_fleet().hubs[0].country
    other = "SN" if country != "SN" else "MA"
    return WorkloadSpec(name="x", countries_allowed=(other,), labels={"project": "rain"})


async def test_without_a_bundle_nothing_is_asked_and_everything_is_counted(desk: Desk) -> None:
    assert await desk.code_of(GOOD) == ""
    assert await desk.code_of(elsewhere()) == ""  # the hub's machine refuses it, in its own words
    assert desk.policies.version == POLICY_BUILTIN
    found = await desk.policies.decisions(10)
    assert sorted((decision.allowed, decision.count) for decision in found) == [(False, 1), (True, 1)]


async def test_equal_requests_cost_one_question_together_and_later(desk: Desk) -> None:
    await desk.policies.activate(ACME, actor="me")
    judge: Any = desk.policies._judge
    asked, decide = [], judge.decide

    async def counting(question: object) -> object:
        asked.append(question)
        return await decide(question)

    judge.decide = counting
    specs = [WorkloadSpec(name=f"j{number}", labels={"project": "rain"}) for number in range(50)]
    await asyncio.gather(*(desk.policies.admit(spec, tenant="t") for spec in specs))
    await desk.policies.admit(GOOD, tenant="t")
    assert len(asked) == 1
    assert sum(decision.count for decision in await desk.policies.decisions(100)) == 51


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others(desk: Desk) -> None:
    await desk.policies.activate(ACME, actor="me")
    loop = asyncio.get_running_loop()
    first, second = (loop.create_task(desk.policies.admit(GOOD, tenant="t")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled() or first.cancelling()


async def test_a_bundle_can_only_forbid_more(desk: Desk) -> None:
    await desk.policies.activate(OPEN, actor="me")
    assert await desk.code_of(GOOD) == ""
    assert await desk.code_of(elsewhere()) == "E0931"
    await desk.policies.activate(ACME, actor="me")
    assert await desk.code_of(WorkloadSpec(name="bare")) == "E0931"


async def test_a_disagreement_is_a_no_and_an_event(desk: Desk) -> None:
    hub_id = tiny_fleet().hubs[0].id
    world: Any = desk.policies._world
    world["hubs"] = {
        name: facts for name, facts in world["hubs"].items() if name != hub_id
    }  # what Rego is told is wrong
    await desk.policies.activate(OPEN, actor="me")
    assert await desk.code_of(GOOD) == "E0933"
    assert "policy.disagreement" in {kind for kind, _ in desk.notes}


async def test_activation_is_audited_stored_and_taken_up_again(desk: Desk) -> None:
    status = await desk.policies.activate(ACME, actor="key_1")
    assert [(draft.kind, draft.actor, draft.subject) for draft in desk.drafts] == [
        ("policy.activated", "key_1", status.digest)
    ]
    await desk.policies.close()
    desk.policies = desk.open()
    assert desk.policies.status().digest == desk.policies.version == status.digest
    assert await desk.code_of(WorkloadSpec(name="bare")) == "E0931"
    assert (await desk.policies.deactivate(actor="key_1")).active is False
    assert await desk.code_of(WorkloadSpec(name="bare")) == ""


async def test_a_stored_bundle_that_cannot_be_read_refuses_everything(desk: Desk) -> None:
    await desk.policies.activate(ACME, actor="me")
    desk.database.write([("UPDATE policy_bundles SET files = ?", (b'{"policy.toml": ""}',))])
    await desk.policies.close()
    desk.policies = desk.open()
    assert await desk.code_of(GOOD) == "E0932"
    assert desk.policies.status().problem


async def test_the_default_bundle_can_be_activated_too(desk: Desk) -> None:
    await desk.policies.activate({name: text.decode() for name, text in shipped_files().items()}, actor="me")
    assert await desk.code_of(GOOD) == ""
    assert await desk.code_of(elsewhere()) == "E0931"


async def test_changes_are_asked_about_if_the_bundle_has_an_opinion(desk: Desk) -> None:
    change = ChangeQuestion(resource_type="harchos_hub", address="a", operation="delete", before={}, after=None)
    assert (await desk.policies.judge_change(change)).allowed
    await desk.policies.activate(ACME, actor="me")
    assert not (await desk.policies.judge_change(change)).allowed
