"""What does a message cost? CPU per message of our client and of nats-py, in turns, through one real server.

Sender and receiver are processes of their own on loopback. CPU is theirs together, the server's not counted. A message
of 160 kB is a batch of 10,000 compact events; 1 kB is a small command. Every message is
counted on arrival.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.layout import Domain, EngineLayout, EngineUser, Server
from harch.pipelines.engine.server import EngineServer, find_nats_server, version_of
from harch.testing.ports import free_port
from verdict import Verdict, conditions

LANES = {"batch": (160_000, 1_500), "command": (1_000, 60_000)}  # bytes, messages per round
ROUNDS = 5
SUBJECT, INBOX = "juris.ma.bench.sense.0", "_INBOX.bench"
FLUSH_BYTES = 8 << 20  # both senders wait for the server as often
GOAL = 0.8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", nargs=3, metavar=("ROLE", "CLIENT", "LANE"))
    parser.add_argument("--url")
    arguments = parser.parse_args()
    if arguments.role:
        play(*arguments.role, arguments.url)
        return
    uvloop.run(measure())


async def measure() -> None:
    verdict = Verdict("pipelines_client")
    program = find_nats_server()
    print(f"conditions: {conditions()}; load average {os.getloadavg()[0]:.1f}; nats-server {version_of(program)}")
    with tempfile.TemporaryDirectory() as folder:
        server, seed = await start(Path(folder), program)
        try:
            for lane, (size, count) in LANES.items():
                used: dict[str, list[float]] = {"raw": [], "nats-py": []}
                rate: dict[str, list[float]] = {"raw": [], "nats-py": []}
                for _ in range(ROUNDS):
                    for client in used:  # in turns, so that the machine's load meets both alike
                        cpu_s, wall_s = await asyncio.to_thread(one_round, client, lane, server.url, seed)
                        used[client].append(cpu_s / count * 1e6)
                        rate[client].append(count / wall_s)
                ratios = [raw / other for raw, other in zip(used["raw"], used["nats-py"], strict=True)]
                for client in used:
                    costs = ", ".join(f"{cost:.1f}" for cost in used[client])
                    print(
                        f"{lane} ({size:,} bytes), {client}: {statistics.median(used[client]):.1f} us of CPU per "
                        f"message (rounds {costs}), {statistics.median(rate[client]):,.0f} messages per s"
                    )
                print(f"{lane}: ratio per round {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
                verdict.goal(f"{lane}: raw / nats-py CPU, median", f"<= {GOAL}", statistics.median(ratios))
        finally:
            await server.stop()
    verdict.print()


async def start(folder: Path, program: Path) -> tuple[EngineServer, str]:
    """The generated configuration, with one user who may do what the benchmark does."""
    keys = KeyFolder(folder / "keys")
    user = EngineUser(
        name="bench",
        public_key=keys.public_key("bench"),
        publish=(SUBJECT, "bench.done"),
        subscribe=(SUBJECT, f"{INBOX}.>", "bench.done"),
    )
    site = Server(
        name="bench",
        hub="bench",
        client_port=free_port(),
        monitor_port=free_port(),
        store=str(folder / "store"),
        log_file=str(folder / "nats.log"),
    )
    layout = EngineLayout(domains=(Domain(country="MA", name="bench", servers=(site,), users=(user,)),))
    server = EngineServer(
        site, server_config(layout, "bench"), folder, program, users={}, on_event=lambda event: None, tethered=True
    )
    await server.start()
    return server, keys.seed("bench")


def one_round(client: str, lane: str, url: str, seed: str) -> tuple[float, float]:
    """CPU seconds of both ends, and wall seconds from the sender's first message to the receiver's last."""
    command = [sys.executable, __file__, "--url", url, "--role"]
    environment = {**os.environ, "BENCH_SEED": seed}
    receiver = subprocess.Popen([*command, "receive", client, lane], stdout=subprocess.PIPE, text=True, env=environment)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sent = subprocess.run([*command, "send", client, lane], capture_output=True, text=True, check=True, env=environment)
    answer = json.loads(receiver.communicate(timeout=120)[0])
    assert answer["messages"] == LANES[lane][1], "messages were lost"
    sender = json.loads(sent.stdout)
    return sender["cpu_s"] + answer["cpu_s"], answer["ended_s"] - sender["began_s"]


def play(role: str, client: str, lane: str, url: str) -> None:
    size, count = LANES[lane]
    seed = os.environ["BENCH_SEED"]
    send, receive = (raw_send, raw_receive) if client == "raw" else (nats_send, nats_receive)
    answer = uvloop.run(send(url, seed, size, count) if role == "send" else receive(url, seed, count))
    print(json.dumps(answer), flush=True)


def raw_client(url: str, seed: str) -> AioClient:
    return AioClient(ClientOptions(servers=(url,), credentials=Credentials(seed=seed), inbox_prefix=INBOX))


async def raw_send(url: str, seed: str, size: int, count: int) -> dict[str, float]:
    async with raw_client(url, seed) as client:
        payload, per_flush = bytes(size), FLUSH_BYTES // size
        began_s, cpu_s = time.monotonic(), time.process_time()
        for number in range(1, count + 1):
            client.publish(SUBJECT, payload)
            if number % per_flush == 0:
                await client.flush(60)
        await client.flush(60)
        return {"cpu_s": time.process_time() - cpu_s, "began_s": began_s}


async def raw_receive(url: str, seed: str, count: int) -> dict[str, float]:
    async with raw_client(url, seed) as client:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        got = size = 0

        def arrived(message: Message) -> None:
            nonlocal got, size
            got, size = got + 1, size + len(message.payload)
            if got == count:
                done.set_result(None)

        client.subscribe(SUBJECT, arrived)
        await client.flush()
        print("ready", flush=True)
        cpu_s = time.process_time()
        await asyncio.wait_for(done, 120)
        return {"cpu_s": time.process_time() - cpu_s, "messages": got, "bytes": size, "ended_s": time.monotonic()}


async def nats_send(url: str, seed: str, size: int, count: int) -> dict[str, float]:
    import nats

    client = await nats.connect(url, nkeys_seed_str=seed, inbox_prefix=INBOX.encode())
    payload, per_flush = bytes(size), FLUSH_BYTES // size
    began_s, cpu_s = time.monotonic(), time.process_time()
    for number in range(1, count + 1):
        await client.publish(SUBJECT, payload)
        if number % per_flush == 0:
            await client.flush(60)
    await client.flush(60)
    used = {"cpu_s": time.process_time() - cpu_s, "began_s": began_s}
    await client.close()
    return used


async def nats_receive(url: str, seed: str, count: int) -> dict[str, float]:
    import nats
    from nats.aio.msg import Msg

    client = await nats.connect(url, nkeys_seed_str=seed, inbox_prefix=INBOX.encode())
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    got = size = 0

    async def arrived(message: Msg) -> None:
        nonlocal got, size
        got, size = got + 1, size + len(message.data)
        if got == count:
            done.set_result(None)

    await client.subscribe(SUBJECT, cb=arrived, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    print("ready", flush=True)
    cpu_s = time.process_time()
    await asyncio.wait_for(done, 120)
    used = {"cpu_s": time.process_time() - cpu_s, "messages": got, "bytes": size, "ended_s": time.monotonic()}
    await client.close()
    return used


if __name__ == "__main__":
    main()
