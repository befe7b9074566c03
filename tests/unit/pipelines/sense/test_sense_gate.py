from __future__ import annotations

from msgspec.structs import replace
from sense_world import HERE, T0, S, batch_of, settings_of, stage_of, take

from harch.pipelines.sense.accounting import Disposition
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate, stream_mask
from harch.pipelines.sense.settings import ForecastSettings
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import LegalSite, Passage, Terrain
from harch.sovereignty.tags import Classification, Tag

EVENTS = [(0.1, 0, 0, 1.0), (0.2, 1, 0, 2.0)]
RULES = Rules(
    Terrain(
        (
            LegalSite(hub="dakhla", country="MA", frameworks=("ma-09-08",)),
            LegalSite(hub="tangier", country="MA", frameworks=()),
            LegalSite(hub="dakar", country="SN", frameworks=("ma-09-08",)),
        ),
        (
            Passage(ends=("dakhla", "tangier"), rtt_ms=8, countries_crossed=("MA",)),
            Passage(ends=("dakhla", "dakar"), rtt_ms=30, countries_crossed=("MA", "SN")),
        ),
    )
)


def tag(**changed: object) -> Tag:
    fields: dict[str, object] = {
        "process_in": ("MA", "SN"),
        "rest_in": ("MA", "SN"),
        "transit_in": ("MA", "SN"),
        "may_cross_borders": True,
        "frameworks": (),
        "classification": Classification.INTERNAL,
        "encrypt_at_rest": False,
        "encrypt_in_transit": False,
        "key_in": (),
    }
    return Tag(**{**fields, **changed})  # type: ignore[arg-type]


def test_the_mask_of_a_stream_is_where_it_can_go_and_may_be_processed_and_kept() -> None:
    assert stream_mask(RULES, tag(), "dakhla") == 0b111
    assert stream_mask(RULES, tag(rest_in=("MA",)), "dakhla") == 0b011
    assert stream_mask(RULES, tag(may_cross_borders=False), "dakhla") == 0b011
    assert stream_mask(RULES, tag(frameworks=("ma-09-08",)), "dakhla") == 0b101
    assert stream_mask(RULES, tag(process_in=("CI",)), "dakhla") == 0
    assert stream_mask(RULES, None, "dakhla") == 0
    assert stream_mask(RULES, tag(), "nowhere") == 0


def test_a_batch_that_may_not_be_here_is_dropped_unread_counted_and_told() -> None:
    stage = stage_of(hub="dakar")
    unreadable = batch_of(1, EVENTS, schema=99)  # nobody gets as far as its schema
    outcome = take(stage, unreadable)
    assert outcome.disposition is Disposition.DROPPED
    assert stage.quarantine.counts == {"not_here": 2}
    assert [example.excerpt for example in stage.quarantine.examples()] == [""]
    assert [(alert.rule, alert.count) for alert in outcome.alerts] == [("not_here", 2)]
    assert "dakhla may" in outcome.alerts[0].detail
    assert not stage.flush().features
    assert stage.counters.events_dropped == stage.counters.events_in == 2


def test_a_flood_of_forbidden_batches_is_one_alert_with_a_count() -> None:
    stage = stage_of(hub="dakar")
    alerts = [alert for seq in range(1, 101) for alert in take(stage, batch_of(seq, EVENTS), at_s=1000.0).alerts]
    alerts += stage.tick(now_ns=T0, now_s=1001.5).alerts
    assert [alert.count for alert in alerts] == [2, 198]


def test_no_mask_and_no_hub_that_complies_are_told_apart() -> None:
    stage = stage_of()
    take(stage, batch_of(1, EVENTS, juris_mask=0))
    take(stage, batch_of(2, EVENTS, juris_mask=1 << 40))
    assert stage.quarantine.counts == {"no_jurisdiction": 2, "no_compliant_hub": 2}


def test_a_batch_of_an_unknown_policy_waits_for_its_table_and_keeps_its_order() -> None:
    stage = stage_of()
    held = take(stage, batch_of(1, EVENTS, policy_version=2, juris_mask=0b10))
    assert (held.disposition, held.fetch_versions) == (Disposition.HELD, {2})
    assert take(stage, batch_of(2, EVENTS)).disposition is Disposition.HELD  # behind the first one of its source
    assert take(stage, batch_of(1, EVENTS, policy_version=2)).disposition is Disposition.DUPLICATE
    assert take(stage, batch_of(1, EVENTS, source=2)).disposition is Disposition.TAKEN
    outcomes = stage.learn_policy(PolicyTable(2, {"dakhla": 1, "tangier": 0}), now_ns=T0 + 9 * S, now_s=1000.5)
    assert [outcome.disposition for outcome in outcomes] == [Disposition.TAKEN] * 2
    assert stage.counters.events_accepted == 6


