"""Whose key is it? A key of the role `agent` belongs to the agent that used it first, and an agent to its key.

Otherwise whoever holds the key of one node could claim to be the agent of another, and get its work and its secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from harch.base.errors import HarchError


class AgentKey(Struct, frozen=True, kw_only=True):
    """This key is that agent's. `node_ids` empty: for whatever nodes it serves."""

    key_id: str
    agent_id: str
    node_ids: tuple[str, ...] = ()


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
            return _refused(f"the key that agent `{agent_id}` shows belongs to {names}")
        if bound is None and any(
            agent_id in agents and self._is_valid(other) for other, agents in self._by_key.items() if other != key_id
        ):
            return _refused(f"agent `{agent_id}` belongs to another key")
        if bound is not None and bound.node_ids:
            strange = sorted(set(node_ids) - set(bound.node_ids))
            if strange or not node_ids:
                what = f"node `{strange[0]}`" if strange else "all nodes"
                return _refused(f"agent `{agent_id}` asks for {what}, and its key is for {', '.join(bound.node_ids)}")
        return None


def _refused(message: str) -> HarchError:
    return HarchError(
        "E0115",
        message,
        hint="make a key for this agent (`POST /v1/auth/keys` with role `agent`), or free the key with "
        "`DELETE /v1/auth/keys/ID/agents`",
    )
