"""How do events come in from an MQTT broker? Topics name device and metric, payloads are numbers or JSON objects.

A bare number is the first value, at the time of its arrival; an object is a row. Messages are gathered for a few
milliseconds, because a batch of one event costs as much as one of a thousand. When the stage is behind, messages wait
in a bounded queue; what finds it full is counted as `intake_full`, since MQTT cannot be made to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.egress import EgressGuard, reason, tls_for
from harch.base.errors import HarchError
from harch.base.hosts import read_host
from harch.base.rejection import Rejection
from harch.pipelines.sense.edge import EdgeBatcher
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantined
from harch.pipelines.sense.settings import NS_PER_S, MqttSource
from harch.pipelines.wire.columns import EventSchema
from harch.pipelines.wire.rows import ROW_BYTES_MAX, UNIT_NS, RowReader
from harch.sovereignty.jurisdictions import EgressRule

# Which device and metric does an MQTT topic mean? A pattern such as `farm/{device}/{metric}`, matched by levels.
#
# A topic is chosen by whoever publishes, so it is judged like any other input. What the topic says wins over what the
# payload says, because brokers grant rights by topic.


TOPIC_CHARS_MAX = 512
LEVEL_CHARS_MAX = 128
_WORDS = ("{device}", "{metric}")


class TopicPattern(Struct, frozen=True):
    """A checked pattern; make it with `topic_pattern`."""

    levels: tuple[str, ...]

    @property
    def subscription(self) -> str:
        """The filter for the broker."""
        return "/".join("+" if level in _WORDS else level for level in self.levels)

    def match(self, topic: str) -> dict[str, str] | None:
        """`device` and `metric` as far as the pattern names them; None if the topic is another one."""
        parts = topic.split("/")
        if len(parts) != len(self.levels):
            return None
        found = {}
        for level, part in zip(self.levels, parts, strict=True):
            if level in _WORDS:
                found[level[1:-1]] = part
            elif level != part:
                return None
        return found


def topic_pattern(text: str) -> TopicPattern | Rejection:
    """Reads a pattern of the settings."""
    levels = tuple(text.split("/"))
    for level in levels:
        if not level or ("{" in level and level not in _WORDS) or any(sign in level for sign in "+#\0"):
            return Rejection("topic", "pattern", f"`{level[:40]}` is not a level", "names, `{device}` and `{metric}`")
    if any(levels.count(word) > 1 for word in _WORDS) or levels[0].startswith("$"):
        return Rejection("topic", "pattern", f"`{text[:100]}` names a level twice, or starts with $")
    return TopicPattern(levels)


def read_topic(patterns: tuple[TopicPattern, ...], topic: str) -> dict[str, str] | Rejection:
    """What a published topic means, or why it means nothing."""
    if len(topic) > TOPIC_CHARS_MAX:
        return Rejection("topic", "length", f"{len(topic)} characters; at most {TOPIC_CHARS_MAX}")
    if not topic.isprintable() or any(sign in topic for sign in "+#") or topic.startswith("$"):
        return Rejection("topic", "characters", f"{topic[:60]!r} has characters not allowed in a topic")
    if any(not 0 < len(part) <= LEVEL_CHARS_MAX for part in topic.split("/")):
        return Rejection("topic", "levels", f"`{topic[:60]}` has an empty or an overlong level")
    for pattern in patterns:
        if (found := pattern.match(topic)) is not None:
            return found
    return Rejection("topic", "unknown", f"`{topic[:100]}` matches none of the patterns")


GATHER_S = 0.01
GATHERED_MAX = 5_000
QUEUED_MAX = 20_000
RETRY_S_MAX = 30.0
_PAYLOAD = msgspec.json.Decoder(float | dict[str, int | float | str | bool | None])


class MqttInput:
    """One source at one broker. Connects again by itself, ever more slowly."""

    def __init__(
        self,
        settings: MqttSource,
        schema: EventSchema,
        edge: EdgeBatcher,
        reader: RowReader,
        intake: Intake,
        clock: Clock,
        *,
        guard: EgressGuard | None = None,
        password: str | None = None,
    ) -> None:
        patterns = [topic_pattern(topic) for topic in settings.topics]
        if refused := next((pattern for pattern in patterns if isinstance(pattern, Rejection)), None):
            raise HarchError("E0201", f"source `{settings.name}`: {refused.detail}", hint=refused.nearest_fix)
        self.connections = 0
        self._patterns = tuple(pattern for pattern in patterns if isinstance(pattern, TopicPattern))
        self._settings = settings
        self._edge = edge
        self._reader = reader
        self._intake = intake
        self._clock = clock
        self._guard = guard or EgressGuard(EgressRule().refusal)  # without one: a broker on this machine
        self._password = password
        first = schema.values[0].name
        self._value_key = settings.rows.values.get(first, first)
        self._unit_ns = UNIT_NS[settings.rows.time_unit]
        self._gathered: list[Mapping[str, object]] = []

    async def run(self) -> None:
        library = _library()
        retry_s, attempt = 1.0, 0
        while True:
            try:
                async with self._client(library, await self._address(attempt)) as client:
                    self.connections += 1
                    retry_s = 1.0
                    for pattern in self._patterns:
                        await client.subscribe(pattern.subscription, qos=self._settings.qos)
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._send_gathered())
                        group.create_task(self._gather(client))
            except* library.MqttError as lost:
                self._set_aside("broker_lost", str(lost.exceptions[0])[:200])
            except* OSError as lost:
                self._set_aside("broker_lost", reason(lost.exceptions[0])[:200])
            attempt += 1
            await self._clock.sleep(retry_s)
            retry_s = min(RETRY_S_MAX, 2 * retry_s)

    def take(self, topic: str, payload: bytes) -> None:
        """One message as the broker delivered it."""
        meaning = read_topic(self._patterns, topic)
        if isinstance(meaning, Rejection):
            self._set_aside("bad_topic", meaning.detail)
            return
        try:
            content = _PAYLOAD.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            self._set_aside("unreadable", f"payload on `{topic}`: {error}", payload)
            return
        rows = self._settings.rows
        row: dict[str, object] = {self._value_key: content} if isinstance(content, float) else dict(content)
        row.setdefault(rows.time, self._now_ns() // self._unit_ns)
        for word, key in (("device", rows.device), ("metric", rows.metric)):
            if word in meaning:
                row[key] = meaning[word]
        self._gathered.append(row)

    async def send_gathered(self) -> None:
        """Makes batches of what was gathered and waits until the intake has room for them."""
        rows, self._gathered = self._gathered, []
        if rows:
            prepared = self._edge.prepare(self._reader.mappings(rows), self._now_ns())
            self._edge.commit(prepared, self._intake.quarantine)
            for message in prepared.messages:
                await self._intake.put(message)

    async def _gather(self, client: Any) -> None:
        async for message in client.messages:
            self.take(str(message.topic), message.payload)
            while len(self._gathered) >= GATHERED_MAX:
                await self._clock.sleep(GATHER_S)

    async def _send_gathered(self) -> None:
        while True:
            await self._clock.sleep(GATHER_S)
            await self.send_gathered()

    async def _address(self, attempt: int) -> str:
        """One of the broker's, judged just now; the next one with the next attempt. Raises NotPermitted."""
        found = await self._guard.addresses_soon(self._settings.host, self._settings.port)
        return found[attempt % len(found)]

    def _client(self, library: Any, address: str) -> Any:
        settings = self._settings
        input = self

        class Queue(asyncio.Queue[Any]):
            """Turns away what is too large or too much before it takes memory, and counts it."""

            def put_nowait(self, item: Any) -> None:
                size = len(item.payload) if isinstance(item.payload, bytes) else ROW_BYTES_MAX + 1
                if size > ROW_BYTES_MAX:
                    detail = f"{size} bytes on `{str(item.topic)[:100]}`; at most {ROW_BYTES_MAX}"
                    input._set_aside("too_large", detail)
                elif self.full():
                    input._set_aside("intake_full", f"{QUEUED_MAX} messages are already queued")
                else:
                    super().put_nowait(item)

        return library.Client(
            address,
            settings.port,
            username=settings.username or None,
            password=self._password,
            tls_context=tls_for(read_host(settings.host)) if settings.tls else None,
            queue_type=Queue,
            max_queued_incoming_messages=QUEUED_MAX,
        )

    def _set_aside(self, reason: str, detail: str, payload: bytes = b"") -> None:
        excerpt = payload[:120].decode("utf-8", "replace")
        example = Quarantined(reason, detail, self._edge.source, 0, excerpt, self._now_ns())
        self._intake.quarantine.add(example)

    def _now_ns(self) -> int:
        return round(self._clock.now().timestamp() * NS_PER_S)


def _library() -> Any:
    try:
        import aiomqtt
    except ImportError as missing:
        raise HarchError(
            "E0740", "the package `aiomqtt` is not installed", hint="pip install 'harch[pipelines]'"
        ) from missing
    return aiomqtt
