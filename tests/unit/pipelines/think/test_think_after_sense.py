"""Do events that pass the real SENSE become the features that the examples train on, and then commands?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from example_models import EXAMPLES, columns_of, decide, spec_in, training_of

from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.spec.settings import PipelineSpec
from harch.pipelines.wire.columns import Columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch

S = 1_000_000_000
DAY_S = 86_400
T0 = 20_000 * DAY_S * S
HERE = 0b1


def sense(spec: PipelineSpec, devices: int, enrichment: np.ndarray | None = None) -> SenseStage:
    settings = spec.sense
    table = DeviceTable([f"d{number}" for number in range(devices)], settings.devices_max, settings.metrics)
    stage = SenseStage(
        StageIdentity(spec.name, 0), settings, table, ResidencyGate("dakhla", PolicyTable(1, {"dakhla": 0}))
    )
    if enrichment is not None and settings.enrichment is not None:
        full = np.full((settings.devices_max, enrichment.shape[1]), np.nan)
        full[:devices] = enrichment
        stage.learn_enrichment(EnrichmentTable(1, settings.enrichment.columns, full))
    return stage


def features(stage: SenseStage, events: list[tuple[float, int, int, float]]) -> list[FeatureBatch]:
    """Events (second, device, metric, value) in one message for each hour, then the end of time.

    Within an hour they arrive in the order of the list, whatever their times.
    """
    found: list[FeatureBatch] = []
    hours = sorted({int(event[0] // 3600) for event in events})
    for seq, hour in enumerate(hours, start=1):
        found += take(stage, seq, [event for event in events if event[0] // 3600 == hour])
    assert stage.counters.events_accepted == len(events), stage.quarantine.counts
    return [*found, *stage.flush().features]


def take(stage: SenseStage, seq: int, events: list[tuple[float, int, int, float]]) -> list[FeatureBatch]:
    schema = stage.settings.event_schema
    at_s, device, metric, value = (np.array(column) for column in zip(*events, strict=True))
    values = np.zeros((len(schema.values), len(events)))
    values[0] = value
    ticks = np.round((at_s - at_s.min()) * S / schema.tick_ns).astype(np.uint64)
    payload = encode_columns(schema, Columns(ticks, device, metric, np.zeros(len(events)), values))
    first_ns = T0 + round(float(at_s.min()) * S)
    header = BatchHeader(
        schema=schema.id,
        n=len(events),
        juris_mask=HERE,
        policy_version=1,
        source=1,
        seq=seq,
        t_first_ns=first_ns,
        watermark_ns=first_ns,
        payload_len=len(payload),
    )
    now_s = float(at_s.max())
    found = stage.take(pack_batch(header, payload), now_ns=T0 + round(now_s * S), now_s=now_s).features
    assert stage.quarantine.counts == {}
    return found


def test_meters_of_the_grid_become_what_the_controller_was_trained_on() -> None:
    train = training_of("grid-balancing")
    spec = spec_in(EXAMPLES / "grid-balancing" / "pipeline.yaml")
    hour = train.make_hours(1, 3, 12)[0]
    series = np.stack(
        [
            np.full(12, 50.0),
            hour.pv_kw,
            hour.upwind_w_m2,
            hour.wind_kw,
            hour.load_kw,
            hour.scheduled_kw,
            np.full(12, 0.5),
        ]
    )
    stage, batches = sense(spec, 1), []
    for second in range(12):
        events = [(second + 0.5, 0, metric, float(values[second])) for metric, values in enumerate(series)]
        batches += take(stage, second + 1, events)
    batches += stage.flush().features
    wanted = train.observed(hour)
    assert spec.think is not None
    for batch in batches[:12]:
        end = round((batch.window_end_ns - T0) / S)
        row = dict(zip(batch.names, batch.matrix[0].tolist(), strict=True))
        found = [row[name] for name in spec.think.models[0].inputs]
        np.testing.assert_allclose(found, wanted[end - 1], rtol=1e-5)
    assert len(batches) >= 12


def test_a_day_of_a_farm_becomes_features_and_then_minutes_of_its_valves(tmp_path: Path) -> None:
    train = training_of("irrigation")
    model, margin_mm = train.fit(days=20, fields=12, seed=1, epochs=2)
    digest = train.export(model, margin_mm, tmp_path / "irrigation.onnx")
    train.write_pipeline(EXAMPLES / "irrigation" / "pipeline.yaml", tmp_path, digest)
    spec = spec_in(tmp_path / "pipeline.yaml")

    season, day = train.make_season(20, 6, 2), 9
    wanted = train.features(season, day, np.linspace(0.4, 0.9, 6) * season.capacity_mm)
    # Every field reports the weather of the day before by the hour, and forecasts and moisture at the end of the day.
    hourly = {"air-temp": season.temperature_c, "radiation": season.radiation_w_m2, "humidity": season.humidity}
    events = [
        ((hour + 0.5) * 3600, field, spec.sense.metrics.index(name), values[day - 1][hour])
        for name, values in hourly.items()
        for hour in range(24)
        for field in range(6)
    ]
    for name in ("soil-moisture.last", "sun-forecast.last", "rain-forecast.last"):
        column, metric = wanted[:, train.FEATURES.index(name)], spec.sense.metrics.index(name.removesuffix(".last"))
        events += [(86_000.0, field, metric, column[field]) for field in range(6)]
        events += [(4_000.0, field, metric, 1.0) for field in range(6)]
    own = np.column_stack((season.capacity_mm, season.valve_mm_per_min, season.crop_factor))
    (batch,) = features(sense(spec, 6, own), events)
    found = batch.matrix[:, [batch.names.index(name) for name in train.FEATURES]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)

    scored, _ = decide(tmp_path, columns_of(train.FEATURES, found))
    minutes = np.clip(train.policy_of(model, margin_mm)(season, day, wanted), 0, train.MINUTES_MAX)
    np.testing.assert_allclose(scored.outputs["valve_minutes"], minutes, rtol=1e-3, atol=0.05)
