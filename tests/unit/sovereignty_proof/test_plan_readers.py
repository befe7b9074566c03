"""Is every attribute of a Terraform plan read as what it is, and nothing else?"""

from __future__ import annotations

from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.proof.model import (
    CHANGES_MAX,
    ClusterResource,
    Dataset,
    HubResource,
    LinkResource,
    NodeResource,
    PendingChange,
    PipelineResource,
    Policy,
    ProofWorld,
    Resource,
    ResourceKind,
    Stage,
    WorkloadResource,
    kind_of,
    world_of,
)
from harch.sovereignty.proof.terraform_plan import read_plan
from harch.sovereignty.tags import Classification, Tag

REGISTRY = shipped_jurisdictions()
HINT = "write it with `terraform show -json plan.tfplan > plan.json`"


def entry(address: str, actions: str, before: Any = None, after: Any = None, unknown: Any = None) -> dict[str, Any]:
    change = {"actions": actions.split(), "before": before, "after": after, "after_unknown": unknown or {}}
    return {"address": address, "mode": "managed", "type": address.split(".")[0], "change": change}


def is_there(address: str, **values: Any) -> dict[str, Any]:
    return entry(address, "no-op", values, values)


def read(
    *entries: Any, around: ProofWorld | None = None, **more: Any
) -> tuple[dict[str, Resource], tuple[PendingChange, ...]]:
    """What is there now, by id, and the pending changes."""
    world, changes = read_plan({"format_version": "1.2", "resource_changes": list(entries), **more}, REGISTRY, around)
    return {key: one for found in world.resources.values() for key, one in found.items()}, changes


def made(address: str, values: dict[str, Any], unknown: Any = None, *others: Any, **more: Any) -> Resource | None:
    """The resource that a plan creates."""
    _, changes = read(*others, entry(address, "create", None, values, unknown), **more)
    (change,) = changes
    assert (change.id, change.label) == (address, f"create {address}")
    (one,) = change.passes
    assert one is None or (change.kind, change.key) == (kind_of(one), one.id)
    return one


def configured(address: str, attribute: str, *references: str) -> dict[str, Any]:
    resource = {"address": address, "expressions": {attribute: {"references": list(references)}}}
    return {"configuration": {"root_module": {"resources": [resource]}}}


def tag(*countries: str, crosses: bool = False) -> Tag:
    return Tag(
        process_in=countries,
        rest_in=countries,
        transit_in=tuple(REGISTRY.countries) if crosses else (),
        may_cross_borders=crosses,
        frameworks=(),
        classification=Classification.INTERNAL,
        encrypt_at_rest=False,
        encrypt_in_transit=False,
        key_in=countries,
    )


CASABLANCA = is_there("harchos_hub.casa", id="casa", name="Casablanca", country="MA")
TANGIER = is_there("harchos_hub.tanger", id="tanger", name="Tangier", country="MA")
DAKAR = is_there("harchos_hub.dakar", id="dakar", name="Dakar", country="SN")
WEST = is_there("harchos_gpu_cluster.west", id="k1", name="west", hub="casa")
CLINIC = is_there("harchos_dataset.clinic", id="d1", name="clinic", jurisdictions=["MA"])


