"""Does the simulated network do to messages what it was told to, and the same for the same seed?"""

from __future__ import annotations

import pytest

from harch.testing.network import SimLink, SimNetwork


class Inbox:
    def __init__(self, network: SimNetwork, name: str) -> None:
        self.network = network
        self.got: list[tuple[float, str, object]] = []
        network.attach(name, lambda source, message: self.got.append((network.now_s, source, message)))

    @property
    def messages(self) -> list[object]:
        return [message for _, _, message in self.got]


def test_a_message_arrives_after_the_delay_of_its_link() -> None:
    network = SimNetwork(1, SimLink(delay_s=0.020))
    inbox = Inbox(network, "b")
    network.set_link("c", "b", SimLink(delay_s=0.005))
    network.send("a", "b", "slow")
    network.send("c", "b", "fast")
    network.run_until(1.0)
    assert inbox.got == [(0.005, "c", "fast"), (0.020, "a", "slow")]
    assert network.now_s == 1.0


def test_messages_keep_their_order_despite_jitter() -> None:
    network = SimNetwork(2, SimLink(delay_s=0.020, jitter_s=0.019))
    inbox = Inbox(network, "b")
    for number in range(50):
        network.send("a", "b", number)
    network.run_until(1.0)
    assert inbox.messages == list(range(50))


def test_reordering_lets_messages_overtake() -> None:
    network = SimNetwork(3, SimLink(delay_s=0.020, reordering=0.3))
    inbox = Inbox(network, "b")
    for number in range(50):
        network.send("a", "b", number)
    network.run_until(1.0)
    assert inbox.messages != list(range(50))
    assert sorted(map(str, inbox.messages)) == sorted(map(str, range(50)))


def test_loss_and_duplication_come_at_the_rate_that_was_asked_for() -> None:
    network = SimNetwork(4, SimLink(loss=0.1, duplication=0.2))
    inbox = Inbox(network, "b")
    for number in range(2000):
        network.send("a", "b", number)
    network.run_until(1.0)
    assert 150 < 2000 - len(set(inbox.messages)) < 250
    assert 300 < len(inbox.messages) - len(set(inbox.messages)) < 420


def test_a_one_way_cut_lets_the_other_direction_pass() -> None:
    network = SimNetwork(5)
    a, b = Inbox(network, "a"), Inbox(network, "b")
    network.cut("a", "b", both=False)
    network.send("a", "b", "no")
    network.send("b", "a", "yes")
    network.run_until(1.0)
    assert (a.messages, b.messages) == (["yes"], [])


def test_a_cut_takes_what_is_on_its_way_and_a_heal_does_not_bring_it_back() -> None:
    network = SimNetwork(6, SimLink(delay_s=0.020))
    inbox = Inbox(network, "b")
    network.send("a", "b", "on its way")
    network.cut("a", "b")
    network.send("a", "b", "into the cut")
    network.run_until(0.030)
    network.heal("a", "b")
    network.send("a", "b", "after")
    network.run_until(1.0)
    assert inbox.messages == ["after"]


def test_a_partition_cuts_between_groups_and_not_inside() -> None:
    network = SimNetwork(7)
    inboxes = {name: Inbox(network, name) for name in "abcd"}
    network.partition("ab", "cd")
    for source in "abcd":
        for target in "abcd":
            if source != target:
                network.send(source, target, source)
    network.run_until(1.0)
    assert {name: inbox.messages for name, inbox in inboxes.items()} == {
        "a": ["b"],
        "b": ["a"],
        "c": ["d"],
        "d": ["c"],
    }


def test_a_hub_that_is_gone_receives_nothing() -> None:
    network = SimNetwork(8)
    inbox = Inbox(network, "b")
    network.send("a", "b", "late")
    network.detach("b")
    network.run_until(1.0)
    assert inbox.got == []
    assert network.counts["nobody"] == 1


def test_timers_and_deliveries_share_one_order_and_what_is_past_is_due_at_once() -> None:
    network, log = SimNetwork(9, SimLink(delay_s=0.020)), list[str]()
    network.attach("b", lambda source, message: log.append(str(message)))
    network.at(0.020, lambda: log.append("timer, set first"))
    network.send("a", "b", "message")
    network.at(0.030, lambda: network.at(0.001, lambda: log.append(f"past, at {network.now_s:.3f}")))
    network.run_until(1.0)
    assert log == ["timer, set first", "message", "past, at 0.030"]


def test_an_invariant_is_checked_after_every_event() -> None:
    network, checks = SimNetwork(10), list[float]()
    network.at(1.0, lambda: None)
    network.at(2.0, lambda: None)
    network.run_until(3.0, check=lambda: checks.append(network.now_s))
    assert checks == [1.0, 2.0]


def _story(seed: int) -> str:
    network = SimNetwork(seed, SimLink(delay_s=0.020, jitter_s=0.010, loss=0.2, duplication=0.2, reordering=0.2))
    network.attach("a", lambda source, message: None)
    network.attach("b", lambda source, message: network.send("b", source, message))
    for number in range(50):
        network.send("a", "b", number)
    network.run_until(1.0)
    return str(network)


def test_the_same_seed_tells_the_same_story() -> None:
    assert _story(11) == _story(11)
    assert _story(11) != _story(12)


def test_a_failure_carries_the_seed_and_the_last_events() -> None:
    network = SimNetwork(4711)
    network.attach("b", lambda source, message: None)

    def fail() -> None:
        with network.trace_on_failure():
            network.send("a", "b", "hello")
            network.run_until(1.0)
            network.note("b", "has lost its mind")
            raise AssertionError("two at once")

    with pytest.raises(AssertionError, match="two at once") as caught:
        fail()
    note = caught.value.__notes__[0]
    assert "seed 4711" in note
    assert "a -> b delivered: str" in note
    assert "b has lost its mind" in note
