"""Which numbers does a hub show about itself? Counters of what happened, gauges of what is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from opentelemetry.metrics import CallbackOptions, Observation

from harch.base.listen.gate import ConnectionGate
from harch.base.metrics import Collected, Telemetry
from harch.base.state_files import set_aside_files
from harch.content.store import StoreTotals
from harch.federation.links.mesh import LinkStatus
from harch.hub.views import BulkTraffic, PeerReach, PeerView
from harch.wire.hubs import HubSummary

DAMAGE_EVERY_S = 60.0  # how often the state folder is looked through
ENERGY_GAUGES = {
    "energy_plan_import_kw": "Power that the plan buys from the grid in the current step.",
    "energy_tariff_per_mwh": "Tariff per MWh in the current step.",
    "energy_carbon_price_per_t": "Price per tonne in predicted prices.",
    "energy_carbon_shadow_price_per_t": "Shadow price of the carbon budget; absent without a budget.",
    "energy_carbon_budget_over_kg": "Unavoidable excess over the carbon budget.",
    "energy_month_emitted_kg": "Emissions of energy bought this month, estimated.",
    "energy_month_rule_emitted_kg": "What the self-consumption rule would have emitted this month, estimated.",
}
PIPELINE_GAUGES = {
    "workers_ready": "Healthy workers of a stage.",
    "workers_wanted": "Desired workers of a stage.",
    "rate": "Items that a stage processes per second: events, rows or messages.",
    "lag": "Backlog of a stage, as its workers see it.",
    "latency_p99_ms": "Latency of the stage's slowest worker, since its process started.",
    "busy": "Mean share of a core that the workers of a stage use.",
    "dropped": "Items that running workers of a stage have dropped or given up.",
    "quarantined": "Events that running workers of a stage have quarantined.",
}
WORKER_COUNTERS = {
    "dropped": "Items that a worker has dropped or given up since its process started.",
    "quarantined": "Events that a worker has quarantined since its process started.",
}
ALARMING = frozenset({"sovereignty.violation", "policy.fault", "policy.disagreement", "audit.contradicted"})

_END = b"# EOF\n"  # of a page in OpenMetrics


class HubMetrics:
    """`harch_events_total{kind}` counts every line of the history; gauges are read when somebody asks."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._telemetry = Telemetry()
        self._of_tenants = Telemetry()  # what names somebody's pipelines: for operators alone
        self._now = now
        self._last_s: dict[str, float] = {}  # of events that people are alerted of
        meter = self._telemetry.meter
        # Counted in a plain dict and read when asked: this is the hottest counter of a hub.
        self._events: Counter[str] = Counter()
        meter.create_observable_counter(
            "harch_events", callbacks=[self._read_events], description="Events at this hub, by kind."
        )
        meter.create_observable_gauge(
            "harch_event_last_seconds",
            callbacks=[lambda _options: [Observation(at_s, {"kind": kind}) for kind, at_s in self._last_s.items()]],
            description="Time of the last event that raises an alert, in Unix seconds.",
        )

    def watch_summary(self, summary: Callable[[], HubSummary]) -> None:
        """What the hub says of itself, as gauges."""
        gauges: tuple[tuple[str, str, Callable[[HubSummary], Iterable[Observation]]], ...] = (
            ("harch_gpus", "GPUs by model and state (allocated to work, not necessarily busy).", _gpus),
            ("harch_workloads", "Unfinished workloads of this hub by state, wherever they run.", _workloads),
            ("harch_borrowed_workloads", "Unfinished borrowed workloads, by state.", _borrowed),
            ("harch_guests", "The earlier name of harch_borrowed_workloads.", _borrowed),
            ("harch_agents", "Connected agents.", lambda s: [Observation(s.agents)]),
            ("harch_nodes_up", "Nodes served by an agent.", lambda s: [Observation(s.nodes_up)]),
            (
                "harch_process_slots_free",
                "Free process slots.",
                lambda s: [Observation(s.process_slots_free)],
            ),
        )
        for name, description, observe in gauges:
            self._telemetry.meter.create_observable_gauge(
                name, callbacks=[_reader(summary, observe)], description=description
            )

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
            ("messages_refused", "Messages dropped because the queue to the peer was full."),
        ):
            meter.create_observable_counter(f"harch_link_{field}", callbacks=[read(field)], description=description)
        meter.create_observable_gauge(
            "harch_link_up", callbacks=[read("up")], description="1 while there is a link to the peer."
        )
        meter.create_observable_gauge(
            "harch_link_rtt_ms", callbacks=[read("rtt_ms")], description="Smoothed round trip to the peer."
        )

    def watch_content(self, totals: Callable[[], StoreTotals], peers: Callable[[], Mapping[str, BulkTraffic]]) -> None:
        """What the content store keeps, and what went to and came from each peer over the bulk channel."""
        meter = self._telemetry.meter

        def kept(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(getattr(totals(), field))]

        def moved(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(getattr(one, field), {"peer": hub}) for hub, one in peers().items()]

        for field, description in (
            ("bytes_stored", "Content on disk, compressed and sealed."),
            ("bytes_garbage", "Content that a collection may remove."),
        ):
            meter.create_observable_gauge(f"harch_content_{field}", callbacks=[kept(field)], description=description)
        for field, description in (
            ("bytes_sent", "Payload of chunks sent to a peer."),
            ("bytes_received", "Payload of chunks received from a peer."),
            ("bytes_repeated", "Of these, received and thrown away."),
            ("cuts", "Bulk connections to a peer that ended before their transfer was over."),
            ("refused", "Bulk connections of a peer that were refused."),
        ):
            meter.create_observable_counter(f"harch_bulk_{field}", callbacks=[moved(field)], description=description)

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
            "harch_listener_refused", callbacks=[refused], description="Refusals by a listener, by reason."
        )
        for name, field, description in (
            ("connections", "open", "Open connections."),
            ("connections_max", "connections_max", "Maximum concurrent connections of a listener."),
        ):
            meter.create_observable_gauge(f"harch_listener_{name}", callbacks=[read(field)], description=description)

    def watch_faults(self, total: Callable[[], int], held_back: Callable[[], int]) -> None:
        """There from the start, at 0: what appears only with the first fault, no rule sees rising."""
        meter = self._telemetry.meter
        meter.create_observable_counter(
            "harch_faults",
            callbacks=[lambda _options: [Observation(total())]],
            description="Unexpected errors that this hub survived.",
        )
        meter.create_observable_gauge(
            "harch_workloads_held_back",
            callbacks=[lambda _options: [Observation(held_back())]],
            description="Pending workloads set aside because the hub failed while placing them.",
        )

    def watch_records(self, entries_lost: Callable[[], int]) -> None:
        self._telemetry.meter.create_observable_gauge(
            "harch_audit_entries_lost",
            callbacks=[lambda _options: [Observation(entries_lost())]],
            description="Audit entries that the hub's database has lost: above 0 the hub writes nothing.",
        )

    def watch_peers(self, views: Callable[[], Iterable[PeerView]]) -> None:
        """Whether each other hub of the federation lives, and nothing else of it; one that has left is not listed."""

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            alive = {PeerReach.LINKED: 1, PeerReach.CUT_OFF: 1, PeerReach.SUSPECTED: 0, PeerReach.UNHEARD: 0}
            return [Observation(alive[one.reach], {"peer": one.hub_id}) for one in views() if one.reach in alive]

        self._telemetry.meter.create_observable_gauge(
            "harch_peer_alive",
            callbacks=[observe],
            description="1 while gossip reaches the hub, directly or through others.",
        )

    def watch_clock(self, offset_s: Callable[[], float]) -> None:
        self._telemetry.meter.create_observable_gauge(
            "harch_clock_offset_s",
            callbacks=[lambda _options: [Observation(offset_s())]],
            description="Step of the wall clock that is not accepted yet; 0 otherwise.",
        )

    def watch_energy(self, read_all: Callable[[], dict[str, float]], currency: str) -> None:
        """Figures of the energy plan; none while there is no plan."""
        meter = self._telemetry.meter

        def read(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            labels = {"currency": currency} if "_per_" in name else {}
            return lambda _options: [Observation(read_all()[name], labels)] if name in read_all() else []

        for name, description in ENERGY_GAUGES.items():
            meter.create_observable_gauge(f"harch_{name}", callbacks=[read(name)], description=description)

    def watch_pipelines(self, read_all: Callable[[], dict[tuple[str, str, str], dict[str, float]]]) -> None:
        """Figures of pipelines, by name, stage and tenant: alerts about them are that tenant's."""
        meter = self._of_tenants.meter

        def read(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def observe(_options: CallbackOptions) -> Iterable[Observation]:
                for (pipeline, stage, tenant), values in read_all().items():
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


def _gpus(summary: HubSummary) -> Iterable[Observation]:
    for model in summary.models:
        labels = {"hub": summary.hub_id, "model": model.model, "provenance": summary.provenance}
        yield Observation(model.free, {**labels, "state": "free"})
        yield Observation(model.total - model.free, {**labels, "state": "not_free"})


def _borrowed(summary: HubSummary) -> Iterable[Observation]:
    return [Observation(count, {"hub": summary.hub_id, "state": state}) for state, count in summary.borrowed.items()]


def _workloads(summary: HubSummary) -> Iterable[Observation]:
    return [Observation(count, {"hub": summary.hub_id, "state": state}) for state, count in summary.workloads.items()]


def _reader(
    summary: Callable[[], HubSummary], observe: Callable[[HubSummary], Iterable[Observation]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: observe(summary())