@pytest.mark.parametrize(
    ("address", "values", "unknown", "expected"),
    [
        (
            "harchos_hub.h",
            {"country": "morocco", "frameworks": ["house", 7, "gdpr"]},
            {},
            HubResource(id="harchos_hub.h", country="MA", frameworks=("gdpr", "house", "ma-law-09-08")),
        ),
        ("harchos_hub.h", {"frameworks": "gdpr"}, {}, HubResource(id="harchos_hub.h", country=None)),
        (
            "harchos_hub.h",
            {},
            {"country": True, "name": True},
            HubResource(id="harchos_hub.h", country=None, unknown=("country",)),
        ),
        ("harchos_gpu_cluster.k", {"hub": "casa"}, {}, ClusterResource(id="harchos_gpu_cluster.k", hub="casa")),
        (
            "harchos_gpu_cluster.k",
            {"hub": "Casablanca", "jurisdictions": ["UEMOA", "MA"]},
            {},
            ClusterResource(
                id="harchos_gpu_cluster.k",
                hub="casa",
                countries=("BF", "BJ", "CI", "GW", "MA", "ML", "NE", "SN", "TG"),
            ),
        ),
        (
            "harchos_gpu_cluster.k",
            {"jurisdictions": []},
            {"hub": True},
            ClusterResource(id="harchos_gpu_cluster.k", hub="", countries=(), unknown=("hub",)),
        ),
        (
            "harchos_gpu_cluster.k",
            {},
            {"hub": True, "jurisdictions": [False, True]},
            ClusterResource(id="harchos_gpu_cluster.k", hub="", unknown=("hub", "countries")),
        ),
        ("harchos_node_pool.n", {"cluster_id": "west"}, {}, NodeResource(id="harchos_node_pool.n", cluster="k1")),
        (
            "harchos_node_pool.n",
            {},
            {"cluster_id": True},
            NodeResource(id="harchos_node_pool.n", cluster="", unknown=("cluster",)),
        ),
        ("harchos_node_pool.n", {}, {}, NodeResource(id="harchos_node_pool.n", cluster="")),
        (
            "harchos_network_link.l",
            {"hub_a": "casa", "hub_b": "Dakar", "transit_countries": ["mauritania"], "encrypted": True},
            {},
            LinkResource(id="harchos_network_link.l", ends=("casa", "dakar"), transit=("MR",), encrypted=True),
        ),
        (
            "harchos_network_link.l",
            {"hub_b": "dakar", "encrypted": 1},
            {"hub_a": True, "transit_countries": True},
            LinkResource(id="harchos_network_link.l", ends=("", "dakar"), unknown=("ends", "transit")),
        ),
        (
            "harchos_network_link.l",
            {"hub_a": "casa"},
            {"hub_b": True},
            LinkResource(id="harchos_network_link.l", ends=("casa", ""), unknown=("ends",)),
        ),
        (
            "harchos_dataset.d",
            {"jurisdictions": ["MA"], "region": "morocco", "tags": {"class": "x", "level": 3}},
            {},
            Dataset(
                id="harchos_dataset.d", tag=tag("MA"), hubs=("casa", "tanger"), labels={"class": "x", "level": "3"}
            ),
        ),
        (
            "harchos_dataset.d",
            {"jurisdictions": ["MA", "SN"], "may_transit": True, "region": "SN"},
            {},
            Dataset(id="harchos_dataset.d", tag=tag("MA", "SN", crosses=True), hubs=("dakar",)),
        ),
        (
            "harchos_dataset.d",
            {"jurisdictions": ["MA"], "may_transit": "yes", "region": "togo", "tags": ["x"]},
            {},
            Dataset(id="harchos_dataset.d", tag=tag("MA"), hubs=("region togo",)),
        ),
        (
            "harchos_dataset.d",
            {"tags": {"class": "x"}},
            {"jurisdictions": True, "region": True, "tags": {"class": True}},
            Dataset(id="harchos_dataset.d", tag=None, unknown=("tag", "hubs", "labels")),
        ),
        (
            "harchos_dataset.d",
            {"jurisdictions": ["MA"]},
            {"may_transit": True},
            Dataset(id="harchos_dataset.d", tag=tag("MA"), unknown=("tag",)),
        ),
        (
            "harchos_sovereignty_policy.p",
            {"selector": {"class": "x"}, "frameworks": ["09-08"], "jurisdictions": ["SN", "MA"]},
            {},
            Policy(
                id="harchos_sovereignty_policy.p",
                countries=("MA", "SN"),
                frameworks=("ma-law-09-08",),
                selector={"class": "x"},
            ),
        ),
        (
            "harchos_sovereignty_policy.p",
            {"may_cross_borders": False, "mode": "audit"},
            {},
            Policy(id="harchos_sovereignty_policy.p", may_cross_borders=False, enforced=False),
        ),
        (
            "harchos_sovereignty_policy.p",
            {"may_cross_borders": True, "mode": "enforce"},
            {},
            Policy(id="harchos_sovereignty_policy.p"),
        ),
        (
            "harchos_sovereignty_policy.p",
            {},
            dict.fromkeys(("jurisdictions", "may_cross_borders", "selector", "mode", "frameworks", "name"), True),
            Policy(
                id="harchos_sovereignty_policy.p",
                unknown=("countries", "may_cross_borders", "selector", "enforced", "frameworks"),
            ),
        ),
        (
            "harchos_workload.w",
            {"cluster_id": "west", "dataset_ids": ["clinic", "ghost"]},
            {},
            WorkloadResource(id="harchos_workload.w", reads=("d1", "ghost"), clusters=("k1",)),
        ),
        ("harchos_workload.w", {}, {}, WorkloadResource(id="harchos_workload.w")),
        (
            "harchos_workload.w",
            {},
            {"cluster_id": True, "dataset_ids": True},
            WorkloadResource(id="harchos_workload.w", unknown=("clusters", "reads")),
        ),
        (
            "harchos_pipeline.q",
            {
                "dataset_ids": ["d1"],
                "stages": [{"name": "sense", "cluster_ids": ["west", "k2"]}, "odd", {"cluster_ids": None}],
            },
            {},
            PipelineResource(
                id="harchos_pipeline.q",
                reads=("d1",),
                stages=(Stage(name="sense", clusters=("k1", "k2")), Stage(name="")),
            ),
        ),
        (
            "harchos_pipeline.q",
            {"stages": [{"name": "sense", "cluster_ids": ["west"]}]},
            {"dataset_ids": [True], "stages": [{"cluster_ids": [True]}]},
            PipelineResource(id="harchos_pipeline.q", stages=(Stage(name="sense"),), unknown=("reads",)),
        ),
        (
            "harchos_pipeline.q",
            {"stages": "none"},
            {"stages": True},
            PipelineResource(id="harchos_pipeline.q", stages=(Stage(name="?"), Stage(name="?"))),
        ),
        ("harchos_pipeline.q", {"stages": "none"}, {}, PipelineResource(id="harchos_pipeline.q")),
    ],
)
def test_each_type_is_read_attribute_by_attribute(
    address: str, values: dict[str, Any], unknown: dict[str, Any], expected: Resource
) -> None:
    assert made(address, values, unknown, CASABLANCA, TANGIER, DAKAR, WEST, CLINIC) == expected


