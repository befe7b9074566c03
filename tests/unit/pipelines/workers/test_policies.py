"""Tables of policy versions are shared among workers, and masks keep their hubs through renumberings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.client.bucket import Conflict, KeyValue
from harch.pipelines.sense.gate import VERSIONS_KEPT, PolicyTable
from harch.pipelines.workers.shared_state import Policies

_HUBS = ("dakhla", "tangier", "casablanca", "dakar", "abidjan")


class _Bucket:
    def __init__(self) -> None:
        self.rows: dict[str, KeyValue] = {}

    async def get(self, key: str) -> KeyValue | None:
        return self.rows.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        there = self.rows[key].revision if key in self.rows else 0
        if revision is not None and revision != there:
            raise Conflict(key)
        self.rows[key] = KeyValue(value, there + 1)
        return there + 1


async def test_a_worker_that_comes_later_knows_the_tables_of_those_before_it() -> None:
    bucket = _Bucket()
    assert await Policies(PolicyTable(1, {"dakhla": 0})).look(bucket) == []
    later = Policies(PolicyTable(2, {"dakar": 0, "dakhla": 1}))
    assert [table.version for table in await later.look(bucket)] == [1]
    assert later.current.version == 2
    third = Policies(PolicyTable(3, {}))
    assert [table.version for table in await third.look(bucket)] == [1, 2]


async def test_only_the_last_few_are_kept() -> None:
    bucket = _Bucket()
    for version in range(1, 3 * VERSIONS_KEPT):
        await Policies(PolicyTable(version, {})).look(bucket)
    last = Policies(PolicyTable(1000, {}))
    await last.look(bucket)
    assert len(last.tables) == VERSIONS_KEPT


@given(first=st.permutations(_HUBS), second=st.permutations(_HUBS), allowed=st.sets(st.sampled_from(_HUBS)))
def test_a_mask_names_the_same_hubs_in_another_numbering(
    first: list[str], second: list[str], allowed: set[str]
) -> None:
    one = PolicyTable(1, {hub: bit for bit, hub in enumerate(first)})
    other = PolicyTable(2, {hub: bit for bit, hub in enumerate(second)})
    mask = sum(1 << one.bits[hub] for hub in allowed)
    found = Policies(one).renumbered(mask, 1, other)
    assert {hub for hub, bit in other.bits.items() if found >> bit & 1} == allowed
    assert Policies(one).renumbered(mask, 9, other) == 0, "an unknown version permits nothing"
