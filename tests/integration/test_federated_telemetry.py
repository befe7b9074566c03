"""Questions over three hubs in two countries: what crosses a border is aggregates, and every answer is written down."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from click.testing import CliRunner

from harch.cli.main import root
from harch.hub.federation.messages import PIECE_BYTES_MAX
from harch.hub.views import Role
from integration.federated_world import FederatedWorld, planted

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNTRY = {"dakhla": "MA", "tangier": "MA", "dakar": "SN"}
SOURCES = 6
VALUES = {hub: [1000.0625 * (number + 1) + one for one in range(SOURCES)] for number, hub in enumerate(COUNTRY)}
TOTAL = {hub: sum(values) for hub, values in VALUES.items()}
# A quarter of an hour that is over: hubs abroad count whole ones.
MINUTE = int(time.time()) // 900 * 900 - 900
LINES = 3  # of each stream


def trace_ids(hub: str) -> list[str]:
    return [f"{list(COUNTRY).index(hub):x}{one:x}{'5ec1e7' * 5}" for one in range(SOURCES)]


def span_ids(hub: str) -> list[str]:
    return [f"{list(COUNTRY).index(hub):x}{one:x}{'5ec1e7' * 2}ab" for one in range(SOURCES)]


def raw_marks(hub: str) -> list[bytes]:
    """What must not leave the country of this hub, in every form in which it might."""
    values = [form for value in VALUES[hub] for form in (struct.pack(">d", value), struct.pack("<d", value))]
    ids = [form for one in (*trace_ids(hub), *span_ids(hub)) for form in (one.encode(), bytes.fromhex(one))]
    texts = [str(value) for value in VALUES[hub]] + [f"secret-{what}-{hub}" for what in ("gpu", "line", "host", "user")]
    return [*values, *ids, *(text.encode() for text in texts)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FederatedWorld]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARCH_SENTINEL", "on")
        made = FederatedWorld(tmp_path_factory.mktemp("federated"))
        try:
            await made.start()
            for hub in COUNTRY:
                await plant(made, hub)
            yield made
        finally:
            await made.stop()


async def plant(world: FederatedWorld, hub: str) -> None:
    times = range((MINUTE - 60) * 1000, (MINUTE + 61) * 1000, 15_000)
    await world.write(hub, planted(hub, "planted_watts", VALUES[hub]), times)
    at_ns = (MINUTE - 100) * 10**9
    streams = [
        {
            "stream": {"job": "planted", "host": f"secret-host-{hub}-{one}"},
            "values": [
                [str(at_ns + line), f"secret-line-{hub}-{one}-{line}", {"level": "info"}] for line in range(LINES)
            ],
        }
        for one in range(SOURCES)
    ]
    await world.send(hub, "/loki/api/v1/push", {"streams": streams})
    spans = [
        {
            "traceId": trace_id,
            "spanId": span_id,
            "name": "step",
            "kind": 1,
            "startTimeUnixNano": str(at_ns + number),
            "endTimeUnixNano": str(at_ns + number + 10**6),
            "attributes": [{"key": "user", "value": {"stringValue": f"secret-user-{hub}-{number}"}}],
        }
        for number, (trace_id, span_id) in enumerate(zip(trace_ids(hub), span_ids(hub), strict=True))
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "planted"}}]}
    await world.send(
        hub, "/v1/traces", {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": spans}]}]}
    )


def assert_nothing_raw_crossed(world: FederatedWorld) -> None:
    """Every byte that any link carried to a hub: nothing of a hub in another country is in it."""
    for hub, country in COUNTRY.items():
        for other in COUNTRY:
            if COUNTRY[other] != country:
                crossed = [mark for mark in raw_marks(hub) if mark in world.tap.to[other]]
                assert crossed == [], f"of {hub}, on a link to {other}"


async def test_metrics_cross_borders_as_aggregates_only(world: FederatedWorld) -> None:
    query = {"query": "sum by (hub) (planted_watts)", "time": str(MINUTE), "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/v1/query", **query)
    assert status == 200, told
    assert {one["metric"]["hub"]: float(one["value"][1]) for one in told["data"]["result"]} == TOTAL
    raw = {"query": "planted_watts", "time": str(MINUTE), "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/v1/query", **raw)
    assert (status, told["code"]) == (403, "E0697")
    assert "hub dakar refused, rule" in told["error"]
    status, told = await world.ask("dakhla", "/api/v1/query", **raw, partial_response="true")
    assert status == 200
    assert sorted(one["metric"]["hub"] for one in told["data"]["result"]) == ["dakhla"] * 6 + ["tangier"] * 6
    assert any("dakar refused" in warning for warning in told["warnings"])
    assert_nothing_raw_crossed(world)
    assert struct.pack(">d", VALUES["tangier"][0]) in world.tap.to["dakhla"]  # inside a country it may move
    assert struct.pack(">d", TOTAL["dakar"]) in world.tap.to["dakhla"]  # and the tap sees what passes


async def test_each_question_is_in_the_chain_of_who_was_asked(world: FederatedWorld) -> None:
    before = {hub: len(await world.hubs[hub].entries()) for hub in COUNTRY}
    for query in ("sum(planted_watts)", "planted_watts"):
        await world.ask("dakhla", "/api/v1/query", query=query, time=str(MINUTE), hubs="all")
    told, refused = (await world.hubs["dakar"].entries())[before["dakar"] :]
    assert (told.kind, told.verdict, told.countries) == ("telemetry.told", "allowed", ("SN", "MA"))
    assert (told.details["groups"], told.details["expressions"]) == (1, ("sum(planted_watts)",))
    assert told.actor.startswith("dakhla:key_")
    assert told.authority == "tenant:default"
    assert (refused.kind, refused.verdict, refused.details["groups"]) == ("telemetry.refused", "refused", 0)
    assert len(refused.details["refused_rules"]) == 1  # type: ignore[arg-type]
    near = (await world.hubs["tangier"].entries())[before["tangier"] :]
    assert [(entry.kind, entry.countries) for entry in near] == [("telemetry.told", ("MA", "MA"))] * 2
    assert len(await world.hubs["dakhla"].entries()) == before["dakhla"]  # nobody asked it


async def test_lines_stay_in_their_country_and_counts_of_them_cross(world: FederatedWorld) -> None:
    counted = {"query": 'sum by (job) (count_over_time({job="planted"}[5m]))', "time": str(MINUTE), "hubs": "all"}
    status, told = await world.ask("dakhla", "/loki/api/v1/query", **counted)
    assert status == 200, told
    assert [float(one["value"][1]) for one in told["data"]["result"]] == [3 * SOURCES * LINES]
    lines = {"query": '{job="planted"}', "start": str(MINUTE - 900), "end": str(MINUTE), "limit": "100", "hubs": "all"}
    status, told = await world.ask("dakhla", "/loki/api/v1/query_range", **lines)
    assert (status, told["code"]) == (403, "E0697")
    status, told = await world.ask("dakhla", "/loki/api/v1/query_range", **lines, partial_response="true")
    texts = [value[1] for stream in told["data"]["result"] for value in stream["values"]]
    assert len(texts) == 2 * SOURCES * LINES
    assert {text.split("-")[2] for text in texts} == {"dakhla", "tangier"}
    assert any("dakar is in SN and was not queried: lines do not cross" in warning for warning in told["warnings"])
    assert_nothing_raw_crossed(world)
    assert b"secret-line-tangier" in world.tap.to["dakhla"]


async def test_traces_stay_in_their_country_and_statistics_of_them_cross(world: FederatedWorld) -> None:
    start, end = str(MINUTE - 900), str(MINUTE)
    counted = {"query": "service=planted", "by": "service", "start": start, "end": end, "hubs": "all"}
    status, told = await world.ask("dakhla", "/harchos/api/v1/traces/statistics", **counted)
    assert status == 200, told
    (group,) = told["data"]["groups"]
    assert (group["service"], group["count"]) == ("planted", 3 * SOURCES)
    search = {"query": "service=planted", "start": start, "end": end, "limit": "100", "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/traces/search", **search)
    assert (status, told["code"]) == (403, "E0697")
    status, told = await world.ask("dakhla", "/api/traces/search", **search, partial_response="true")
    found = {trace["traceID"] for trace in told["data"]["traces"]}
    assert found == {*trace_ids("dakhla"), *trace_ids("tangier")}
    path = f"/harchos/api/v1/traces/{trace_ids('tangier')[0]}"
    status, told = await world.ask("dakhla", path, hubs="all", partial_response="true")
    assert status == 200, told
    assert_nothing_raw_crossed(world)
    assert trace_ids("tangier")[0].encode() in world.tap.to["dakhla"]


async def test_a_long_answer_comes_in_pieces_over_a_real_link(world: FederatedWorld) -> None:
    at_ns, text = (MINUTE - 50) * 10**9, "many-words " * 200
    values = [[str(at_ns + line), f"{line:03d} {text}"] for line in range(400)]
    await world.send("tangier", "/loki/api/v1/push", {"streams": [{"stream": {"job": "long"}, "values": values}]})
    before = len(world.tap.to["dakhla"])
    lines = {"query": '{job="long"}', "start": str(MINUTE - 900), "end": str(MINUTE), "limit": "400"}
    status, told = await world.ask("dakhla", "/loki/api/v1/query_range", **lines, hubs="tangier,dakhla")
    assert status == 200, told
    found = [value[1] for stream in told["data"]["result"] for value in stream["values"]]
    assert sorted(found) == [f"{line:03d} {text}" for line in range(400)]
    assert len(world.tap.to["dakhla"]) - before > 3 * PIECE_BYTES_MAX
    assert (await world.hubs["tangier"].entries())[-1].details["expressions"] == ('{job="long"}',)


async def test_a_key_asks_for_its_own_tenant_everywhere_and_for_no_other(world: FederatedWorld) -> None:
    _, key = await world.hubs["dakhla"].service.credentials.create_key(name="u", tenant="acme", role=Role.USER)
    query = {"query": "sum(planted_watts)", "time": str(MINUTE), "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/v1/query", key=key, **query)
    assert (status, told["data"]["result"]) == (200, [])
    assert (await world.hubs["dakar"].entries())[-1].authority == "tenant:acme"
    status, told = await world.ask("dakhla", "/api/v1/query", key=key, tenant="default", **query)
    assert (status, told["code"]) == (403, "E0103")
    assert not (world.hubs["dakar"].state_dir / "sentinel" / "data" / "tenants" / "acme").exists()


async def test_no_key_but_the_shared_one_speaks_for_a_hub(world: FederatedWorld) -> None:
    dakar = world.hubs["dakar"]
    headers = {"X-API-Key": dakar.admin}
    answer = await world.client.post(f"{dakar.sentinel_url}/harchos/api/v1/federated/answer", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "E0103")
    question = {"id": "q", "tenant": "default", "asked_by": "me", "parts": []}
    forged = {"hub_id": "dakhla", "question": question}
    answer = await world.client.post(f"{dakar.url}/v1/sentinel/questions", headers=headers, json=forged)
    assert (answer.status_code, answer.json()["code"]) == (403, "E0103")


async def test_the_command_line_names_who_refuses(world: FederatedWorld) -> None:
    dakhla = world.hubs["dakhla"]
    environment = {"HARCH_SENTINEL_URL": dakhla.sentinel_url, "HARCH_API_KEY": dakhla.admin}
    words = ["sentinel", "query", "--all-hubs", "planted_watts", "--time", str(MINUTE)]
    result = await asyncio.to_thread(lambda: CliRunner().invoke(root, words, env=environment))
    assert result.exit_code == 0, result.stderr
    assert "secret-gpu-tangier-0" in result.stdout
    assert "secret-gpu-dakar" not in result.stdout
    assert "hub dakar refused, rule" in result.stderr


async def test_a_hub_that_is_away_is_named_and_the_others_answer(world: FederatedWorld) -> None:
    await world.hubs["dakar"].stop()
    query = {"query": "sum by (hub) (planted_watts)", "time": str(MINUTE), "hubs": "all"}
    status, told = await world.ask("dakhla", "/api/v1/query", **query)
    assert (status, told["code"]) == (503, "E0698")
    assert "hub dakar does not answer" in told["error"]
    status, told = await world.ask("dakhla", "/api/v1/query", **query, partial_response="true")
    assert {one["metric"]["hub"] for one in told["data"]["result"]} == {"dakhla", "tangier"}
    assert any("hub dakar does not answer" in warning for warning in told["warnings"])
