"""How is a worker configured?

One file of mode 0600: its part of the pipeline, its keys, its folders, and the order of a replay. Nothing on the
command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from harch.base.errors import HarchError
from harch.base.state_files import read_sealed
from harch.pipelines.act.settings import ActSettings
from harch.pipelines.client.options import ClientOptions, Credentials, TlsFiles
from harch.pipelines.engine.keys import write_state
from harch.pipelines.engine.layout import inbox_of
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.think.settings import ThinkSettings
from harch.pipelines.workers.names import Into, PipelineNames, StageRoute, names_of
from harch.sovereignty.geography import LegalSite
from harch.sovereignty.jurisdictions import HOME, EgressRule, Places
from harch.sovereignty.tags import Tag

EVENTS_PER_S = 50_000.0
COMMANDS_LISTED_MAX = 20  # commands that a report names


class ReplayOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kept events from `since_ns` to `until_ns`, or a file of rows. `is_dry`: nothing is sent to anybody.

    `again`: what was done before is done once more; otherwise the ledger knows it and refuses."""

    run: Annotated[str, Meta(pattern="^[a-z0-9]{1,32}$")]
    result_file: str
    since_ns: Annotated[int, Meta(ge=0)] = 0
    until_ns: Annotated[int, Meta(ge=0)] | None = None
    file: str = ""
    source: str = ""  # whose form the rows of the file have; the first one that has rows, if empty
    is_dry: bool = True
    again: bool = False
    events_per_s: Annotated[float, Meta(gt=0, le=1e8)] = EVENTS_PER_S


class ReplayCounts(Struct, kw_only=True):
    """`windows_cut`: windows that the time asked for, or what is kept, holds only a part of; they are not emitted."""

    events: int = 0
    events_aside: int = 0
    windows: int = 0
    windows_cut: int = 0
    rows: int = 0
    rows_dropped: int = 0
    commands_new: int = 0
    commands_known: int = 0
    commands_unmade: int = 0
    sent: int = field(default=0, name="told")  # messages to ACT, or to the lane of results


class CommandSummary(Struct, frozen=True, kw_only=True):
    """A command that the ledger does not know yet."""

    cmd_id: str
    action: str
    device: str
    window_end_ms: int
    steps: tuple[dict[str, Any], ...]


class ReplayResult(Struct, kw_only=True):
    state: Literal["running", "done", "stopped", "failed"] = "running"
    counts: ReplayCounts = field(default_factory=ReplayCounts)
    new: list[CommandSummary] = field(default_factory=list)
    trouble: str = ""


# How is a worker configured? By one file of mode 0600: its part of the pipeline, its keys, its folders. Nothing on the
# command line, where others could read it, and nothing of it in logs.


CONFIG_BYTES_MAX = 64 << 20
TOKEN = "HARCH_WORKER_TOKEN"  # noqa: S105 - the name of a variable: by its value a start is known from outside
_FOREVER = 1_000_000_000