@pytest.mark.parametrize(
    ("mark", "is_unknown"),
    [
        (True, True),
        (False, False),
        ("true", False),
        ([], False),
        ({}, False),
        ([False, True], True),
        ([False, False], False),
        ({"a": False, "b": [True]}, True),
        ({"a": [False], "b": {}}, False),
    ],
)
def test_one_true_mark_inside_makes_the_whole_attribute_unknown(mark: object, is_unknown: bool) -> None:
    one = made("harchos_gpu_cluster.k", {"hub": "casa"}, {"jurisdictions": mark})
    assert isinstance(one, ClusterResource)
    assert one.unknown == (("countries",) if is_unknown else ())


# Who is meant


def cluster_of(word: str, *others: dict[str, Any]) -> tuple[str, ...]:
    one = made("harchos_workload.w", {"cluster_id": word}, {}, *others)
    assert isinstance(one, WorkloadResource)
    return one.clusters


def test_a_resource_is_named_by_its_id_its_name_or_its_address() -> None:
    for word in ("k1", "west", "harchos_gpu_cluster.west"):
        assert cluster_of(word, WEST) == ("k1",)
    assert cluster_of("north", WEST) == ("north",)


def test_both_names_of_a_resource_that_is_renamed_lead_to_it() -> None:
    renamed = entry("harchos_gpu_cluster.west", "update", {"id": "k1", "name": "old"}, {"id": "k1", "name": "new"})
    changes = read(
        renamed, *(entry(f"harchos_workload.{w}", "create", None, {"cluster_id": w}) for w in ("old", "new"))
    )
    assert [one.clusters for change in changes[1] for one in change.passes if isinstance(one, WorkloadResource)] == [
        ("k1",),
        ("k1",),
    ]


def test_a_name_that_two_resources_of_one_type_share_names_neither() -> None:
    twin = is_there("harchos_gpu_cluster.twin", id="k2", name="west", hub="dakar")
    assert cluster_of("west", WEST, twin) == ("west",)
    assert cluster_of("k1", WEST, twin) == ("k1",)
    assert cluster_of("k2", WEST, twin) == ("k2",)
    assert cluster_of("west", WEST, is_there("harchos_hub.west", id="h9", name="west", country="MA")) == ("k1",)


def test_the_id_before_the_change_is_the_key_then_the_id_after_it_then_the_address() -> None:
    address = "harchos_gpu_cluster.k"
    both = entry(address, "update", {"id": "old", "hub": "a"}, {"id": "new", "hub": "b"})
    later = entry(address, "update", {"id": 3, "hub": "a"}, {"id": "new", "hub": "b"})
    neither = entry(address, "update", {"id": None, "hub": "a"}, {"hub": "b"}, {"id": True})
    for one, key in ((both, "old"), (later, "new"), (neither, address)):
        now, changes = read(one)
        assert list(now) == [key]
        assert [(change.key, change.id) for change in changes] == [(key, address)]


