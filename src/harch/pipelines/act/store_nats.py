"""How does the ledger live in JetStream? One key per command; the server refuses a write that names an old revision.

The server that keeps it must sync before it acknowledges (`sync_interval: always`): JetStream's default acknowledges
first. A write whose answer got lost is read back, so that nobody takes their own write for a stranger's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.pipelines.act.ledger import COMMAND_BYTES_MAX, CommandState, LedgerEntry, decode_entry, dropped, encode_entry
from harch.pipelines.act.store import SCAN_MAX, LedgerConflict, StoredEntry
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.bucket import Conflict as Taken
from harch.pipelines.client.bucket import NatsBucket, Unreachable
from harch.pipelines.client.errors import JetStreamRefused, NatsError
from harch.pipelines.client.jetstream import delivery_of
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin

log = logging.getLogger(__name__)

INDEX_MAX = 1_000_000  # open commands and letters that are kept in mind
HEARTBEAT_S = 2.0
HEARTBEATS_PER_WATCH = 150  # then the watch is started again, in case it lost something
TIMEOUT_S = 5.0
DUPLICATES_S = 120.0
NS_PER_S = 1_000_000_000
LOAD_TIMEOUT_S = 60.0
STOP_KEY = "stop"
_COMMAND = "cmd."
_NO_STREAM = 10059


@dataclass(slots=True)
class _Watch:
    """How far one watch of the bucket has come. `known`: entries that have not come again yet."""

    known: set[str]
    pending: int | None = None  # how many entries there were; None until the server has said so
    count: int = 0
    heartbeats: int = 0
    lost: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class NatsLedger:
    """A LedgerStore in a JetStream key-value bucket. `open` makes one; the connection stays the caller's."""

    def __init__(self, client: AioClient, name: str) -> None:
        self._client, self._name = client, name
        self._bucket, self._api = NatsBucket(client, name, timeout_s=TIMEOUT_S), JetStreamAdmin(client)
        self._index: dict[str, StoredEntry] = {}
        self._done: OrderedDict[str, StoredEntry] = OrderedDict()  # the last SCAN_MAX
        self._stop = ""
        self._loaded = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._closing = False

    @classmethod
    async def open(cls, client: AioClient, *, bucket: str, retention_s: float, replicas: int = 1) -> NatsLedger:
        """Opens the bucket, or makes it. `retention_s` counts from the last change of an entry. Raises E0775."""
        ledger = cls(client, bucket)
        try:
            await ledger._find_or_make(retention_s, replicas)
        except NatsError as error:
            raise _unreachable(error) from error
        ledger._follower = asyncio.create_task(ledger._follow(), name="act-ledger-watch")
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await ledger._loaded.wait()
        except TimeoutError as error:
            await ledger.close()
            raise _unreachable(error) from error
        return ledger

    async def _find_or_make(self, retention_s: float, replicas: int) -> None:
        try:
            await self._api.call(f"STREAM.INFO.KV_{self._name}")
        except JetStreamRefused as error:
            if error.code != _NO_STREAM:
                raise
            await self._api.call(
                f"STREAM.CREATE.KV_{self._name}",
                {
                    "name": f"KV_{self._name}",
                    "subjects": [f"$KV.{self._name}.>"],
                    "max_msgs_per_subject": 1,
                    "max_age": round(retention_s * NS_PER_S),
                    "max_msg_size": 2 * COMMAND_BYTES_MAX,
                    "storage": "file",
                    "num_replicas": replicas,
                    "discard": "new",
                    "deny_delete": True,
                    "allow_rollup_hdrs": True,
                    "allow_direct": True,  # what workers with narrow rights may ask for
                    "duplicate_window": round(min(retention_s, DUPLICATES_S) * NS_PER_S),
                },
            )

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        """The server syncs every write, so `durable` changes nothing here."""
        body = encode_entry(entry)
        try:
            written = await self._bucket.put(_COMMAND + entry.cmd_id, body, revision=revision)
        except Taken as error:
            raise LedgerConflict(entry.cmd_id) from error
        except Unreachable as error:
            written = await self._read_back(entry, body, revision, error)
        stored = StoredEntry(entry, written)
        self._keep(stored)
        return stored

    async def get(self, cmd_id: str) -> StoredEntry | None:
        try:
            found = await self._bucket.get(_COMMAND + cmd_id)
        except Unreachable as error:
            raise _unreachable(error) from error
        return None if found is None else StoredEntry(decode_entry(found.value), found.revision)

    async def scan(self, states: Collection[CommandState], limit: int = 1000) -> list[StoredEntry]:
        """As last heard from the server, a moment old; whoever acts on it writes with its revision."""
        found = [stored for stored in self._index.values() if stored.entry.state in states]
        found.sort(key=lambda stored: (stored.entry.changed_ms, stored.entry.cmd_id))
        return found[: min(limit, SCAN_MAX)]

    async def last_done(self, limit: int = 1000) -> list[StoredEntry]:
        return sorted(self._done.values(), key=lambda stored: -stored.entry.changed_ms)[: min(limit, SCAN_MAX)]

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        """The bucket forgets by age itself; here only letters above the limit go."""
        letters = [stored for stored in self._index.values() if stored.entry.letter]
        letters.sort(key=lambda stored: stored.entry.changed_ms, reverse=True)
        count = 0
        for stored in letters[letters_max:]:
            with contextlib.suppress(LedgerConflict):  # somebody replays it right now
                without = dropped(stored.entry, now_ms=stored.entry.changed_ms)
                await self.put(without, revision=stored.revision)
                count += 1
        return count

    async def set_stop(self, reason: str) -> None:
        try:
            await self._bucket.put(STOP_KEY, reason.encode())
        except Unreachable as error:
            raise _unreachable(error) from error
        self._stop = reason

    def stopped(self) -> str:
        """Whoever cannot hear a stop must not send."""
        if not self._client.is_connected:
            raise HarchError("E0775", "the ledger's message server is not connected", hint="check that it is running")
        return self._stop

    async def close(self) -> None:
        self._closing = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])

    async def _read_back(self, entry: LedgerEntry, body: bytes, revision: int, error: Exception) -> int:
        """The answer to a write got lost. Only an entry that is byte for byte ours counts as written."""
        found = await self.get(entry.cmd_id)
        if found is not None and encode_entry(found.entry) == body:
            return found.revision
        if found is not None and found.revision != revision:
            raise LedgerConflict(entry.cmd_id) from error
        raise _unreachable(error) from error  # it may still be under way, so nobody may rest on either

    async def _follow(self) -> None:
        """Keeps the index current. Other processes approve and stop through the same bucket."""
        while not self._closing:
            try:
                await self._watch()
            except (NatsError, TimeoutError) as error:
                log.warning("ledger watch failed, restarting: %s", type(error).__name__)
                await asyncio.sleep(1.0)

    async def _watch(self) -> None:
        """Reads the last state of every key, then each change. A consumer with a name of its own, because a worker may
        be allowed to make consumers of its own bucket only, and one whose silences and gaps are noticed."""
        inbox = self._client.session.new_reply("watch")
        watch = _Watch(set(self._index))
        subscription = self._client.subscribe(inbox, lambda message: self._arrived(message, watch))
        name, stream = f"watch-{secrets.token_hex(8)}", f"KV_{self._name}"
        config = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "filter_subject": f"$KV.{self._name}.>",
            "ack_policy": "none",
            "replay_policy": "instant",
            "idle_heartbeat": round(HEARTBEAT_S * NS_PER_S),
            "inactive_threshold": 60 * NS_PER_S,
            "mem_storage": True,
            "num_replicas": 1,
        }
        try:
            made = await self._api.call(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
            # What came before this answer was counted as delivered.
            watch.pending = int(made.get("num_pending", 0)) + int(made.get("delivered", {}).get("consumer_seq", 0))
            await self._listen(watch)
        finally:
            with contextlib.suppress(NatsError):
                self._client.unsubscribe(subscription)

    async def _listen(self, watch: _Watch) -> None:
        """Returns when it is time to start again; raises when the server is silent, or something got lost."""
        while watch.heartbeats < HEARTBEATS_PER_WATCH and not self._closing:
            if watch.lost:
                raise NatsError("the watch lost a message")
            if watch.pending is not None and watch.count >= watch.pending:  # what was there has come; the rest is gone
                for gone in watch.known:
                    self._index.pop(gone, None)
                watch.known.clear()
                self._loaded.set()
            watch.news.clear()
            async with asyncio.timeout(3 * HEARTBEAT_S):
                await watch.news.wait()

    def _arrived(self, message: Message, watch: _Watch) -> None:
        watch.news.set()
        delivery = delivery_of(message)
        if delivery is None:  # a heartbeat, without a message
            watch.heartbeats += 1
            return
        watch.count += 1
        if delivery.consumer_seq != watch.count:
            watch.lost = True
        if watch.lost:
            return
        key = message.subject.removeprefix(f"$KV.{self._name}.")
        if key == STOP_KEY:
            self._stop = bytes(message.payload).decode(errors="replace")
        elif len(message.payload) and not message.headers().get("KV-Operation"):
            try:
                stored = StoredEntry(decode_entry(bytes(message.payload)), delivery.stream_seq)
            except (HarchError, ValueError):
                log.error("entry %s of the ledger cannot be read", key[:80])
                return
            watch.known.discard(stored.entry.cmd_id)
            self._keep(stored)

    def _keep(self, stored: StoredEntry) -> None:
        known = self._index.get(stored.entry.cmd_id)
        if known is not None and known.revision > stored.revision:
            return
        if stored.entry.closed and not stored.entry.letter:
            self._index.pop(stored.entry.cmd_id, None)
            if stored.entry.state is CommandState.DONE:
                self._done[stored.entry.cmd_id] = stored
                if len(self._done) > SCAN_MAX:
                    self._done.popitem(last=False)
        elif known is not None or len(self._index) < INDEX_MAX:
            self._index[stored.entry.cmd_id] = stored


def _unreachable(error: BaseException) -> HarchError:
    return HarchError(
        "E0775",
        f"the ledger's message server did not respond ({type(error).__name__})",
        hint="check that it runs with JetStream and that this user has the bucket",
    )
