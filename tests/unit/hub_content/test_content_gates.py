"""May these bytes be read here, and may that hub have them?"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.fleet.file import shipped_fleet
from harch.hub.content.gates import check_arrive, check_read, check_send, is_entitled
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, parse_tag
from harch.testing.sovereignty import random_tag
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

FLEET = shipped_fleet("five-hubs")
RULES = Rules(terrain_of(FLEET, shipped_jurisdictions()))
HUBS = [hub.id for hub in FLEET.hubs]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(tag: Tag | None, *, home: str = "", hubs: tuple[str, ...] = ("dakhla",)) -> CatalogEntry:
    data = DataObject(id="data_x", kind=DataKind.ARTIFACT, name="x", tenant="t", tag=tag, hubs=hubs)
    return CatalogEntry(object=data, created_at=NOW, updated_at=NOW, content="ab" * 32, home=home)


def tag(**fields: object) -> Tag:
    return parse_tag({"process_in": ["MA"], "rest_in": ["MA"], **fields}, shipped_jurisdictions())


def refused(check: object, *arguments: object) -> str:
    with pytest.raises(HarchError) as caught:
        check(RULES, *arguments)  # type: ignore[operator]
    assert caught.value.code == "E0907"
    assert caught.value.meta["problems"]
    return caught.value.message


def test_what_may_be_processed_only_in_morocco_is_read_and_sent_only_there() -> None:
    moroccan = entry(tag())
    check_read(RULES, moroccan, "tangier")
    check_send(RULES, moroccan, "dakhla", "tangier")
    check_arrive(RULES, moroccan, "dakhla", "tangier")
    for hub in ("dakar", "abidjan"):
        assert "allowed: MA" in refused(check_read, moroccan, hub)
        refused(check_send, moroccan, "dakhla", hub)
        refused(check_arrive, moroccan, "dakhla", hub)


def test_what_is_not_tagged_or_at_an_unknown_hub_is_never_read_or_sent() -> None:
    for unknown in ((entry(None), "dakhla"), (entry(tag()), "atlantis")):
        refused(check_read, *unknown)
    refused(check_send, entry(None), "dakhla", "tangier")
    refused(check_send, entry(tag()), "dakhla", "atlantis")
    refused(check_arrive, entry(tag()), "atlantis", "tangier")


def test_a_tag_that_lets_data_be_processed_abroad_but_not_cross_borders_keeps_it() -> None:
    at_home = entry(tag(process_in=["MA", "SN"], rest_in=["MA", "SN"], key_in=["MA", "SN"]))
    assert "border" in refused(check_send, at_home, "dakhla", "dakar")
    refused(check_arrive, at_home, "dakhla", "dakar")


def test_code_and_results_of_which_nobody_said_more_go_everywhere() -> None:
    free = entry(RULES.open_tag())
    for hub in HUBS:
        check_read(RULES, free, hub)
        if hub != "dakhla":
            check_send(RULES, free, "dakhla", hub)
    bound = entry(RULES.open_tag(["MA"]))
    check_send(RULES, bound, "dakhla", "casablanca")
    refused(check_send, bound, "dakhla", "dakar")


@given(st.integers(0, 2**32 - 1), st.sampled_from(HUBS), st.sampled_from(HUBS))
def test_a_gate_opens_only_where_the_compiled_rules_do(seed: int, source: str, target: str) -> None:
    tag = random_tag(np.random.default_rng(seed), RULES.terrain)
    for check, allowed in (
        (lambda: check_read(RULES, entry(tag), target), RULES.may_process(tag, target)),
        (lambda: check_send(RULES, entry(tag), source, target), RULES.may_move(tag, source, target)),
        (lambda: check_arrive(RULES, entry(tag), source, target), RULES.may_move(tag, source, target)),
    ):
        try:
            check()
        except HarchError:
            continue
        assert allowed


def test_a_hub_gets_only_what_work_lent_to_it_reads_and_what_is_its_own() -> None:
    spec = WorkloadSpec(name="w", command=("true",))
    reads = Workload(
        id="wl_1", tenant="t", owner_hub="dakhla", spec=spec, created_at=NOW, updated_at=NOW, data_ids=("data_x",)
    )
    other = Workload(id="wl_2", tenant="t", owner_hub="dakhla", spec=spec, created_at=NOW, updated_at=NOW)
    assert is_entitled(entry(tag()), "dakar", [reads])
    assert not is_entitled(entry(tag()), "dakar", [other])
    assert not is_entitled(entry(tag()), "dakar", [])
    assert is_entitled(entry(tag(), home="dakar"), "dakar", [])