@pytest.mark.parametrize(
    ("references", "hub"),
    [
        (("harchos_hub.casa.id", "harchos_hub.casa"), "casa"),
        (("harchos_hub.casa",), "casa"),
        (("harchos_hub.casa.id", "path.module", "terraform.workspace"), "casa"),
        (("harchos_hub.casa.id", "harchos_hub.dakar.id"), ""),
        (("harchos_hub.casa.id", "var.hub"), ""),
        (("var.hub",), ""),
        (("harchos_hub.ghost.id",), ""),
        (("path.module",), ""),
        ((), ""),
    ],
)
def test_an_unknown_attribute_is_known_if_it_refers_to_one_resource(references: tuple[str, ...], hub: str) -> None:
    address = "harchos_gpu_cluster.k"
    more = configured(address, "hub", *references)
    one = made(address, {}, {"hub": True}, CASABLANCA, DAKAR, **more)
    assert one == ClusterResource(id=address, hub=hub, unknown=() if hub else ("hub",))


def test_a_list_that_is_unknown_is_known_if_it_refers_to_one_resource() -> None:
    more = configured("harchos_workload.w", "dataset_ids", "harchos_dataset.clinic.id")
    assert made("harchos_workload.w", {}, {"dataset_ids": True}, CLINIC, **more) == WorkloadResource(
        id="harchos_workload.w", reads=("d1",)
    )
    node = configured("harchos_node_pool.n", "cluster_id", "harchos_gpu_cluster.west")
    assert made("harchos_node_pool.n", {}, {"cluster_id": True}, WEST, **node) == NodeResource(
        id="harchos_node_pool.n", cluster="k1"
    )


@pytest.mark.parametrize(
    "configuration",
    [
        None,
        [],
        {},
        {"root_module": []},
        {"root_module": {"resources": {}}},
        {"root_module": {"resources": ["x", {"address": "harchos_gpu_cluster.k"}]}},
        {"root_module": {"resources": [{"address": "harchos_gpu_cluster.k", "expressions": [1]}]}},
        {"root_module": {"resources": [{"address": "harchos_gpu_cluster.k", "expressions": {"hub": [1]}}]}},
        {
            "root_module": {
                "resources": [{"address": "harchos_gpu_cluster.k", "expressions": {"hub": {"references": "x"}}}]
            }
        },
    ],
)
def test_a_configuration_that_is_not_understood_refers_to_nothing(configuration: object) -> None:
    one = made("harchos_gpu_cluster.k", {}, {"hub": True}, CASABLANCA, configuration=configuration)
    assert one == ClusterResource(id="harchos_gpu_cluster.k", hub="", unknown=("hub",))


# Where a region is


def hubs_of(region: str, *others: dict[str, Any], around: ProofWorld | None = None) -> tuple[str, ...]:
    _, changes = read(*others, entry("harchos_dataset.d", "create", None, {"region": region}), around=around)
    one = changes[-1].passes[0]
    assert isinstance(one, Dataset)
    return one.hubs


def test_the_hubs_of_a_region_are_those_that_are_or_will_be_in_its_country() -> None:
    moving = entry("harchos_hub.x", "update", {"id": "x", "country": "SN"}, {"id": "x", "country": "MA"})
    new = entry("harchos_hub.lome", "create", None, {"country": "TG"})
    blank = entry("harchos_hub.blank", "create", None, {}, {"country": True})
    assert hubs_of("morocco", moving, TANGIER, CASABLANCA, DAKAR, blank) == ("casa", "tanger", "x")
    assert hubs_of("SN", moving, DAKAR) == ("dakar",)
    assert hubs_of("TG", new) == ("harchos_hub.lome",)
    assert hubs_of("TG", DAKAR) == ("region TG",)
    assert hubs_of("MA", is_there("harchos_dataset.other", id="casa", country="MA")) == ("region MA",)


def test_the_hubs_around_a_plan_are_in_their_regions_too() -> None:
    around = world_of(
        HubResource(id="far", country="MA"), HubResource(id="lost", country=None), HubResource(id="lome", country="TG")
    )
    assert hubs_of("MA", CASABLANCA, around=around) == ("casa", "far")
    assert hubs_of("TG", around=around) == ("lome",)


# What is now, and what changes


def test_the_world_of_a_plan_is_what_is_before_it_inside_of_what_is_around_it() -> None:
    kept = Policy(id="kept", countries=("MA",))
    around = world_of(kept, HubResource(id="casa", country="TG"), declassified={"d1": tag("MA")})
    document = {"format_version": "1.2", "resource_changes": [CASABLANCA, entry("harchos_hub.n", "create", None, {})]}
    world, changes = read_plan(document, REGISTRY, around)
    assert world.of(ResourceKind.POLICY) == {"kept": kept}
    assert world.of(ResourceKind.HUB) == {
        "casa": HubResource(id="casa", country="MA", frameworks=("ma-law-09-08",))  # the plan knows better
    }
    assert world.declassified == {"d1": tag("MA")}
    assert [change.key for change in changes] == ["harchos_hub.n"]
    assert read_plan(document, REGISTRY)[0].declassified == {}


