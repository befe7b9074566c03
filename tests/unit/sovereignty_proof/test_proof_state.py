"""Does a state document say what the world is, and is a wrong one refused?"""

from __future__ import annotations

import json

import pytest

from harch.base.errors import HarchError
from harch.fleet.file import shipped_fleet
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.proof.model import ResourceKind
from harch.sovereignty.proof.prove import ProofStatus, prove
from harch.sovereignty.proof.state import WorkloadNeeds, read_state, state_of, write_state
from harch.sovereignty.tags import Classification, DataKind, DataObject, Tag
from proof_random import random_case
from proof_seeded import clean_world

REGISTRY = shipped_jurisdictions()
TAG = Tag(
    process_in=("MA",),
    rest_in=("MA",),
    transit_in=(),
    may_cross_borders=False,
    frameworks=(),
    classification=Classification.INTERNAL,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=("MA",),
)


def test_a_world_survives_its_document() -> None:
    for seed in range(20):
        world, changes = random_case(seed)
        document = json.loads(json.dumps(write_state(world, changes)))
        assert read_state(document, REGISTRY) == (world, changes)


def test_a_running_fleet_is_proven_and_a_copy_abroad_is_not() -> None:
    def state(*hubs: str) -> ProofStatus:
        data = DataObject(id="d", kind=DataKind.DATASET, name="d", tenant="t", tag=TAG, hubs=hubs)
        work = WorkloadNeeds(id="w", reads=("d",))
        return prove(state_of(shipped_fleet("five-hubs"), REGISTRY, data=[data], workloads=[work])).status

    assert state("casablanca", "tangier") is ProofStatus.PROVEN
    assert state("casablanca", "dakar") is ProofStatus.VIOLATED


def test_data_that_nobody_describes_is_no_proof() -> None:
    world = state_of(shipped_fleet("five-hubs"), REGISTRY, workloads=[WorkloadNeeds(id="w", reads=("ghost",))])
    proof = prove(world)
    assert proof.status is ProofStatus.UNKNOWN
    assert "ghost" in proof.reasons[0]


def test_a_country_that_the_registry_does_not_know_permits_nothing() -> None:
    document = write_state(clean_world(size=100))
    document["hubs"][0]["country"] = "QQ"  # type: ignore[index]
    world, _ = read_state(document, REGISTRY)
    assert next(iter(world.of(ResourceKind.HUB).values())).country is None  # type: ignore[union-attr]
    assert prove(world).status is ProofStatus.VIOLATED


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 2},
        {"version": 1, "hobs": []},
        {"version": 1, "hubs": [{"id": "a"}]},
        {"version": 1, "hubs": [{"id": "a", "country": "MA", "typo": 1}]},
        {"version": 1, "hubs": [{"id": "a", "country": "MA"}, {"id": "a", "country": "SN"}]},
        {"version": 1, "changes": [{"id": "x", "kind": "hub", "key": "a", "passes": [{"id": "b", "country": "MA"}]}]},
    ],
)
def test_a_wrong_document_is_refused_as_a_whole(document: object) -> None:
    with pytest.raises(HarchError) as refusal:
        read_state(document, REGISTRY)
    assert refusal.value.code == "E0201"
