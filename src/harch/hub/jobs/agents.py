"""Which agents serve this hub's nodes? The machine's view of them; connections live in `hub.sessions`."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.execution.protocol import PROTOCOL_VERSION, AgentHello
from harch.fleet.model import Hub
from harch.hub.store.records import AgentKey

LACKS_FEATURE = "none: "  # how an agent begins to say why it cannot do something


@dataclass(slots=True)
class ConnectedAgent:
    hello: AgentHello
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

    def vet(self, hello: AgentHello) -> tuple[str, ...]:
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
                f"agent `{hello.agent_id}` is in {hello.country}, hub {self.hub.name} in {self.hub.country}",
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

    def join(self, hello: AgentHello, session: int, nodes: tuple[str, ...], boot_s: float) -> ConnectedAgent:
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

    def why_none_has(self, feature: str) -> str:
        """What the first agent says against a feature that no agent has; empty if one has it, or none is connected."""
        unknown = f"{LACKS_FEATURE}its agent has no {feature}"
        reported = [agent.hello.features.get(feature, unknown) for agent in self.agents.values()]
        if not reported or any(not text.startswith(LACKS_FEATURE) for text in reported):
            return ""
        return reported[0].removeprefix(LACKS_FEATURE)

    def pythons(self) -> set[str]:
        """The versions that agents have found; empty if none has said."""
        found = (agent.hello.features.get("pythons", "") for agent in self.agents.values())
        return {version for text in found for version in text.replace(",", " ").split()}

    def capabilities(self) -> tuple[str, ...]:
        """What nodes here can prepare for work, for peers that want to lend some."""
        return ("content", *(feature for feature in ("environments", "images") if self._any_has(feature)))

    def _any_has(self, feature: str) -> bool:
        lacks = LACKS_FEATURE
        return any(not agent.hello.features.get(feature, lacks).startswith(lacks) for agent in self.agents.values())

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


# Whose key is it? A key of the role `agent` belongs to the agent that used it first, and an agent to its key.


class AgentKeys:
    """Which agents each key belongs to. It is one, but for keys of versions that let several share one.

    `is_valid` says whether a key has not been revoked: what a revoked one held is free again.
    """

    def __init__(self, stored: Iterable[AgentKey], is_valid: Callable[[str], bool]) -> None:
        self._by_key: dict[str, dict[str, AgentKey]] = {}
        self._is_valid = is_valid
        for one in stored:
            self.bind(one)

    def of(self, key_id: str) -> tuple[AgentKey, ...]:
        return tuple(self._by_key.get(key_id, {}).values())

    def bind(self, one: AgentKey) -> None:
        self._by_key.setdefault(one.key_id, {})[one.agent_id] = one

    def release(self, key_id: str) -> None:
        self._by_key.pop(key_id, None)

    def refusal(self, key_id: str, agent_id: str, node_ids: tuple[str, ...]) -> HarchError | None:
        """Why an agent that shows this key is not the one that it says it is; None if it may be."""
        own = self._by_key.get(key_id, {})
        bound = own.get(agent_id)
        if own and bound is None:
            names = ", ".join(f"`{name}`" for name in sorted(own))
            return _refused(f"the key of agent `{agent_id}` belongs to {names}")
        if bound is None and any(
            agent_id in agents and self._is_valid(other) for other, agents in self._by_key.items() if other != key_id
        ):
            return _refused(f"agent `{agent_id}` belongs to another key")
        if bound is not None and bound.node_ids:
            strange = sorted(set(node_ids) - set(bound.node_ids))
            if strange or not node_ids:
                what = f"node `{strange[0]}`" if strange else "all nodes"
                return _refused(f"agent `{agent_id}` requests {what}, but its key is for {', '.join(bound.node_ids)}")
        return None


def _refused(message: str) -> HarchError:
    return HarchError(
        "E0115",
        message,
        hint="make a key for this agent (`POST /v1/auth/keys` with role `agent`), or free the key with "
        "`DELETE /v1/auth/keys/ID/agents`",
    )
