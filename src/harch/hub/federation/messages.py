"""What travels between hubs? Everything that a hub understands on its links, in one place.

Gossip comes as arrays, because it is frequent; everything else as maps with the name of the message in them.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from harch.federation import offers
from harch.federation.gossip import messages as gossip
from harch.federation.identity.messages import IdentityMessage
from harch.sovereignty.audit.checkpoints import SignedCheckpoint
from harch.sovereignty.audit.keys import KeyStatement
from harch.workloads.lifecycle import State
from harch.workloads.spec import SchedulingClass, WorkloadType

ROWS_MAX = 500  # of one answer: even long rows then fit into a frame
LOG_BYTES_MAX = 512 * 1024
PIECE_BYTES_MAX = 256 * 1024  # of an answer about telemetry; one at a time is on the way, so that gossip has room
QUESTION_BYTES_MAX = 256 * 1024


class WorkRow(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A workload as other hubs may see it: how it is, never what it does. Commands and environments stay at home."""

    id: str
    name: str
    tenant: str
    owner_hub: str
    state: State
    type: WorkloadType
    turn_class: SchedulingClass
    created_at: datetime
    updated_at: datetime
    runner_hub: str = ""  # where it runs or ran; empty while it waits
    nodes: tuple[str, ...] = ()
    epoch: int = 0
    attempt: int = 0
    tasks: int = 1
    gpus: int = 0  # of each task
    gpu_fraction: float | None = None
    started_at: datetime | None = None
    stopping: bool = False
    modelled: bool = False
    note: str = ""
    guest: bool = False  # told by its runner, because its owner does not answer
    unheard_s: float | None = None  # how long its owner has heard nothing of it, if that is long


class WorkAsked(Struct, frozen=True, kw_only=True, tag="work.asked"):
    """Which work of yours has not ended? `tenant` None: of all tenants; the asking hub knows whom it asks for."""

    number: int
    tenant: str | None
    limit: int = ROWS_MAX


class WorkTold(Struct, frozen=True, kw_only=True, tag="work.told"):
    """The newest rows; `total` counts all."""

    number: int
    rows: tuple[WorkRow, ...]
    total: int


class LogAsked(Struct, frozen=True, kw_only=True, tag="log.asked"):
    """What has my workload written at yours? Only its owner is answered."""

    number: int
    workload_id: str
    attempt: int | None
    rank: int
    offset: int
    bytes_max: int


class LogTold(Struct, frozen=True, kw_only=True, tag="log.told"):
    number: int
    offset: int
    data: bytes
    eof: bool


class TelemetryAsked(Struct, frozen=True, kw_only=True, tag="telemetry.asked"):
    """A question about telemetry: msgpack of `sentinel.federated.messages.Question`, which SENTINEL judges."""

    number: int
    question: bytes
    within_s: float


class TelemetryTold(Struct, frozen=True, kw_only=True, tag="telemetry.told"):
    """The beginning of an answer, msgpack of `Answer`. What does not fit is asked for piece by piece."""

    number: int
    answer_id: str
    bytes_total: int
    data: bytes


class PieceAsked(Struct, frozen=True, kw_only=True, tag="telemetry.piece"):
    number: int
    answer_id: str
    offset: int


class PieceTold(Struct, frozen=True, kw_only=True, tag="telemetry.piece_told"):
    number: int
    data: bytes


class NotTold(Struct, frozen=True, kw_only=True, tag="not.told"):
    """Instead of an answer: the error that a person at that hub would see."""

    number: int
    code: str
    message: str
    hint: str = ""


class CheckpointShown(Struct, frozen=True, kw_only=True, tag="audit.checkpoint"):
    """The sender's chain of decisions ends here now; `keys` introduce the keys that have signed since the first."""

    checkpoint: SignedCheckpoint
    keys: tuple[KeyStatement, ...] = ()


class CheckpointKept(Struct, frozen=True, kw_only=True, tag="audit.checkpoint_kept"):
    """The newest checkpoint of the receiver that the sender keeps; a chain that lacks it has lost its end."""

    checkpoint: SignedCheckpoint


class AlertRecords(Struct, frozen=True, kw_only=True, tag="alert.records"):
    """What the sender's SENTINEL tells those of its country about silences, acknowledgements and notifications."""

    records: bytes


Question = WorkAsked | LogAsked | TelemetryAsked | PieceAsked
Answer = WorkTold | LogTold | TelemetryTold | PieceTold | NotTold
PeerMessage = (
    gossip.Message
    | offers.SpillMessage
    | IdentityMessage
    | Question
    | Answer
    | CheckpointShown
    | CheckpointKept
    | AlertRecords
)

_Map = offers.SpillMessage | IdentityMessage | Question | Answer | CheckpointShown | CheckpointKept | AlertRecords
_encode = msgspec.msgpack.Encoder().encode
_maps: msgspec.msgpack.Decoder[_Map] = msgspec.msgpack.Decoder(_Map)
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))  # how arrays start in msgpack


class Encoder:
    """Encodes once what goes to several hubs: gossip pushes one and the same message to all of them in a row."""

    def __init__(self) -> None:
        self._last: PeerMessage | None = None
        self._bytes = b""

    def encode(self, message: PeerMessage) -> bytes:
        if message is not self._last:
            self._last, self._bytes = message, _encode(message)
        return self._bytes


def decode(body: bytes) -> PeerMessage:
    """Raises `msgspec.DecodeError` for anything else."""
    return gossip.decode(body) if body and body[0] in _ARRAYS else _maps.decode(body)
