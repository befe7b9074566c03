"""What is known of one hub's work? The data that the job machine works on, in memory, and questions about it.

Only a transaction (`jobs.transaction`) changes it; everybody else reads.
"""

# harch: pure

from __future__ import annotations

import math
from enum import IntEnum

from harch.base.errors import HarchError
from harch.execution.protocol import StopTask, TaskKey
from harch.federation.offers import LeaseTerms
from harch.fleet.model import Fleet, Hub
from harch.hub.jobs.admission import Admission
from harch.hub.jobs.agents import AgentBook
from harch.hub.jobs.carbon_plan import CarbonMemory
from harch.hub.jobs.catalog import Catalog, Guard
from harch.hub.jobs.faults import FaultBook
from harch.hub.jobs.leases import LendingRegistry
from harch.hub.jobs.registry import Registry
from harch.placement.queueing.settings import QueueSettings
from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import Terrain
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec


class Closed(IntEnum):
    """Whether a hub takes work. Each also means what those before it mean."""

    OPEN = 0
    CORDONED = 1  # starts nothing new, here or for others; what runs goes on
    DRAINING = 2  # what runs is asked to go elsewhere
    RETIRED = 3  # leaves the federation


class JobState:
    """The data of one hub's work. `leases` None: a hub on its own. `faults` outlive a machine."""

    def __init__(
        self,
        fleet: Fleet,
        hub: Hub,
        settings: QueueSettings | None = None,
        rules: Rules | None = None,
        *,
        leases: LeaseTerms | None = None,
        faults: FaultBook | None = None,
    ) -> None:
        """Without `rules` nothing is known of any place, so no data may be used."""
        self.hub = hub
        self.catalog = Catalog()
        self.guard = Guard(rules or Rules(Terrain((), ())), hub.id, self.catalog)
        self.registry = Registry()
        self.scheduler = Scheduler(hub, settings or QueueSettings())
        self.agents = AgentBook(hub)
        self.admission = Admission(fleet, hub.id)
        self.lending = LendingRegistry(terms=leases or LeaseTerms(), enabled=leases is not None)
        self.carbon = CarbonMemory()
        self.closed = Closed.OPEN
        self.faults = faults or FaultBook()
        self.set_aside: set[str] = set()  # pending work that made a round fail, until it is tried again
        self.gpu_index = {gpu.id: gpu.index for node in hub.nodes for gpu in node.gpus}
        self.start_deadlines: list[tuple[float, str]] = []  # a heap: when work is to have started
        self.next_defragmentation_s = -math.inf  # not looked at before
        self.more_to_place = False  # the last round reached its limit

    def countries_of(self, hubs: tuple[str, ...]) -> tuple[str, ...]:
        """Where these hubs stand, in their order."""
        sites = (self.guard.rules.terrain.site(hub) for hub in hubs)
        return tuple(dict.fromkeys(site.country for site in sites if site is not None and site.country is not None))

    def known(self, workload_id: str) -> Workload:
        workload = self.registry.workloads.get(workload_id)
        if workload is None:
            raise HarchError("E0304", f"workload {workload_id} ended long ago", hint="`harch ps --all-states` shows it")
        return workload

    def unfinished(self, workload_id: str) -> Workload:
        workload = self.known(workload_id)
        if workload.state.is_final:
            raise wrong_state(workload, "it has already ended")
        return workload

    def current(self, key: TaskKey) -> Workload | None:
        """The workload of this execution, if it is its present attempt and still unfinished."""
        workload = self.registry.workloads.get(key.workload_id)
        if workload is None or workload.attempt != key.attempt or not workload.is_placed:
            return None
        return workload

    def has_hardware_of(self, workload: Workload) -> bool:
        """False if the fleet file no longer has a node or GPU that the workload was placed on."""
        rows = self.scheduler.room.row_of
        return all(
            task.node_id in rows and all(gpu_id in self.gpu_index for gpu_id in task.gpu_ids)
            for task in workload.placement
        )

    def request(self, workload: Workload) -> PlacementRequest:
        return PlacementRequest.of(
            workload.id,
            workload.spec,
            tenant=workload.tenant,
            submitted_s=workload.created_at.timestamp(),
            hubs_allowed=self.guard.hubs_allowed(self.guard.reads_of(workload)) if workload.data_ids else None,
        )

    def lease_until_s(self, workload: Workload, task: TaskPlacement) -> float | None:
        """When a guest's lease ends on the clock of the task's agent; None for own work.

        Counted from an earlier reading of that clock, so whatever a message takes only makes it earlier.
        """
        if not workload.borrowed:
            return None
        agent = self.agents.agents.get(self.agents.agent_of_node.get(task.node_id, ""))
        lease = self.lending.borrowed.get(workload.id)
        if agent is None or lease is None:
            return 0.0  # long over
        agent_boot_s, own_boot_s = agent.clock
        return max(0.0, agent_boot_s + (lease.until_s - own_boot_s))

    @staticmethod
    def stop_order(workload: Workload, rank: int) -> StopTask:
        """Work that broke a rule about data gets no grace, and leaves nothing behind."""
        grace_s = 0.0 if workload.scrub else workload.spec.stop_grace_s
        return StopTask(TaskKey(workload.id, workload.attempt, rank), grace_s, scrub=workload.scrub)


def may_leave(spec: WorkloadSpec) -> bool:
    """Secrets stay where they were stored, and so does what needs them."""
    return not spec.stay_home and not spec.secrets


def wrong_state(workload: Workload, why: str) -> HarchError:
    return HarchError(
        "E0304",
        f"workload {workload.id} is {workload.state}: {why}",
        hint=f"`harch why {workload.id}` shows more",
    )
