"""Do the four gates stop what must be stopped, and say why?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from harch.base.rejection import Rejection
from harch.sovereignty import gates
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import (
    AccessRequest,
    GateAction,
    Migration,
    PipelineEdge,
    Replica,
    RunningWork,
    TelemetryExport,
    WorkOffer,
    admit,
    audit_resting,
    audit_running,
    before_load,
    check_edge,
    check_export,
    check_migration,
    check_offer,
    check_replica,
)
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import DataObject, Tag

Make = Callable[..., DataObject]
HUBS = ("dakhla", "tangier", "casablanca", "dakar", "abidjan")


def names(rejections: tuple[Rejection, ...]) -> set[str]:
    return {rejection.rule for rejection in rejections}


def test_moroccan_data_is_admitted_in_morocco_and_nowhere_else(rules: Rules, moroccan: Tag, data: Make) -> None:
    access = AccessRequest(id="wl", reads=(data(moroccan, "dakhla"),))
    assert [hub for hub in HUBS if admit(rules, access, hub).allowed] == ["dakhla", "tangier", "casablanca"]
    refused = admit(rules, access, "dakar")
    assert names(refused.rejections) == {"process_in", "frameworks", "key_in", "route"}
    assert all(rejection.nearest_fix for rejection in refused.rejections)
    assert "disagreement" not in names(refused.rejections)


def test_the_strictest_of_several_data_decides(rules: Rules, moroccan: Tag, west_african: Tag, data: Make) -> None:
    access = AccessRequest(id="wl", reads=(data(west_african, "abidjan"), data(moroccan, "tangier", id="d2")))
    assert not admit(rules, access, "abidjan").allowed
    assert admit(rules, access, "dakhla").allowed


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"not_found": ("ghost",)}, "data"),
        ({"countries_allowed": ("SN",)}, "residency"),
    ],
)
def test_unknown_data_and_other_countries_are_refused(
    rules: Rules, moroccan: Tag, data: Make, change: dict[str, object], rule: str
) -> None:
    access = msgspec.structs.replace(AccessRequest(id="wl", reads=(data(moroccan, "dakhla"),)), **change)
    verdict = admit(rules, access, "dakhla")
    assert not verdict.allowed
    assert names(verdict.rejections) == {rule}


def test_data_without_tag_or_place_and_unknown_hubs_are_refused(rules: Rules, moroccan: Tag, data: Make) -> None:
    assert names(admit(rules, AccessRequest(id="wl", reads=(data(None, "dakhla"),)), "dakhla").rejections) == {"tag"}
    assert names(admit(rules, AccessRequest(id="wl", reads=(data(moroccan),)), "dakhla").rejections) == {"location"}
    assert names(admit(rules, AccessRequest(id="wl"), "atlantis").rejections) == {"site"}
    lost = AccessRequest(id="wl", reads=(data(moroccan, "atlantis"),))
    assert names(admit(rules, lost, "dakhla").rejections) == {"site"}


def test_work_without_data_or_limits_may_run_anywhere(rules: Rules) -> None:
    assert all(admit(rules, AccessRequest(id="wl"), hub).allowed for hub in HUBS)


def test_one_copy_that_can_come_is_enough(rules: Rules, west_african: Tag, data: Make) -> None:
    closed = msgspec.structs.replace(west_african, may_cross_borders=False)
    assert not admit(rules, AccessRequest(id="wl", reads=(data(closed, "dakhla"),)), "dakar").allowed
    assert admit(rules, AccessRequest(id="wl", reads=(data(closed, "dakhla", "dakar"),)), "dakar").allowed


def test_what_may_be_processed_but_not_rest_must_be_scrubbed(rules: Rules, west_african: Tag, data: Make) -> None:
    borrowed = msgspec.structs.replace(west_african, rest_in=("MA",), key_in=("MA", "SN"))
    verdict = admit(rules, AccessRequest(id="wl", reads=(data(borrowed, "dakhla"),)), "dakar")
    assert verdict.allowed
    assert verdict.scrub_after
    assert not admit(rules, AccessRequest(id="wl", reads=(data(borrowed, "dakhla"),)), "dakhla").scrub_after


def test_when_fast_and_slow_rules_disagree_it_is_no(
    rules: Rules, moroccan: Tag, data: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = AccessRequest(id="wl", reads=(data(moroccan, "dakhla"),))
    monkeypatch.setattr(gates, "explain_work", lambda *_: ())
    refused = admit(rules, access, "dakar")
    assert not refused.allowed
    assert names(refused.rejections) == {"disagreement"}
    monkeypatch.setattr(gates, "explain_work", lambda *_: (Rejection("x", "y", "z"),))
    refused = admit(rules, access, "dakhla")
    assert not refused.allowed
    assert names(refused.rejections) == {"y", "disagreement"}


def test_only_hubs_that_may_run_it_hear_of_an_offer(rules: Rules, moroccan: Tag, data: Make) -> None:
    access = AccessRequest(id="wl", reads=(data(moroccan, "dakhla"),))
    verdict = check_offer(rules, WorkOffer(access=access, owner="dakhla", candidates=(*HUBS, "atlantis")))
    assert verdict.eligible == ("tangier", "casablanca")
    assert {"set-d1 at dakar", "set-d1 at abidjan", "atlantis"} <= {r.subject for r in verdict.rejections}


def test_the_agent_trusts_its_own_country_only(moroccan: Tag, data: Make) -> None:
    access = AccessRequest(id="wl", countries_allowed=("MA",), reads=(data(moroccan, "dakhla"),))
    own = LegalSite(hub="dakhla", country="MA", frameworks=("ma-law-09-08",), encrypts_at_rest=True, keys_in=("MA",))
    assert before_load(access, own).allowed
    for change, rule in (
        ({"country": "SN"}, "residency"),
        ({"country": None}, "process_in"),
        ({"encrypts_at_rest": False}, "encrypt_at_rest"),
        ({"keys_in": ("SN",)}, "key_in"),
        ({"frameworks": ()}, "frameworks"),
    ):
        verdict = before_load(access, msgspec.structs.replace(own, **change))
        assert not verdict.allowed
        assert rule in names(verdict.rejections)


def test_work_that_runs_where_it_must_not_is_paused_and_scrubbed(rules: Rules, moroccan: Tag, data: Make) -> None:
    access = AccessRequest(id="wl", reads=(data(moroccan, "dakhla"),))
    good, bad = RunningWork(access=access, hub="tangier"), RunningWork(access=access, hub="dakar")
    lost = RunningWork(access=access, hub="atlantis")
    dataless = RunningWork(access=AccessRequest(id="w2", countries_allowed=("CI",)), hub="dakar")
    violations = audit_running(rules, [good, bad, lost, dataless])
    assert [(v.subject, v.hub, v.actions) for v in violations] == [
        ("wl", "dakar", (GateAction.PAUSE, GateAction.SCRUB, GateAction.ALERT)),
        ("wl", "atlantis", (GateAction.PAUSE, GateAction.SCRUB, GateAction.ALERT)),
        ("w2", "dakar", (GateAction.PAUSE, GateAction.ALERT)),
    ]
    assert all(violation.rejections for violation in violations)


def test_a_tag_that_tightens_makes_running_work_a_violation(rules: Rules, west_african: Tag, data: Make) -> None:
    before = RunningWork(access=AccessRequest(id="wl", reads=(data(west_african, "dakar"),)), hub="dakar")
    assert audit_running(rules, [before]) == ()
    tightened = data(msgspec.structs.replace(west_african, process_in=("CI",)), "dakar")
    after = RunningWork(access=AccessRequest(id="wl", reads=(tightened,)), hub="dakar")
    assert len(audit_running(rules, [after])) == 1


def test_copies_that_may_not_rest_are_scrubbed_unless_in_lawful_use(
    rules: Rules, west_african: Tag, data: Make
) -> None:
    borrowed = data(msgspec.structs.replace(west_african, rest_in=("MA",), key_in=("MA", "SN")), "dakhla", "dakar")
    (violation,) = audit_resting(rules, [borrowed], [])
    assert (violation.hub, violation.actions) == ("dakar", (GateAction.SCRUB, GateAction.ALERT))
    running = RunningWork(access=AccessRequest(id="w", reads=(borrowed,)), hub="dakar")
    assert audit_resting(rules, [borrowed], [running]) == ()
    (untagged,) = audit_resting(rules, [data(None, "dakhla")], [])
    assert untagged.actions == (GateAction.ALERT,)  # nobody has said that it must go, so it is not destroyed


def test_a_migration_needs_the_checkpoint_and_all_data_to_be_welcome(
    rules: Rules, moroccan: Tag, west_african: Tag, data: Make
) -> None:
    access = AccessRequest(id="wl", reads=(data(west_african, "dakhla"),))

    def move(tag: Tag | None, target: str) -> set[str]:
        checkpoint = data(tag, "dakhla", id="c")
        return names(
            check_migration(rules, Migration(access=access, checkpoint=checkpoint, source="dakhla", target=target))
        )

    assert move(west_african, "dakar") == set()
    assert "process_in" in move(moroccan, "dakar")
    assert move(moroccan, "tangier") == set()
    assert "tag" in move(None, "tangier")


def test_a_replica_must_be_able_to_rest(rules: Rules, west_african: Tag, data: Make) -> None:
    borrowed = msgspec.structs.replace(west_african, rest_in=("MA",), key_in=("MA", "SN"))
    assert names(check_replica(rules, Replica(data=data(borrowed, "dakhla"), source="dakhla", target="dakar"))) == {
        "rest_in"
    }
    assert check_replica(rules, Replica(data=data(borrowed, "dakhla"), source="dakhla", target="tangier")) == ()


def test_a_stream_crosses_only_where_it_may_be_processed(rules: Rules, moroccan: Tag, west_african: Tag) -> None:
    def edge(tag: Tag | None, target: str) -> set[str]:
        return names(check_edge(rules, PipelineEdge(pipeline="p", stream=tag, source="dakhla", target=target)))

    assert edge(west_african, "abidjan") == set()
    assert "process_in" in edge(moroccan, "abidjan")
    assert edge(moroccan, "tangier") == set()
    assert "tag" in edge(None, "tangier")


def test_restricted_telemetry_stays_at_its_hub(rules: Rules, moroccan: Tag, west_african: Tag) -> None:
    def export(tag: Tag | None, viewer: str, *, stored: bool = False) -> set[str]:
        asked = TelemetryExport(stream=tag, source="dakhla", viewer=viewer, stored=stored)
        return names(check_export(rules, asked))

    assert export(moroccan, "dakhla") == set()
    assert export(moroccan, "tangier") == {"classification"}
    assert export(west_african, "dakar", stored=True) == set()
    borrowed = msgspec.structs.replace(west_african, rest_in=("MA",))
    assert export(borrowed, "dakar") == set()
    assert {"rest_in"} <= export(borrowed, "dakar", stored=True)
    assert export(None, "dakhla") >= {"tag"}
    assert export(west_african, "atlantis") >= {"site"}