def test_a_policy_that_does_not_come_means_no() -> None:
    stage = stage_of()
    take(stage, batch_of(1, EVENTS, policy_version=2), at_s=1000.0)
    take(stage, batch_of(2, EVENTS, policy_version=3), at_s=1003.0)
    stage.learn_policy(PolicyTable(4, {"dakhla": 0}), now_ns=T0, now_s=1004.0)  # neither; their time runs on
    assert not stage.tick(now_ns=T0 + 9 * S, now_s=1004.9).alerts
    assert [alert.rule for alert in stage.tick(now_ns=T0 + 9 * S, now_s=1006.0).alerts] == ["policy_unknown"]
    assert stage.counters.events_dropped == 2
    stage.tick(now_ns=T0 + 9 * S, now_s=1009.0)
    assert stage.counters.events_dropped == stage.counters.events_in == 4
    assert take(stage, batch_of(3, EVENTS), at_s=1010.0).disposition is Disposition.TAKEN


def test_what_is_held_never_takes_more_than_its_limit() -> None:
    limits = replace(settings_of().limits, hold_bytes_max=3 * len(batch_of(1, EVENTS)))
    stage = stage_of(settings_of(limits=limits))
    for seq in range(1, 8):
        take(stage, batch_of(seq, EVENTS, policy_version=2))
    assert stage.counters.events_dropped == 2 * 4
    stage.learn_policy(PolicyTable(2, {"dakhla": 0}), now_ns=T0 + 9 * S, now_s=1000.0)
    assert stage.counters.events_accepted == 2 * 3


def test_features_permit_only_what_all_their_events_permit() -> None:
    stage = stage_of()
    take(stage, batch_of(1, EVENTS, juris_mask=0b111))
    take(stage, batch_of(1, EVENTS, juris_mask=0b011, source=2))
    take(stage, batch_of(2, [(30.0, 0, 0, 1.0)], juris_mask=0b101))
    take(stage, batch_of(2, [(30.0, 0, 0, 1.0)], juris_mask=0b111, source=2))
    outcome = stage.flush()
    assert [batch.juris_mask for batch in outcome.features] == [0b101]
    assert stage.counters.windows_closed == 2


def test_a_forecast_permits_only_what_all_of_its_history_permits() -> None:
    stage = stage_of(settings_of(forecast=ForecastSettings(span_s=10, step_s=1)))
    take(stage, batch_of(1, EVENTS, juris_mask=0b011))
    take(stage, batch_of(2, [(30.0, 0, 0, 1.0)], juris_mask=0b101))
    assert [batch.juris_mask for batch in stage.flush().features] == [HERE]


def test_open_windows_follow_a_new_numbering_of_hubs() -> None:
    stage = stage_of()
    take(stage, batch_of(1, EVENTS, juris_mask=0b011))  # dakhla, tangier
    stage.learn_policy(PolicyTable(2, {"dakar": 0, "tangier": 1, "dakhla": 2}), now_ns=T0 + 9 * S, now_s=1000.0)
    (batch,) = stage.flush().features
    assert (batch.juris_mask, batch.policy_version) == (0b110, 2)


def test_tables_are_kept_within_a_limit_and_old_ones_change_nothing() -> None:
    gate = ResidencyGate("dakhla", PolicyTable(10, {"dakhla": 0}))
    for version in range(11, 30):
        gate.learn(PolicyTable(version, {"dakhla": version % 8}))
    gate.learn(PolicyTable(28, {"dakhla": 5}))
    assert gate.current.version == 29
    assert gate.in_current_numbering(1, 10) == 0  # forgotten: nothing is permitted


def test_the_table_of_the_compiled_rules_has_their_bits_and_the_mask_of_the_pipeline() -> None:
    table = PolicyTable.of(RULES, 3, tag(rest_in=("MA",)), "dakhla")
    assert table == PolicyTable(3, {"dakhla": 0, "tangier": 1, "dakar": 2}, 0b011)


def test_a_batch_that_claims_more_than_its_pipeline_permits_gets_no_more() -> None:
    table = PolicyTable(1, {"dakhla": 0, "tangier": 1, "dakar": 2}, 0b011)
    stage = stage_of(table=table)
    take(stage, batch_of(1, EVENTS, juris_mask=2**64 - 1))
    assert [batch.juris_mask for batch in stage.flush().features] == [0b011]
    abroad = stage_of(hub="dakar", table=table)
    assert take(abroad, batch_of(1, EVENTS, juris_mask=2**64 - 1)).disposition is Disposition.DROPPED
