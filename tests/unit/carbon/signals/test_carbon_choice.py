"""On which source does a decision rest when they disagree, lie or fall silent? And is the reason there?"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.rejection import Rejection
from harch.carbon.signals.choice import Quality, SignalCandidate, SignalState, choose
from harch.carbon.signals.quality import DEFAULT_LIMITS
from harch.carbon.values import Evidence, Price, Reading, Signal
from harch.testing.clock import START
from unit.carbon.signals.carbon_readings import GRID, hourly, reading


def api(name: str, number: float | None, *, past: list[float] | None = None, age_h: float = 0.0) -> SignalCandidate:
    at = START - timedelta(hours=age_h)
    return SignalCandidate(
        source=name,
        reading=None if number is None else reading(number, source=name, at=at),
        history=hourly(past or []),
    )


def model(number: float) -> SignalCandidate:
    return SignalCandidate(
        source="modelled",
        reading=reading(number, source="modelled", evidence=Evidence.ESTIMATED),
        is_model=True,
    )


def chosen(*candidates: SignalCandidate, signal: Signal = GRID) -> SignalState:
    return choose(signal, candidates, now=START, limits=DEFAULT_LIMITS[signal])


def reasons(state: SignalState) -> dict[str, str]:
    return {no.subject: no.rule for no in state.not_used}


def number_of(state: SignalState) -> float:
    assert state.reading is not None
    return state.reading.value.number


def test_the_first_source_of_the_order_is_used_and_the_others_say_why_not() -> None:
    state = chosen(api("meter", 600.0), api("maps", 620.0), model(630.0))
    assert (number_of(state), state.quality) == (600.0, Quality.FIRST)
    assert reasons(state) == {"maps": "order", "modelled": "order"}


def test_a_stale_source_is_passed_over_and_the_state_says_so() -> None:
    state = chosen(api("meter", 600.0, age_h=4), api("maps", 620.0), model(630.0))
    assert (number_of(state), state.quality) == (620.0, Quality.FALLBACK)
    assert reasons(state)["meter"] == "stale"


def test_without_any_live_value_the_decision_rests_on_the_model() -> None:
    down = SignalCandidate(source="maps", reading=None, problems=(Rejection("maps", "failing", "HTTP 500"),))
    state = chosen(down, api("meter", None), model(630.0))
    assert state.quality is Quality.FALLBACK
    assert str(state).startswith(
        "grid-average-lifecycle: 630 g/kWh (average, lifecycle, location) [estimated, modelled"
    )
    assert reasons(state) == {"maps": "failing", "meter": "none"}


def test_where_nobody_knows_anything_there_is_no_value_and_the_reasons_remain() -> None:
    state = chosen(api("maps", None), signal=Signal.GRID_MARGINAL_DIRECT)
    assert (state.reading, state.quality) == (None, Quality.MISSING)
    assert "no value yet" in str(state)


@pytest.mark.parametrize("lie", [63.0, 6.3])
@pytest.mark.parametrize("position", [0, 1])
def test_a_source_that_lies_ten_times_is_outvoted_wherever_it_stands(lie: float, position: int) -> None:
    honest, liar = api("honest", 640.0), api("liar", lie)
    live = (liar, honest) if position == 0 else (honest, liar)
    state = chosen(*live, model(630.0))
    assert number_of(state) == 640.0
    assert reasons(state)["liar"] == "contradicted"


def test_a_single_source_that_has_lied_from_the_beginning_is_not_believed_against_the_yearly_mean() -> None:
    state = chosen(api("liar", 63.0, past=[60.0] * 48), model(630.0))
    assert (number_of(state), state.quality) == (630.0, Quality.FALLBACK)
    assert reasons(state)["liar"] == "contradicted"


def test_a_windy_night_is_believed_because_the_days_before_were_ordinary() -> None:
    state = chosen(api("maps", 30.0, past=[250.0, 300.0, 180.0, 90.0] * 12), model(210.0))
    assert (number_of(state), state.quality) == (30.0, Quality.FIRST)


def test_two_sources_against_each_other_without_a_judge_give_the_worse_value_and_say_disputed() -> None:
    state = chosen(api("one", 40.0), api("other", 700.0))
    assert (number_of(state), state.quality) == (700.0, Quality.DISPUTED)
    assert reasons(state) == {"one": "disputed"}


def test_two_sources_of_good_standing_that_contradict_each_other_are_disputed_too() -> None:
    past = [250.0, 300.0, 180.0, 90.0] * 12
    state = chosen(api("one", 20.0, past=past), api("other", 1150.0, past=past), model(205.0))
    assert (number_of(state), state.quality) == (1150.0, Quality.DISPUTED)
    assert reasons(state) == {"one": "disputed", "modelled": "order"}


def test_a_source_in_pounds_is_found_out_by_another_live_one() -> None:
    state = chosen(api("maps", 56.0 / 0.45359237), api("meter", 56.0), model(56.0))
    assert number_of(state) == 56.0
    assert reasons(state)["maps"] == "unit"


def test_an_hour_may_be_twice_the_yearly_mean() -> None:
    state = chosen(api("maps", 174.1 / 0.45359237), model(174.1))
    assert state.quality is Quality.FIRST


def test_a_price_in_another_currency_is_not_compared() -> None:
    def offer(source: str, value: Price) -> SignalCandidate:
        priced = Reading(
            signal=Signal.PRICE,
            value=value,
            at=START,
            source=source,
            evidence=Evidence.MEASURED,
            received_at=START,
        )
        return SignalCandidate(source=source, reading=priced)

    state = chosen(offer("one", Price(90.0, "EUR")), offer("other", Price(950.0, "MAD")), signal=Signal.PRICE)
    assert str(state.reading.value) == "90 per MWh (EUR)"  # type: ignore[union-attr]
    assert reasons(state) == {"other": "kind"}


sources = st.lists(st.tuples(st.none() | st.floats(2, 1200), st.floats(0, 10)), min_size=1, max_size=5)


@given(sources, st.floats(20, 900))
def test_with_a_model_there_is_always_a_value_and_every_other_source_has_a_reason(
    offers: list[tuple[float | None, float]], mean: float
) -> None:
    live = [api(f"api-{index}", number, age_h=age) for index, (number, age) in enumerate(offers)]
    state = chosen(*live, model(mean))
    assert state.reading is not None
    assert state.reading.value.number in {mean, *(number for number, _ in offers)}
    others = {candidate.source for candidate in (*live, model(mean))} - {state.reading.source}
    assert others <= {no.subject for no in state.not_used}


@given(st.lists(st.floats(500, 700), min_size=2, max_size=5), st.integers(0, 4), st.sampled_from([0.1, 0.05]))
def test_one_liar_among_honest_sources_never_decides(honest: list[float], place: int, factor: float) -> None:
    live = [api(f"honest-{index}", number) for index, number in enumerate(honest)]
    live.insert(min(place, len(live)), api("liar", honest[0] * factor))
    assert 500 <= number_of(chosen(*live)) <= 700
