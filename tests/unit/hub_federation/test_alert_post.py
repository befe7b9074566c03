"""Records about alerts reach the hubs of the same country, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harch.hub.federation.alerts import WAITING_MAX, AlertPost
from harch.hub.federation.messages import AlertRecords, Encoder, decode


def view(hub_id: str, country: str, *, reachable: bool = True) -> Any:
    return SimpleNamespace(hub_id=hub_id, own=False, reachable=reachable, summary=SimpleNamespace(country=country))


def post(own: str = "dakhla") -> tuple[AlertPost, list[tuple[str, AlertRecords]]]:
    sent: list[tuple[str, AlertRecords]] = []
    peers = [
        view("casablanca", "MA"),
        view("dakar", "SN"),
        view("tangier", "MA"),
        view("agadir", "MA", reachable=False),
        SimpleNamespace(hub_id="oujda", own=False, reachable=True, summary=None),
    ]
    made = AlertPost(own, country=lambda: "MA", views=lambda: peers, send=lambda hub, said: sent.append((hub, said)))
    return made, sent


def test_records_go_to_reachable_hubs_of_the_same_country() -> None:
    made, sent = post()
    made.exchange(b"one silence")
    assert [hub for hub, _ in sent] == ["casablanca", "tangier"]
    made.exchange(b"")
    assert len(sent) == 2


def test_records_of_others_are_handed_over_once() -> None:
    made, _ = post()
    made.came("tangier", AlertRecords(records=b"a"))
    made.came("dakar", AlertRecords(records=b"from another country"))
    made.came("stranger", AlertRecords(records=b"from nobody"))
    assert made.exchange(b"").records == (b"a",)
    assert made.exchange(b"").records == ()


def test_places_among_those_who_notify_differ() -> None:
    assert post("dakhla")[0].exchange(b"").position == 1
    assert post("abidjan")[0].exchange(b"").position == 0
    assert post("zagora")[0].exchange(b"").position == 2


def test_everything_is_told_again_when_a_hub_comes_back() -> None:
    made, _ = post()
    assert made.exchange(b"").publish_all
    assert not made.exchange(b"").publish_all
    made.linked("tangier")
    assert made.exchange(b"").publish_all


def test_there_is_news_with_records_of_others_another_position_or_a_hub_that_came_back() -> None:
    made, _ = post()
    made.exchange(b"")
    assert not made.has_news(1)
    assert made.has_news(0)
    made.seen([view("tangier", "MA"), view("casablanca", "MA", reachable=False)])
    assert made.has_news(1)
    made.seen([view("tangier", "MA"), view("casablanca", "MA")])
    assert not made.has_news(1)
    made.came("tangier", AlertRecords(records=b"a"))
    assert made.has_news(1)
    made.exchange(b"")
    made.linked("tangier")
    assert made.has_news(1)


def test_what_waits_is_bounded() -> None:
    made, _ = post()
    for number in range(WAITING_MAX + 5):
        made.came("tangier", AlertRecords(records=b"%d" % number))
    assert len(made.exchange(b"").records) == WAITING_MAX


def test_records_travel_as_they_are() -> None:
    said = AlertRecords(records=b"\x00\xff")
    assert decode(Encoder().encode(said)) == said
