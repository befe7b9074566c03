"""What does a hub's machine do about content? Code as data, what tasks are sent, what they leave, what nodes lack."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harch.base.errors import HarchError
from harch.execution.protocol import ContentUse, HubMessage, StartTask, TaskArtifact, TaskContent, TaskEnded, TaskKey
from harch.fleet.file import parse_fleet
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.data_commands import artifact_id
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, is_within, parse_tag
from harch.testing.agents import SimAgent
from harch.testing.samples import TINY_FLEET_TOML
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Artifact, Environment, WorkloadSpec

FLEET = parse_fleet(TINY_FLEET_TOML)
RULES = Rules(terrain_of(FLEET, shipped_jurisdictions()))
START = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32
OPEN = RULES.open_tag()
MOROCCAN = parse_tag(
    {"process_in": ["MA"], "rest_in": ["MA"], "encrypt_at_rest": False, "encrypt_in_transit": False},
    shipped_jurisdictions(),
)


class ContentBench:
    """A machine at Dakhla with one agent, driven by hand."""

    def __init__(self, features: dict[str, str] | None = None) -> None:
        hub = FLEET.hub("dakhla")
        assert hub is not None
        self.machine = JobMachine(FLEET, hub, rules=RULES)
        self.agent = SimAgent("agent", "MA", features=features)
        self.effects: list[fx.Effect] = []
        self.count = 0
        self.handle(ev.AgentJoined(self.agent.hello(), 1))

    def handle(self, event: ev.Event) -> list[HubMessage]:
        self.effects = self.machine.apply(event, EventContext(now=START))
        return [effect.message for effect in self.effects if isinstance(effect, fx.Send)]

    def add(self, name: str, kind: DataKind, *, content: str = DIGEST, tag: Tag | None = OPEN) -> str:
        data = DataObject(id=f"data_{name}", kind=kind, name=name, tenant="t", tag=tag, hubs=("dakhla",))
        entry = CatalogEntry(object=data, created_at=START, updated_at=START, content=content)
        self.handle(ev.DataAdded(entry))
        return data.id

    def submit(self, **fields: object) -> Workload:
        self.count += 1
        fields = {"name": f"job-{self.count}", "command": ("true",), **fields}
        self.handle(ev.Submitted(f"wl_{self.count}", "t", WorkloadSpec(**fields)))  # type: ignore[arg-type]
        return self.machine.state.registry.workloads[f"wl_{self.count}"]

    def start(self, workload: Workload) -> StartTask:
        (order,) = [message for message in self.handle(ev.PlacementDue()) if isinstance(message, StartTask)]
        self.handle(ev.TaskStartSeen(TaskKey(workload.id, workload.attempt, 0)))
        return order

    def end(self, workload: Workload, *, exit_code: int = 0, **fields: object) -> None:
        key = TaskKey(workload.id, workload.attempt, 0)
        end = TaskEnded(key=key, at=START, reason=ExitReason.EXITED, exit_code=exit_code, **fields)  # type: ignore[arg-type]
        self.handle(ev.TaskEndSeen("agent", end))

    def recorded(self) -> list[str]:
        return [one.kind for one in self.effects if isinstance(one, fx.Record)]


def test_code_data_and_image_are_sent_to_the_node_with_what_they_are_for() -> None:
    bench = ContentBench()
    code = bench.add("code-1", DataKind.CODE)
    corpus = bench.add("corpus", DataKind.DATASET, content=OTHER_DIGEST)
    image = bench.add("base", DataKind.IMAGE)
    bench.add("elsewhere", DataKind.DATASET, content="")
    workload = bench.submit(code="code-1", data=("corpus", "elsewhere"), image="data:base")
    assert workload.data_ids == (corpus, "data_elsewhere", code, image)
    assert bench.start(workload).task.contents == (
        TaskContent(corpus, "corpus", OTHER_DIGEST, ContentUse.DATA),
        TaskContent(code, "code-1", DIGEST, ContentUse.CODE),
        TaskContent(image, "base", DIGEST, ContentUse.IMAGE),
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"code": "corpus"}, "needs content of kind `code`"),
        ({"image": "data:corpus"}, "needs content of kind `image`"),
        ({"data": ("code-1",)}, "is code, not data"),
        ({"code": "bytes-elsewhere"}, "has no content here"),
    ],
)
def test_content_is_used_only_for_what_it_was_registered_as(fields: dict[str, object], words: str) -> None:
    bench = ContentBench()
    bench.add("code-1", DataKind.CODE)
    bench.add("bytes-elsewhere", DataKind.CODE, content="")
    bench.add("corpus", DataKind.DATASET)
    with pytest.raises(HarchError, match=words) as caught:
        bench.submit(**fields)
    assert caught.value.code == "E0201"


def test_code_with_the_tag_of_another_country_keeps_work_away_as_data_would() -> None:
    bench = ContentBench()
    senegal = parse_tag({"process_in": ["SN"], "rest_in": ["SN"]}, shipped_jurisdictions())
    data = DataObject(id="data_c", kind=DataKind.CODE, name="c", tenant="t", tag=senegal, hubs=("dakar",))
    bench.machine.state.catalog.put(CatalogEntry(object=data, created_at=START, updated_at=START, content=DIGEST))
    with pytest.raises(HarchError) as caught:
        bench.submit(code="c")
    assert caught.value.code == "E0907"


def test_what_a_task_leaves_becomes_data_with_the_tags_of_all_that_it_read_and_an_end() -> None:
    bench = ContentBench()
    code = bench.add("code-1", DataKind.CODE)
    census = bench.add("census", DataKind.DATASET, tag=MOROCCAN)
    workload = bench.submit(
        code="code-1", data=("census",), artifacts=(Artifact(name="model", path="out/model.pt", keep_days=2),)
    )
    bench.start(workload)
    bench.end(workload, artifacts=(TaskArtifact("model", OTHER_DIGEST, 1234, 1),))
    assert workload.state is State.COMPLETED
    entry = bench.machine.state.catalog.get("model", tenant="t")
    assert entry.object.id == artifact_id(workload, 0)
    assert entry.object.kind is DataKind.ARTIFACT
    assert (entry.content, entry.made_by, entry.object.size_bytes) == (OTHER_DIGEST, workload.id, 1234)
    assert entry.expires_at == START + timedelta(days=2)
    assert set(entry.object.parents) == {code, census}
    assert entry.object.tag is not None
    assert is_within(entry.object.tag, MOROCCAN)
    assert entry.object.tag.rest_in == ("MA",)


def test_results_of_work_that_read_nothing_may_go_where_the_work_may() -> None:
    bench = ContentBench()
    workload = bench.submit(artifacts=(Artifact(name="out", path="out"),), countries_allowed=("MA",))
    bench.start(workload)
    bench.end(workload, artifacts=(TaskArtifact("out", DIGEST, 1, 1),))
    tag = bench.machine.state.catalog.get("out", tenant="t").object.tag
    assert tag is not None
    assert (tag.process_in, tag.rest_in, tag.may_cross_borders) == (("MA",), ("MA",), False)


def test_failed_work_leaves_no_artifact_and_a_lost_one_is_said() -> None:
    bench = ContentBench()
    wanted = (Artifact(name="out", path="out"),)
    failed = bench.submit(artifacts=wanted, restart="never")
    bench.start(failed)
    bench.end(failed, exit_code=1, artifacts=(TaskArtifact("out", DIGEST, 1, 1),))
    assert failed.state is State.FAILED
    assert bench.machine.state.catalog.named("out", tenant="t") is None
    lost = bench.submit(artifacts=wanted)
    bench.start(lost)
    bench.end(lost, artifacts_lost=("out: E1111 there is no `out`",))
    assert lost.state is State.COMPLETED
    assert "workload.artifact_lost" in bench.recorded()


def test_an_artifact_may_not_take_the_name_of_registered_data() -> None:
    bench = ContentBench()
    bench.add("census", DataKind.DATASET)
    with pytest.raises(HarchError) as caught:
        bench.submit(artifacts=(Artifact(name="census", path="out"),))
    assert (caught.value.code, caught.value.field) == ("E0910", "artifacts")


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"environment": Environment(packages=("numpy",))}, "E1121"), ({"image": "registry.local/train:1"}, "E1131")],
)
def test_work_that_no_node_can_prepare_is_refused_with_what_is_missing(fields: dict[str, object], code: str) -> None:
    lacking = {"environments": "none: uv is not installed", "images": "none: umoci is not installed"}
    with pytest.raises(HarchError, match="is not installed") as caught:
        ContentBench(lacking).submit(**fields)
    assert caught.value.code == code
    assert ContentBench().submit(**fields).state is State.PENDING
    assert ContentBench(lacking).submit(**fields, command=()).state is State.PENDING  # a reservation runs nothing


def test_data_that_unfinished_work_reads_is_not_removed_and_a_removed_name_means_the_older_one_again() -> None:
    bench = ContentBench()
    code = bench.add("code-1", DataKind.CODE)
    workload = bench.submit(code="code-1")
    with pytest.raises(HarchError, match=workload.id) as caught:
        bench.handle(ev.DataRemoved(code))
    assert caught.value.code == "E0304"
    bench.start(workload)
    bench.end(workload)
    bench.handle(ev.DataRemoved(code))
    assert fx.DropData(code) in bench.effects
    assert bench.machine.state.catalog.named("code-1", tenant="t") is None


def test_a_copy_that_comes_or_goes_changes_where_data_is() -> None:
    bench = ContentBench()
    code = bench.add("code-1", DataKind.CODE)
    bench.handle(ev.DataMoved(code, "dakar", True))
    assert bench.machine.state.catalog.objects[code].hubs == ("dakhla", "dakar")
    bench.handle(ev.DataMoved(code, "dakar", True))
    assert "data.moved" not in bench.recorded()  # nothing new
    bench.handle(ev.DataMoved(code, "dakhla", False))
    assert bench.machine.state.catalog.objects[code].hubs == ("dakar",)


def test_code_that_is_used_again_stays_for_longer() -> None:
    bench = ContentBench()
    code = bench.add("code-1", DataKind.CODE)
    until = START + timedelta(days=9)
    bench.handle(ev.DataKept(code, until))
    assert bench.machine.state.catalog.entries[code].expires_at == until
