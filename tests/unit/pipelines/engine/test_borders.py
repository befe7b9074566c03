"""Do two hubs come to the same plan of what may pass between them, and does every message cross a link that is cut?"""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.client.options import new_user_seed, public_key
from harch.pipelines.engine.borders import (
    BORDER_SIGNAL_BYTES_MAX,
    UNDER_WAY_MAX,
    BorderOffer,
    Fate,
    HubBorder,
    LaneReceiver,
    LaneSender,
    Want,
    border_layout,
    decode_border,
    encode_border,
    plan_links,
)
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.layout import Server, check_layout
from harch.sovereignty.tags import Classification, Tag

TAG = Tag(
    process_in=("MA", "SN"),
    rest_in=("MA", "SN"),
    transit_in=("MA", "MR", "SN"),
    may_cross_borders=True,
    frameworks=(),
    classification=Classification.PUBLIC,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=(),
)
SEEDS = {hub: new_user_seed() for hub in ("dakhla", "dakar", "tangier")}
WATER = BorderOffer(pipeline="fields", export="water", tag=TAG, hubs=("dakar",))
CATCH = BorderOffer(pipeline="fish", export="catch", tag=TAG, hubs=("dakhla",))


def border(hub: str, country: str, *, offers: tuple[BorderOffer, ...] = (), wants: tuple[Want, ...] = ()) -> HubBorder:
    key = public_key(SEEDS[hub])
    return HubBorder(country=country, host="127.0.0.1", port=7001, key=key, offers=offers, wants=wants)


DAKHLA = border("dakhla", "MA", offers=(WATER,), wants=(Want("dakar", "fish", "catch"),))
DAKAR = border("dakar", "SN", offers=(CATCH,), wants=(Want("dakhla", "fields", "water"),))


def server(hub: str) -> Server:
    return Server(
        name=f"border-{hub}", hub=hub, client_port=1, monitor_port=2, border_port=3, store="/s", log_file="/l"
    )


def test_both_sides_plan_the_same_lanes_and_one_of_them_dials() -> None:
    (at_dakhla,) = plan_links("dakhla", DAKHLA, {"dakar": DAKAR}, lambda lane, tag: True)
    (at_dakar,) = plan_links("dakar", DAKAR, {"dakhla": DAKHLA}, lambda lane, tag: True)
    assert (at_dakhla.out, at_dakhla.into) == (at_dakar.into, at_dakar.out)
    assert [at_dakhla.dials, at_dakar.dials] == [True, False]
    (lane,) = at_dakhla.out
    assert lane.subject == "export.agg.ma.fields.water.dakhla.dakar"
    assert lane.receipts == "export.got.sn.fields.water.dakhla.dakar"


@pytest.mark.parametrize(
    "heard",
    [
        structs.replace(DAKAR, wants=()),
        structs.replace(DAKAR, wants=(Want("tangier", "fields", "water"),)),
        structs.replace(DAKAR, country="MA"),
    ],
)
def test_nothing_passes_that_one_side_does_not_want_or_that_stays_in_the_country(heard: HubBorder) -> None:
    own = structs.replace(DAKHLA, wants=())
    assert plan_links("dakhla", own, {"dakar": heard}, lambda lane, tag: True) == ()
    unproved = structs.replace(own, offers=(structs.replace(WATER, hubs=("abidjan",)),))
    assert plan_links("dakhla", unproved, {"dakar": DAKAR}, lambda lane, tag: True) == ()


def test_what_this_hub_s_own_rules_refuse_does_not_come_in_though_it_is_offered() -> None:
    own = structs.replace(DAKAR, offers=())
    assert plan_links("dakar", own, {"dakhla": DAKHLA}, lambda lane, tag: False) == ()


