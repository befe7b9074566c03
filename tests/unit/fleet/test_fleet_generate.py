"""Are generated fleets as large as asked for, all connected, and the same every time?"""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.testing.fleet_generator import generate_blueprint, generate_fleet, single_hub


def test_a_single_hub_owns_all_gpus() -> None:
    fleet = single_hub()
    assert [hub.gpu_count for hub in fleet.hubs] == [10_000]
    assert fleet.links == ()


def test_the_seed_decides_who_has_how_much() -> None:
    def sizes(seed: int) -> list[int]:
        return [hub.gpu_count for hub in generate_blueprint(hub_count=8, gpu_count=4_000, seed=seed).hubs]

    assert sizes(7) == sizes(7)
    assert sizes(7) != sizes(8)


def test_what_eight_does_not_divide_stands_in_one_smaller_node() -> None:
    fleet = generate_fleet(hub_count=3, gpu_count=8 * 40 + 5)
    small = [node for hub in fleet.hubs for node in hub.nodes if len(node.gpus) != 8]
    assert [len(node.gpus) for node in small] == [5]


def test_every_hub_can_be_reached_from_every_other() -> None:
    fleet = generate_fleet(hub_count=64, gpu_count=2_000)
    reached = {fleet.hubs[0].id}
    for _ in fleet.hubs:
        reached |= {end for link in fleet.links if reached & set(link.ends) for end in link.ends}
    assert reached == {hub.id for hub in fleet.hubs}


@pytest.mark.parametrize(("hub_count", "gpu_count"), [(0, 100), (65, 10_000), (20, 159), (1, 100_001), (-1, -1)])
def test_sizes_that_cannot_be_are_refused(hub_count: int, gpu_count: int) -> None:
    with pytest.raises(HarchError, match="cannot generate") as caught:
        generate_fleet(hub_count=hub_count, gpu_count=gpu_count)
    assert caught.value.code == "E0201"
    assert "1 to 64 hubs" in caught.value.hint
