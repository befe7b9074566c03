"""Traces over a simulated federation: one id from submission to the end, whichever hubs and restarts come between."""

from __future__ import annotations

import contextlib
from collections import defaultdict

import msgspec
import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.base.tracing.spans import FinishedSpan, TraceContext, lease_id, read_header
from harch.base.tracing.tracer import Tracing
from harch.federation.offers import Need
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.tracing.instrumentation import Watch
from harch.hub.tracing.work_spans import WorkSpans
from harch.testing.clock import START, SimClock
from harch.testing.network import SimLink
from harch.wire.carbon import CarbonChoice, CarbonOption
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, RestartPolicy, WorkloadSpec
from sim.federation_hub import SimHub
from sim.federation_world import FederationWorld

ROOT = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
CALM = SimLink(delay_s=0.010)


class TracedWorld:
    """A federation whose hubs are watched as the driver would, each with a store of spans of its own."""

    def __init__(self, seed: int = 1, link: SimLink = CALM) -> None:
        self.stores: dict[str, list[FinishedSpan]] = defaultdict(list)
        self.world = FederationWorld(5, seed, link)
        self.world.end_chance = 0.0
        self.watches = {name: self._watch(hub) for name, hub in self.world.hubs.items()}

    def _watch(self, hub: SimHub) -> Watch:
        watch = Watch(lambda kind: None, Tracing(self.stores[hub.name].append, SimClock()), hub.name)
        watch.restored(hub.machine)
        carry_out = hub._carry_out

        def carried(effects: list[fx.Effect]) -> None:
            for effect in effects:
                if isinstance(effect, fx.Record):
                    watch.recorded(effect, hub.now)
            carry_out(effects)

        def handle(event: ev.Event) -> None:
            if hub.alive:
                effects = hub.machine.apply(event, EventContext(now=hub.now, boot_s=hub.boot_s))
                watch.handled(event, effects, hub.now)
                carried(effects)

        hub.handle = handle  # type: ignore[method-assign]
        return watch

    def restart(self, hub: SimHub) -> None:
        hub.crash()
        hub.start()
        self.watches[hub.name].restored(hub.machine)
        hub.connect_agent()

    def submit(self, workload_id: str, spec: WorkloadSpec, trace: str = ROOT.header) -> None:
        self.world.hubs["hub00"].handle(ev.Submitted(workload_id, "t", spec, trace=trace))
        self.world.submitted[workload_id] = "hub00"

    def spans(self, hub: str, trace_id: bytes = ROOT.trace_id) -> dict[str, list[FinishedSpan]]:
        found: dict[str, list[FinishedSpan]] = defaultdict(list)
        for span in self.stores[hub]:
            if span.trace_id == trace_id:
                found[span.name].append(span)
        return found

    def end(self, workload_id: str, code: int = 0) -> None:
        for hub in self.world.hubs.values():
            for key in list(hub.agent.running):
                if key.workload_id == workload_id:
                    hub.agent.end(key, ExitReason.EXITED, now=hub.now, exit_code=code)
        self.world.run_for(3.0)


def spec(name: str, **fields: object) -> WorkloadSpec:
    given = {"command": ("true", "--token=hunter2"), "resources": Resources(gpus=4), "stop_grace_s": 0.0, **fields}
    return WorkloadSpec(name=name, **given)  # type: ignore[arg-type]


@pytest.fixture
def lent() -> tuple[TracedWorld, str]:
    """A traced workload of the full hub00 runs at another hub."""
    traced = TracedWorld()
    traced.submit("wl_blocker", spec("blocker", stay_home=True), trace="")
    traced.world.run_for(0.5)
    traced.submit("wl_1", spec("guest", env={"PASSWORD": "hunter2"}))
    traced.world.run_for(3.0)
    workload = traced.world.hubs["hub00"].machine.state.registry.workloads["wl_1"]
    assert workload.state is State.RUNNING
    return traced, workload.runner_hub


