"""Does a Terraform plan become the world and the changes that it stands for?"""

from __future__ import annotations

from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.proof.model import ProofWorld, ResourceKind
from harch.sovereignty.proof.prove import ProofStatus, needs_solver, prove
from harch.sovereignty.proof.symbolic import load_solver
from harch.sovereignty.proof.terraform_plan import read_plan

REGISTRY = shipped_jurisdictions()
Values = dict[str, Any] | None


def entry(address: str, before: Values, after: Values, unknown: Values = None) -> dict[str, Any]:
    actions = {
        (False, True): ["create"],
        (True, False): ["delete"],
        (True, True): ["no-op"] if before == after else ["update"],
    }[before is not None, after is not None]
    return {
        "address": address,
        "mode": "managed",
        "type": address.split(".")[0],
        "change": {"actions": actions, "before": before, "after": after, "after_unknown": unknown or {}},
    }


def same(address: str, **values: Any) -> dict[str, Any]:
    return entry(address, values, values)


def plan(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"format_version": "1.2", "resource_changes": list(entries), "something_new": 1, **more}


HUBS = (
    same("harchos_hub.casa", id="casa", name="Casablanca", country="MA"),
    same("harchos_hub.dakar", id="dakar", name="Dakar", country="SN"),
)
DATA = same("harchos_dataset.clinic", id="clinic", name="clinic", jurisdictions=["MA"], region="morocco")
WORK = same("harchos_workload.train", id="train", name="train", dataset_ids=["clinic"])


def verdict(document: dict[str, Any], around: ProofWorld | None = None) -> ProofStatus:
    world, changes = read_plan(document, REGISTRY, around)
    solver = load_solver() if needs_solver(world, changes) else None
    return prove(world, changes, solver=solver).status


def cluster(jurisdictions: list[str] | None, hub: str | None = "dakar") -> dict[str, Any]:
    return {"id": "west", "name": "west", "hub": hub, "gpu_count": 8, "jurisdictions": jurisdictions}


def test_an_honest_plan_is_proven() -> None:
    assert (
        verdict(plan(*HUBS, DATA, WORK, entry("harchos_gpu_cluster.west", None, cluster(["SN"])))) is ProofStatus.PROVEN
    )


def test_a_cluster_that_declares_another_country_is_a_violation() -> None:
    document = plan(*HUBS, DATA, WORK, entry("harchos_gpu_cluster.west", cluster(["SN"]), cluster(["MA"])))
    world, changes = read_plan(document, REGISTRY)
    proof = prove(world, changes)
    assert proof.status is ProofStatus.VIOLATED
    assert [change.id for change in proof.counterexamples[0].changes] == ["harchos_gpu_cluster.west"]
    assert "declare SN" in proof.counterexamples[0].fix


def test_an_unknown_country_of_a_cluster_is_no_proof() -> None:
    after = {"id": "west", "name": "west", "hub": "dakar"}
    change = entry("harchos_gpu_cluster.west", None, after, {"jurisdictions": True})
    assert verdict(plan(*HUBS, DATA, WORK, change)) is ProofStatus.UNKNOWN


def test_an_unknown_value_that_cannot_matter_is_proven() -> None:
    after = {"id": "north", "name": "north", "hub": "casa"}
    change = entry("harchos_gpu_cluster.north", None, after, {"jurisdictions": True})
    assert verdict(plan(*HUBS, DATA, WORK, change)) is ProofStatus.PROVEN


def test_a_violation_that_no_unknown_value_can_heal_is_a_violation() -> None:
    lie = entry("harchos_gpu_cluster.west", None, cluster(["MA"]))
    blank = entry("harchos_gpu_cluster.other", None, {"name": "other", "hub": "casa"}, {"jurisdictions": True})
    assert verdict(plan(*HUBS, DATA, WORK, lie, blank)) is ProofStatus.VIOLATED


def test_a_reference_to_a_hub_of_the_same_plan_is_followed() -> None:
    hub = entry("harchos_hub.lome", None, {"name": "Lomé", "country": "TG"}, {"id": True})
    new = entry("harchos_gpu_cluster.lome", None, {"name": "lome", "jurisdictions": ["TG"]}, {"hub": True, "id": True})
    references = {"references": ["harchos_hub.lome.id", "harchos_hub.lome"]}
    configuration = {
        "root_module": {"resources": [{"address": "harchos_gpu_cluster.lome", "expressions": {"hub": references}}]}
    }
    world, changes = read_plan(plan(*HUBS, DATA, WORK, hub, new, configuration=configuration), REGISTRY)
    made = next(change for change in changes if change.kind is ResourceKind.CLUSTER).passes[0]
    assert made is not None
    assert (made.hub, made.unknown) == ("harchos_hub.lome", ())  # type: ignore[union-attr]
    assert prove(world, changes).status is ProofStatus.PROVEN


def test_a_replaced_policy_is_looked_at_while_it_is_gone() -> None:
    loose = same("harchos_dataset.wide", id="wide", name="wide", jurisdictions=["MA", "SN"], region="morocco")
    policy = {"id": "p", "name": "p", "jurisdictions": ["MA"], "selector": None}
    change = entry("harchos_sovereignty_policy.p", policy, {**policy, "name": "q"})
    change["change"]["actions"] = ["delete", "create"]
    work = same("harchos_workload.train", id="train", name="train", dataset_ids=["wide"])
    document = plan(*HUBS, loose, work, change, same("harchos_gpu_cluster.west", **cluster(["SN"])))
    world, changes = read_plan(document, REGISTRY)
    proof = prove(world, changes)
    assert proof.status is ProofStatus.VIOLATED
    assert proof.counterexamples[0].changes[0].is_half_done
    assert "half applied" in proof.counterexamples[0].explanation[0]


def test_a_hub_of_another_state_is_unknown_until_that_state_is_given() -> None:
    document = plan(same("harchos_gpu_cluster.west", **cluster(["MA"], hub="casa")), DATA, WORK)
    assert verdict(document) is ProofStatus.UNKNOWN
    around, _ = read_plan(plan(*HUBS), REGISTRY)
    assert verdict(document, around) is ProofStatus.PROVEN


@pytest.mark.parametrize("document", [[], {"format_version": "2.0"}, {"format_version": "1.0", "resource_changes": 3}])
def test_what_is_no_plan_is_refused(document: object) -> None:
    with pytest.raises(HarchError) as refusal:
        read_plan(document, REGISTRY)
    assert refusal.value.code == "E0201"


def test_a_place_that_does_not_exist_is_refused() -> None:
    with pytest.raises(HarchError) as refusal:
        read_plan(plan(entry("harchos_gpu_cluster.west", None, cluster(["XX"]))), REGISTRY)
    assert refusal.value.code == "E0901"


def test_a_resource_has_the_id_that_the_provider_gave_it_and_else_its_address() -> None:
    new = entry("harchos_dataset.new", None, {"name": "new", "jurisdictions": ["MA"]}, {"id": True})
    world, changes = read_plan(plan(*HUBS, DATA, new), REGISTRY)
    assert set(world.of(ResourceKind.HUB)) == {"casa", "dakar"}
    assert set(world.of(ResourceKind.DATASET)) == {"clinic"}
    assert [change.key for change in changes] == ["harchos_dataset.new"]
