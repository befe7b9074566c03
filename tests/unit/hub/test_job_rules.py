"""Hardware, admission, data and room, rule by rule: exact answers, and both sides of every edge."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.execution.protocol import PauseTask, StartTask, StopTask, TaskEnded, TaskKey
from harch.federation.offers import OrderKind, OwnerOrder
from harch.hub.jobs import admission as admissions
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.admission import Admission
from harch.hub.jobs.catalog import Catalog
from harch.hub.jobs.data_commands import output_ids
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.placement import DEFRAGMENT_EVERY_S
from harch.hub.jobs.state import Closed
from harch.hub.store.records import CatalogEntry, ConditionKind
from harch.placement.queueing.settings import QueueSettings
from harch.placement.request import PlacementRequest
from harch.sovereignty.audit import chain as audit
from harch.sovereignty.tags import DataKind, DataObject
from harch.testing.clock import START
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec, WorkloadType
from unit.hub.conftest import Bench
from unit.hub.lending_world import MOROCCO, SENEGAL, LendingHub, data_object, tag_for
from unit.hub.test_job_commands import drafts, kinds
from unit.hub.test_job_placement import end_stopped, h100, scatter

NODE, RACK, ZONE = "dakhla-r01-n01", "dakhla-r01", "dakhla-hall-1"
SPEC = WorkloadSpec(name="job", command=("true",), resources=Resources(gpus=1))


class TestHardware:
    @pytest.mark.parametrize(
        ("kind", "subject", "value", "why", "message"),
        [
            ("cordoned", NODE, 1, "", "cordoned"),
            ("cordoned", NODE, None, "repaired", "open again: repaired"),
            ("unhealthy", f"{NODE}-g3", 1, "ECC", "unhealthy: ECC"),
            ("unhealthy", f"{NODE}-g3", None, "", "healthy again"),
            ("nvlink", NODE, 0.5, "", "nvlink 0.5"),
            ("uplink", RACK, 0.25, "cable", "uplink 0.25: cable"),
            ("uplink", RACK, None, "", "uplink as in the fleet file"),
            ("cooling_kw", ZONE, 40, "", "cooling_kw 40"),
        ],
    )
    def test_a_change_is_stored_and_recorded(
        self, bench: Bench, kind: str, subject: str, value: float | None, why: str, message: str
    ) -> None:
        effects = bench.handle(ev.HardwareChanged(kind, subject, value, why))
        assert effects == [
            fx.SaveCondition(kind, subject, value, why),
            fx.Record("hardware.changed", subject, "", message),
        ]

    @pytest.mark.parametrize(
        ("kind", "subject", "value"),
        [
            ("cooling_kw", ZONE, 0),
            ("cooling_kw", ZONE, 60),
            ("nvlink", NODE, 0),
            ("nvlink", NODE, 1),
            ("uplink", RACK, 0.01),
            ("uplink", RACK, 1),
            ("closed", "dakhla", 1),
            ("closed", "dakhla", 3),
        ],
    )
    def test_values_at_the_very_edge_are_taken(self, bench: Bench, kind: str, subject: str, value: float) -> None:
        assert kinds(bench.handle(ev.HardwareChanged(kind, subject, value))) == ["SaveCondition", "hardware.changed"]

    @pytest.mark.parametrize(
        ("kind", "subject", "value", "code", "message"),
        [
            ("cooling_kw", ZONE, -0.1, "E0201", "-0.1 is not between 0 and 60"),
            ("cooling_kw", ZONE, 60.1, "E0201", "60.1 is not between 0 and 60"),
            ("nvlink", NODE, 1.01, "E0201", "1.01 is not between 0 and 1"),
            ("uplink", RACK, 0.009, "E0201", "0.009 is not between 0.01 and 1"),
            ("closed", "dakhla", 4, "E0201", "4 is not between 1 and 3"),
            ("closed", "dakar", 1, "E0311", "this hub has no hub `dakar`"),
            ("cordoned", "nowhere", 1, "E0311", "this hub has no node `nowhere`"),
            ("nvlink", "nowhere", 1, "E0311", "this hub has no node `nowhere`"),
            ("uplink", "nowhere", 1, "E0311", "this hub has no rack `nowhere`"),
            ("cooling_kw", "nowhere", 1, "E0311", "this hub has no cooling zone `nowhere`"),
            ("unhealthy", f"{NODE}-g9", 1, "E0311", f"this hub has no GPU `{NODE}-g9`"),
            ("unhealthy", "nowhere-g1", 1, "E0311", "this hub has no GPU `nowhere-g1`"),
        ],
    )
    def test_what_cannot_be_is_refused_and_changes_nothing(
        self, bench: Bench, kind: str, subject: str, value: float, code: str, message: str
    ) -> None:
        with pytest.raises(HarchError) as refused:
            bench.handle(ev.HardwareChanged(kind, subject, value))
        assert (refused.value.code, refused.value.message) == (code, message)
        assert not bench.machine.is_changed
        assert bench.machine.state.closed is Closed.OPEN

    def test_each_change_reaches_the_arrays_of_placement_and_is_undone(self, bench: Bench) -> None:
        scheduler = bench.machine.state.scheduler
        room = scheduler.room
        for value in (1, None):
            bench.handle(ev.HardwareChanged("cordoned", NODE, value))
            assert bool(room.cordoned[0]) is (value is not None)
            bench.handle(ev.HardwareChanged("unhealthy", f"{NODE}-g3", value))
            assert bool(room.healthy[0, 3]) is (value is None)
        assert bool(room.healthy[0, 2])

    def test_a_hub_is_closed_and_opened_with_words(self, bench: Bench) -> None:
        for closed, value, word in (
            (Closed.CORDONED, 1.0, "cordoned"),
            (Closed.DRAINING, 2.0, "draining"),
            (Closed.RETIRED, 3.0, "retired"),
            (Closed.OPEN, None, "open"),
        ):
            effects = bench.handle(ev.HubClosed(closed, "why"))
            assert effects[0] == fx.SaveCondition(ConditionKind.CLOSED, "dakhla", value, "why")
            assert bench.records[-1].message == f"the hub is {word}: why"
            assert bench.machine.state.closed is closed

    def test_draining_stops_what_runs_and_cordoning_does_not(self, bench: Bench) -> None:
        ran, stopping = bench.submit(), bench.submit()
        bench.run(ran)
        bench.run(stopping)
        bench.handle(ev.StopRequested(stopping.id, "enough"))
        bench.handle(ev.HubClosed(Closed.CORDONED))
        assert bench.sent == []
        effects = bench.handle(ev.HubClosed(Closed.DRAINING))
        assert [m.key.workload_id for m in bench.sent if isinstance(m, StopTask)] == [ran.id]
        assert (ran.stop_as, ran.stop_reason) == (State.PENDING, "hub dakhla is drained")
        assert (stopping.stop_as, stopping.stop_reason) == (State.CANCELLED, "enough")
        assert kinds(effects)[-2:] == ["workload.drained", "StopTask"]

    def test_a_drained_node_stops_its_own_work_alone(self, bench: Bench) -> None:
        here, there = bench.submit(gpus=8), bench.submit(gpus=8)
        bench.place()
        node = here.placement[0].node_id
        assert there.placement[0].node_id != node
        effects = bench.handle(ev.NodeDrained(node))
        assert effects[1] == fx.SaveCondition("cordoned", node, 1, "drained")
        assert (here.stop_reason, there.stop_reason) == (f"node {node} is drained", "")
        assert bench.handle(ev.NodeDrained(node, "again"))[0] == fx.SaveCondition("cordoned", node, 1, "again")
        assert bench.sent == [], "it stops already"

    def test_gpus_that_are_held_for_a_bid_are_not_queried_to_move(self) -> None:
        hub = LendingHub(MOROCCO)
        hub.bid(SPEC)
        for event in (ev.NodeDrained(NODE), ev.HubClosed(2)):
            hub.handle(event)
            assert hub.sent_to_agent(StopTask) == []


class TestAdmission:
    def admission(self) -> Admission:
        return Admission(tiny_fleet(), "dakhla")

    def request(self, **fields: object) -> PlacementRequest:
        return PlacementRequest.of("shape", replace(SPEC, **fields))

    def refusal(self, admission: Admission, **fields: object) -> HarchError:
        with pytest.raises(HarchError) as refused:
            admission.check(self.request(**fields), 64)
        return refused.value

    def test_what_fits_an_empty_hub_is_accepted_whatever_runs_there(self) -> None:
        admission = self.admission()
        admission.check(self.request(resources=Resources(gpus=8)), 64)
        admission.check(self.request(resources=Resources(gpus=8), tasks=4), 64)
        assert not admission.fits_only_elsewhere(self.request(), 64)

    def test_what_never_fits_is_refused_with_the_rule_and_the_hub_that_could(self) -> None:
        error = self.refusal(self.admission(), resources=Resources(gpus=1, gpu_model="inference-card"))
        assert (error.code, error.meta["hub"]) == ("E0303", "dakhla")
        assert error.message.startswith(f"Dakhla can never run this: {error.meta['rule']}: ")
        assert error.hint.endswith("; it fits at Dakar: `harch run --hub dakar …`")

    def test_what_fits_nowhere_names_no_hub(self) -> None:
        error = self.refusal(self.admission(), resources=Resources(gpus=9))
        assert error.code == "E0303"
        assert "it fits at" not in error.hint

    def test_residency_is_refused_as_such(self) -> None:
        error = self.refusal(self.admission(), countries_allowed=("SN",))
        assert (error.code, error.meta["rule"]) == ("E0902", "residency")
        assert "Dakar" in error.hint

    def test_a_model_that_no_hub_has_is_named_with_those_that_exist(self) -> None:
        error = self.refusal(
            self.admission(), resources=Resources(gpus=1, gpu_models=("h999", "inference-card", "h100-80gb"), cpus=4096)
        )
        assert (error.code, error.field) == ("E0203", "resources.gpu_models")
        assert error.message == "no hub has GPUs of model `h999`"
        assert error.hint == "use one of: a100-80gb, h100-80gb, inference-card"

    def test_a_model_that_no_hub_has_is_not_hidden_by_others_that_would_do(self) -> None:
        for wanted in (Resources(gpus=1, gpu_models=("h100-80gb", "h999")), Resources(gpus=1, gpu_model="h999")):
            assert self.refusal(self.admission(), resources=wanted).message == "no hub has GPUs of model `h999`"
            assert not self.admission().fits_only_elsewhere(self.request(resources=wanted), 64)

    def test_what_only_another_hub_can_run_is_known(self) -> None:
        admission = self.admission()
        cards = self.request(resources=Resources(gpus=1, gpu_model="inference-card"))
        assert admission.fits_only_elsewhere(cards, 64)
        assert not admission.fits_only_elsewhere(self.request(resources=Resources(gpus=9)), 64)

    def test_processes_need_slots_and_a_verdict_holds_until_agents_change(self) -> None:
        admission = self.admission()
        several = self.request(tasks=3, resources=Resources(gpus=0))
        admission.check(several, 3)
        admission.check(several, 2)
        admission.forget_verdicts()
        with pytest.raises(HarchError):
            admission.check(several, 2)

    def test_what_is_remembered_is_limited_and_right_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admissions, "_CACHE_MAX", 2)
        admission = self.admission()
        for _ in range(2):
            for gpus in (1, 9, 2, 10, 8):
                request = self.request(resources=Resources(gpus=gpus, gpu_model="inference-card"))
                assert admission.fits_only_elsewhere(request, 64) is (gpus <= 2)
                assert len(admission._verdicts) <= 2
                assert len(admission._elsewhere) <= 2

    def test_a_hub_that_is_not_in_the_fleet_is_refused(self) -> None:
        with pytest.raises(HarchError, match="hub `nowhere` is not in the fleet") as refused:
            Admission(tiny_fleet(), "nowhere").check(self.request(), 64)
        assert refused.value.code == "E0305"


def entry(name: str, *, tenant: str = "t", home: str = "", made_by: str = "", id: str = "") -> CatalogEntry:
    data = DataObject(id=id or f"data_{name}", kind=DataKind.DATASET, name=name, tenant=tenant, tag=None, hubs=())
    return CatalogEntry(object=data, created_at=START, updated_at=START, home=home, made_by=made_by)


class TestTheCatalog:
    def test_entries_of_one_tenant_or_of_all_come_newest_first(self) -> None:
        catalog = Catalog()
        for one in (entry("a"), entry("b", tenant="other"), entry("c")):
            catalog.put(one)
        assert [one.object.name for one in catalog.of("t")] == ["c", "a"]
        assert [one.object.name for one in catalog.of("other")] == ["b"]
        assert [one.object.name for one in catalog.of(None)] == ["c", "b", "a"]

    def test_data_of_another_hub_has_no_name_here(self) -> None:
        catalog = Catalog()
        catalog.put(entry("a", home="dakar"))
        assert catalog.named("a", tenant="t") is None
        found = catalog.find("data_a", tenant="t")
        assert found is not None
        assert catalog.find("data_a", tenant="other") is None

    def test_an_operator_finds_any_tenants_by_id_or_name(self) -> None:
        catalog = Catalog()
        catalog.put(entry("a"))
        catalog.put(entry("b", tenant="other"))
        assert catalog.get("data_b", tenant=None).object.name == "b"
        assert catalog.get("b", tenant=None).object.name == "b"
        with pytest.raises(HarchError) as refused:
            catalog.get("c" * 200, tenant=None)
        assert (refused.value.code, refused.value.message) == ("E0906", f"no data object `{'c' * 128}` at this hub")

    def test_entries_come_back_by_age_and_then_by_id(self) -> None:
        older = replace(entry("x", id="data_9", made_by="wl"), created_at=START - timedelta(minutes=1))
        catalog = Catalog()
        catalog.restore([entry("x", id="data_2", made_by="wl"), entry("x", id="data_1", made_by="wl"), older])
        assert list(catalog.entries) == ["data_9", "data_1", "data_2"]
        assert catalog.get("x", tenant="t").object.id == "data_2"


class TestData:
    def hub(self, hub_id: str = MOROCCO) -> LendingHub:
        return LendingHub(hub_id)

    def retag(self, hub: LendingHub, name: str, *countries: str) -> None:
        hub.handle(ev.DataRetagged(f"data_{name}", tag_for(*countries), actor="ada"))

    def test_an_object_is_saved_recorded_and_audited(self) -> None:
        hub = self.hub()
        hub.add_data(data := data_object("one", tag_for("MA")))
        assert kinds(hub.effects) == ["SaveData", "data.added", f"audit {audit.DATA_ADDED}"]
        record = next(one for one in hub.effects if isinstance(one, fx.Record))
        assert record.message == "dataset one, may be processed in MA, rest in MA"
        assert record.data == {"name": "one", "kind": data.kind, "tag_revision": data.tag_revision}
        assert drafts(hub.effects)[0].countries == ("MA",)
        hub.add_data(data_object("two", None))
        record = next(one for one in hub.effects if isinstance(one, fx.Record))
        assert record.message == "dataset two, untagged: cannot be used"

    @pytest.mark.parametrize(
        ("data", "code", "message"),
        [
            (data_object("known", tag_for("MA")), "E0910", "the name `known` belongs to data_known"),
            (data_object("x", tag_for("MA"), at="nowhere"), "E0305", "no hub named `nowhere`"),
            (data_object("x", tag_for("SN")), "E0907", "its tag does not let it rest there: x at dakhla: "),
            (
                replace(data_object("x", tag_for("MA", "SN")), parents=("known",)),
                "E0908",
                "the tag of x permits more than those of its sources",
            ),
            (replace(data_object("x", tag_for("MA")), parents=("unknown",)), "E0906", "no data object `unknown`"),
        ],
    )
    def test_data_that_cannot_be_is_refused_and_leaves_nothing(self, data: DataObject, code: str, message: str) -> None:
        hub = self.hub()
        hub.add_data(data_object("known", tag_for("MA")))
        with pytest.raises(HarchError) as refused:
            hub.add_data(data)
        assert refused.value.code == code
        assert refused.value.message.startswith(message)
        assert refused.value.hint
        assert list(hub.state.catalog.entries) == ["data_known"]
        assert not hub.machine.is_changed

    def test_a_tag_within_those_of_its_sources_and_no_tag_at_all_are_taken(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("known", tag_for("MA", "SN")))
        hub.add_data(replace(data_object("x", tag_for("MA")), parents=("known",)))
        hub.add_data(replace(data_object("y", None), parents=("known",)))
        assert set(hub.state.catalog.entries) == {"data_known", "data_x", "data_y"}

    def test_a_tighter_tag_is_a_new_revision_saved_recorded_and_audited(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA", "SN")))
        hub.later(60.0)
        self.retag(hub, "one", "MA")
        assert kinds(hub.effects) == ["SaveData", "data.tagged", f"audit {audit.DATA_TAGGED}"]
        entry = hub.state.catalog.entries["data_one"]
        assert (entry.object.tag, entry.updated_at, entry.created_at) == (tag_for("MA"), hub.context().now, START)
        assert drafts(hub.effects)[0].actor == "ada"
        revision = entry.object.tag_revision
        record = next(one for one in hub.effects if isinstance(one, fx.Record))
        assert record.message == f"tagged one, revision {revision}: may be processed in MA, rest in MA"

    def test_a_copy_that_may_no_longer_rest_where_it_is_is_recorded_and_audited(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA", "SN")))
        self.retag(hub, "one", "SN")
        assert kinds(hub.effects)[3:] == ["sovereignty.violation", f"audit {audit.VIOLATION}"]
        record = [one for one in hub.effects if isinstance(one, fx.Record)][-1]
        assert record.message.startswith("a copy at dakhla may not rest there: ")

    def test_pending_work_ends_running_work_is_frozen_and_lent_work_ordered_to_stop(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA", "SN")))
        runs, waits = hub.submit(8, data=("one",)), hub.submit(8, tasks=4, data=("one",))
        untouched = hub.submit(1)
        hub.place()
        hub.handle(ev.TaskStartSeen(TaskKey(runs.id, 1, 0)))
        self.retag(hub, "one", "SN")
        key = TaskKey(runs.id, 1, 0)
        assert hub.sent_to_agent(PauseTask) == [PauseTask(key)]
        assert hub.sent_to_agent(StopTask) == [StopTask(key, 0.0, scrub=True)]
        assert (runs.state, runs.stop_as, runs.scrub) == (State.PAUSED, State.CANCELLED, True)
        assert runs.stop_reason == runs.error_message
        assert runs.error_message.startswith("E0907 its data may no longer be read here: ")
        assert (waits.state, waits.scrub) == (State.CANCELLED, True)
        assert waits.id not in hub.state.scheduler.queue
        assert not untouched.scrub
        hub.handle(ev.TagsDue())
        assert hub.effects == [], "once is enough"

    def test_a_rank_that_has_ended_is_not_paused_and_paused_work_is_paused_again(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA", "SN")))
        runs = hub.submit(8, tasks=2, data=("one",))
        hub.place()
        for rank in (0, 1):
            hub.handle(ev.TaskStartSeen(TaskKey(runs.id, 1, rank)))
        hub.handle(ev.PauseRequested(runs.id))
        end = TaskEnded(key=TaskKey(runs.id, 1, 0), reason=ExitReason.EXITED, exit_code=0, at=START)
        hub.handle(ev.TaskEndSeen("agent", end))
        self.retag(hub, "one", "SN")
        assert hub.sent_to_agent(PauseTask) == [PauseTask(TaskKey(runs.id, 1, 1))]
        assert "workload.paused" not in kinds(hub.effects)

    def test_lent_work_is_stopped_where_it_runs(self) -> None:
        hub = LendingHub(SENEGAL)
        hub.meet_peer()
        hub.submit(8, stay_home=True)
        hub.place()
        hub.add_data(data_object("one", tag_for("MA", "SN"), at=SENEGAL))
        workload = hub.submit(8, data=("one",))
        assert hub.offer() is not None
        self.retag(hub, "one", "SN")
        (order,) = hub.sent(OwnerOrder)
        assert (order.kind, order.scrub) == (OrderKind.STOP, True)
        assert order.reason.startswith("E0907 its data may no longer be read here: ")
        assert (workload.stop_as, workload.stop_reason, workload.scrub) == (State.CANCELLED, order.reason, True)

    @pytest.mark.parametrize(
        ("type_", "kind"),
        [
            (WorkloadType.TRAINING, DataKind.CHECKPOINT),
            (WorkloadType.FINE_TUNING, DataKind.CHECKPOINT),
            (WorkloadType.BATCH, DataKind.DATASET),
        ],
    )
    def test_work_that_completes_makes_its_outputs_under_the_tags_of_what_it_read(
        self, type_: WorkloadType, kind: DataKind
    ) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA", "SN")))
        workload = hub.submit(1, data=("one",), outputs=("a", "b"), type=type_)
        hub.place()
        end = TaskEnded(key=TaskKey(workload.id, 1, 0), reason=ExitReason.EXITED, exit_code=0, at=START)
        hub.handle(ev.TaskEndSeen("agent", end))
        assert output_ids(workload) == ["data_1-1", "data_1-2"]
        for data_id, name in zip(output_ids(workload), "ab", strict=True):
            made = hub.state.catalog.entries[data_id]
            assert (made.object.name, made.object.kind, made.object.tenant) == (name, kind, "t")
            assert (made.object.hubs, made.object.parents, made.made_by) == ((MOROCCO,), ("data_one",), workload.id)
            assert (made.home, made.created_at) == ("", START)
            assert fx.SaveData(made) in hub.effects
        assert kinds(hub.effects).count("data.produced") == 2
        assert kinds(hub.effects).count(f"audit {audit.DATA_DERIVED}") == 2

    def test_work_that_fails_makes_nothing(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA")))
        workload = hub.submit(1, data=("one",), outputs=("a",))
        hub.place()
        end = TaskEnded(key=TaskKey(workload.id, 1, 0), reason=ExitReason.EXITED, exit_code=1, at=START)
        hub.handle(ev.TaskEndSeen("agent", end))
        assert "data.produced" not in kinds(hub.effects)

    def test_an_output_with_the_name_of_registered_data_is_refused_and_of_a_product_taken(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA")))
        with pytest.raises(HarchError) as refused:
            hub.submit(1, data=("one",), outputs=("one",))
        assert (refused.value.code, refused.value.field) == ("E0910", "outputs")
        hub.state.catalog.put(entry("made", made_by="wl_0"))
        hub.submit(1, data=("one",), outputs=("made",))

    def test_who_reads_what_is_known_until_it_ends(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA")))
        guard = hub.state.guard
        assert not guard.has_readers
        workload = hub.submit(1, data=("one",))
        hub.submit(1)
        assert guard.has_readers
        assert (guard.readers_of("data_one"), guard.readers_of("data_two")) == ([workload.id], [])
        hub.handle(ev.StopRequested(workload.id, "enough"))
        assert not guard.has_readers

    def test_work_that_no_longer_names_data_is_no_reader(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("MA")))
        workload = hub.submit(1, data=("one",))
        hub.handle(ev.SpecReplaced(workload.id, replace(workload.spec, data=()), {}))
        assert not hub.state.guard.has_readers
        hub.handle(ev.SpecReplaced(workload.id, replace(workload.spec, data=("one",)), {}))
        assert hub.state.guard.has_readers

    def test_what_may_be_read_and_not_kept_is_scrubbed_after(self) -> None:
        hub = self.hub()
        tag = replace(tag_for("MA"), rest_in=("SN",))
        hub.add_data(data_object("one", tag, at=SENEGAL))
        hub.add_data(data_object("two", tag_for("MA")))
        only, both = hub.submit(1, data=("two",)), hub.submit(1, data=("two", "one"))
        hub.place()
        scrubs = {start.task.key.workload_id: start.task.scrub_after for start in hub.sent_to_agent(StartTask)}
        assert scrubs == {only.id: False, both.id: True}

    def test_work_on_data_that_only_another_hub_may_read_is_taken_where_hubs_lend(self) -> None:
        hub = self.hub()
        hub.add_data(data_object("one", tag_for("SN"), at=SENEGAL))
        cards = Resources(gpus=1, gpu_model="inference-card")
        hub.handle(ev.Submitted("wl_a", "t", replace(SPEC, name="a", resources=cards, data=("one",))))
        workload = hub.work("wl_a")
        assert workload is not None
        assert not workload.home_fits
        hub.handle(ev.TagsDue())
        assert hub.effects == [], "it may be read where it is to run"
        with pytest.raises(HarchError) as refused:
            hub.handle(ev.Submitted("wl_b", "t", replace(SPEC, name="b", data=("one",), stay_home=True)))
        error = refused.value
        assert (error.code, error.field) == ("E0907", "data")
        assert error.meta["hubs_allowed"] == [SENEGAL]
        assert error.hint == "its data may be read at dakar: `harch run --hub dakar …`"

    def test_many_reasons_are_listed_up_to_a_limit(self) -> None:
        hub = self.hub()
        names = [f"d{number}" for number in range(15)]
        for name in names:
            hub.add_data(data_object(name, None))
        with pytest.raises(HarchError) as refused:
            hub.submit(1, data=tuple(names), stay_home=True)
        assert len(refused.value.message.splitlines()) == 1 + 12 + 1
        assert refused.value.message.endswith("\n  and 4 more"), "one more for how it would get there"
        problems: list[dict[str, str]] = refused.value.meta["problems"]  # type: ignore[assignment]
        assert len(problems) == 16
        assert refused.value.hint == "; ".join(dict.fromkeys(problem["fix"] for problem in problems if problem["fix"]))


class TestMakingRoom:
    def patient(self, after_s: float = 120.0, **settings: object) -> Bench:
        bench = Bench()
        made = QueueSettings(defragment_after_s=after_s, makes_room_after_s=1e6, **settings)  # type: ignore[arg-type]
        bench.machine = JobMachine(tiny_fleet(), bench.hub, made)
        bench.join()
        return bench

    def test_work_that_has_waited_exactly_long_enough_has_others_moved(self) -> None:
        bench = self.patient()
        small = scatter(bench)
        large = h100(bench, "large", 8)
        bench.place()
        bench.later(seconds=119)
        bench.place()
        assert not any(workload.stop_reason for workload in small)
        bench.later(seconds=1)
        effects = bench.handle(ev.PlacementDue())
        assert [workload.id for workload in small if workload.stop_reason] == [small[3].id]
        assert small[3].stop_reason == f"moves to make room for {large.id}"
        assert [kind for kind in kinds(effects) if kind.startswith("workload.")] == [
            "workload.moving",
            "workload.room_made",
        ]

    def test_whoever_moved_just_now_is_left_alone_for_a_while(self) -> None:
        bench = self.patient(60.0)
        small = scatter(bench)
        h100(bench, "large", 8)
        bench.place()
        bench.later(seconds=60)
        bench.place()
        assert bench.machine.state.next_defragmentation_s == bench.context.now_s + 60.0
        assert end_stopped(bench, small)

    def test_where_it_does_not_pay_it_is_looked_at_again_half_a_minute_later(self) -> None:
        bench = self.patient(10.0)
        scatter(bench)
        h100(bench, "large", 8, max_duration_s=1.0)
        bench.later(seconds=10)
        bench.place()
        looked_s = bench.context.now_s
        assert bench.machine.state.next_defragmentation_s == looked_s + DEFRAGMENT_EVERY_S
        bench.later(seconds=DEFRAGMENT_EVERY_S - 1)
        bench.place()
        assert bench.machine.state.next_defragmentation_s == looked_s + DEFRAGMENT_EVERY_S
        bench.later(seconds=1)
        bench.place()
        assert bench.machine.state.next_defragmentation_s == looked_s + 2 * DEFRAGMENT_EVERY_S

    def test_one_gpu_moves_no_one(self) -> None:
        bench = self.patient(1.0)
        for number in range(4):
            h100(bench, f"full-{number}", 8)
        bench.place()
        h100(bench, "one", 1)
        bench.later(hours=1)
        bench.place()
        assert bench.machine.state.next_defragmentation_s < 0

    def test_a_plan_counts_on_what_a_person_stopped(self, bench: Bench) -> None:
        small = scatter(bench)
        large = h100(bench, "large", 8)
        bench.place()
        bench.handle(ev.StopRequested(small[3].id, "enough"))
        effects = bench.handle(ev.DefragmentationRequested(large.id))
        assert small[3].stop_reason == "enough"
        assert "StopTask" not in kinds(effects)
        assert bench.machine.state.scheduler.clearing is not None
        with pytest.raises(HarchError) as refused:
            bench.handle(ev.DefragmentationRequested(large.id))
        assert (refused.value.code, refused.value.retry_after_s) == ("E0304", 5)

    def test_a_victim_is_recorded_for_whom_it_gives_way_and_only_once(self) -> None:
        bench = Bench()
        bench.machine = JobMachine(tiny_fleet(), bench.hub, QueueSettings())
        bench.join()
        victims = [h100(bench, f"victim-{number}", 8) for number in range(4)]
        for victim in victims:
            bench.run(victim)
        bench.later(minutes=30)
        urgent = h100(bench, "urgent", 8, scheduling_class=SchedulingClass.INFERENCE)
        effects = bench.handle(ev.PlacementDue())
        stopped = [victim for victim in victims if victim.stop_reason]
        assert [victim.stop_reason for victim in stopped] == [f"preempted for {urgent.id} (inference)"]
        assert kinds(effects).count("workload.preempted") == 1
        assert stopped[0].stop_as is State.PENDING
        assert "workload.preempted" not in kinds(bench.handle(ev.PlacementDue()))
        bench.end(stopped[0], reason=ExitReason.STOPPED, code=None)
        assert urgent.id in {start.task.key.workload_id for start in bench.place()}

    def test_a_start_is_a_new_attempt_with_nothing_left_of_the_last(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.run(workload)
        bench.end(workload, rank=0, reason=ExitReason.LOST, code=None)
        bench.end(workload, rank=1, reason=ExitReason.STOPPED, code=None)
        bench.place()
        assert (workload.attempt, workload.epoch, workload.state) == (2, 0, State.SCHEDULED)
        assert (workload.ranks_running, workload.task_ends) == (frozenset(), ())
        assert len(workload.placement) == 2
        assert workload.placement_why
        assert workload.predicted_slowdown is not None

    def test_work_that_was_lent_starts_at_home_under_a_new_epoch(self) -> None:
        hub = LendingHub(SENEGAL)
        workload: Workload = hub.lend()
        hub.later(300.0)
        hub.handle(ev.LendingDue())
        hub.handle(ev.StopRequested("wl_1", "makes room"))
        end = TaskEnded(key=TaskKey("wl_1", 1, 0), reason=ExitReason.STOPPED, at=START)
        hub.handle(ev.TaskEndSeen("agent", end))
        hub.place()
        assert (workload.epoch, workload.attempt, workload.runner_hub) == (2, 2, "")
        assert workload.runner_placement == ()
