"""What does THINK make of one message of features? Messages for ACT, once every row of it is accounted for.

The queue of the stage mixes rows of many messages into batches; here they are put together again. A message is
answered when each of its rows was scored or dropped by each model, and not before.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.rejection import Rejection
from harch.pipelines.sense.edge import source_number
from harch.pipelines.sense.gate import Gate, Verdict
from harch.pipelines.think.messages import Origin, encode_outputs, features_of_message
from harch.pipelines.think.results import Dropped, Scored, Thought
from harch.pipelines.think.service import ThinkService
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.wire.schema import EventSchema

PATIENCE_S = 600.0  # rows in the queue have no deadline of their own: a durable message is worked on until it is done
_TRY_AGAIN = ("full", "paused")  # rules by which the stage turned rows away that it may take later


class OutputMessage(Struct, frozen=True):
    """What goes to ACT. `identity` is the same for the same features, whoever scores them."""

    identity: str
    message: bytes


class Busy(Exception):
    """The queue is full, or the model is paused: nothing was lost, try the whole message again."""


class _Ticket:
    """One message under way."""

    def __init__(self, origin: Origin, rows_expected: int) -> None:
        self.origin = origin
        self.left = rows_expected
        self.scored: list[Scored] = []
        self.dropped: list[Dropped] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(self, rows: int) -> None:
        self.left -= rows
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)


class Thinker:
    """Give its `handed_over` to the service. `dropped` counts rows that no output was made of, by rule."""

    def __init__(self, pipeline: str, schema: EventSchema, gate: Gate, clock: Clock, *, again: str = "") -> None:
        self._pipeline = pipeline
        self._schema = schema
        self._names = tuple(column.name for column in schema.values)
        self._gate = gate
        self._clock = clock
        self._again = again
        self._service: ThinkService | None = None
        self.dropped: Counter[str] = Counter()
        self.rows = 0
        self.messages = 0

    def use(self, service: ThinkService) -> None:
        self._service = service

    def handed_over(self, thought: Thought) -> None:
        for scored in thought.scored:
            if isinstance(scored.source, _Ticket):
                scored.source.scored.append(scored)
                scored.source.count(len(scored.rows))
        self._drop(thought.dropped)

    async def outputs(self, message: Buffer, partition: int) -> list[OutputMessage] | Rejection:
        """Raises Busy. A Rejection means that this message can never be used."""
        header = unpack_header(message)
        if isinstance(header, Rejection):
            return header
        payload = check_payload(header, message)
        if isinstance(payload, Rejection):
            return payload
        answer = self._gate.decide(header)
        if answer.verdict is Verdict.HOLD:
            raise Busy(answer.detail)
        if answer.verdict is Verdict.DROP:
            return Rejection("batch", answer.reason, answer.detail)
        if header.schema != self._schema.id:
            detail = f"schema {header.schema:#010x}; this stage reads {self._schema.id:#010x}"
            return Rejection("batch", "schema", detail, "update SENSE and THINK together where features change")
        columns = decode_columns(self._schema, header.n, payload)
        if isinstance(columns, Rejection):
            return columns
        features = features_of_message(
            header, columns, self._names, pipeline=self._pipeline, partition=partition, again=self._again
        )
        service = self._service
        if service is None or not header.n:
            return []
        ticket = _Ticket(features.source, header.n * len(service.stage.models))
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        self._drop(service.submit(replace(features, source=ticket, deadline_s=deadline_s)))
        await ticket.done
        if again := next((one.reason for one in ticket.dropped if one.reason.rule in _TRY_AGAIN), None):
            raise Busy(again.detail)
        for one in ticket.dropped:
            self.dropped[one.reason.rule] += len(one.rows)
        self.rows += header.n
        self.messages += 1
        return self._encoded(header, ticket, partition)

    def _drop(self, dropped: list[Dropped]) -> None:
        for one in dropped:
            if isinstance(one.source, _Ticket):
                one.source.dropped.append(one)
                one.source.count(len(one.rows))

    def _encoded(self, header: BatchHeader, ticket: _Ticket, partition: int) -> list[OutputMessage]:
        at_ms = round(self._clock.now().timestamp() * 1000)
        found = []
        pieces: Counter[str] = Counter()
        for scored in sorted(ticket.scored, key=lambda one: (one.ref.model, int(one.rows[0]) if len(one.rows) else 0)):
            if not len(scored.rows):
                continue
            model = scored.ref.model
            # Without the version: features that come again after a swap must not be decided a second time.
            identity = f"{self._pipeline}/{partition}/{header.seq}/{model}/{pieces[model]}"
            pieces[model] += 1
            message = encode_outputs(
                replace(scored, source=ticket.origin),
                at_ms=at_ms,
                source=source_number(f"{self._pipeline}/{partition}/think/{model}"),
                seq=header.seq,
                priority=header.priority,
            )
            found.append(OutputMessage(identity, message))
        return found
