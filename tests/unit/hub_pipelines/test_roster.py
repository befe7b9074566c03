"""Workers come and go so that nobody waits, no name is used twice, and a source is never there twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.hub.pipelines.roster import RosterMember, StageTarget, WorkerRoster, holders, next_roster

Wishes = dict[str, StageTarget]


def wishes(source: int = 1, sense: int = 1, think: int = 1, act: int = 1, generation: int = 1) -> Wishes:
    counts = {"source": source, "sense": sense, "think": think, "act": act}
    return {stage: StageTarget(workers=count, generation=generation) for stage, count in counts.items()}


def names(roster: WorkerRoster, *, leaving: bool = False) -> set[str]:
    return {member.name for member in roster.members if member.leaving is leaving}


def settled(roster: WorkerRoster, wanted: Wishes) -> WorkerRoster:
    """Everybody becomes ready, and whoever leaves ends."""
    for _ in range(6):
        staying = names(roster)
        roster = next_roster(roster, wanted, ready=staying, running=staying)
    return roster


def test_a_new_worker_takes_over_when_it_is_ready_and_not_before() -> None:
    first = settled(WorkerRoster(), wishes())
    assert names(first) == {"source-0", "sense-0", "think-0", "act-0"}
    changed = {**wishes(), "think": StageTarget(workers=1, generation=2)}
    both = next_roster(first, changed, ready=names(first), running=names(first))
    assert names(both) == {"source-0", "sense-0", "think-0", "think-1", "act-0"}
    after = next_roster(both, changed, ready=names(both), running=names(both))
    assert names(after, leaving=True) == {"think-0"}
    assert names(after) == {"source-0", "sense-0", "think-1", "act-0"}


def test_a_source_ends_before_the_next_one_starts() -> None:
    first = settled(WorkerRoster(), wishes())
    changed = {**wishes(), "source": StageTarget(workers=1, generation=2)}
    ending = next_roster(first, changed, ready=names(first), running=names(first))
    assert [member.name for member in ending.of("source")] == ["source-0"]
    assert ending.of("source")[0].leaving
    waiting = next_roster(ending, changed, ready=(), running=names(first))
    assert [member.name for member in waiting.of("source")] == ["source-0"]
    gone = next_roster(waiting, changed, ready=(), running=names(first) - {"source-0"})
    assert [member.name for member in gone.of("source")] == ["source-1"]


def test_workers_that_share_devices_out_are_all_new_when_their_number_changes() -> None:
    two = settled(settled(WorkerRoster(), wishes()), wishes(act=2))
    assert {(member.slot, member.slots) for member in two.of("act")} == {(0, 2), (1, 2)}
    assert "act-0" not in names(two)


def test_a_worker_that_may_reach_something_else_now_is_replaced_though_the_file_is_the_same() -> None:
    first = settled(WorkerRoster(), wishes())
    changed = {**wishes(), "act": StageTarget(workers=1, generation=1, access="other places")}
    after = settled(first, changed)
    assert names(after) == {"source-0", "sense-0", "think-0", "act-1"}
    assert settled(after, changed) == after


def test_partitions_go_to_those_who_are_well() -> None:
    roster = WorkerRoster(members=tuple(RosterMember(name=f"sense-{n}", stage="sense", generation=1) for n in range(3)))
    assert holders(roster, "sense", ready=()) == ["sense-0", "sense-1", "sense-2"]
    assert holders(roster, "sense", ready={"sense-1"}) == ["sense-1"]
    assert holders(roster, "sense", ready={"sense-0", "sense-1", "sense-2"}) == ["sense-0", "sense-1", "sense-2"]


STAGES = ("source", "sense", "think", "act")


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Wishes, float, float]]:
    found = []
    for _ in range(draw(st.integers(1, 12))):
        wanted = {
            stage: StageTarget(
                workers=draw(st.integers(0, 1 if stage == "source" else 4)), generation=draw(st.integers(1, 3))
            )
            for stage in STAGES
        }
        found.append((wanted, draw(st.floats(0, 1)), draw(st.floats(0, 1))))
    return found


@given(steps(), st.randoms(use_true_random=False))
def test_whatever_is_wanted_and_whoever_fails_rules_hold_and_it_settles(
    asked: list[tuple[Wishes, float, float]], random: object
) -> None:
    roster, running, used = WorkerRoster(), set[str](), set[str]()
    wanted: Wishes = {}
    for wanted, well, ended in asked:
        ready = {name for name in running if random.random() < well}  # type: ignore[attr-defined]
        after = next_roster(roster, wanted, ready=ready, running=running)
        fresh = names(after) - names(roster)
        assert not fresh & used, "a name was used twice"
        used |= fresh
        sources = [member for member in after.of("source") if member.name in running or not member.leaving]
        assert len(sources) <= 1, "two sources at once"
        for stage in ("sense", "think", "act"):
            if any(not member.leaving for member in roster.of(stage)) and wanted[stage].workers:
                assert any(not member.leaving for member in after.of(stage)), f"nobody is left in {stage}"
        running |= names(after)
        running -= {name for name in names(after, leaving=True) if random.random() < ended}  # type: ignore[attr-defined]
        running &= names(after) | names(after, leaving=True)
        roster = after
    final = settled(roster, wanted)
    for stage in STAGES:
        members = final.of(stage)
        assert len(members) == wanted[stage].workers
        assert all(member.generation == wanted[stage].generation and not member.leaving for member in members)
    assert sorted(member.slot for member in final.of("act")) == list(range(wanted["act"].workers))
