"""How does the ledger live in JetStream? One key per command; the server refuses a write that names an old revision.

The server that keeps it must sync before it acknowledges (`sync_interval: always`): JetStream's default acknowledges
first. A write whose answer got lost is read back, so that nobody takes their own write for a stranger's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING

from harch.base.errors import HarchError
from harch.pipelines.act.command import COMMAND_BYTES_MAX
from harch.pipelines.act.ledger import Entry, State, decode_entry, dropped, encode_entry
from harch.pipelines.act.store import SCAN_MAX, Conflict, Stored

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

log = logging.getLogger(__name__)

INDEX_MAX = 1_000_000  # open commands and letters that are kept in mind
HEARTBEAT_S = 2.0
HEARTBEATS_PER_WATCH = 150  # then the watch is started again, in case it lost something
QUEUE_MAX = 10_000
LOAD_TIMEOUT_S = 60.0
_STOP = "stop"
_COMMAND = "cmd."


class NatsLedger:
    """A LedgerStore in a JetStream key-value bucket. `open` makes one; the connection stays the caller's."""

    def __init__(self, client: Client, streams: JetStreamContext, bucket: KeyValue, name: str) -> None:
        self._client, self._streams = client, streams
        self._bucket, self._name, self._stream = bucket, name, f"KV_{name}"
        self._index: dict[str, Stored] = {}
        self._done: OrderedDict[str, Stored] = OrderedDict()  # the last SCAN_MAX
        self._stop = ""
        self._loaded = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._closing = False

    @classmethod
    async def open(
        cls, client: Client, *, bucket: str, retention_s: float, replicas: int = 1, domain: str | None = None
    ) -> NatsLedger:
        """Opens the bucket, or makes it. `retention_s` counts from the last change of an entry. Raises E0775."""
        from nats.errors import Error
        from nats.js.api import KeyValueConfig, StorageType
        from nats.js.errors import BucketNotFoundError

        streams = client.jetstream(domain=domain) if domain else client.jetstream()
        try:
            try:
                found = await streams.key_value(bucket)
            except BucketNotFoundError:
                found = await streams.create_key_value(
                    KeyValueConfig(
                        bucket=bucket,
                        history=1,
                        direct=True,  # what workers with narrow rights may ask for
                        ttl=retention_s,
                        storage=StorageType.FILE,
                        replicas=replicas,
                        max_value_size=2 * COMMAND_BYTES_MAX,
                    )
                )
        except (Error, OSError, TimeoutError) as error:
            raise _unreachable(error) from error
        ledger = cls(client, streams, found, bucket)
        ledger._follower = asyncio.create_task(ledger._follow(), name="act-ledger-watch")
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await ledger._loaded.wait()
        except TimeoutError as error:
            await ledger.close()
            raise _unreachable(error) from error
        return ledger

    async def put(self, entry: Entry, *, revision: int, durable: bool = True) -> Stored:
        """The server syncs every write, so `durable` changes nothing here."""
        from nats.errors import Error
        from nats.js.errors import KeyWrongLastSequenceError

        key, body = _COMMAND + entry.cmd_id, encode_entry(entry)
        try:
            if revision == 0:
                written = await self._bucket.create(key, body)
            else:
                written = await self._bucket.update(key, body, last=revision)
        except KeyWrongLastSequenceError as error:
            raise Conflict(entry.cmd_id) from error
        except (Error, OSError, TimeoutError) as error:
            written = await self._read_back(entry, body, revision, error)
        stored = Stored(entry, written)
        self._keep(stored)
        return stored

    async def get(self, cmd_id: str) -> Stored | None:
        from nats.errors import Error
        from nats.js.errors import KeyNotFoundError

        try:
            found = await self._bucket.get(_COMMAND + cmd_id)
        except KeyNotFoundError:
            return None
        except (Error, OSError, TimeoutError) as error:
            raise _unreachable(error) from error
        return Stored(decode_entry(found.value or b""), found.revision or 0)

    async def scan(self, states: Collection[State], limit: int = 1000) -> list[Stored]:
        """As last heard from the server, a moment old; whoever acts on it writes with its revision."""
        found = [stored for stored in self._index.values() if stored.entry.state in states]
        found.sort(key=lambda stored: (stored.entry.changed_ms, stored.entry.cmd_id))
        return found[: min(limit, SCAN_MAX)]

    async def last_done(self, limit: int = 1000) -> list[Stored]:
        return sorted(self._done.values(), key=lambda stored: -stored.entry.changed_ms)[: min(limit, SCAN_MAX)]

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        """The bucket forgets by age itself; here only letters above the limit go."""
        letters = [stored for stored in self._index.values() if stored.entry.letter]
        letters.sort(key=lambda stored: stored.entry.changed_ms, reverse=True)
        count = 0
        for stored in letters[letters_max:]:
            with contextlib.suppress(Conflict):  # somebody replays it right now
                without = dropped(stored.entry, now_ms=stored.entry.changed_ms)
                await self.put(without, revision=stored.revision)
                count += 1
        return count

    async def set_stop(self, reason: str) -> None:
        from nats.errors import Error

        try:
            await self._bucket.put(_STOP, reason.encode())
        except (Error, OSError, TimeoutError) as error:
            raise _unreachable(error) from error
        self._stop = reason

    def stopped(self) -> str:
        """Whoever cannot hear a stop must not send."""
        if not self._client.is_connected:
            raise HarchError("E0775", "the ledger's message server is not connected", hint="is it running?")
        return self._stop

    async def close(self) -> None:
        self._closing = True
        while self._follower is not None and not self._follower.done():
            # More than once: nats-py answers a cancellation on a closed connection with an error of its own.
            self._follower.cancel()
            await asyncio.wait([self._follower], timeout=0.1)

    async def _read_back(self, entry: Entry, body: bytes, revision: int, error: Exception) -> int:
        """The answer to a write got lost. Only an entry that is byte for byte ours counts as written."""
        found = await self.get(entry.cmd_id)
        if found is not None and encode_entry(found.entry) == body:
            return found.revision
        if found is not None and found.revision != revision:
            raise Conflict(entry.cmd_id) from error
        raise _unreachable(error) from error  # it may still be under way, so nobody may rest on either

    async def _follow(self) -> None:
        """Keeps the index current. Other processes approve and stop through the same bucket."""
        from nats.errors import Error

        while not self._closing:
            try:
                await self._watch()
            except (Error, OSError, TimeoutError) as error:
                log.warning("the watch of the ledger broke and starts again: %s", type(error).__name__)
                await asyncio.sleep(1.0)

    async def _watch(self) -> None:
        """Hears the last state of every key, then each change. A consumer with a name of its own, because a worker may
        be allowed to make consumers of its own bucket only, and one whose silences and gaps are noticed."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        inbox = self._client.new_inbox()
        queue: asyncio.Queue[Msg] = asyncio.Queue(maxsize=QUEUE_MAX)
        heard = await self._client.subscribe(inbox, cb=queue.put)
        try:
            made = await self._streams.add_consumer(
                self._stream,
                ConsumerConfig(
                    name=f"watch-{inbox.rsplit('.', 1)[1]}",
                    deliver_subject=inbox,
                    deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
                    filter_subject=f"$KV.{self._name}.>",
                    ack_policy=AckPolicy.NONE,
                    idle_heartbeat=HEARTBEAT_S,
                    inactive_threshold=60.0,
                    mem_storage=True,
                    num_replicas=1,
                ),
            )
            await self._listen(queue, made.num_pending or 0)
        finally:
            with contextlib.suppress(Exception):
                await heard.unsubscribe()

    async def _listen(self, queue: asyncio.Queue[Msg], pending: int) -> None:
        """Returns when it is time to start again; raises when the server is silent, or something got lost."""
        known, count, left = set(self._index), 0, HEARTBEATS_PER_WATCH
        while left and not self._closing:
            if count == pending and not self._loaded.is_set():
                self._loaded.set()
            if count == pending:  # everything that was there has been told; what was not is gone
                for gone in known:
                    self._index.pop(gone, None)
                known.clear()
            async with asyncio.timeout(3 * HEARTBEAT_S):
                message = await queue.get()
            if not message.reply:  # a sign of life, without a message
                left -= 1
                continue
            count += 1
            if message.metadata.sequence.consumer != count:
                raise OSError("the watch lost a message")
            key = message.subject.removeprefix(f"$KV.{self._name}.")
            if key == _STOP:
                self._stop = message.data.decode()
            elif message.data and not (message.headers or {}).get("KV-Operation"):
                stored = Stored(decode_entry(message.data), message.metadata.sequence.stream)
                known.discard(stored.entry.cmd_id)
                self._keep(stored)

    def _keep(self, stored: Stored) -> None:
        known = self._index.get(stored.entry.cmd_id)
        if known is not None and known.revision > stored.revision:
            return
        if stored.entry.closed and not stored.entry.letter:
            self._index.pop(stored.entry.cmd_id, None)
            if stored.entry.state is State.DONE:
                self._done[stored.entry.cmd_id] = stored
                if len(self._done) > SCAN_MAX:
                    self._done.popitem(last=False)
        elif known is not None or len(self._index) < INDEX_MAX:
            self._index[stored.entry.cmd_id] = stored


def _unreachable(error: BaseException) -> HarchError:
    return HarchError(
        "E0775",
        f"the ledger's message server gave no answer ({type(error).__name__})",
        hint="is it running, with JetStream, and does this user have the bucket?",
    )
