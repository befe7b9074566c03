"""What a hub tells others follows its settings, survives its restarts, and ends where its memory ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import (
    FederatedAnswer,
    InboundQuestion,
    Judged,
    LogPart,
    MetricPart,
    PartResult,
    Question,
    Requester,
    TracePart,
)
from harch.sentinel.http.federated.disclosure import FederatedAnswers, HubOwner, TelemetryArchive, readers_of
from harch.sentinel.http.messages import TelemetryRequest
from harch.sentinel.http.permissions import ACCESS, HUB_ALONE
from harch.sentinel.http.settings import FederatedSettings, read_settings
from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs, MemorySpans

AT_MS = 3_600_000
NOW_MS = AT_MS + 7_200_000
HERE = Requester(hub_id="dakar", country="SN")
NEAR, FAR = Requester(hub_id="thies", country="SN"), Requester(hub_id="dakhla", country="MA")
SUM = MetricPart(expression="sum(power)", start_ms=AT_MS, end_ms=AT_MS, step_ms=0)


class Stores:
    """Metrics of tenant acme in a real store; lines and spans of nobody."""

    def __init__(self, folder: Path) -> None:
        self.metrics = StoreFolder(folder, SimClock(), TenantLimits(out_of_order_ms=None), BlockPolicy())
        named = [labels([(METRIC_NAME, "power"), ("gpu", str(number)), ("hub", "dakar")]) for number in range(6)]
        for at_ms in range(AT_MS - 60_000, AT_MS + 60_001, 15_000):
            self.metrics.store("acme").append([SeriesBatch(one, [at_ms], [100.0]) for one in named])
        self.opened: list[str] = []

    def logs(self, tenant: str) -> MemoryLogs:
        self.opened.append(tenant)
        return MemoryLogs()

    def spans(self, tenant: str) -> MemorySpans:
        self.opened.append(tenant)
        return MemorySpans()

    def names(self) -> Sequence[str]:
        return ()


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path / "data")


def owner_of(stores: Stores, tmp_path: Path, settings: FederatedSettings | None = None) -> HubOwner:
    archive: TelemetryArchive = stores
    readers = readers_of(stores.metrics, archive)
    return HubOwner(settings or FederatedSettings(), readers, QueryEngine(), tmp_path / "told_abroad")


def asked(asker: Requester, *parts: MetricPart | LogPart | TracePart, tenant: str = "acme") -> InboundQuestion:
    question = Question(id="q", tenant=tenant, requested_by="key", parts=parts or (SUM,))
    return InboundQuestion(question=question, asker=asker, here=HERE, within_s=600.0)


def told(answer: FederatedAnswer) -> PartResult:
    (only,) = answer.results
    return only


def test_aggregates_go_abroad_and_single_series_stay_in_the_country(stores: Stores, tmp_path: Path) -> None:
    owner = owner_of(stores, tmp_path)
    assert told(owner.answer(asked(FAR), now_ms=NOW_MS)).series[0].values == (600.0,)
    single = replace(SUM, expression="power")
    assert told(owner.answer(asked(FAR, single), now_ms=NOW_MS)).refused is not None
    assert len(told(owner.answer(asked(NEAR, single), now_ms=NOW_MS)).series) == 6
    assert len(told(owner.own(asked(HERE, single), now_ms=NOW_MS)).series) == 6


def test_the_operator_can_turn_answers_off_and_own_people_still_see_everything(stores: Stores, tmp_path: Path) -> None:
    owner = owner_of(stores, tmp_path, FederatedSettings(answers=False))
    for asker in (NEAR, FAR):
        with pytest.raises(HarchError) as off:
            owner.answer(asked(asker), now_ms=NOW_MS)
        assert off.value.code == "E0697"
    assert told(owner.own(asked(HERE), now_ms=NOW_MS)).series


def test_what_was_told_abroad_counts_after_a_restart(stores: Stores, tmp_path: Path) -> None:
    first = owner_of(stores, tmp_path)
    assert told(first.answer(asked(FAR), now_ms=NOW_MS)).series
    first.close()
    assert (tmp_path / "told_abroad").stat().st_size > 0


def test_without_its_memory_a_hub_tells_nothing_abroad(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "told_abroad").write_bytes(b"\x04\x00\x00\x00\x00\x00\x00\x00rubbish and more of it")
    owner = owner_of(stores, tmp_path)
    assert "not answering queries from other countries" in caplog.text
    with pytest.raises(HarchError) as forgot:
        owner.answer(asked(FAR), now_ms=NOW_MS)
    assert forgot.value.code == "E0698"
    assert told(owner.answer(asked(NEAR), now_ms=NOW_MS)).series
    owner.close()


def test_a_tenant_that_is_not_here_has_nothing_and_is_not_made(stores: Stores, tmp_path: Path) -> None:
    owner = owner_of(stores, tmp_path)
    parts = (
        replace(SUM, expression="power"),
        LogPart(expression='{a="b"}', start_ns=0, end_ns=1, step_ns=1, limit=5),
        TracePart(kind="search", query="", start_ns=0, end_ns=1),
        TracePart(kind="trace", query="ab" * 16, start_ns=0, end_ns=1),
        TracePart(kind="statistics", query="", start_ns=0, end_ns=1, by=("name",)),
    )
    for tenant in ("stranger", "../etc"):
        answer = owner.answer(asked(NEAR, *parts, tenant=tenant), now_ms=NOW_MS)
        assert [one.refused for one in answer.results] == [None] * 5
        assert not any(one.series or one.body not in (b"", b"[]") for one in answer.results)
    assert (list(stores.metrics.names()), stores.opened) == (["acme"], [])


def test_the_route_is_for_the_hub_alone_and_accounts_for_every_part(stores: Stores, tmp_path: Path) -> None:
    (route,) = FederatedAnswers(owner_of(stores, tmp_path)).routes()
    assert ACCESS["POST", route.path] is HUB_ALONE
    body = msgspec.msgpack.encode(asked(FAR, SUM, replace(SUM, expression="power")))
    request = TelemetryRequest("POST", route.path, {}, {}, body, "default", NOW_MS)
    answer = route.handler(request, {})
    judged = msgspec.msgpack.decode(answer.body, type=Judged)  # type: ignore[union-attr]
    whole, single = judged.parts
    assert (whole.groups, whole.points, whole.refused_rule) == (1, 1, "")
    assert single.groups == 0
    assert single.refused_rule
    with pytest.raises(HarchError):
        route.handler(TelemetryRequest("POST", route.path, {}, {}, b"\xff", "default", NOW_MS), {})


def test_settings_are_read_and_refused_when_they_give_too_much_away(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.toml"
    file.write_text('[federated]\nanswers = false\nk = 8\nlabels_abroad_more = ["rack"]\ntenants_abroad = ["acme"]\n')
    found = read_settings(file).federated
    assert (found.answers, found.policy.k, found.policy.cross_border_tenants) == (False, 8, {"acme"})
    assert {"rack", "hub"} <= found.policy.cross_border_labels
    assert read_settings(None).federated == FederatedSettings()
    for wrong in ("k = 1", "aggregations_abroad = ['max']", "quantum_s = 7", "neighbours = ['SN']", "k = 'five'"):
        file.write_text(f"[federated]\n{wrong}\n")
        with pytest.raises(HarchError) as refused:
            read_settings(file)
        assert refused.value.code == "E0673"
