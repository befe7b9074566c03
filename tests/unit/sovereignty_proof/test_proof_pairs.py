"""Do search and solver tell a world that goes wrong from its harmless twin? One difference per pair."""

from __future__ import annotations

import pytest
import z3
from msgspec.structs import replace

from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.model import (
    ChangeTracks,
    ClusterResource,
    Dataset,
    Export,
    FlowResource,
    HubResource,
    LinkResource,
    NodeResource,
    Overflow,
    PipelineResource,
    Policy,
    Resource,
    Stage,
    WorkloadResource,
    world_of,
)
from harch.sovereignty.proof.symbolic import SolverReply, solve
from harch.sovereignty.tags import Classification, Tag


def tag(*countries: str, **changes: object) -> Tag:
    plain = Tag(
        process_in=countries,
        rest_in=countries,
        transit_in=(),
        may_cross_borders=False,
        frameworks=(),
        classification=Classification.INTERNAL,
        encrypt_at_rest=False,
        encrypt_in_transit=False,
        key_in=countries,
    )
    return replace(plain, **changes)


A, B = HubResource(id="a", country="MA"), HubResource(id="b", country="MA")
C = HubResource(id="c", country="SN")
D = HubResource(id="d", country="MA")
DATA = Dataset(id="x", tag=tag("MA"))
WIDE = Dataset(id="y", tag=tag("MA", "SN"))
WORK = WorkloadResource(id="w", reads=("x",), hubs=("a",))
LIAR = ClusterResource(id="k", hub="c", countries=("MA",))
HOME = ClusterResource(id="h", hub="a")
LYING = LinkResource(id="l", ends=("a", "b"), transit_true=("ES",))
HONEST = LinkResource(id="l", ends=("a", "b"), transit_true=())
Breach = tuple[str, str, str, str, str]  # kind, data, hub, cluster, link


def over(id: str, source: str, target: str, *, on_failure: bool = False) -> Overflow:
    return Overflow(id=id, source=source, target=target, only_on_failure=on_failure)


def piped(*reads: str, **more: object) -> PipelineResource:
    return replace(PipelineResource(id="q", reads=reads), **more)


