"""Do the three examples train something that beats a simple rule, and does it act as their pipeline files say?

Small versions of the real training: same code, less data. Figures of the full ones are in docs/pipelines/examples.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from example_models import EXAMPLES, NAMES, columns_of, decide, spec_in, training_of

from harch.fleet.file import shipped_fleet
from harch.hub.pipelines.planning import hosts_of
from harch.pipelines.sense.features import FeatureMaker
from harch.pipelines.spec.deployment import Deployment, plan_deployment
from harch.pipelines.spec.residency import prove_residency
from harch.pipelines.think.settings import input_problems
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions


@pytest.mark.parametrize("name", NAMES)
def test_the_pipeline_file_is_valid_and_asks_for_features_that_sense_gives(name: str) -> None:
    spec = spec_in(EXAMPLES / name / "pipeline.yaml")
    assert spec.think is not None
    assert input_problems(spec.think, FeatureMaker(spec.sense).names) == []
    assert spec.think.models[0].inputs == training_of(name).FEATURES


def test_irrigation_saves_water_without_more_stress_and_opens_valves(tmp_path: Path) -> None:
    train = training_of("irrigation")
    model, margin_mm = train.fit(days=90, fields=24, seed=42, epochs=16)
    found = train.evaluate(model, margin_mm, days=90, fields=24, seed=42, seasons=1)
    rule, own = found["refill rule, tuned"], found["model"]
    assert own.water_mm < rule.water_mm
    assert own.stress_share <= rule.stress_share + 0.005
    digest = train.export(model, margin_mm, tmp_path / "irrigation.onnx")
    train.write_pipeline(EXAMPLES / "irrigation" / "pipeline.yaml", tmp_path, digest)

    season = train.make_season(30, 24, 7)
    rows = train.features(season, 20, np.linspace(0.3, 1.0, 24) * season.capacity_mm)
    wanted = np.clip(train.policy_of(model, margin_mm)(season, 20, rows), 0, train.MINUTES_MAX)
    scored, commands = decide(tmp_path, columns_of(train.FEATURES, rows))
    np.testing.assert_allclose(scored.outputs["valve_minutes"], wanted, rtol=1e-3, atol=0.05)
    assert "d23" not in commands, "a full field gets no water"
    for device, (command,) in commands.items():
        minutes = float(scored.outputs["valve_minutes"][int(device[1:])])
        assert command.steps[0].args["minutes"] == round(minutes)
        assert command.action == ("open-valve" if minutes <= 60 else "open-valve-long")
    assert commands


def test_grid_balancing_deviates_less_than_both_rules_and_sets_the_battery(tmp_path: Path) -> None:
    train = training_of("grid-balancing")
    model, gain = train.fit(hours=16, seed=42, epochs=6, seconds=900)
    rides = train.evaluate(model, gain, hours=4, seed=42, seconds=900)
    own = train.mean(rides["model"], "rms_mhz")
    assert own < train.mean(rides["follow, tuned"], "rms_mhz")
    assert own < 0.7 * train.mean(rides["droop, tuned"], "rms_mhz")
    digest = train.export(model, gain, tmp_path / "grid-balancing.onnx")
    train.write_pipeline(EXAMPLES / "grid-balancing" / "pipeline.yaml", tmp_path, digest)

    rows = train.observed(train.make_hours(1, 5)[0])[100:3500:40].copy()
    rows[0, -1] = 1.0  # a full battery cannot take more:
    rows[0, 1] += 5_000  # the panels are curtailed
    controller = train.controller_of(model, gain)
    wanted = np.array([controller(row) for row in rows])
    scored, commands = decide(tmp_path, columns_of(train.FEATURES, rows))
    np.testing.assert_allclose(scored.outputs["battery_kw"], wanted[:, 0], rtol=1e-2, atol=2.0)
    np.testing.assert_allclose(scored.outputs["curtail_kw"], wanted[:, 1], rtol=1e-2, atol=2.0)
    assert [command.action for command in commands["d0"]] == ["battery-set-point", "curtail-panels"]
    assert commands["d0"][0].steps[0].args["kw"] == 0
    assert len(commands) == len(rows), "every second has its set-point"
    assert all(-2000 <= command.steps[0].args["kw"] <= 2000 for found in commands.values() for command in found[:1])  # type: ignore[operator]


def test_transactions_finds_more_fraud_at_the_same_alert_rate_and_holds_the_worst(tmp_path: Path) -> None:
    train = training_of("transactions")
    model, alert_odds, hold_odds = train.fit(count=60_000, seed=42, epochs=10)
    found = train.evaluate(model, 40_000, 42)
    _, recall = found["model"]
    assert recall > 1.2 * found["worst of four rules"][1]
    assert recall > 1.2 * found["amount against usual"][1]
    digest = train.export(model, alert_odds, hold_odds, tmp_path / "transactions.onnx")
    train.write_pipeline(EXAMPLES / "transactions" / "pipeline.yaml", tmp_path, digest)

    rows = train.make_windows(4_000, 99).rows
    odds = model.predict(train.prepared(rows))[:, 0]
    scored, commands = decide(tmp_path, columns_of(train.FEATURES, rows))
    np.testing.assert_allclose(scored.outputs["risk"], 1 / (1 + np.exp(-odds)), rtol=1e-2, atol=1e-3)
    held = {device for device, made in commands.items() if any(command.action == "hold-payments" for command in made)}
    alerted = {device for device, made in commands.items() if any(command.action == "alert-desk" for command in made)}
    assert held < alerted, "whoever is held is looked at"
    assert 0 < len(alerted) < 0.02 * len(rows)
    worst = f"d{int(np.argmax(odds))}"
    assert worst in held
    hold = next(command for command in commands[worst] if command.action == "hold-payments")
    assert hold.steps[0].args["account"] == worst


@pytest.mark.parametrize("name", NAMES)
def test_a_model_other_than_the_trained_one_is_not_served(name: str, tmp_path: Path) -> None:
    """The committed file names no model yet: its hash is all zeros until somebody trains."""
    (tmp_path / f"{name}.onnx").write_bytes(b"whatever")
    (tmp_path / "pipeline.yaml").write_bytes((EXAMPLES / name / "pipeline.yaml").read_bytes())
    with pytest.raises(Exception, match="E0502"):
        decide(tmp_path, {"x": np.zeros(1)})


@pytest.mark.parametrize("name", NAMES)
def test_the_residency_of_every_edge_is_proved_and_there_is_a_place_for_each_stage(name: str) -> None:
    fleet, jurisdictions = shipped_fleet("five-hubs"), shipped_jurisdictions()
    terrain = terrain_of(fleet, jurisdictions)
    spec = spec_in(EXAMPLES / name / "pipeline.yaml")
    proof = prove_residency(spec, hosts_of(spec), Rules(terrain), jurisdictions)
    assert proof.rejections == ()
    deployment = plan_deployment(spec, proof, terrain)
    assert isinstance(deployment, Deployment)
    assert deployment.country == "MA"
