"""Which numbers does a hub show about itself? Counters of what happened, gauges of what is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from opentelemetry.metrics import CallbackOptions, Observation

from harch.base.listen.gate import ConnectionGate
from harch.base.set_aside import set_aside_files
from harch.base.telemetry import Collected, Telemetry
from harch.federation.links.mesh import LinkStatus
from harch.hub.views import HubSummary, PeerView, Sight

DAMAGE_EVERY_S = 60.0  # how often the state folder is looked through
ENERGY_GAUGES = {
    "energy_plan_import_kw": "Power that the plan buys from the grid in the running step.",
    "energy_tariff_per_mwh": "What the contract asks for a MWh in the running step.",
    "energy_carbon_price_per_t": "The price per tonne that predicted prices rest on.",
    "energy_carbon_shadow_price_per_t": "What the last tonne of the carbon budget is worth; absent without a budget.",
    "energy_carbon_budget_over_kg": "By how much no plan can keep the carbon budget.",
    "energy_month_emitted_kg": "Emissions of energy bought this month, estimated.",
    "energy_month_rule_emitted_kg": "What the self-consumption rule would have emitted this month, estimated.",
}
PIPELINE_GAUGES = {
    "workers_ready": "Workers of a stage that are well.",
    "workers_wanted": "Workers that a stage should have.",
    "rate": "What a stage works off per second: events, rows or messages.",
    "lag": "What waits for a stage, as its workers see it.",
    "latency_p99_ms": "Latency of the stage's slowest worker, since its process started.",
    "busy": "Mean share of a core that the workers of a stage use.",
    "dropped": "What running workers of a stage have dropped or given up.",
    "quarantined": "Events that running workers of a stage have put aside.",
}
WORKER_COUNTERS = {
    "dropped": "What a worker has dropped or given up since its process started.",
    "quarantined": "Events that a worker has put aside since its process started.",
}
ALARMING = frozenset({"sovereignty.violation", "policy.fault", "policy.disagreement", "audit.contradicted"})

_END = b"# EOF\n"  # of a page in OpenMetrics


class HubMetrics:
    """`harch_events_total{kind}` counts every line of the history; gauges are read when somebody asks."""

    def __init__(self, summary: Callable[[], HubSummary], now: Callable[[], datetime]) -> None:
        self._telemetry = Telemetry()
        self._of_tenants = Telemetry()  # what names somebody's pipelines: told to operators alone
        self._summary, self._now = summary, now
        self._last_s: dict[str, float] = {}  # of events that people are alerted of
        meter = self._telemetry.meter
        # Counted in a plain dict and read when asked: this is the hottest counter of a hub.
        self._events: Counter[str] = Counter()
        meter.create_observable_counter(
            "harch_events", callbacks=[self._read_events], description="What happened at this hub, by kind."
        )
        meter.create_observable_gauge(
            "harch_event_last_seconds",
            callbacks=[lambda _options: [Observation(at_s, {"kind": kind}) for kind, at_s in self._last_s.items()]],
            description="When an event that people are alerted of happened last, in Unix seconds.",
        )
        gauges: tuple[tuple[str, str, Callable[[HubSummary], Iterable[Observation]]], ...] = (
            ("harch_gpus", "GPUs by model and state (allocated is given to work, not necessarily busy).", _gpus),
            ("harch_workloads", "Unfinished workloads of this hub by state, wherever they run.", _workloads),
            ("harch_guests", "Unfinished workloads of other hubs that are here, by state.", _guests),
            ("harch_agents", "Agents that are connected.", lambda s: [Observation(s.agents)]),
            ("harch_nodes_up", "Nodes that an agent serves.", lambda s: [Observation(s.nodes_up)]),
            (
                "harch_process_slots_free",
                "Processes that may still start.",
                lambda s: [Observation(s.process_slots_free)],
            ),
        )
        for name, description, observe in gauges:
            meter.create_observable_gauge(name, callbacks=[self._reader(observe)], description=description)

    def watch_links(self, links: Callable[[], Iterable[LinkStatus]]) -> None:
        """Figures of the links to other hubs, by peer."""
        meter = self._telemetry.meter

        def read(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def observe(_options: CallbackOptions) -> Iterable[Observation]:
                found = ((link.hub_id, getattr(link, field)) for link in links())
                return [Observation(value, {"peer": hub_id}) for hub_id, value in found if value is not None]

            return observe

        for field, description in (
            ("bytes_sent", "Bytes sent to a peer, before encryption."),
            ("bytes_received", "Bytes received from a peer, before encryption."),
            ("messages_sent", "Messages sent to a peer."),
            ("messages_received", "Messages received from a peer."),
            ("messages_refused", "Messages that were not sent: the queue to the peer had no room."),
        ):
            meter.create_observable_counter(f"harch_link_{field}", callbacks=[read(field)], description=description)
        meter.create_observable_gauge(
            "harch_link_up", callbacks=[read("up")], description="1 while there is a link to the peer."
        )
        meter.create_observable_gauge(
            "harch_link_rtt_ms", callbacks=[read("rtt_ms")], description="Smoothed round trip to the peer."
        )

    def watch_listeners(self, gates: Iterable[ConnectionGate]) -> None:
        """Connections of each listener, and what it refused since the process started."""

        def refused(_options: CallbackOptions) -> Iterable[Observation]:
            for gate in gates:
                for reason, count in gate.refused.items():
                    yield Observation(count, {"listener": gate.name, "reason": reason})

        def read(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(getattr(gate, field), {"listener": gate.name}) for gate in gates]

        meter = self._telemetry.meter
        meter.create_observable_counter(
            "harch_listener_refused", callbacks=[refused], description="What a listener refused, by reason."
        )
        for name, field, description in (
            ("connections", "open", "Connections that are open."),
            ("connections_max", "connections_max", "Connections that a listener takes at a time."),
        ):
            meter.create_observable_gauge(f"harch_listener_{name}", callbacks=[read(field)], description=description)

    def watch_faults(self, total: Callable[[], int], held_back: Callable[[], int]) -> None:
        """There from the start, at 0: what appears only with the first fault, no rule sees rising."""
        meter = self._telemetry.meter
        meter.create_observable_counter(
            "harch_faults",
            callbacks=[lambda _options: [Observation(total())]],
            description="Errors that nobody foresaw and that this hub survived.",
        )
        meter.create_observable_gauge(
            "harch_workloads_held_back",
            callbacks=[lambda _options: [Observation(held_back())]],
            description="Pending workloads that wait aside, because the hub failed when it looked at them.",
        )

    def watch_records(self, entries_lost: Callable[[], int]) -> None:
        self._telemetry.meter.create_observable_gauge(
            "harch_audit_entries_lost",
            callbacks=[lambda _options: [Observation(entries_lost())]],
            description="Audit entries that the hub's database once had and lacks: above 0 the hub writes nothing.",
        )

    def watch_peers(self, views: Callable[[], Iterable[PeerView]]) -> None:
        """Whether each other hub of the federation lives, and nothing else of it; one that has left is not told."""

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            alive = {Sight.LINKED: 1, Sight.CUT_OFF: 1, Sight.SUSPECTED: 0, Sight.UNHEARD: 0}
            return [Observation(alive[one.sight], {"peer": one.hub_id}) for one in views() if one.sight in alive]

        self._telemetry.meter.create_observable_gauge(
            "harch_peer_alive",
            callbacks=[observe],
            description="1 while gossip hears of the hub, from itself or through others.",
        )

    def watch_clock(self, offset_s: Callable[[], float]) -> None:
        self._telemetry.meter.create_observable_gauge(
            "harch_clock_offset_s",
            callbacks=[lambda _options: [Observation(offset_s())]],
            description="By how much the wall clock was set and is not believed yet; 0 while it is.",
        )

    def watch_energy(self, figures: Callable[[], dict[str, float]], currency: str) -> None:
        """Figures of the energy plan; none while there is no plan."""
        meter = self._telemetry.meter

        def read(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            labels = {"currency": currency} if "_per_" in name else {}
            return lambda _options: [Observation(figures()[name], labels)] if name in figures() else []

        for name, description in ENERGY_GAUGES.items():
            meter.create_observable_gauge(f"harch_{name}", callbacks=[read(name)], description=description)

    def watch_pipelines(self, figures: Callable[[], dict[tuple[str, str, str], dict[str, float]]]) -> None:
        """Figures of pipelines, by name, stage and tenant: alerts about them are that tenant's."""
        meter = self._of_tenants.meter

        def read(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def observe(_options: CallbackOptions) -> Iterable[Observation]:
                for (pipeline, stage, tenant), values in figures().items():
                    yield Observation(values[name], {"pipeline": pipeline, "stage": stage, "tenant": tenant})

            return observe

        for name, description in PIPELINE_GAUGES.items():
            meter.create_observable_gauge(f"harch_pipeline_{name}", callbacks=[read(name)], description=description)

    def watch_workers(self, counts: Callable[[], dict[tuple[str, str, str, str], dict[str, int]]]) -> None:
        """Counters of workers, by pipeline, stage, tenant and worker: a sum over workers would fall when one of them
        starts anew, and hide what the others lose."""
        meter = self._of_tenants.meter

        def read(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def observe(_options: CallbackOptions) -> Iterable[Observation]:
                for (pipeline, stage, tenant, worker), values in counts().items():
                    labels = {"pipeline": pipeline, "stage": stage, "tenant": tenant, "worker": worker}
                    yield Observation(values[name], labels)

            return observe

        for name, description in WORKER_COUNTERS.items():
            metric = f"harch_pipeline_worker_{name}"
            meter.create_observable_counter(metric, callbacks=[read(name)], description=description)

    def watch_spans(self, counts: Mapping[str, int]) -> None:
        """What became of spans: sent, dropped because SENTINEL took none for too long, or refused by it."""
        self._telemetry.meter.create_observable_counter(
            "harch_trace_spans",
            callbacks=[lambda _options: [Observation(n, {"outcome": name}) for name, n in counts.items()]],
            description="Spans of this hub by outcome.",
        )

    def watch_lines(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """What became of lines for SENTINEL: sent, dropped because there was no room, or refused by it."""
        self._telemetry.meter.create_observable_counter(
            "harch_log_lines",
            callbacks=[lambda _options: [Observation(n, {"outcome": name}) for name, n in counts().items()]],
            description="Lines of this hub and of its pipelines' workers by outcome.",
        )

    def watch_damage(self, state_dir: Path, monotonic_s: Callable[[], float]) -> None:
        """Files that were set aside as damaged, until somebody deletes them; SENTINEL counts its own."""
        looked_s, found = -DAMAGE_EVERY_S, 0

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            nonlocal looked_s, found
            if monotonic_s() - looked_s >= DAMAGE_EVERY_S:
                looked_s, found = monotonic_s(), len(set_aside_files(state_dir, skip=("sentinel",)))
            return [Observation(found)]

        self._telemetry.meter.create_observable_gauge(
            "harch_damaged_files", callbacks=[observe], description="Files of this hub that were set aside as damaged."
        )

    def count(self, kind: str) -> None:
        self._events[kind] += 1
        if kind in ALARMING:
            self._last_s[kind] = self._now().timestamp()

    def remember(self, last: Mapping[str, datetime]) -> None:
        """When events of these kinds happened last, before this process started."""
        self._last_s |= {kind: at.timestamp() for kind, at in last.items() if kind in ALARMING}

    def watch_nodes(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Nodes by what becomes of work on them: served by an agent, out of service on purpose, or not served."""
        self._telemetry.meter.create_observable_gauge(
            "harch_nodes",
            callbacks=[lambda _options: [Observation(n, {"state": state}) for state, n in counts().items()]],
            description="Nodes of this hub by state: served, cordoned, unserved.",
        )

    def add(self, collected: Collected) -> None:
        """Metrics that somebody else keeps."""
        self._telemetry.add(collected)

    def add_of_tenants(self, collected: Collected) -> None:
        """The same for those that name somebody's pipelines."""
        self._of_tenants.add(collected)

    def exposition(self, *, openmetrics: bool = False, of_tenants: bool = False) -> bytes:
        """`of_tenants`: with what names somebody's pipelines."""
        rooms = (self._telemetry, self._of_tenants) if of_tenants else (self._telemetry,)
        if openmetrics:
            return b"".join(room.openmetrics().removesuffix(_END) for room in rooms) + _END
        return b"".join(room.exposition() for room in rooms)

    def _read_events(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"kind": kind}) for kind, count in self._events.items()]

    def _reader(
        self, observe: Callable[[HubSummary], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: observe(self._summary())


def _gpus(summary: HubSummary) -> Iterable[Observation]:
    for model in summary.models:
        labels = {"hub": summary.hub_id, "model": model.model, "provenance": summary.provenance}
        yield Observation(model.free, {**labels, "state": "free"})
        yield Observation(model.total - model.free, {**labels, "state": "not_free"})


def _guests(summary: HubSummary) -> Iterable[Observation]:
    return [Observation(count, {"hub": summary.hub_id, "state": state}) for state, count in summary.guests.items()]


def _workloads(summary: HubSummary) -> Iterable[Observation]:
    return [Observation(count, {"hub": summary.hub_id, "state": state}) for state, count in summary.workloads.items()]
