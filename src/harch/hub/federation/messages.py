"""What travels between hubs? Everything that a hub understands on its links, in one place.

Gossip comes as arrays, because it is frequent; everything else as maps with the name of the message in them.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
from msgspec import Struct, field

from harch.federation import offers
from harch.federation.gossip import messages as gossip
from harch.federation.gossip.membership import GossipView
from harch.federation.identity.members import IdentityMessage
from harch.sovereignty.audit.checkpoints import KeyStatement, SignedCheckpoint
from harch.sovereignty.tags import DataObject
from harch.wire.hubs import HubSummary, ModelCapacity, NodeMaxima
from harch.workloads.lifecycle import State
from harch.workloads.spec import SchedulingClass, WorkloadType

ROWS_MAX = 500  # of one answer: even long rows then fit into a frame
LOG_BYTES_MAX = 512 * 1024
PIECE_BYTES_MAX = 256 * 1024  # of an answer about telemetry; one at a time is on the way, so that gossip has room
QUESTION_BYTES_MAX = 256 * 1024
LISTING_BYTES_MAX = 256 * 1024  # as for an answer about telemetry: gossip has room beside it
COPIES_MAX = 5_000  # of one question; their names and as many changed tags fit into frames
CHANGED_MAX = 500


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
    borrowed: bool = field(default=False, name="guest")  # reported by its runner, because its owner does not answer
    pending_reason: str = ""
    unheard_s: float | None = None  # how long its owner has heard nothing of it, if that is long


class WorkRequest(Struct, frozen=True, kw_only=True, tag="work.asked"):
    """Which work of yours has not ended? `tenant` None: of all tenants; the asking hub knows whom it asks for."""

    number: int
    tenant: str | None
    limit: int = ROWS_MAX


class WorkReply(Struct, frozen=True, kw_only=True, tag="work.told"):
    """The newest rows; `total` counts all."""

    number: int
    rows: tuple[WorkRow, ...]
    total: int


class LogRequest(Struct, frozen=True, kw_only=True, tag="log.asked"):
    """What has my workload written at yours? Only its owner is answered."""

    number: int
    workload_id: str
    attempt: int | None
    rank: int
    offset: int
    bytes_max: int
    since_s: float | None = None
    preparation: bool = False


class LogReply(Struct, frozen=True, kw_only=True, tag="log.told"):
    number: int
    offset: int
    data: bytes
    eof: bool


class TelemetryRequest(Struct, frozen=True, kw_only=True, tag="telemetry.asked"):
    """A question about telemetry: msgpack of `sentinel.federated.messages.Question`, which SENTINEL judges."""

    number: int
    question: bytes
    within_s: float


class TelemetryReply(Struct, frozen=True, kw_only=True, tag="telemetry.told"):
    """The beginning of an answer, msgpack of `Answer`. What does not fit is asked for piece by piece."""

    number: int
    answer_id: str
    bytes_total: int
    data: bytes


class PieceRequest(Struct, frozen=True, kw_only=True, tag="telemetry.piece"):
    number: int
    answer_id: str
    offset: int


class PieceReply(Struct, frozen=True, kw_only=True, tag="telemetry.piece_told"):
    number: int
    data: bytes


class ContentRequest(Struct, frozen=True, kw_only=True, tag="content.asked"):
    """May I have the tree of this data object? `ref`: its id, or that of a snapshot that was made for this hub."""

    number: int
    ref: str
    tenant: str
    digest: str


class ContentReply(Struct, frozen=True, kw_only=True, tag="content.told"):
    """Yes: on the bulk port of this hub, with this ticket, which is good for chunks of that tree and for one hub.

    `listing`: frames of its root and manifest, if they are small: that saves two rounds over the link.
    """

    number: int
    port: int
    ticket: bytes
    root_bytes: int  # of the chunk that the digest names
    listing: bytes = b""


class CopiesQuestion(Struct, frozen=True, kw_only=True, tag="copies.asked"):
    """Of your data I have these copies, with the revisions of their tags that I know: what has become of them?

    `is_all`: there are no others, so whatever else you believe to be here is not.
    """

    number: int
    held: tuple[tuple[str, int], ...]
    is_all: bool


class CopiesReply(Struct, frozen=True, kw_only=True, tag="copies.told"):
    """Those whose tags have changed since, as they are now, and those that were removed."""

    number: int
    changed: tuple[DataObject, ...]
    removed: tuple[str, ...]


class CopiesChanged(Struct, frozen=True, kw_only=True, tag="copies.changed"):
    """A tag was changed, or data removed, of which you may have a copy: ask now."""


class FilesQuestion(Struct, frozen=True, kw_only=True, tag="files.asked"):
    """What is in the working folder of my workload at yours? Only its owner is answered."""

    number: int
    workload_id: str
    rank: int
    attempt: int | None
    path: str


class FilesReply(Struct, frozen=True, kw_only=True, tag="files.told"):
    """A snapshot, to be fetched by its `ref`."""

    number: int
    ref: str
    digest: str


class ErrorReply(Struct, frozen=True, kw_only=True, tag="not.told"):
    """Instead of an answer: the error that a person at that hub would see."""

    number: int
    code: str
    message: str
    hint: str = ""


class CheckpointSent(Struct, frozen=True, kw_only=True, tag="audit.checkpoint"):
    """The sender's chain of decisions ends here now; `keys` introduce the keys that have signed since the first."""

    checkpoint: SignedCheckpoint
    keys: tuple[KeyStatement, ...] = ()


