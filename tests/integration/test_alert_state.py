"""Does what was answered survive kill -9? A process writes silences as fast as it can and is killed again and again."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from harch.sentinel.alerts.store import AlertStore

ROUNDS = 5
WRITER = """
import asyncio, sys
from pathlib import Path
from harch.base.clock import SystemClock
from harch.sentinel.alerts.config import default_config
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.store import AlertStore

class Nobody:
    async def send(self, delivery): pass

async def write(service, number):
    body = {"matchers": [{"name": "a", "value": f"v{number}"}], "endsAt": "2120-01-01T00:00:00Z", "createdBy": "x"}
    status, answer = await service.post_silence(body)
    if status == 200:
        print(answer["silenceID"], flush=True)

async def main():
    service = AlertService(default_config(), AlertStore(Path(sys.argv[1])), Nobody(), SystemClock())
    number = 0
    while True:
        await asyncio.gather(*(write(service, number + n) for n in range(4)))
        number += 4

asyncio.run(main())
"""


def test_every_silence_that_was_answered_is_there_after_kill_9(tmp_path: Path):
    path = tmp_path / "alerts.db"
    chance = random.Random(7)
    answered: set[str] = set()
    for _ in range(ROUNDS):
        wanted = chance.randint(5, 60)
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(wanted):
                answered.add(writer.stdout.readline().strip())
            writer.kill()
            # Lines that were whole when it died were answered, too.
            answered.update(
                line.strip() for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")
            )
        store = AlertStore(path)
        kept = {record.key for record in store.load().records}
        store.close()
        assert "" not in answered
        assert answered <= kept
    assert len(answered) >= ROUNDS * 5
