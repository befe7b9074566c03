"""Which agents serve this hub's nodes? The machine's view of them; connections live in `hub.sessions`."""

from __future__ import annotations

from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.execution.protocol import PROTOCOL_VERSION, Hello
from harch.fleet.model import Hub


@dataclass(slots=True)
class ConnectedAgent:
    hello: Hello
    session: int
    node_ids: tuple[str, ...]
    next_gang_port: int
    clock: tuple[float, float] = (0.0, 0.0)  # a reading of its boot clock, and of ours when it came


@dataclass
class AgentBook:
    """Connected agents, and the one agent that serves each node."""

    hub: Hub
    agents: dict[str, ConnectedAgent] = field(default_factory=dict)
    agent_of_node: dict[str, str] = field(default_factory=dict)
    gang_ports_used: set[tuple[str, int]] = field(default_factory=set)  # (address, port)

    def vet(self, hello: Hello) -> tuple[str, ...]:
        """The nodes that this agent will serve. Raises if the hub must not work with it."""
        if hello.version != PROTOCOL_VERSION:
            raise HarchError(
                "E0201",
                f"agent `{hello.agent_id}` speaks protocol {hello.version}, this hub speaks {PROTOCOL_VERSION}",
                hint="run the same HarchOS version on hub and nodes",
            )
        if hello.country != self.hub.country:
            raise HarchError(
                "E0902",
                f"agent `{hello.agent_id}` stands in {hello.country}, hub {self.hub.name} in {self.hub.country}",
                hint="connect the agent to a hub of its own country",
            )
        known = {node.id for node in self.hub.nodes}
        unknown = [node_id for node_id in hello.node_ids if node_id not in known]
        if unknown:
            raise HarchError(
                "E0201",
                f"agent `{hello.agent_id}` serves node `{unknown[0]}`, which hub {self.hub.name} does not have",
                hint="compare the agent's --node options with the fleet file",
            )
        nodes = hello.node_ids or tuple(node.id for node in self.hub.nodes)
        taken = next((n for n in nodes if self.agent_of_node.get(n, hello.agent_id) != hello.agent_id), None)
        if taken is not None:
            raise HarchError(
                "E0201",
                f"node `{taken}` is already served by agent `{self.agent_of_node[taken]}`",
                hint="give each agent its own nodes with --node, or stop the other one",
            )
        return nodes

    def join(self, hello: Hello, session: int, nodes: tuple[str, ...], boot_s: float) -> ConnectedAgent:
        agent = ConnectedAgent(hello, session, nodes, hello.gang_ports[0], (hello.boot_s, boot_s))
        self.agents[hello.agent_id] = agent
        for node_id in nodes:
            self.agent_of_node[node_id] = hello.agent_id
        return agent

    def leave(self, agent_id: str) -> ConnectedAgent:
        agent = self.agents.pop(agent_id)
        for node_id in agent.node_ids:
            del self.agent_of_node[node_id]
        return agent

    def take_gang_port(self, node_id: str) -> tuple[str, int] | None:
        """Address and free rendezvous port at the agent of this node, or None when its whole range is in use."""
        agent = self.agents[self.agent_of_node[node_id]]
        address = agent.hello.address
        first, last = agent.hello.gang_ports
        for _ in range(last - first + 1):
            port = agent.next_gang_port
            agent.next_gang_port = port + 1 if port < last else first
            if (address, port) not in self.gang_ports_used:
                self.gang_ports_used.add((address, port))
                return address, port
        return None

    @property
    def process_slots(self) -> int:
        return sum(agent.hello.process_slots for agent in self.agents.values())