def test_work_at_home_leaves_one_span_per_phase_with_the_figures_of_its_placement() -> None:
    traced = TracedWorld()
    traced.submit("wl_1", spec("job"))
    traced.world.run_for(1.0)
    traced.end("wl_1")
    spans = traced.spans("hub00")
    assert sorted(spans) == ["workload", "workload.place", "workload.run", "workload.start", "workload.wait"]
    assert all(one.parent_id == ROOT.span_id for found in spans.values() for one in found)
    (place,) = spans["workload.place"]
    assert place.attributes["placement.gpus"] == 4
    assert any(name.startswith("placement.score.") for name in place.attributes)
    (whole,) = spans["workload"]
    assert (whole.error, whole.attributes["workload.state"]) == ("", "completed")
    phases = [spans[f"workload.{phase}"][0] for phase in ("wait", "start", "run")]
    assert [one.end_ns for one in phases[:-1]] == [one.start_ns for one in phases[1:]]
    assert (phases[0].start_ns, phases[-1].end_ns) == (whole.start_ns, whole.end_ns)


def test_one_trace_goes_over_two_hubs_and_each_keeps_its_own_part(lent: tuple[TracedWorld, str]) -> None:
    traced, runner = lent
    traced.end("wl_1")
    owner, there = traced.spans("hub00"), traced.spans(runner)
    assert {"workload.wait", "workload.offer", "workload.lease", "workload"} <= set(owner)
    assert {"workload.bid", "workload.place", "workload.start", "workload.run"} <= set(there)
    assert "workload.run" not in owner
    assert "workload" not in there
    (lease,) = owner["workload.lease"]
    assert lease.span_id == lease_id(ROOT.trace_id, "wl_1", 1) == there["workload.run"][0].parent_id
    assert lease.attributes["workload.runner"] == runner
    (offer,) = owner["workload.offer"]
    assert offer.attributes["offer.outcome"] == runner
    assert {"asked", "bid"} <= {event.name for event in offer.events}
    assert there["workload.bid"][0].attributes["bid.outcome"] == "held"


def test_nothing_that_people_wrote_is_in_a_span(lent: tuple[TracedWorld, str]) -> None:
    traced, _ = lent
    traced.end("wl_1")
    told = str(dict(traced.stores))
    assert "hunter2" not in told
    assert "PASSWORD" not in told


@pytest.mark.parametrize("who", ["owner", "runner"])
def test_a_hub_that_was_restarted_goes_on_in_the_same_trace(lent: tuple[TracedWorld, str], who: str) -> None:
    traced, runner = lent
    traced.restart(traced.world.hubs["hub00" if who == "owner" else runner])
    traced.world.run_for(2.0)
    traced.end("wl_1")
    owner, there = traced.spans("hub00"), traced.spans(runner)
    assert [one.span_id for one in owner["workload.lease"]] == [lease_id(ROOT.trace_id, "wl_1", 1)]
    assert owner["workload"][0].attributes["workload.state"] == "completed"
    assert len(there["workload.run"]) == 1


def test_a_failure_and_its_retry_are_seen() -> None:
    traced = TracedWorld()
    traced.submit("wl_1", spec("job", restart=RestartPolicy.ON_FAILURE, restarts_max=1))
    traced.world.run_for(1.0)
    traced.end("wl_1", code=3)
    traced.end("wl_1", code=4)
    spans = traced.spans("hub00")
    first, second = spans["workload.run"]
    assert (first.error, first.attributes["outcome"], first.attributes["task.exit_code"]) == ("exited", "requeued", 3)
    assert (second.error, second.attributes["workload.attempt"]) == ("exited", 2)
    assert (spans["workload"][0].error, spans["workload"][0].attributes["workload.restarts"]) == ("exited", 1)


def test_what_happens_to_running_work_is_an_event_of_its_span() -> None:
    traced = TracedWorld()
    traced.submit("wl_1", spec("job"))
    traced.world.run_for(1.0)
    hub = traced.world.hubs["hub00"]
    hub.handle(ev.PauseRequested("wl_1"))
    hub.handle(ev.ResumeRequested("wl_1"))
    hub.handle(ev.StopRequested("wl_1", "enough"))
    traced.world.run_for(3.0)
    (run,) = traced.spans("hub00")["workload.run"]
    assert [event.name for event in run.events] == ["paused", "running", "stopping"]
    assert run.attributes["outcome"] == "cancelled"