def test_a_border_server_has_no_streams_and_lets_exactly_the_lanes_pass() -> None:
    (plan,) = plan_links("dakar", DAKAR, {"dakhla": DAKHLA}, lambda lane, tag: True)
    layout = border_layout("dakar", DAKAR, server("dakar"), [plan], {})
    check_layout(layout)
    config = json.loads(server_config(layout, "border-dakar"))
    assert "jetstream" not in config
    assert all("jetstream" not in account for account in config["accounts"].values())
    (borrowed,) = config["accounts"]["BORDER"]["users"]
    assert borrowed["nkey"] == DAKHLA.key
    assert borrowed["allowed_connection_types"] == ["LEAFNODE"]
    sends = ["export.agg.ma.fields.water.dakhla.dakar", "export.got.ma.fish.catch.dakar.dakhla"]
    assert borrowed["permissions"]["publish"]["allow"] == sends
    (own,) = config["accounts"]["JURIS_SN"]["users"]
    assert own["permissions"]["publish"]["allow"] == [
        "export.agg.sn.fish.catch.dakar.dakhla",
        "export.got.sn.fields.water.dakhla.dakar",
    ]

    (dialled,) = plan_links("dakhla", DAKHLA, {"dakar": DAKAR}, lambda lane, tag: True)
    layout = border_layout("dakhla", DAKHLA, server("dakhla"), [dialled], {"dakar": 9001})
    text = server_config(layout, "border-dakhla", EngineSecrets(link_seeds={DAKHLA.key: SEEDS["dakhla"]}))
    (remote,) = json.loads(text)["leafnodes"]["remotes"]
    assert (remote["url"], remote["account"]) == ("nats-leaf://127.0.0.1:9001", "BORDER")
    wide = structs.replace(layout.links[0], dialler_sends=("export.agg.ma.>",))
    with pytest.raises(HarchError, match="is a wildcard"):
        check_layout(structs.replace(layout, links=(wide,)))


@pytest.mark.parametrize(
    "changed",
    [
        {"country": "ma"},
        {"host": "a b"},
        {"port": 0},
        {"key": "U" * 10},
        {"wants": (Want("dakhla", "fields.>", "water"),)},
        {"offers": (structs.replace(WATER, export="*"),)},
        {"offers": (WATER,) * 300},
    ],
)
def test_words_of_other_hubs_cannot_leave_their_place(changed: dict[str, object]) -> None:
    assert decode_border(encode_border(DAKHLA)) == DAKHLA
    assert decode_border(encode_border(structs.replace(DAKHLA, **changed))) is None
    assert decode_border(b"x") is None
    assert decode_border(bytes(BORDER_SIGNAL_BYTES_MAX + 1)) is None


class Crossing:
    """A sender and a receiver on a link that loses what it likes and keeps the order of the rest."""

    def __init__(self, dice: random.Random, count: int) -> None:
        self.dice, self.count = dice, count
        self.now_s, self.kept = 0.0, 0  # `kept`: the place that survives the sender
        self.taken: list[int] = []
        self.lives = 1
        self.sender, self.receiver = LaneSender(1, self.lives), LaneReceiver()
        self.read = 0

    def step(self, loss: float) -> None:
        self.now_s += self.dice.choice((0.1, 1.0, 4.0))
        while self.sender.room and self.read < self.count:
            self.read += 1
            self.sender.offer(self.read, str(self.read).encode())
        for message in self.sender.due(self.now_s):
            assert message.number <= UNDER_WAY_MAX or self.sender.received_place
            if self.dice.random() < loss:
                continue
            fate = self.receiver.fate(message.session, message.number)
            if fate is Fate.TAKE:
                self.taken.append(message.place)
                self.receiver.taken(message.session, message.number)
            if fate is not Fate.PASS and self.dice.random() >= loss:
                self.sender.received(self.receiver.session, self.receiver.number, self.now_s)
        self.kept = max(self.kept, self.sender.received_place)

    def crash(self) -> None:
        if self.dice.random() < 0.5:
            self.receiver = LaneReceiver()
        else:  # with a clock that may be behind the one of before
            self.lives += 1
            self.sender, self.read = LaneSender(self.dice.choice((1, 100)), self.lives), self.kept


@given(st.integers(0, 2**32), st.integers(1, 90), st.sampled_from((0.0, 0.2, 0.6)))
def test_everything_arrives_in_order_over_losses_and_crashes(seed: int, count: int, loss: float) -> None:
    crossing = Crossing(random.Random(seed), count)
    for number in range(60):
        crossing.step(loss)
        if loss and number % 7 == 6:
            crossing.crash()
    for _ in range(60):  # the link holds again
        crossing.step(0.0)
    assert crossing.kept == count
    first_seen = list(dict.fromkeys(crossing.taken))
    assert first_seen == list(range(1, count + 1))  # an older window never comes first after a newer one
    if not loss:
        assert crossing.taken == first_seen
