"""A hub remembers which agents came with which key: what that key sends is believed about them alone."""

from __future__ import annotations

from harch.execution.protocol import Hello
from harch.hub.agent_door import AgentDoor
from harch.hub.sessions import Session


class _Driver:
    not_ready = ""

    def handle(self, *_: object) -> None: ...

    def plan_placement(self) -> None: ...


class _Link:
    peer = "test"

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id

    async def receive(self) -> bytes:
        raise ConnectionError

    async def send(self, frame: bytes) -> None: ...


def test_agents_are_known_by_the_key_they_came_with_also_when_they_have_left() -> None:
    door = AgentDoor(lambda: _Driver())  # type: ignore[arg-type,return-value]
    for key_id, agent_id in (("key_1", "a"), ("key_1", "b"), ("key_2", "c")):
        hello = Hello(
            version=1,
            agent_id=agent_id,
            country="MA",
            node_ids=(),
            process_slots=1,
            address="",
            gang_ports=(1, 2),
            features={},
            tasks=(),
        )
        door._joined(Session(_Link(key_id), 1), hello)
    door.close_all("the test is over")
    assert (door.agents_of_key("key_1"), door.agents_of_key("key_2")) == (["a", "b"], ["c"])
    assert door.agents_of_key("key_3") == []
