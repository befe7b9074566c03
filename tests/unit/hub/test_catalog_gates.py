"""Do tags bind the work of a hub's machine? Admission, start, what runs, what is produced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.errors import HarchError, InvariantBroken
from harch.execution.protocol import HubMessage, PauseTask, StartTask, StopTask, TaskEnded, TaskKey
from harch.fleet.file import parse_fleet
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.declassification import Declassification, sign
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, meet, parse_tag
from harch.testing.agents import SimAgent
from harch.testing.samples import TINY_FLEET_TOML
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, WorkloadSpec

FLEET = parse_fleet(
    TINY_FLEET_TOML.replace(
        "pue = 1.2\n",
        'pue = 1.2\n[hubs.safeguards]\nencrypts_at_rest = true\nkeys_in = ["MA"]\nframeworks = ["gdpr"]\n',
    )
)
RULES = Rules(terrain_of(FLEET, shipped_jurisdictions()))
START = datetime(2026, 1, 1, tzinfo=UTC)


def tag(**fields: object) -> Tag:
    return parse_tag({"process_in": ["MA"], "rest_in": ["MA"], **fields}, shipped_jurisdictions())


class Hub:
    """A machine with one agent, driven by hand."""

    def __init__(self, hub_id: str = "dakhla") -> None:
        hub = FLEET.hub(hub_id)
        assert hub is not None
        self.machine = JobMachine(FLEET, hub, rules=RULES)
        self.agent = SimAgent("agent", hub.country)
        self.hub_id, self.effects, self.count = hub_id, list[fx.Effect](), 0
        self.handle(ev.AgentJoined(self.agent.hello(), 1))

    def handle(self, event: ev.Event) -> list[HubMessage]:
        self.effects = self.machine.apply(event, EventContext(now=START))
        return [effect.message for effect in self.effects if isinstance(effect, fx.Send)]

    def add(
        self, name: str, given: Tag | None, *, tenant: str = "t", at: str = "", parents: tuple[str, ...] = ()
    ) -> str:
        data = DataObject(
            id=f"data_{name}",
            kind=DataKind.DATASET,
            name=name,
            tenant=tenant,
            tag=given,
            hubs=(at or self.hub_id,),
            parents=parents,
        )
        self.handle(ev.DataAdded(CatalogEntry(object=data, created_at=START, updated_at=START)))
        return data.id

    def submit(self, *data: str, outputs: tuple[str, ...] = (), **fields: object) -> Workload:
        self.count += 1
        spec = WorkloadSpec(
            name=f"job-{self.count}",
            command=("true",),
            resources=Resources(gpus=1),
            data=data,
            outputs=outputs,
            **fields,  # type: ignore[arg-type]
        )
        self.handle(ev.Submitted(f"wl_{self.count}", "t", spec))
        return self.machine.state.registry.workloads[f"wl_{self.count}"]

    def run(self, workload: Workload) -> list[HubMessage]:
        sent = self.handle(ev.PlacementDue())
        self.handle(ev.TaskStartSeen(TaskKey(workload.id, workload.attempt, 0)))
        return sent

    def end(self, workload: Workload, **fields: object) -> None:
        key = TaskKey(workload.id, workload.attempt, 0)
        facts: dict[str, object] = {"reason": ExitReason.EXITED, "exit_code": 0, **fields}
        self.handle(ev.TaskEndSeen("agent", TaskEnded(key=key, at=START, **facts)))  # type: ignore[arg-type]

    def audited(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(one.draft.kind, one.draft.data) for one in self.effects if isinstance(one, fx.Audit)]

    def recorded(self) -> list[str]:
        return [one.kind for one in self.effects if isinstance(one, fx.Record)]


def test_work_on_data_is_admitted_and_the_agent_is_told_the_tags() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    workload = hub.submit("census")
    assert workload.data_ids == (census,)
    assert ("workload.admitted", (census,)) in hub.audited()
    (start,) = [message for message in hub.run(workload) if isinstance(message, StartTask)]
    assert [(data.id, data.tag) for data in start.task.data] == [(census, tag())]
    assert not start.task.scrub_after


def test_a_hub_whose_country_the_tag_does_not_allow_refuses_with_every_rule_and_the_hubs_that_may() -> None:
    hub = Hub("dakar")
    hub.add("census", tag(frameworks=["ma-law-09-08"]), at="dakhla")
    with pytest.raises(HarchError) as caught:
        hub.submit("census")
    error = caught.value
    assert (error.code, error.kind.status) == ("E0907", 403)
    problems = error.meta["problems"]
    assert isinstance(problems, list)
    assert [problem["rule"] for problem in problems] == [
        "process_in",
        "frameworks",
        "encrypt_at_rest",
        "key_in",
        "route",
    ]
    assert error.meta["hubs_allowed"] == ["dakhla"]
    assert "harch run --hub dakhla" in error.hint
    assert error.meta["data"] == ["data_census"]


def test_data_that_is_unknown_untagged_or_of_another_tenant_may_not_be_read() -> None:
    hub = Hub()
    hub.add("raw", None)
    hub.add("theirs", tag(), tenant="other")
    for name in ("nowhere", "raw", "theirs", "data_theirs"):
        with pytest.raises(HarchError) as caught:
            hub.submit(name)
        assert caught.value.code == "E0907"
    assert "not known" in str(caught.value)  # that somebody else has it is not told


def test_the_word_of_the_work_and_that_of_the_data_must_both_say_yes() -> None:
    hub = Hub()
    hub.add("census", tag())
    with pytest.raises(HarchError) as caught:
        hub.submit("census", countries_allowed=("SN",))
    problems = caught.value.meta["problems"]
    assert isinstance(problems, list)
    assert [problem["rule"] for problem in problems] == ["residency"]


def test_tightening_while_it_runs_pauses_at_once_and_cancels_without_grace_and_with_a_scrub() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    workload = hub.submit("census", stop_grace_s=60)
    hub.run(workload)
    sent = hub.handle(ev.DataRetagged(census, tag(process_in=[])))
    key = TaskKey(workload.id, 1, 0)
    assert sent == [PauseTask(key), StopTask(key, 0.0, scrub=True)]
    assert hub.recorded() == ["data.tagged", "sovereignty.violation", "workload.paused"]
    assert ("sovereignty.violation", (census,)) in hub.audited()
    with pytest.raises(HarchError, match="no longer permit"):
        hub.handle(ev.ResumeRequested(workload.id))
    assert hub.handle(ev.TagsDue()) == []  # once is enough
    hub.end(workload, reason=ExitReason.STOPPED, scrubbed=True)
    assert workload.state is State.CANCELLED
    assert "E0907" in workload.error_message
    assert ("data.scrubbed", (census,)) in hub.audited()


def test_what_waits_is_cancelled_when_its_data_is_tightened() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    workload = hub.submit("census")
    hub.handle(ev.DataRetagged(census, tag(frameworks=["sn-law-2008-12"])))
    assert workload.state is State.CANCELLED
    assert not hub.machine.state.guard.has_readers
    assert not [message for message in hub.handle(ev.PlacementDue()) if isinstance(message, StartTask)]


def test_a_copy_that_may_no_longer_rest_is_told_about() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    hub.handle(ev.DataRetagged(census, tag(frameworks=["sn-law-2008-12"])))
    assert hub.recorded() == ["data.tagged", "sovereignty.violation"]


def test_outputs_carry_the_meet_of_what_was_read_and_name_their_parents() -> None:
    hub = Hub()
    one, other = tag(process_in=["MA", "SN"], rest_in=["MA", "SN"]), tag(classification="internal", frameworks=["gdpr"])
    parents = (hub.add("one", one), hub.add("other", other))
    workload = hub.submit("one", "data_other", outputs=("model", "counts"), type="training")
    hub.run(workload)
    hub.end(workload)
    assert workload.state is State.COMPLETED
    made = [effect.entry for effect in hub.effects if isinstance(effect, fx.SaveData)]
    assert [entry.object.name for entry in made] == ["model", "counts"]
    for entry in made:
        assert entry.object.tag == meet([one, other])
        assert (entry.object.parents, entry.made_by, entry.object.hubs) == (parents, workload.id, ("dakhla",))
        assert entry.object.kind is DataKind.CHECKPOINT
        assert ("data.derived", (entry.object.id, *parents)) in hub.audited()


def test_work_that_failed_produces_nothing() -> None:
    hub = Hub()
    hub.add("census", tag())
    workload = hub.submit("census", outputs=("model",))
    hub.run(workload)
    hub.end(workload, exit_code=1)
    assert workload.state is State.FAILED
    assert list(hub.machine.state.catalog.entries) == ["data_census"]


def test_outputs_need_data_and_a_name_that_nobody_registered() -> None:
    hub = Hub()
    hub.add("census", tag())
    with pytest.raises(HarchError) as caught:
        hub.submit("census", outputs=("census",))
    assert caught.value.code == "E0910"
    with pytest.raises(ValueError, match="need `data`"):
        WorkloadSpec(name="a", outputs=("b",))


def test_data_that_may_be_read_and_not_kept_is_scrubbed_however_the_work_ends() -> None:
    hub = Hub()
    loose = {"may_cross_borders": True, "encrypt_at_rest": False, "encrypt_in_transit": False, "transit_in": ["MR"]}
    hub.add("visitor", tag(process_in=["MA"], rest_in=["SN"], **loose), at="dakar")
    workload = hub.submit("visitor")
    (start,) = [message for message in hub.run(workload) if isinstance(message, StartTask)]
    assert start.task.scrub_after
    with pytest.raises(HarchError) as caught:
        hub.submit("visitor", outputs=("made",))
    problems = caught.value.meta["problems"]
    assert isinstance(problems, list)
    assert [problem["rule"] for problem in problems] == ["rest_in"]


def test_loosening_needs_a_signature_of_a_known_authority() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    old, new = tag(), tag(classification="internal")
    key = Ed25519PrivateKey.generate()
    keys = {"cndp": key.public_key().public_bytes_raw()}
    statement = Declassification(
        object_id=census,
        tag_revision=1,
        old=old,
        new=new,
        reason="published",
        authority="cndp",
        issued_at=START,
        valid_until=START + timedelta(hours=1),
    )
    with pytest.raises(HarchError) as caught:
        hub.handle(ev.DataRetagged(census, new, authorities=keys))
    assert caught.value.code == "E0908"
    for wrong in (statement, sign(statement, bytes(32))):
        with pytest.raises(HarchError) as caught:
            hub.handle(ev.DataRetagged(census, new, wrong, keys))
        assert caught.value.code == "E0909"
    signed = sign(statement, key.private_bytes_raw())
    with pytest.raises(HarchError):  # an authority that this hub does not know
        hub.handle(ev.DataRetagged(census, new, signed, {}))
    hub.handle(ev.DataRetagged(census, new, signed, keys))
    assert hub.audited() == [("data.declassified", (census,))]
    hub.handle(ev.DataRetagged(census, old))
    with pytest.raises(HarchError):  # it held once
        hub.handle(ev.DataRetagged(census, new, signed, keys))


def test_a_tag_given_to_something_made_from_others_stays_within_theirs() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    with pytest.raises(HarchError) as caught:
        hub.add("copy", tag(classification="public"), parents=(census,))
    assert caught.value.code == "E0908"
    hub.add("copy", tag(), parents=(census,))


def test_a_copy_is_registered_only_where_it_may_rest_and_under_a_free_name() -> None:
    hub = Hub()
    for at, code in (("dakar", "E0907"), ("atlantis", "E0305")):
        with pytest.raises(HarchError) as caught:
            hub.add("census", tag(), at=at)
        assert caught.value.code == code
    hub.add("census", tag())
    with pytest.raises(HarchError) as caught:
        hub.add("census", tag())
    assert caught.value.code == "E0910"


def test_after_a_restart_with_fewer_safeguards_nothing_runs_on_the_data() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    workload = hub.submit("census")
    hub.run(workload)
    bare = Rules(terrain_of(parse_fleet(TINY_FLEET_TOML), shipped_jurisdictions()))
    machine = JobMachine(FLEET, FLEET.hubs[0], rules=bare)
    stored = msgspec.json.decode(msgspec.json.encode(workload), type=Workload)
    data = list(hub.machine.state.catalog.entries.values())
    effects = machine.restore([stored], [], (), data, context=EventContext(now=START))
    assert [effect.kind for effect in effects if isinstance(effect, fx.Record)] == [
        "sovereignty.violation",
        "workload.paused",
    ]
    assert stored.stop_as is State.CANCELLED
    joined = machine.apply(
        ev.AgentJoined(hub.agent.hello(), 2), EventContext(now=START)
    )  # it lost the task: nothing is started
    assert not [one for one in joined if isinstance(one, fx.Send) and isinstance(one.message, StartTask)]
    assert stored.state is State.CANCELLED
    assert census in stored.data_ids


def test_a_machine_that_would_start_work_against_a_tag_stops_instead() -> None:
    hub = Hub()
    census = hub.add("census", tag())
    workload = hub.submit("census")
    state = hub.machine.state
    entry = state.catalog.entries[census]
    tighter = msgspec.structs.replace(entry.object, tag=tag(process_in=[]))
    state.catalog.put(msgspec.structs.replace(entry, object=tighter))  # behind the machine's back
    with pytest.raises(InvariantBroken):
        hub.handle(ev.PlacementDue())
    assert workload.data_ids == (census,)


def test_only_hubs_that_may_run_the_work_hear_of_it() -> None:
    hub = Hub()
    hub.add("census", tag())
    workload = hub.submit("census")
    verdict = hub.machine.state.guard.before_offer(workload, ["dakar", "dakhla", "atlantis"])
    assert verdict.eligible == ("dakhla",)
    assert {reason.rule for reason in verdict.rejections} >= {"process_in", "site"}