OLD = {"id": "k1", "hub": "casa"}
NEW = {"id": "k1", "hub": "dakar"}
BEFORE = ClusterResource(id="k1", hub="casa")
AFTER = ClusterResource(id="k1", hub="dakar")


@pytest.mark.parametrize(
    ("actions", "before", "after", "passes"),
    [
        ("create", None, NEW, (AFTER,)),
        ("update", OLD, NEW, (AFTER,)),
        ("delete", OLD, None, (None,)),
        ("forget", OLD, None, (None,)),
        ("delete create", OLD, NEW, (None, AFTER)),
        ("create delete", OLD, NEW, (None, AFTER)),
        ("delete create", OLD, OLD, (None, BEFORE)),
        ("update", OLD, {**OLD, "gpu_count": 16}, None),
        ("no-op", OLD, NEW, None),
        ("read", None, NEW, None),
        ("", OLD, NEW, None),
        ("create", None, None, None),
        ("delete", None, None, None),
    ],
)
def test_an_action_passes_through_its_states(
    actions: str, before: Any, after: Any, passes: tuple[Resource | None, ...] | None
) -> None:
    address = "harchos_gpu_cluster.k"
    now, changes = read(entry(address, actions, before, after))
    assert now == ({"k1": BEFORE} if before else {})
    expected = PendingChange(
        id=address,
        kind=ResourceKind.CLUSTER,
        key="k1",
        passes=passes or (),
        label=f"{' and '.join(actions.split())} {address}",
    )
    assert changes == ((expected,) if passes is not None else ())


@pytest.mark.parametrize(
    "foreign",
    [
        "text",
        {"address": 3, "type": "harchos_hub"},
        {"type": "harchos_hub"},
        {"address": "x", "type": "aws_instance"},
        {"address": "x", "type": "harchos_dashboard"},
        {"address": "x"},
        {"address": "x", "type": "harchos_hub", "mode": "data", "change": {"actions": ["create"], "after": {}}},
    ],
)
def test_what_has_no_say_in_where_data_goes_is_passed_over(foreign: object) -> None:
    assert read(foreign, CASABLANCA) == read(CASABLANCA)


def test_an_entry_without_a_mode_is_managed_and_one_without_a_change_changes_nothing() -> None:
    plain = {key: value for key, value in CASABLANCA.items() if key != "mode"}
    assert read(plain) == read(CASABLANCA)
    assert read({"address": "x", "type": "harchos_hub"}) == ({}, ())
    assert read({"address": "x", "type": "harchos_hub", "change": {"after": {"country": "MA"}}}) == ({}, ())


# Refusals


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, "a plan is a JSON object"),
        ([], "a plan is a JSON object"),
        ({}, "the plan has format ``; major version 1 is understood"),
        ({"format_version": "10.1"}, "the plan has format `10.1`; major version 1 is understood"),
        ({"format_version": "1.0", "resource_changes": {}}, "`resource_changes` must be a list of at most 10000"),
        (
            {"format_version": "1.0", "resource_changes": [0] * (CHANGES_MAX + 1)},
            "`resource_changes` must be a list of at most 10000",
        ),
    ],
)
def test_what_is_no_plan_says_so(document: object, sentence: str) -> None:
    with pytest.raises(HarchError) as refusal:
        read_plan(document, REGISTRY)
    assert (refusal.value.code, refusal.value.message, refusal.value.hint) == ("E0201", sentence, HINT)


def test_a_plan_may_be_as_long_as_the_limit_and_may_have_nothing_in_it() -> None:
    assert read(*[0] * CHANGES_MAX) == ({}, ())
    world, changes = read_plan({"format_version": "1"}, REGISTRY)
    assert (world.size, changes) == (0, ())


def test_a_word_that_names_no_place_is_refused_with_its_attribute() -> None:
    with pytest.raises(HarchError) as refusal:
        made("harchos_network_link.l", {"hub_a": "a", "hub_b": "b", "transit_countries": ["MA", "Atlantis"]})
    assert refusal.value.code == "E0901"
    assert "harchos_network_link.l.transit_countries[1]: `Atlantis` is not a country" in refusal.value.message
    assert refusal.value.hint == "use ISO codes such as `MA`, or groups"
