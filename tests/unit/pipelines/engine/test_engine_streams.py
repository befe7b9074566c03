"""Do plans change only what differs, do limits refuse early, and does the audit find every kind of violation?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.engine.audit import DomainPolicy, audit_disk, audit_streams, may_pass, observe
from harch.pipelines.engine.layout import ServerLimits
from harch.pipelines.engine.streams import (
    ConsumerSpec,
    DesiredStreams,
    ExistingStreams,
    Storage,
    StreamSpec,
    StreamVerb,
    advisory_stream,
    bucket_stream,
    check_streams,
    plan_streams,
)
from harch.sovereignty.gates import GateAction

MIB = 1 << 20
ACT = StreamSpec(name="ma-soil-act", country="MA", subjects=("juris.ma.soil.act.*",), max_bytes=MIB)
READER = ConsumerSpec(stream="ma-soil-act", name="act", filter_subject="juris.ma.soil.act.*")
WANTED = DesiredStreams(
    streams=(ACT, bucket_stream("ma-soil-state", "MA", max_bytes=MIB), advisory_stream("MA")), consumers=(READER,)
)
POLICY = DomainPolicy(
    country="MA", domain="ma", account="JURIS_MA", servers=frozenset({"ma-1", "ma-2", "ma-3"}), wanted=WANTED
)


def as_found(wanted: DesiredStreams, *, sparse: bool = False) -> ExistingStreams:
    """What JetStream would tell of it: with `sparse`, without all that is false, zero or empty."""

    def told(config: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if value or not sparse}

    return ExistingStreams(
        streams={spec.name: told(spec.wire()) for spec in wanted.streams},
        consumers={(spec.stream, spec.name): told(spec.wire()) for spec in wanted.consumers},
    )


@pytest.mark.parametrize("sparse", [True, False])
def test_a_plan_creates_what_is_missing_and_then_has_nothing_left_to_do(sparse: bool) -> None:
    plan = plan_streams(WANTED, ExistingStreams())
    assert [change.verb for change in plan.changes] == [StreamVerb.CREATE] * 4
    assert plan.changes[-1].consumer == "act"
    assert plan_streams(WANTED, as_found(WANTED, sparse=sparse)).changes == ()


def test_only_what_differs_is_updated_unknown_streams_are_told_and_only_named_ones_deleted() -> None:
    found = as_found(WANTED)
    larger = DesiredStreams(streams=(msgspec.structs.replace(ACT, max_bytes=2 * MIB), *WANTED.streams[1:]))
    (change,) = plan_streams(larger, found).changes
    assert (change.verb, change.stream, change.fields) == (StreamVerb.UPDATE, "ma-soil-act", ("max_bytes",))
    less = plan_streams(DesiredStreams(streams=(ACT,)), found)
    assert less.changes == ()
    assert less.unknown == ("KV_ma-soil-state", "ma-advisories")
    removed = plan_streams(DesiredStreams(streams=(ACT,)), found, remove=["KV_ma-soil-state", "not-there"])
    assert [(c.verb, c.stream) for c in removed.changes] == [(StreamVerb.DELETE, "KV_ma-soil-state")]
    memory = plan_streams(DesiredStreams(streams=(msgspec.structs.replace(ACT, storage=Storage.MEMORY),)), found)
    assert memory.changes == ()
    assert [refusal.rule for refusal in memory.refusals] == ["fixed"]


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    other=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    copies=st.sampled_from([1, 3]),
)
def test_after_applying_a_plan_there_is_nothing_left_to_plan(sizes: list[int], other: list[int], copies: int) -> None:
    def wanted(numbers: list[int]) -> DesiredStreams:
        return DesiredStreams(
            streams=tuple(
                StreamSpec(
                    name=f"s{i}",
                    country="MA",
                    subjects=(f"juris.ma.p{i}.act.*",),
                    max_bytes=number * MIB,
                    replicas=copies,
                )
                for i, number in enumerate(numbers)
            )
        )

    found = dict(as_found(wanted(other)).streams)
    for change in plan_streams(wanted(sizes), ExistingStreams(streams=found)).changes:
        found[change.stream] = change.config
    assert plan_streams(wanted(sizes), ExistingStreams(streams=found)).changes == ()


def test_a_stream_that_forgets_soon_remembers_duplicates_no_longer() -> None:
    """JetStream refuses a window of duplicates that is longer than what it keeps."""
    for age_s, window_s in ((30.0, 30), (0.0, 120), (3600.0, 120)):
        wire = bucket_stream("b", "MA", max_bytes=MIB, max_age_s=age_s).wire()
        assert wire["duplicate_window"] == window_s * 1_000_000_000


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": -1}, "max_bytes"),  # unlimited to JetStream, and so to the hub's disk
        ({"max_bytes": 300 * MIB, "storage": Storage.MEMORY}, "max_bytes"),
        ({"replicas": 3}, "replicas"),
        ({"replicas": 2}, "replicas"),
        ({"max_message_bytes": 16 * MIB}, "max_message_bytes"),
        ({"subjects": ("juris.sn.soil.act.*",)}, "subject"),
        ({"subjects": (">",)}, "subject"),
        ({"subjects": ("$JS.API.>",)}, "subject"),
        ({"storage": Storage.MEMORY}, "storage"),
    ],
)
def test_what_the_engine_would_refuse_or_regret_is_refused_before(fields: dict[str, Any], rule: str) -> None:
    wanted = DesiredStreams(streams=(msgspec.structs.replace(ACT, **fields),))
    assert rule in {found.rule for found in check_streams(wanted, ServerLimits(), servers=1, synced=True)}
    assert check_streams(WANTED, ServerLimits(), servers=1, synced=True) == ()


def test_the_sum_of_all_streams_must_fit_too_with_their_copies() -> None:
    many = DesiredStreams(
        streams=tuple(
            StreamSpec(name=f"s{n}", country="MA", subjects=(f"juris.ma.p{n}.act.*",), max_bytes=1000 * MIB, replicas=3)
            for n in range(5)
        )
    )
    assert {found.rule for found in check_streams(many, ServerLimits(), servers=3)} == {"file_bytes"}
    twice = DesiredStreams(streams=(ACT, msgspec.structs.replace(ACT, name="again")))
    assert {found.rule for found in check_streams(twice, ServerLimits(), servers=1)} == {"subject"}
    orphan = DesiredStreams(consumers=(READER,))
    assert {found.rule for found in check_streams(orphan, ServerLimits(), servers=1)} == {"stream"}


def info(spec: StreamSpec = ACT, **fields: Any) -> dict[str, Any]:
    cluster = fields.pop("cluster", {"leader": "ma-1", "replicas": [{"name": "ma-2"}]})
    return {"config": {**spec.wire(), **fields}, "cluster": cluster}


def audited(*infos: dict[str, Any], consumers: list[dict[str, Any]] | None = None) -> set[str]:
    others = [info(spec) for spec in WANTED.streams if spec.name not in {i["config"]["name"] for i in infos}]
    observed = [observe(infos[0], consumers or [])] if infos else []
    observed += [observe(i) for i in (*infos[1:], *others)]
    return {rejection.rule for violation in audit_streams(POLICY, observed) for rejection in violation.rejections}


def test_a_domain_as_planned_has_no_violation() -> None:
    ours = {"name": "act", "config": {"durable_name": "act"}}
    assert audited(info(), consumers=[ours]) == set()
    scan = {"name": "x", "config": {"deliver_subject": "_INBOX.ma-soil-act.1"}}
    assert audited(info(WANTED.streams[1]), consumers=[scan]) == set()  # the owner of a bucket lists its keys


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"cluster": {"leader": "sn-1"}}, "leader"),
        ({"cluster": {"leader": "ma-1", "replicas": [{"name": "sn-1"}]}}, "replica"),
        ({"mirror": {"name": "x"}}, "mirror"),
        ({"sources": [{"name": "x", "external": {"api": "$JS.sn.API"}}]}, "sources"),
        ({"republish": {"src": ">", "dest": "out.>"}}, "republish"),
        ({"subject_transform": {"src": ">", "dest": "out.>"}}, "subject_transform"),
        ({"placement": {"tags": ["country:sn"]}}, "placement"),
        ({"subjects": ["juris.ma.soil.act.*", "juris.sn.>"]}, "subject"),
        ({"subjects": ["juris.ma.>"]}, "subject"),
        ({"num_replicas": 3}, "config"),
        ({"deny_delete": False}, "config"),
        ({"name": "extra"}, "unknown"),
    ],
)
def test_each_kind_of_violation_is_found_paused_and_told(fields: dict[str, Any], rule: str) -> None:
    observed = [observe(info(**fields))]
    found = next(v for v in audit_streams(POLICY, observed) if v.subject == fields.get("name", "ma-soil-act"))
    assert rule in {rejection.rule for rejection in found.rejections}
    paused = (GateAction.PAUSE, GateAction.ALERT)
    assert found.actions == (
        (GateAction.ALERT,) if rule == "config" else paused
    )  # size and safety are told, place stops
    assert all(rejection.nearest_fix for rejection in found.rejections)


def test_copies_that_are_missing_or_behind_are_told_and_may_pass() -> None:
    wanted = msgspec.structs.replace(ACT, replicas=3)
    policy = msgspec.structs.replace(
        POLICY, servers=frozenset({"ma-1", "ma-2", "ma-3"}), wanted=DesiredStreams(streams=(wanted,))
    )

    def found(*replicas: dict[str, Any]) -> list[Any]:
        seen = observe(info(wanted, cluster={"leader": "ma-1", "replicas": list(replicas)}))
        return [(one.actions, may_pass(one), one.rejections) for one in audit_streams(policy, [seen])]

    whole = ({"name": "ma-2", "current": True}, {"name": "ma-3", "current": True})
    assert found(*whole) == []
    for fewer in (whole[:1], (whole[0], {"name": "ma-3"})):
        ((actions, passes, rejections),) = found(*fewer)
        assert (actions, passes, {one.rule for one in rejections}) == ((GateAction.ALERT,), True, {"copies"})
    ((actions, passes, _),) = found(whole[0], {"name": "sn-1", "current": True})
    assert (actions, passes) == ((GateAction.PAUSE, GateAction.ALERT), False)  # the place counts more


@pytest.mark.parametrize(
    ("consumer", "rule"),
    [
        ({"name": "thief", "config": {"durable_name": "thief"}}, "consumer"),
        ({"name": "act", "config": {"durable_name": "act", "deliver_subject": "elsewhere"}}, "delivery"),
        ({"name": "x", "config": {"deliver_subject": "_INBOX.x"}}, "consumer"),
    ],
)
def test_consumers_that_nobody_made_are_found(consumer: dict[str, Any], rule: str) -> None:
    assert rule in audited(info(), consumers=[consumer])


def test_missing_and_silent_streams_are_told_but_not_paused() -> None:
    violations = audit_streams(POLICY, [observe({"config": {"name": "ma-soil-act"}, "unanswered": True})])
    by_name = {violation.subject: violation for violation in violations}
    assert by_name["ma-soil-act"].rejections[0].rule == "unanswered"
    assert by_name["KV_ma-soil-state"].rejections[0].rule == "missing"
    assert {violation.actions for violation in violations} == {(GateAction.ALERT,)}


def test_what_rests_on_disk_and_is_not_wanted_is_scrubbed() -> None:
    kept = [("JURIS_MA", "ma-soil-act"), ("JURIS_MA", "old"), ("JURIS_SN", "ma-soil-act"), ("$G", "anything")]
    found = audit_disk(POLICY, kept)
    assert [violation.subject for violation in found] == ["old", "ma-soil-act", "anything"]
    assert all(GateAction.SCRUB in violation.actions for violation in found)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=5,
    )
)
def test_a_stream_that_is_told_oddly_is_a_violation_and_never_a_crash(value: Any) -> None:
    config = {**ACT.wire(), "mirror": value, "placement": value}
    violations = audit_streams(POLICY, [observe({"config": config})])
    odd = [violation for violation in violations if violation.subject == ACT.name]
    assert bool(odd) is bool(value)
