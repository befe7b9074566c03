"""A question about telemetry is answered in time, in pieces, to who asked, and only once it is written down."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.hub.federation import questions, telemetry
from harch.hub.federation.messages import (
    PIECE_BYTES_MAX,
    QUESTION_BYTES_MAX,
    PieceReply,
    PieceRequest,
    TelemetryReply,
    TelemetryRequest,
)
from harch.hub.federation.telemetry import KeptAnswers, agreed_country, no_sentinel
from harch.hub.views import PeerView
from harch.sentinel.federated.messages import (
    ANSWER_BYTES_MAX,
    InboundQuestion,
    LogPart,
    PartAccount,
    Requester,
    TracePart,
)
from harch.testing.clock import SimClock
from harch.testing.samples import tiny_fleet
from unit.hub_federation.telemetry_world import PART, QUESTION, Wire


async def refused(wire: Wire, question: object = QUESTION) -> HarchError:
    with pytest.raises(HarchError) as raised:
        await wire.ask(question)  # type: ignore[arg-type]
    return raised.value


async def test_the_answer_comes_as_it_is_and_the_owner_has_it_in_its_chain() -> None:
    wire = Wire()
    wire.parts = (PartAccount(groups=3, points=12, suppressed=2),)
    assert await wire.ask() == b"an answer"
    (entry,) = wire.entries
    assert (entry.kind, entry.verdict, entry.subject) == ("telemetry.told", "allowed", "q_1")
    assert (entry.actor, entry.authority, entry.countries) == ("dakhla:key_7", "tenant:acme", ("SN", "MA"))
    told = {"expressions": ("sum(up)",), "groups": 3, "points": 12, "suppressed": 2, "refused_rules": ()}
    assert entry.details == {**told, "hub": "dakhla", "parts": 1, "bytes": 9}


async def test_the_asker_is_who_the_link_says_in_the_country_that_the_owner_knows() -> None:
    wire = Wire()
    await wire.ask(replace(QUESTION, requested_by="dakar:admin"))
    assert wire.judged[0].asker == Requester(hub_id="dakhla", country="MA")
    assert wire.judged[0].here == Requester(hub_id="dakar", country="SN")
    assert wire.entries[0].actor == "dakhla:dakar:admin"


async def test_a_hub_without_a_known_country_is_told_nothing_and_that_is_written_down() -> None:
    wire = Wire(countries={})
    assert (await refused(wire)).code == "E0697"
    assert wire.judged == []
    assert [(entry.kind, entry.details["refused_rules"]) for entry in wire.entries] == [
        ("telemetry.refused", ("country",))
    ]


async def test_no_audit_no_answer() -> None:
    wire = Wire()
    wire.disk_failure = HarchError("E1002", "/secret/path is full")
    error = await refused(wire)
    assert error.code == "E0698"
    assert "/secret/path" not in error.message
    assert not any(b"an answer" in body for body in wire.crossed)


async def test_what_is_refused_in_every_part_is_a_refusal_in_the_chain() -> None:
    wire = Wire()
    wire.parts = (PartAccount(refused_rule="selector"),)
    await wire.ask()
    assert (wire.entries[0].kind, wire.entries[0].verdict) == ("telemetry.refused", "refused")
    assert wire.entries[0].details["refused_rules"] == ("selector",)


async def test_an_error_tells_its_details_only_inside_the_country() -> None:
    abroad, at_home = Wire(), Wire(countries={"dakhla": "SN"})
    for wire in (abroad, at_home):
        wire.failure = HarchError("E0660", 'series {patient="amina"} match twice')
    assert "amina" not in (await refused(abroad)).message
    assert "amina" in (await refused(at_home)).message
    assert abroad.entries[0].details["refused_rules"] == ("E0660",)
    assert not any(b"amina" in body for body in abroad.crossed)


@pytest.mark.parametrize(
    "part",
    [
        LogPart(expression='{a="b"}', start_ns=0, end_ns=1, step_ns=1, limit=5),
        TracePart(kind="search", query="", start_ns=0, end_ns=1),
        TracePart(kind="trace", query="ab", start_ns=0, end_ns=1),
    ],
    ids=lambda part: type(part).__name__ + getattr(part, "kind", ""),
)
async def test_lines_and_spans_are_stopped_at_the_border_even_if_the_policy_let_them_pass(
    part: LogPart | TracePart,
) -> None:
    question = replace(QUESTION, parts=(part,))
    abroad, at_home = Wire(), Wire(countries={"dakhla": "SN"})
    for wire in (abroad, at_home):
        wire.parts = (PartAccount(body_bytes=9),)
    assert (await refused(abroad, question)).code == "E0697"
    assert not any(b"an answer" in body for body in abroad.crossed)
    assert abroad.entries[0].details["refused_rules"] == ("border",)
    assert await at_home.ask(question) == b"an answer"
    statistics = replace(QUESTION, parts=(TracePart(kind="statistics", query="", start_ns=0, end_ns=1, by=("name",)),))
    assert await abroad.ask(statistics) == b"an answer"


async def test_long_answers_come_in_pieces_and_one_frame_is_never_too_large() -> None:
    wire = Wire()
    wire.answer = bytes(range(256)) * (5 * PIECE_BYTES_MAX // 256) + b"end"
    assert await wire.ask() == wire.answer
    assert max(map(len, wire.crossed)) < PIECE_BYTES_MAX + 200
    assert len(wire.entries) == 1


async def test_answers_beyond_the_limit_are_refused_by_the_owner_and_not_taken_by_the_asker() -> None:
    wire = Wire()
    wire.answer = b"x" * (ANSWER_BYTES_MAX + 1)
    error = await refused(wire)
    assert (error.code, wire.entries[0].details["refused_rules"]) == ("E0697", ("size",))
    wire.answer = b"small"
    wire.on_answer = lambda answer: (
        replace(answer, bytes_total=ANSWER_BYTES_MAX + 1) if isinstance(answer, TelemetryReply) else answer
    )
    assert (await refused(wire)).code == "E0698"


async def test_a_lost_answer_a_cut_link_and_a_lost_piece_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    wire.on_answer = lambda answer: None
    with pytest.raises(HarchError, match=r"hub dakar does not answer: no answer within 0\.01 s") as lost:
        await wire.ask(within_s=0.01)
    wire.linked = False
    with pytest.raises(HarchError, match="there is no link") as cut:
        await wire.ask()
    wire.linked, wire.answer = True, b"x" * (2 * PIECE_BYTES_MAX)
    wire.on_answer = lambda answer: None if isinstance(answer, PieceReply) else answer
    monkeypatch.setattr(questions, "PIECE_WITHIN_S", 0.01)
    torn = await refused(wire)
    assert {lost.value.code, cut.value.code, torn.code} == {"E0698"}


async def test_an_answer_that_comes_late_is_not_taken_for_another() -> None:
    wire = Wire()
    late: list[TelemetryReply] = []
    wire.on_answer = lambda answer: late.append(answer) if isinstance(answer, TelemetryReply) else answer  # type: ignore[func-returns-value]
    with pytest.raises(HarchError):
        await wire.ask(within_s=0.01)
    wire.on_answer = lambda answer: answer
    wire.answer = b"the second"
    asking = asyncio.create_task(wire.ask())
    await asyncio.sleep(0)
    wire.questions.answered("dakar", late[0])
    assert await asking == b"the second"


async def test_a_piece_is_for_the_hub_that_asked_and_for_a_while() -> None:
    clock = SimClock()
    kept = KeptAnswers(clock)
    first = kept.begin("dakhla", 1, b"x" * (PIECE_BYTES_MAX + 1))
    asked = PieceRequest(number=2, answer_id=first.answer_id, offset=PIECE_BYTES_MAX)
    with pytest.raises(HarchError):
        kept.go_on("abidjan", asked)
    assert kept.go_on("dakhla", asked).data == b"x"
    with pytest.raises(HarchError):  # the last piece has ended it
        kept.go_on("dakhla", asked)
    old = kept.begin("dakhla", 3, b"x" * (PIECE_BYTES_MAX + 1))
    await clock.advance(telemetry.KEPT_S + 1)
    kept.begin("dakhla", 4, b"x" * (PIECE_BYTES_MAX + 1))
    with pytest.raises(HarchError):
        kept.go_on("dakhla", replace(asked, answer_id=old.answer_id))


async def test_kept_answers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "KEPT_BYTES_MAX", 3 * PIECE_BYTES_MAX)
    kept = KeptAnswers(SimClock())
    first, second = (kept.begin("dakhla", number, b"x" * (2 * PIECE_BYTES_MAX)) for number in (1, 2))
    with pytest.raises(HarchError):
        kept.go_on("dakhla", PieceRequest(number=3, answer_id=first.answer_id, offset=1))
    assert kept.go_on("dakhla", PieceRequest(number=3, answer_id=second.answer_id, offset=1)).data


async def test_a_dashboard_cannot_flood_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BURST", 3.0)
    wire = Wire()
    for _ in range(3):
        await wire.ask()
    for _ in range(10):
        assert (await refused(wire)).code == "E0401"
    assert [entry.kind for entry in wire.entries] == ["telemetry.told"] * 3 + ["telemetry.refused"]
    assert len(wire.judged) == 3
    await wire.clock.advance(1.0)
    await wire.ask()
    await wire.clock.advance(60.0)
    for _ in range(4):
        with contextlib.suppress(HarchError):
            await wire.ask()
    counted = [entry.details["questions"] for entry in wire.entries if entry.details["refused_rules"] == ("rate",)]
    assert counted == [1, 10]  # the nine before, and the one that was turned away now


async def test_only_so_many_questions_of_a_hub_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "AT_ONCE_PER_HUB_MAX", 1)
    wire = Wire()
    done = asyncio.Event()
    original = wire._judge

    async def slow(asked: InboundQuestion) -> object:
        await done.wait()
        return await original(asked)

    wire.desk._judge = slow  # type: ignore[assignment]
    first = asyncio.create_task(wire.ask())
    await asyncio.sleep(0.001)
    assert (await refused(wire)).code == "E0401"
    done.set()
    assert await first == b"an answer"


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff" * 10, msgspec.msgpack.encode({"id": "q"}), msgspec.msgpack.encode(replace(QUESTION, parts=()))],
)
async def test_what_is_no_question_is_refused_and_the_link_lives(raw: bytes) -> None:
    wire = Wire()
    with pytest.raises(HarchError) as raised:
        await wire.desk.answer("dakhla", TelemetryRequest(number=1, question=raw, within_s=1))
    assert (raised.value.code, wire.judged) == ("E0699", [])
    many = replace(QUESTION, parts=(PART,) * 65)
    assert (await refused(wire, many)).code == "E0699"
    crossed = len(wire.crossed)
    long = replace(QUESTION, parts=(replace(PART, expression="x" * QUESTION_BYTES_MAX),))
    assert (await refused(wire, long)).code == "E0699"
    assert len(wire.crossed) == crossed  # it was not even sent


def test_a_country_counts_if_the_fleet_file_and_the_hub_agree() -> None:
    fleet = tiny_fleet()
    other = fleet.hubs[1]

    def seen(country: str | None) -> list[PeerView]:
        summary = None if country is None else _Summary(country)
        view = PeerView(hub_id=other.id, url="", reachable=True, age_s=0.0, summary=summary)  # type: ignore[arg-type]
        return [view]

    assert agreed_country(fleet, lambda: seen(other.country), other.id) == other.country
    assert agreed_country(fleet, lambda: seen("MA"), other.id) == ""  # it says that it stands elsewhere
    assert agreed_country(fleet, lambda: seen(None), other.id) == ""
    assert agreed_country(fleet, lambda: seen("MA"), "stranger") == ""


async def test_without_a_sentinel_there_is_nothing_to_tell() -> None:
    asker, here = Requester(hub_id="dakhla", country="MA"), Requester(hub_id="dakar", country="SN")
    asked = InboundQuestion(question=QUESTION, asker=asker, here=here, within_s=1)
    with pytest.raises(HarchError, match="no telemetry is kept"):
        await no_sentinel(asked)


class _Summary:
    def __init__(self, country: str) -> None:
        self.country = country
