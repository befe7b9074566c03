"""The gossip machine by hand: who is asked when, what a gap leads to, who is not believed, what is told of it."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.membership import (
    NEWS_MAX,
    REFUSALS_MAX,
    Appeared,
    Forged,
    IdentityCloned,
    LivenessState,
    NewsQueue,
    Reason,
    Recovered,
    StateChanged,
    Suspected,
)
from harch.federation.gossip.messages import HUBS_MAX, GossipAck, Message, Outgoing, Push, Syn, SynAck
from harch.federation.gossip.state import GossipSettings
from sim.gossip_world import HashSigner, HashVerifier

NAMES = ["abidjan", "casablanca", "dakar", "dakhla", "tangier"]
INTERVAL_S = GossipSettings().interval_s


def gossip(
    me: str = "dakhla",
    members: list[str] = NAMES,
    *,
    generation: int = 1,
    settings: GossipSettings | None = None,
    signer: HashSigner | None = None,
) -> Gossip:
    return Gossip(
        me,
        generation=generation,
        members=members,
        signer=signer or HashSigner(me),
        verifier=HashVerifier(),
        dice=random.Random(me),
        now_s=0.0,
        settings=settings,
    )


def exchange(one: Gossip, two: Gossip, now_s: float = 0.0) -> list[Message]:
    """`one` beats and asks `two`; all answers go back and forth until there are none. Returns what was said."""
    one.next_tick_s = now_s
    asked = [outgoing for outgoing in one.tick(now_s) if outgoing.to == two.me]
    while not asked:  # it was not its turn
        one.next_tick_s = now_s
        asked = [outgoing for outgoing in one.tick(now_s) if outgoing.to == two.me]
    return deliver([(one.me, outgoing) for outgoing in asked], {one.me: one, two.me: two}, now_s)


def deliver(pending: list[tuple[str, Outgoing]], machines: dict[str, Gossip], now_s: float = 0.0) -> list[Message]:
    said: list[Message] = []
    while pending:
        source, outgoing = pending.pop(0)
        if outgoing.to in machines:
            said.append(outgoing.message)
            answers = machines[outgoing.to].receive(source, outgoing.message, now_s)
            pending += [(outgoing.to, answer) for answer in answers]
        assert len(said) < 100, "they answer each other forever"
    return said


# Speaking


@pytest.mark.parametrize(("hubs", "turns"), [(2, 1), (3, 1), (5, 2), (6, 3), (20, 3)])
def test_a_tick_asks_half_of_the_peers_three_at_most_and_is_due_again_after_about_an_interval(
    hubs: int, turns: int
) -> None:
    machine, now_s = gossip("hub00", [f"hub{number:02d}" for number in range(hubs)]), 0.0
    for _ in range(100):
        asked = machine.tick(now_s)
        assert len({outgoing.to for outgoing in asked} - {"hub00"}) == turns
        assert all(isinstance(outgoing.message, Syn) for outgoing in asked)
        assert 0.9 * INTERVAL_S <= machine.next_tick_s - now_s <= 1.1 * INTERVAL_S
        assert machine.tick(now_s + 0.5 * INTERVAL_S) == [], "not due yet"
        now_s = machine.next_tick_s


def test_everybody_is_asked_once_before_anybody_is_asked_twice_suspected_or_not() -> None:
    names = [f"hub{number:02d}" for number in range(20)]
    machine = gossip("hub00", names)
    asked = []
    for _ in range(19):
        asked += [outgoing.to for outgoing in machine.tick(machine.next_tick_s)]
    for start in range(0, len(asked), 19):
        assert sorted(asked[start : start + 19]) == names[1:]


def test_who_has_asked_within_an_interval_is_not_asked_until_it_is_over() -> None:
    one, two = gossip("dakhla", ["dakhla", "dakar"]), gossip("dakar", ["dakhla", "dakar"])
    (syn,) = one.tick(1.0)
    two.receive("dakhla", syn.message, 1.0)
    two.next_tick_s = 1.1
    assert two.tick(1.1) == []
    (asked,) = two.tick(two.next_tick_s)
    assert asked.to == "dakhla"
    assert isinstance(asked.message, Syn)


def test_a_hub_that_knows_nobody_asks_nobody() -> None:
    assert gossip("a", []).tick(0.0) == []


def test_a_change_goes_to_all_at_once_as_one_message() -> None:
    machine = gossip()
    pushes = [*machine.set("capacity", b"8"), *machine.delete("capacity", now_s=0.0)]
    assert sorted(outgoing.to for outgoing in pushes) == sorted(2 * [name for name in NAMES if name != "dakhla"])
    assert len({id(outgoing.message) for outgoing in pushes}) == 2
    assert machine.set("a", b"1") != []
    assert machine.set("a", b"1") == [], "that was said already"


def test_three_messages_bring_both_up_to_date() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    one.set("capacity", b"8")
    two.set("capacity", b"4")
    said = exchange(one, two)
    assert [type(message) for message in said] == [Syn, SynAck, GossipAck]
    assert two.view("dakhla", 0.0).values == {"capacity": b"8"}
    assert one.view("dakar", 0.0).values == {"capacity": b"4"}


def test_a_third_hub_is_heard_of_through_another() -> None:
    one, relay, three = gossip("dakhla"), gossip("dakar"), gossip("tangier")
    one.set("capacity", b"8")
    exchange(one, relay)
    exchange(three, relay)
    view = three.view("dakhla", 0.0)
    assert (view.values, view.via, view.direct_age_s) == ({"capacity": b"8"}, "dakar", None)


# Gaps


def test_pushes_after_a_lost_one_are_answered_by_one_question_that_brings_all() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    exchange(one, two)
    one.set("lost", b"1")
    later = [push for number in range(5) for push in one.set(f"key{number}", b"1") if push.to == "dakar"]
    answers = [answer for push in later for answer in two.receive("dakhla", push.message, 0.05)]
    assert [type(answer.message) for answer in answers] == [Syn]
    deliver([("dakar", answers[0])], {"dakhla": one, "dakar": two}, 0.05)
    assert two.view("dakhla", 0.05).values == one.view("dakhla", 0.05).values


def test_a_question_whose_answer_got_lost_is_asked_again_after_an_interval() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    exchange(one, two)
    one.set("lost", b"1")
    push = next(push for push in one.set("key", b"1") if push.to == "dakar")
    asked = [len(two.receive("dakhla", push.message, now_s)) for now_s in (0.0, 0.1, 0.21)]
    assert asked == [1, 0, 1]


def test_a_large_state_is_fetched_at_once_piece_by_piece() -> None:
    settings = GossipSettings(delta_bytes_max=250)
    one, two = gossip("dakhla", settings=settings), gossip("dakar", settings=settings)
    for number in range(10):
        one.set(f"key{number}", b"value")
    one.tick(0.0)
    exchange(two, one)
    assert len(two.view("dakhla", 0.0).values) == 10


def test_a_relay_that_has_no_more_is_not_asked_again() -> None:
    settings = GossipSettings(delta_bytes_max=250)
    one, relay, three = (gossip(name, settings=settings) for name in ("dakhla", "dakar", "tangier"))
    for number in range(10):
        one.set(f"key{number}", b"value")
    one.tick(0.0)
    (answer,) = one.receive("dakar", relay.tick(0.0)[0].message, 0.0)
    relay.receive("dakhla", answer.message, 0.0)  # and its next question gets lost: it knows only a part
    assert 0 < len(relay.view("dakhla", 0.0).values) < 10
    assert not relay.view("dakhla", 0.0).complete
    exchange(three, relay)  # would go on forever
    assert three.view("dakhla", 0.0).values == relay.view("dakhla", 0.0).values


def test_an_answer_without_progress_is_not_answered_by_another_question() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    one.set("capacity", b"8")
    one.tick(0.0)
    (answer,) = one.receive("dakar", two.tick(0.0)[0].message, 0.0)
    assert isinstance(answer.message, SynAck)
    (delta,) = answer.message.delta
    empty = replace(answer.message, delta=(replace(delta, entries=()),), digest={})
    for now_s in (1.0, 2.0, 3.0):
        assert two.receive("dakhla", empty, now_s) == []


# Who is not believed


def test_who_is_no_member_is_neither_heard_nor_answered() -> None:
    machine, stranger = gossip(), gossip("mallory", [*NAMES, "mallory"])
    stranger.set("capacity", b"999")
    for outgoing in [*stranger.tick(0.0), *stranger.set("carbon", b"0")]:
        assert machine.receive("mallory", outgoing.message, 0.0) == []
    assert "mallory" not in machine.views(0.0)
    assert machine.refusals[("mallory", "mallory", Reason.NO_MEMBER)] >= 2


def test_news_of_a_hub_that_is_no_member_are_refused_and_the_rest_is_taken() -> None:
    machine, peer, stranger = gossip(), gossip("dakar"), gossip("mallory", NAMES)
    change, invented = peer.set("capacity", b"4")[0].message, stranger.set("capacity", b"999")[0].message
    assert isinstance(change, Push)
    assert isinstance(invented, Push)
    machine.receive("dakar", GossipAck((invented.delta, change.delta)), 0.0)
    assert machine.view("dakar", 0.0).values == {"capacity": b"4"}
    assert Forged("mallory", "dakar", Reason.NO_MEMBER, 1) in machine.take_news()
    assert "mallory" not in machine.views(0.0)


def test_hubs_that_do_not_agree_on_the_members_trouble_each_other_with_nothing() -> None:
    machine, peer, newcomer = gossip(), gossip("dakar", [*NAMES, "lagos"]), gossip("lagos", [*NAMES, "lagos"])
    exchange(newcomer, peer)
    exchange(machine, peer)
    exchange(peer, machine, 1.0)
    assert machine.refusals == {}
    machine.add_member("lagos", 1.0)
    exchange(machine, peer, 2.0)
    assert machine.view("lagos", 2.0).generation == 1


def test_a_forgery_is_told_with_who_brought_it_and_not_every_time() -> None:
    machine, forger = gossip(), gossip("dakar", signer=HashSigner("mallory"))
    for number in range(10):
        push = next(push for push in forger.set("capacity", str(number).encode()) if push.to == "dakhla")
        machine.receive("casablanca", push.message, 0.0)
    told = [news.times for news in machine.take_news() if isinstance(news, Forged)]
    assert told == [1, 2, 4, 8]
    assert machine.refusals == {("dakar", "casablanca", Reason.BAD_SIGNATURE): 10}
    assert machine.view("dakar", 0.0).generation == 0


def test_another_hub_with_my_key_raises_one_alarm() -> None:
    machine, clone, peer = gossip(generation=5), gossip(generation=9), gossip("dakar")
    exchange(clone, peer)
    clone.tick(1.0)
    for _ in range(3):
        exchange(machine, peer)
    assert [news for news in machine.take_news() if isinstance(news, IdentityCloned)] == [IdentityCloned(9, "dakar")]
    assert machine.view("dakhla", 0.0).generation == 5, "a hub believes nobody about itself"


def test_a_clone_that_chose_the_same_generation_is_found_by_its_heartbeat() -> None:
    machine, clone, peer = gossip(generation=5), gossip(generation=5), gossip("dakar")
    machine.tick(0.0)
    for number in range(30):
        clone.next_tick_s = float(number)
        clone.tick(float(number))
    exchange(clone, peer)
    exchange(machine, peer)
    assert IdentityCloned(5, "dakar") in machine.take_news()


def test_my_own_words_coming_back_and_those_of_my_former_life_are_no_alarm() -> None:
    old, machine, peer = gossip(generation=1), gossip(generation=2), gossip("dakar")
    exchange(old, peer)
    exchange(peer, machine, 1.0)
    exchange(machine, peer, 2.0)
    exchange(peer, machine, 3.0)
    assert [news for news in machine.take_news() if isinstance(news, (IdentityCloned, Forged))] == []


def test_a_false_clone_is_a_forgery() -> None:
    machine, false_one = gossip(generation=5), gossip(generation=9, signer=HashSigner("mallory"))
    push = next(push for push in false_one.set("a", b"1") if push.to == "dakar")
    machine.receive("dakar", push.message, 0.0)
    assert machine.take_news() == [Forged("dakhla", "dakar", Reason.BAD_SIGNATURE, 1)]


# What is told


def test_news_come_once_and_all_changes_of_a_hub_in_one_piece() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    exchange(one, two)
    assert two.take_news() == [Appeared("dakhla", 1)]
    for key in ("capacity", "carbon"):
        deliver([("dakhla", push) for push in one.set(key, b"1")], {"dakar": two})
    assert two.take_news() == [StateChanged("dakhla", frozenset({"capacity", "carbon"}))]
    assert two.take_news() == []


def test_silence_is_told_and_so_is_its_end() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    exchange(one, two, 0.0)
    exchange(one, two, 0.2)
    assert two.view("dakhla", 0.2).is_alive
    two.take_news()
    now_s = 0.2
    while now_s < 3.0:
        two.next_tick_s = now_s
        two.tick(now_s)
        now_s += INTERVAL_S
    (suspected,) = two.take_news()
    assert isinstance(suspected, Suspected)
    assert 1.6 < suspected.silence_s < 2.0
    assert two.view("dakhla", now_s).standing is LivenessState.SUSPECTED
    exchange(one, two, now_s)
    assert two.take_news() == [Recovered("dakhla")]


def test_a_late_tick_makes_patient() -> None:
    machine = gossip()
    machine.tick(0.0)
    machine.tick(machine.next_tick_s + 3 * INTERVAL_S)
    assert machine.stretch == pytest.approx(3.0)


def test_a_view_tells_how_old_and_how_far_everything_is() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    view = two.view("dakhla", 0.0)
    assert (view.standing, view.age_s, view.direct_age_s, view.complete) == (LivenessState.UNHEARD, None, None, False)
    exchange(one, two, 0.0)
    view = two.view("dakhla", 7.5)
    assert (view.age_s, view.direct_age_s, view.via, view.complete) == (7.5, 7.5, "dakhla", True)
    mine = two.view("dakar", 7.5)
    assert (mine.standing, mine.age_s, mine.phi) == (LivenessState.ALIVE, 0.0, 0.0)
    assert set(two.views(7.5)) == set(NAMES)


def test_the_round_trip_is_measured_from_question_to_answer() -> None:
    one, two = gossip("dakhla", ["dakar"]), gossip("dakar")
    (syn,) = one.tick(10.0)
    (answer,) = two.receive("dakhla", syn.message, 10.02)
    assert isinstance(answer.message, SynAck)
    one.receive("dakar", replace(answer.message, number=99), 11.0)
    assert one.view("dakar", 11.0).round_trip_s is None, "an answer to a question that was not asked"
    one.receive("dakar", answer.message, 10.04)
    assert one.view("dakar", 11.0).round_trip_s == pytest.approx(0.04)


# Members


def test_a_member_that_left_is_gone_and_not_believed_any_more() -> None:
    one, two = gossip("dakhla"), gossip("dakar")
    exchange(one, two)
    two.remove_member("dakhla")
    assert "dakhla" not in two.views(0.0)
    assert two.receive("dakhla", one.set("a", b"1")[0].message, 0.0) == []
    for _ in range(10):
        two.next_tick_s = 0.0
        assert "dakhla" not in {outgoing.to for outgoing in two.tick(0.0)}
    two.add_member("dakhla", 0.0)
    exchange(one, two)
    assert two.view("dakhla", 0.0).values == {"a": b"1"}


def test_a_hub_cannot_leave_itself_and_a_federation_has_a_limit() -> None:
    machine = gossip("dakhla", [f"hub{number}" for number in range(HUBS_MAX - 1)])
    machine.remove_member("dakhla")
    machine.remove_member("nobody")
    assert len(machine.views(0.0)) == HUBS_MAX
    with pytest.raises(ValueError, match="at most"):
        machine.add_member("one more", 0.0)


def test_the_dead_are_forgotten_after_a_day_and_remembered_when_they_return() -> None:
    one, two, three = gossip("dakhla"), gossip("dakar"), gossip("tangier")
    one.set("capacity", b"8")
    exchange(one, two, 0.0)
    exchange(one, three, 0.0)
    exchange(two, three, 0.0)
    day_s = 24 * 3600.0
    two.next_tick_s = day_s - 1.0
    two.tick(day_s - 1.0)
    assert two.view("dakhla", day_s).values == {"capacity": b"8"}
    two.take_news()
    two.next_tick_s = day_s + 1.0
    two.tick(day_s + 1.0)
    assert two.view("dakhla", day_s + 1.0).values == {}
    assert two.take_news() == [StateChanged("dakhla", frozenset({"capacity"}))]
    exchange(two, three, day_s + 2.0)
    assert two.view("dakhla", day_s + 2.0).values == {}, "who has not forgotten yet does not bring it back"
    exchange(one, two, day_s + 3.0)
    exchange(one, two, day_s + 4.0)
    assert two.view("dakhla", day_s + 4.0).values == {"capacity": b"8"}


# Limits


def test_news_that_nobody_reads_and_invented_names_do_not_pile_up() -> None:
    desk = NewsQueue()
    for number in range(3 * REFUSALS_MAX):
        desk.refuse(f"invented{number}", "dakar", Reason.NO_MEMBER)
    assert len(desk.refusals) == REFUSALS_MAX + 1
    for _ in range(3 * NEWS_MAX):
        desk.publish(Recovered("dakar"))
    assert len(desk.take()) <= NEWS_MAX


def test_a_push_is_one_change_of_the_sender() -> None:
    (push,) = gossip("dakhla", ["dakar"]).set("capacity", b"8")
    assert isinstance(push.message, Push)
    assert (push.message.delta.hub, push.message.delta.since, len(push.message.delta.entries)) == ("dakhla", 0, 1)
