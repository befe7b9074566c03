"""What does rubbish cost? Everything that SENSE and its sources must refuse, sent for real and counted to the last one.

First on the fused lane, at full speed: phases with and without a hostile sender beside the good one, in turns. Then at
the edge: HTTP bodies and MQTT topics that are broken, too large, from nobody or hostile, while good ones go on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator

import httpx

from harch.pipelines.client.errors import TooLarge
from harch.pipelines.sense.settings import HttpSource, MqttSource
from harch.testing.ports import free_port
from pipelines_generator import Phase
from pipelines_world import KEY, BenchPipeline, pipeline
from verdict import Verdict

BATCH = 10_000
RUBBISH_EVERY = 20  # one hostile batch, of the same size, for twenty good ones
GOOD_ROWS = 500
HUGE_BYTES = 10 << 20
KEEPS_RATE = 0.9


async def measure(verdict: Verdict, *, seconds: float) -> None:
    await on_the_lane(verdict, seconds)
    await at_the_edge(verdict)


async def on_the_lane(verdict: Verdict, seconds: float) -> None:
    print("\nbad input on the fused lane: one hostile batch after twenty good ones; full speed, phases in turns")
    phases = [Phase(seconds), Phase(seconds, rubbish_every=RUBBISH_EVERY)] * 3
    async with pipeline(window_s=1.0, workers={"fused": 1, "act": 1}) as world:
        got = await world.generate(world.timetable(phases, BATCH, bad_share=0.0))
        counters = await world.counters("fused")
    rates = [events / took_s / 1e6 for events, took_s in got.phases]
    ratio = statistics.median(dirty / clean for clean, dirty in zip(rates[::2], rates[1::2], strict=True))
    print(f"  good events, M/s: clean {shown(rates[::2])}, with rubbish {shown(rates[1::2])}; ratio {ratio:.2f}")
    wrong = 0
    for reason, expected in sorted(got.rubbish.items()):
        found = counters.get(f"aside_{reason}", 0)
        wrong += abs(found - expected)
        print(f"  {reason}: sent {expected:,}, counted {found:,}")
    good = abs(got.events - counters["events_accepted"])
    print(f"  good events sent {got.events:,}, accepted {counters['events_accepted']:,}; load {os.getloadavg()[0]:.1f}")
    verdict.goal("bad input: events counted under another reason than theirs, or not at all", "== 0", wrong + good)
    verdict.goal("bad input: rate of good events, with rubbish over without", f">= {KEEPS_RATE:g}", ratio)


def shown(rates: list[float]) -> str:
    return ", ".join(f"{rate:.1f}" for rate in rates)


async def at_the_edge(verdict: Verdict) -> None:
    print("\nbad input at the edge: HTTP and MQTT")
    port = free_port()
    mqtt = MqttSource(name="field", host="127.0.0.1", port=port, topics=("farm/{device}/{metric}",))
    sources = (HttpSource(name="web"), mqtt)
    async with (
        broker(port),
        pipeline(window_s=1.0, workers={"source": 1, "fused": 1, "act": 1}, sources=sources) as world,
    ):
        expected, explained = await over_http(world)
        expected += await over_mqtt(port)
        wanted = 2 * GOOD_ROWS
        until_s = time.monotonic() + 60
        while True:
            source, sense = await world.counters("source"), await world.counters("fused")
            found = {reason: source.get(f"aside_{reason}", 0) for reason in expected}
            if (sense["events_in"] >= wanted and found == expected) or time.monotonic() > until_s:
                break
        too_large = 0
        try:
            world.pipeline.engine.admin.client.publish("juris.ma.bench.sense.0", bytes(HUGE_BYTES))
        except TooLarge:
            too_large = 1
    print(
        f"  counted {found} of {dict(expected)}; refused with an explanation: {explained}; "
        f"10 MB on the wire refused: {too_large}"
    )
    print(f"  good events accepted {sense['events_accepted']} of {wanted}")
    wrong = sum(abs(found[reason] - count) for reason, count in expected.items())
    verdict.goal("bad input at the edge: rows and messages not counted by their reason", "== 0", wrong)
    verdict.goal(
        "bad input at the edge: refusals without code and hint", "== 0", sum(not said for said in explained.values())
    )
    verdict.goal("bad input at the edge: good events lost", "== 0", wanted - sense["events_accepted"])


async def over_http(world: BenchPipeline) -> tuple[Counter[str], dict[str, bool]]:
    """What must be counted by the source, and whether each refusal of a whole body was explained."""
    url = f"{await world.endpoint('source', 'web')}/v1/events"
    now_ms = time.time_ns() // 1_000_000
    good = [
        {"ts": now_ms, "device": f"device-{number % 256}", "metric": "m0", "v0": 1.0, "v1": 1.0}
        for number in range(100)
    ]
    broken = [
        {"ts": now_ms, "device": "nobody", "metric": "m0", "v0": 1.0},
        {"ts": now_ms, "device": "device-1", "metric": "m0", "v0": "wet"},
        {"ts": now_ms, "device": "device-1", "metric": "m0", "v0": float("nan")},
        {"ts": "noon", "device": "device-1", "metric": "m0", "v0": 1.0},
        {"device": "device-1", "v0": 1.0},
    ]
    lines = "\n".join(json.dumps(row) for row in broken).encode()
    explained: dict[str, bool] = {}
    reasons: Counter[str] = Counter()
    async with httpx.AsyncClient(timeout=30, headers={"x-api-key": KEY}) as client:
        for _ in range(GOOD_ROWS // len(good)):
            answer = await client.post(url, json=good)
            if answer.status_code != 202:
                raise SystemExit(f"good rows were refused: {answer.text}")
            answer = await client.post(url, content=lines, headers={"content-type": "application/x-ndjson"})
            reasons.update(answer.json()["reasons"])
        for name, body in (
            ("10 MB body", b" " * HUGE_BYTES),
            ("no JSON", b"\x00\xff{{{"),
            ("too deep", b"[" * 100_000),
        ):
            answer = await client.post(url, content=body, headers={"content-type": "application/json"})
            told = answer.json()
            if answer.status_code == 202:  # rows that could not be read are told row by row
                reasons.update(told["reasons"])
                explained[name] = bool(told["examples"])
            else:
                explained[f"{name}: {answer.status_code}"] = bool(told.get("code") and told.get("hint"))
    print(f"  HTTP: {len(broken)} broken rows, {GOOD_ROWS // len(good)} times, and bodies were told as {dict(reasons)}")
    return reasons, explained


async def over_mqtt(port: int) -> Counter[str]:
    """Good values and hostile ones on topics of a real broker."""
    import aiomqtt

    async with aiomqtt.Client("127.0.0.1", port) as client:
        for number in range(GOOD_ROWS):
            await client.publish(f"farm/device-{number % 256}/m0", b"1.5", qos=1)
            if number % 100 == 0:
                await client.publish("farm/../../etc/m0", b"1", qos=0)  # one level too many: no broker hands it to us
                await client.publish("farm/device-1;drop table/m0", b"1", qos=1)
                await client.publish("farm/\u202e\u0007/m0", b"1", qos=1)
                await client.publish("farm/device-1/m0", b"not a number", qos=1)
                await client.publish("farm/device-1/m0", b"1" * 200_000, qos=1)
    rounds = GOOD_ROWS // 100
    return Counter({"bad_topic": rounds, "unknown_device": rounds, "unreadable": rounds, "too_large": rounds})


@contextlib.asynccontextmanager
async def broker(port: int) -> AsyncIterator[None]:
    """amqtt: a real broker in this process."""
    from amqtt.broker import Broker

    logging.getLogger("amqtt").setLevel(logging.CRITICAL)
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    config = {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    running = Broker(config)
    await running.start()
    try:
        yield
    finally:
        await running.shutdown()