class CheckpointKept(Struct, frozen=True, kw_only=True, tag="audit.checkpoint_kept"):
    """The newest checkpoint of the receiver that the sender keeps; a chain that lacks it has lost its end."""

    checkpoint: SignedCheckpoint


class AlertRecords(Struct, frozen=True, kw_only=True, tag="alert.records"):
    """What the sender's SENTINEL tells those of its country about silences, acknowledgements and notifications."""

    records: bytes


Question = WorkRequest | LogRequest | TelemetryRequest | PieceRequest | ContentRequest | FilesQuestion | CopiesQuestion
Answer = WorkReply | LogReply | TelemetryReply | PieceReply | ContentReply | FilesReply | CopiesReply | ErrorReply
PeerMessage = (
    gossip.Message
    | offers.LendingMessage
    | IdentityMessage
    | Question
    | Answer
    | CheckpointSent
    | CheckpointKept
    | AlertRecords
    | CopiesChanged
)

_Map = (
    offers.LendingMessage
    | IdentityMessage
    | Question
    | Answer
    | CheckpointSent
    | CheckpointKept
    | AlertRecords
    | CopiesChanged
)
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


# What does a hub say of itself in the gossip? What hardly ever changes once, what changes often in few bytes.


FIXED, NOW, POLICY = "hub.fixed", "hub.now", "policy"


class FixedModel(Struct, frozen=True, array_like=True, gc=False):
    model: str
    memory_gb: int
    total: int
    gpus_per_node_max: int


class HubFixed(Struct, frozen=True, kw_only=True):
    """Changes with the fleet file, the version, or a restart."""

    name: str
    country: str
    grid_zone: str
    latitude: float
    longitude: float
    pue: float
    provenance: str
    version: str
    started_at: datetime
    url: str
    gpus_total: int
    models: tuple[FixedModel, ...]
    node_max: NodeMaxima
    nodes_total: int
    cpus_total: float
    memory_gb_total: float
    storage_gb_total: float
    counts_gpu_memory: bool = False


class HubNow(Struct, frozen=True, array_like=True):
    """Without names and without the time, which would make it different at every look; new fields go to the end."""

    status: str
    status_detail: str
    gpus_free: int
    gpus_allocated: int
    models: tuple[tuple[int, list[int]], ...]  # free, and nodes by free GPUs; in the order of `HubFixed.models`
    nodes_up: int
    cpus_free: float
    memory_gb_free: float
    process_slots_total: int
    process_slots_free: int
    workloads: dict[str, int]
    agents: int
    storage_gb_free: float | None = None
    lent: dict[str, int] = {}
    borrowed: dict[str, int] = field(default_factory=dict, name="guests")
    capabilities: tuple[str, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_fixed = msgspec.msgpack.Decoder(HubFixed).decode
_now = msgspec.msgpack.Decoder(HubNow).decode


def published_state(summary: HubSummary, *, policy_version: str) -> dict[str, bytes]:
    """The entries of this hub's state."""
    fixed = HubFixed(
        models=tuple(FixedModel(m.model, m.memory_gb, m.total, m.gpus_per_node_max) for m in summary.models),
        **{name: getattr(summary, name) for name in HubFixed.__struct_fields__ if name != "models"},
    )
    now = HubNow(
        models=tuple((m.free, m.free_shapes) for m in summary.models),
        **{name: getattr(summary, name) for name in HubNow.__struct_fields__ if name != "models"},
    )
    return {FIXED: _encode(fixed), NOW: _encode(now), POLICY: policy_version.encode()}


class SignalRegistry:
    """Who else says something of this hub in its gossip? Parts of the hub that are built after its links."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], dict[str, bytes]]] = []

    def add(self, source: Callable[[], dict[str, bytes]]) -> None:
        self._sources.append(source)

    def entries(self) -> dict[str, bytes]:
        return {key: value for source in self._sources for key, value in source().items()}


class Summaries:
    """The summaries of other hubs, put together again. Each is decoded once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, bytes, HubSummary | None]] = {}

    def of(self, view: GossipView, received_at: datetime) -> HubSummary | None:
        """None until both parts have come, or if they cannot be read: a hub of another version may say more or less.

        `received_at` is when it last gave a sign of life, by this hub's clock: until then what it said was true.
        """
        fixed, now = view.values.get(FIXED), view.values.get(NOW)
        if fixed is None or now is None:
            return None
        known = self._read.get(view.hub)
        if known is None or known[0] != fixed or known[1] != now:
            known = self._read[view.hub] = (fixed, now, _joined(view.hub, fixed, now, received_at))
        summary = known[2]
        return msgspec.structs.replace(summary, at=received_at) if summary is not None else None

    def forget(self, hub_id: str) -> None:
        self._read.pop(hub_id, None)


def _joined(hub_id: str, fixed_bytes: bytes, now_bytes: bytes, at: datetime) -> HubSummary | None:
    try:
        fixed, now = _fixed(fixed_bytes), _now(now_bytes)
    except msgspec.DecodeError:
        return None
    models = [
        ModelCapacity(
            model=model.model,
            memory_gb=model.memory_gb,
            total=model.total,
            free=free,
            gpus_per_node_max=model.gpus_per_node_max,
            free_shapes=shapes,
        )
        for model, (free, shapes) in zip(fixed.models, now.models, strict=False)
    ]
    facts = {name: getattr(fixed, name) for name in HubFixed.__struct_fields__}
    facts |= {name: getattr(now, name) for name in HubNow.__struct_fields__}
    return HubSummary(**facts | {"hub_id": hub_id, "at": at, "models": models})