WorkerStage = Literal["source", "sense", "think", "act", "fused", "replay"]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
WorkerName = Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class EngineAccess(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach one message engine, and as whom. Seed and token are never shown."""

    servers: Annotated[tuple[str, ...], Meta(min_length=1)]
    user: str
    seed: str
    token: str = ""  # what the account lets this user do, where the engine has no list of users
    tls: TlsFiles | None = None

    def __repr__(self) -> str:
        return f"EngineAccess({self.user} at {', '.join(self.servers)})"

    def options(self, worker: str) -> ClientOptions:
        """A worker tries forever to connect again: its supervisor decides when enough is enough."""
        return ClientOptions(
            servers=self.servers,
            name=worker,
            credentials=Credentials(seed=self.seed, token=self.token),
            tls=self.tls,
            inbox_prefix=inbox_of(self.user),
            reconnect_attempts_max=_FOREVER,
            backoff_s_max=1.0,
        )


class LeaseSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ttl_s`: how long after its last sign of life a worker's partitions may be taken by another."""

    ttl_s: Seconds = 5.0
    poll_s: Seconds = 0.5


class SourceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a source keeps what it accepted. `synced`: an accepted event survives a power cut, and not only a crash."""

    buffer_bytes_max: Annotated[int, Meta(ge=1 << 16, le=8 << 30)] = 256 << 20
    synced: bool = False
    kept_s: Annotated[float, Meta(ge=0)] = 0.0  # how long accepted events are kept to be replayed; 0: not at all
    kept_bytes_max: Annotated[int, Meta(ge=1 << 20)] = 1 << 30
    keys_sha256: dict[str, str] = {}  # by source that listens: digest of the key that its senders show; none, nobody


class ThinkOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`endpoint`: also serve inference requests (Open Inference Protocol) on loopback, at a free port if it is 0, to
    whoever shows the key of this digest."""

    endpoint: bool = False
    endpoint_key_sha256: str = ""
    endpoint_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    deliveries_max: Annotated[int, Meta(ge=1, le=1000)] = 8  # then the message goes to the dead lane


class ActOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the ledger is: in JetStream, for several machines, or in a file, for one."""

    ledger: Literal["jetstream", "sqlite"] = "jetstream"
    deliveries_max: Annotated[int, Meta(ge=1, le=1000)] = 8


class Egress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where sinks and sources may connect to: the country that was proved of each, by its name, and the places that
    the operator declared. What is not named here stays on this machine."""

    places: Places = Places()
    sinks: dict[str, str] = {}
    sources: dict[str, str] = {}

    def sink(self, name: str) -> EgressRule:
        return EgressRule(self.sinks.get(name, HOME), self.places)

    def source(self, name: str) -> EgressRule:
        return EgressRule(self.sources.get(name, HOME), self.places)


class WorkerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker. A stage reads its own part; `fused` reads `sense`, `think` and, with `act`, that too."""

    worker: WorkerName
    stage: WorkerStage
    pipeline: str
    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")]
    site: LegalSite
    policy: PolicyTable
    juris_mask: Annotated[int, Meta(ge=0)]  # of what enters here, in the numbering of `policy`
    sense: SenseSettings
    think: ThinkSettings | None = None
    act: ActSettings | None = None
    engine: EngineAccess
    act_engine: EngineAccess  # where outputs and the ledger are; syncs every write where actions are durable
    state_folder: str  # of this stage on this machine; workers of one stage share it
    kept_folder: str = ""  # of accepted events; one folder in it per source
    model_folder: str = "."
    model_tags: dict[str, Tag] = {}  # by `model` or `model@version`; a model without one is loaded nowhere
    enrichment: dict[str, dict[str, float]] = {}  # device: column: value
    country_bits: dict[str, int] = {}  # mask of the hubs of each country, for sinks that stand in one
    egress: Egress = Egress()
    lane: Literal["durable", "hot"] = "durable"  # how features travel
    exports: bool = False  # SENSE keeps copies of features, from which the hub makes exports
    route: StageRoute = StageRoute()
    leases: LeaseSettings = LeaseSettings()
    source: SourceOptions = SourceOptions()
    thinking: ThinkOptions = ThinkOptions()
    acting: ActOptions = ActOptions()
    replay: ReplayOrder | None = None
    state_version: int = 0  # numbers of windows begin again with each; part of the ids of messages
    share: tuple[int, int] = (0, 1)  # which of how many: of the sources, or of the devices of actions
    partitions: tuple[int, ...] = ()  # what to lease while nobody has assigned any
    status_every_s: Seconds = 1.0
    trace_share: Annotated[float, Meta(ge=0, le=1)] = 0.0  # of windows that are traced
    seed: int = 0

    @property
    def names(self) -> PipelineNames:
        return names_of(self.country, self.pipeline)

    @property
    def into(self) -> Into:
        """Where what this worker makes goes."""
        return self.route.after(self.stage)

    @property
    def local_bit(self) -> int:
        """The mask of this hub alone; 0, which permits nothing, if the policy does not know it."""
        bit = self.policy.bits.get(self.site.hub)
        return 0 if bit is None else 1 << bit


def write_config(path: Path, config: WorkerConfig) -> None:
    """Whole or not at all, readable by its owner only."""
    write_state(path, msgspec.json.encode(config))


def read_config(path: Path) -> WorkerConfig:
    """Raises E0750 for what is no configuration, and for one that others may read."""
    try:
        if path.stat().st_mode & 0o077:
            raise HarchError("E0750", f"{path} may be read by others", hint=f"chmod 600 {path}")
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise HarchError(
                "E0750", f"{path} is larger than {CONFIG_BYTES_MAX} bytes", hint="check that it is a configuration"
            )
        return msgspec.json.decode(read_sealed(path), type=WorkerConfig)
    except OSError as error:
        raise HarchError("E0750", f"{path} cannot be read: {error.strerror}", hint="the hub writes it") from error
    except msgspec.MsgspecError as error:
        raise HarchError("E0750", f"{path}: {error}", hint="have the hub write it again") from error