def test_work_that_gives_way_to_others_has_not_failed() -> None:
    traced = TracedWorld()
    traced.submit("wl_1", spec("job"))
    traced.world.run_for(1.0)
    hub = traced.world.hubs["hub00"]
    hub.handle(ev.NodeDrained(hub.hub.nodes[0].id, "repair"))
    traced.world.run_for(3.0)
    (run,) = traced.spans("hub00")["workload.run"]
    assert (run.error, run.attributes["outcome"]) == (None, "requeued")
    assert [event.name for event in run.events] == ["drained"]


def test_what_was_decided_about_its_power_is_told_with_its_figures() -> None:
    spans: list[FinishedSpan] = []
    told = WorkSpans(Tracing(spans.append, SimClock()), "hub00")
    option = CarbonOption(hub_id="hub01", start_at=START, grams=40.0, kwh=2.0)
    workload = Workload(
        id="wl_1",
        tenant="t",
        owner_hub="hub00",
        spec=spec("job"),
        created_at=START,
        updated_at=START,
        trace=ROOT.header,
        carbon=CarbonChoice(
            action="wait",
            decided_at=START,
            hub_id="hub01",
            held=True,
            chosen=option,
            at_once=replace(option, grams=100.0),
            start_by=START,
        ),
    )
    for kind in ("workload.submitted", "workload.deferred"):
        told.recorded(fx.Record(kind, "wl_1", "t", ""), workload, 1_000)
    (plan,) = spans
    assert (plan.name, plan.parent_id) == ("workload.carbon", ROOT.span_id)
    readings = {name: plan.attributes[f"carbon.{name}"] for name in ("action", "grams", "saves_grams", "held")}
    assert readings == {"action": "wait", "grams": 40.0, "saves_grams": 60.0, "held": True}


def test_work_that_is_not_traced_leaves_nothing() -> None:
    traced = TracedWorld()
    traced.submit("wl_1", spec("job"), trace="")
    traced.submit("wl_2", spec("other"), trace="rubbish")
    traced.world.run_for(1.0)
    traced.end("wl_1")
    assert not any(traced.stores.values())


@pytest.mark.parametrize("seed", range(6))
def test_random_stories_never_trouble_the_watch_and_every_trace_is_whole(seed: int) -> None:
    """Lost messages, crashes and meddling: no watch fails, and what ended has one whole span at its owner."""
    traced = TracedWorld(seed, SimLink(delay_s=0.015, jitter_s=0.010, loss=0.02, duplication=0.03))
    world = traced.world
    world.end_chance = 0.05
    traces = {f"wl_t{number}": TraceContext(bytes([number + 1] * 16), bytes(range(1, 9))) for number in range(12)}
    for workload_id, trace in traces.items():
        asked = replace(world._spec(world.hubs["hub00"]), name=workload_id.replace("_", "-"), data=())
        with contextlib.suppress(HarchError):  # it fits nowhere
            traced.submit(workload_id, asked, trace=trace.header)
        world.run_for(0.3)
        world.meddle()
    traced.restart(world.hubs["hub00"])
    world.run_for(120.0)
    assert all(watch.failures == 0 for watch in traced.watches.values())
    owned = world.hubs["hub00"].disk.owned()
    for workload_id, trace in traces.items():
        ended = workload_id in owned and owned[workload_id].state.is_final
        whole = traced.spans("hub00", trace.trace_id)["workload"]
        assert len(whole) == int(ended), (workload_id, owned.get(workload_id))


# Between versions


def test_peers_of_an_older_version_are_understood_and_understand_us() -> None:
    need = {"ref": 0, "turn_class": "training", "needs": {"gpus": 1}}
    assert msgspec.convert(need, Need).trace == ""
    untraced = msgspec.msgpack.encode(msgspec.convert(need, Need))
    assert b"trace" not in untraced
    assert read_header(msgspec.convert({**need, "trace": "x" * 10_000}, Need).trace) is None