SPILLED: Breach = ("spill_over", "x", "c", "k", "")
PLACED: Breach = ("placement", "x", "c", "k", "")
ROUTED: Breach = ("route", "x", "b", "", "l")
PAIRS: dict[str, tuple[tuple[Resource, ...], tuple[Resource, ...], Breach]] = {
    "one hop": ((DATA, WORK, LIAR, over("1", "a", "c")), (DATA, WORK, LIAR, over("1", "b", "c")), SPILLED),
    "two hops": (
        (DATA, WORK, LIAR, over("1", "a", "b"), over("2", "b", "c")),
        (DATA, WORK, LIAR, over("1", "b", "a"), over("2", "b", "c")),
        SPILLED,
    ),
    "three hops": (
        (DATA, WORK, LIAR, over("3", "d", "c"), over("2", "b", "d"), over("1", "a", "b")),
        (DATA, WORK, LIAR, over("3", "d", "c"), over("1", "a", "b")),
        SPILLED,
    ),
    "a circle of hops": (
        (DATA, WORK, LIAR, over("1", "a", "b"), over("2", "b", "a"), over("3", "b", "c")),
        (DATA, WORK, LIAR, over("1", "a", "b"), over("2", "b", "a"), over("3", "d", "c")),
        SPILLED,
    ),
    "a hop on failure": (
        (DATA, WORK, LIAR, over("1", "a", "c", on_failure=True)),
        (DATA, WORK, LIAR, over("1", "b", "c", on_failure=True)),
        SPILLED,
    ),
    "a hop on failure and one without": (
        (DATA, WORK, LIAR, over("1", "a", "b", on_failure=True), over("2", "b", "c")),
        (DATA, WORK, LIAR, over("1", "a", "b", on_failure=True), over("2", "b", "c", on_failure=True)),
        SPILLED,
    ),
    "a hop from the hub of a named cluster": (
        (DATA, HOME, LIAR, WorkloadResource(id="w", reads=("x",), clusters=("h",)), over("1", "a", "c")),
        (DATA, HOME, LIAR, WorkloadResource(id="w", reads=("x",), clusters=("h",)), over("1", "b", "c")),
        SPILLED,
    ),
    "one of two named clusters": (
        (DATA, HOME, LIAR, WorkloadResource(id="w", reads=("x",), clusters=("h", "k"))),
        (DATA, HOME, LIAR, WorkloadResource(id="w", reads=("x",), clusters=("h", "gone"))),
        PLACED,
    ),
    "a named hub": (
        (DATA, LIAR, replace(WORK, hubs=("a", "c"))),
        (DATA, LIAR, replace(WORK, hubs=("a", "b"))),
        PLACED,
    ),
    "a cluster that claims a law": (
        (
            replace(DATA, tag=tag("MA", "SN", frameworks=("law",))),
            replace(WORK, hubs=("c",)),
            replace(LIAR, countries=None, frameworks=("law",)),
        ),
        (
            replace(DATA, tag=tag("MA", "SN", frameworks=("law",))),
            replace(WORK, hubs=("c",)),
            replace(LIAR, countries=None, frameworks=("other",)),
        ),
        PLACED,
    ),
    "a law that only a policy demands": (
        (
            replace(WIDE, id="x"),
            Policy(id="p", frameworks=("law",)),
            replace(WORK, hubs=("c",)),
            replace(LIAR, countries=None, frameworks=("law",)),
        ),
        (replace(WIDE, id="x"), Policy(id="p"), replace(WORK, hubs=("c",)), replace(LIAR, countries=None)),
        PLACED,
    ),
    "a node elsewhere": (
        (DATA, WORK, HOME, NodeResource(id="n", cluster="h", hub="c")),
        (DATA, WORK, HOME, NodeResource(id="n", cluster="other", hub="c")),
        ("placement", "x", "c", "h", ""),
    ),
    "the second of two reads": (
        (WIDE, DATA, replace(WORK, reads=("y", "x"), hubs=("c",)), LIAR),
        (WIDE, DATA, replace(WORK, reads=("y",), hubs=("c",)), LIAR),
        PLACED,
    ),
    "countries of the work": (
        (replace(WORK, reads=(), countries=("MA",), hubs=("c",)), LIAR),
        (replace(WORK, reads=(), countries=("MA", "SN"), hubs=("c",)), LIAR),
        ("placement", "", "c", "k", ""),
    ),
    "the way to where the work is": (
        (replace(DATA, hubs=("a",)), replace(WORK, hubs=("b",)), replace(HOME, hub="b"), LYING),
        (replace(DATA, hubs=("a",)), replace(WORK, hubs=("b",)), replace(HOME, hub="b"), HONEST),
        ("route", "x", "b", "h", "l"),
    ),
    "two copies": (
        (replace(DATA, hubs=("a", "b")), LYING),
        (replace(DATA, hubs=("a", "b")), HONEST),
        ROUTED,
    ),
    "a third copy": (
        (replace(DATA, hubs=("a", "d", "b")), LYING),
        (replace(DATA, hubs=("d", "a", "b")), LYING),
        ROUTED,
    ),
    "a copy in a wrong country": (
        (replace(DATA, hubs=("a", "c")),),
        (replace(DATA, hubs=("a", "b")),),
        ("replica", "x", "c", "", ""),
    ),
    "a policy for exactly these labels": (
        (
            Dataset(id="x", tag=tag("MA", "SN"), hubs=("c",), labels={"class": "x"}),
            Policy(id="p", countries=("MA",), selector={"class": "x"}),
        ),
        (
            Dataset(id="x", tag=tag("MA", "SN"), hubs=("c",), labels={"class": "x"}),
            Policy(id="p", countries=("MA",), selector={"class": "x", "more": "y"}),
        ),
        ("replica", "x", "c", "", ""),
    ),
    "a flow to a wrong country": (
        (replace(DATA, flows=(FlowResource(source="a", target="c"),)),),
        (replace(DATA, flows=(FlowResource(source="a", target="b"),)),),
        ("replica", "x", "c", "", ""),
    ),
    "a flow on its link": (
        (replace(DATA, flows=(FlowResource(source="d", target="b", via=("l",)),)), LYING),
        (replace(DATA, flows=(FlowResource(source="d", target="b", via=("l", "gone")),)), LYING),
        ROUTED,
    ),
    "a spare in a wrong country": (
        (replace(DATA, hubs=("a",), spares=("c",)),),
        (replace(DATA, hubs=(), spares=("c",)),),
        ("replica", "x", "c", "", ""),
    ),
    "the way to a spare": (
        (replace(DATA, hubs=("d", "a"), spares=("b",)), LYING),
        (replace(DATA, hubs=("a",), spares=("b",)), LYING),  # the only source is what has failed
        ROUTED,
    ),
    "the first source of a stream": (
        (DATA, WIDE, piped("x", "y", flows=(FlowResource(source="a", target="c"),))),
        (replace(DATA, tag=WIDE.tag), WIDE, piped("x", "y", flows=(FlowResource(source="a", target="c"),))),
        ("pipeline_edge", "x", "c", "", ""),
    ),
    "the last source of a stream": (
        (DATA, WIDE, replace(WIDE, id="z"), piped("y", "z", "x", flows=(FlowResource(source="a", target="c"),))),
        (WIDE, replace(WIDE, id="z"), piped("y", "z", flows=(FlowResource(source="a", target="c"),))),
        ("pipeline_edge", "y", "c", "", ""),
    ),
    "an edge between two stages": (
        (
            *(DATA, HOME, replace(HOME, id="g", hub="b"), LYING),
            piped("x", stages=(Stage(name="1", clusters=("h",)), Stage(name="2", clusters=("g",)))),
        ),
        (
            *(DATA, HOME, replace(HOME, id="g", hub="b"), LYING),
            piped("x", stages=(Stage(name="1", clusters=("h",)), Stage(name="2", clusters=("h",)))),
        ),
        ("pipeline_edge", "x", "b", "", "l"),
    ),
    "a stage on a cluster that lies": (
        (DATA, HOME, LIAR, piped("x", stages=(Stage(name="1"),))),
        (DATA, HOME, LIAR, piped("x", stages=(Stage(name="1", clusters=("h",)),))),
        PLACED,
    ),
    "telemetry to a wrong country": (
        (DATA, Export(id="e", data=("x",), source="a", target="c")),
        (DATA, Export(id="e", data=("x",), source="a", target="b")),
        ("telemetry_export", "x", "c", "", ""),
    ),
    "telemetry of restricted data": (
        (
            replace(DATA, tag=tag("MA", classification=Classification.RESTRICTED)),
            Export(id="e", data=("x",), source="a", target="b"),
        ),
        (
            replace(DATA, tag=tag("MA", classification=Classification.RESTRICTED)),
            Export(id="e", data=("x",), source="b", target="b"),
        ),
        ("telemetry_export", "x", "b", "", ""),
    ),
    "telemetry under a law": (
        (replace(DATA, tag=tag("MA", frameworks=("law",))), Export(id="e", data=("x",), source="b", target="b")),
        (replace(DATA, tag=tag("MA")), Export(id="e", data=("x",), source="b", target="b")),
        ("telemetry_export", "x", "b", "", ""),
    ),
    "the way of telemetry": (
        (DATA, Export(id="e", data=("x",), source="a", target="b"), LYING),
        (DATA, Export(id="e", data=("x",), source="a", target="b"), HONEST),
        ROUTED,
    ),
    "a link that is not encrypted": (
        (
            replace(
                DATA, tag=tag("MA", encrypt_in_transit=True), flows=(FlowResource(source="a", target="b", via=("l",)),)
            ),
            HONEST,
        ),
        (
            replace(
                DATA, tag=tag("MA", encrypt_in_transit=True), flows=(FlowResource(source="a", target="b", via=("l",)),)
            ),
            replace(HONEST, encrypted=True),
        ),
        ROUTED,
    ),
    "a hub that does not encrypt": (
        (replace(DATA, tag=tag("MA", encrypt_at_rest=True), hubs=("b",)),),
        (replace(DATA, tag=tag("MA", encrypt_at_rest=True), hubs=("safe",)),),
        ("replica", "x", "b", "", ""),
    ),
    "a hub without the right key": (
        (replace(DATA, tag=tag("MA", encrypt_at_rest=True, key_in=("SN",)), hubs=("safe",)),),
        (replace(DATA, tag=tag("MA", encrypt_at_rest=True, key_in=("MA",)), hubs=("safe",)),),
        ("replica", "x", "safe", "", ""),
    ),
    "a border that must not be crossed": (
        (
            Dataset(id="x", tag=tag("MA", "SN"), flows=(FlowResource(source="a", target="c", via=("l",)),)),
            LinkResource(id="l", ends=("a", "c")),
        ),
        (
            Dataset(
                id="x",
                tag=tag("MA", "SN", may_cross_borders=True),
                flows=(FlowResource(source="a", target="c", via=("l",)),),
            ),
            LinkResource(id="l", ends=("a", "c")),
        ),
        ("route", "x", "c", "", "l"),
    ),
}
SAFE = HubResource(id="safe", country="MA", encrypts_at_rest=True, keys_in=("MA",))


@pytest.mark.parametrize("what", PAIRS)
def test_a_world_that_goes_wrong_is_distinguished_from_its_twin(what: str) -> None:
    bad, good, breach = PAIRS[what]
    wrong = ChangeTracks(world_of(A, B, C, D, SAFE, *bad))
    assert {one.step.breach for one in enumerate_violations(wrong).violations} == {breach}
    answer = solve(wrong, z3)
    kind, data, hub, cluster, link = breach
    assert answer.reply is SolverReply.POSSIBLE
    assert answer.event[0] == ("placement" if kind == "spill_over" else kind)
    assert (*answer.event, "", "", "")[2:5] == (data, hub, cluster)
    assert (*answer.event, "", "", "")[6] == link
    right = ChangeTracks(world_of(A, B, C, D, SAFE, *good))
    assert enumerate_violations(right).violations == ()
    assert solve(right, z3).reply is SolverReply.NEVER
