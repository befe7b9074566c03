"""What does a pipeline say about its SENSE stage? Sources, events, windows, state, limits; and all its mistakes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from harch.pipelines.wire.columns import COMPACT, SHIPPED, EventSchema, schema_problems
from harch.pipelines.wire.header import PRIORITY_MAX
from harch.pipelines.wire.rows import RowFormat
from harch.pipelines.wire.subject import PARTITIONS_MAX

Name = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,47}$")]
# The secret whose value senders show; absent: the hub makes a key, which `harch pipeline key` prints.
SecretName = Annotated[str, Meta(max_length=128)]
Seconds = Annotated[float, Meta(ge=0, le=30 * 86_400)]


class _Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    name: Name
    disorder_s: Seconds = 0.0  # how much older than its newest an event of this source may be
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 3


class HttpSource(_Source, frozen=True, kw_only=True, tag="http"):
    """POST of JSON, NDJSON, Arrow or ready-made batches, on loopback, by whoever shows the source's key."""

    key_secret: SecretName = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    body_bytes_max: Annotated[int, Meta(ge=1024, le=64 << 20)] = 8 << 20
    rows: RowFormat = RowFormat()


class MqttSource(_Source, frozen=True, kw_only=True, tag="mqtt"):
    """Topics of a broker. `{device}` and `{metric}` in a topic stand for one level each."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65_535)] = 1883
    tls: bool = False
    topics: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
    qos: Literal[0, 1] = 1
    username: str = ""
    password_secret: str = ""  # the name of a secret; never the password
    rows: RowFormat = RowFormat()


class NatsSource(_Source, frozen=True, kw_only=True, tag="nats"):
    """Ready-made batches on a subject of the pipeline's own jurisdiction."""

    subject: Annotated[str, Meta(min_length=1, max_length=200)]


class FileSource(_Source, frozen=True, kw_only=True, tag="file"):
    """A CSV or NDJSON file, again. `speed` 1 replays in its own time, 60 a minute per second, 0 as fast as it can."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    format: Literal["csv", "ndjson"] = "csv"
    speed: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    rows: RowFormat = RowFormat()


class TcpSource(_Source, frozen=True, kw_only=True, tag="tcp"):
    """Ready-made batches over a socket of loopback, behind the source's key: the fast lane without a broker."""

    key_secret: SecretName = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    connections_max: Annotated[int, Meta(ge=1, le=4096)] = 64


Listening = HttpSource | TcpSource
Source = HttpSource | MqttSource | NatsSource | FileSource | TcpSource


NS_PER_S = 1_000_000_000
CELL_BYTES = 64  # one cache line per window slot, device, metric and value
DEVICES_MAX = 1 << 20
METRICS_MAX = 1024
PANES_MAX = 4096  # slots of the ring of windows
FORECAST_STEPS_MAX = 2880
FEATURES_MAX = 1024

Statistic = Literal["count", "sum", "mean", "min", "max", "last", "std"]


class SettingProblem(Struct, frozen=True):
    """One mistake: where, what, and what to write instead."""

    path: str
    message: str
    hint: str = ""


class WindowSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Event-time windows. Without `slide_s` they tumble; with it they overlap, and `slide_s` divides `size_s`."""

    size_s: Annotated[float, Meta(ge=0.001, le=86_400)] = 1.0
    slide_s: Annotated[float, Meta(ge=0.001, le=86_400)] | None = None
    lateness_s: Seconds = 0.5  # a window waits this long for stragglers
    skew_s: Seconds = 2.0  # how far sources may be apart; one that is further ahead waits for the others
    future_s: Seconds = 2.0  # events further ahead of the clock than this are not believed

    @property
    def pane_ns(self) -> int:
        """Events are added up in panes of one slide; a window is some panes."""
        return round((self.slide_s or self.size_s) * NS_PER_S)

    @property
    def panes_per_window(self) -> int:
        return max(1, round(self.size_s * NS_PER_S / self.pane_ns))

    @property
    def lateness_ns(self) -> int:
        return round(self.lateness_s * NS_PER_S)

    @property
    def panes_begun(self) -> int:
        """Panes in which a batch may begin: those of stragglers, of sources that are apart, and the present one."""
        waited_ns = round((self.lateness_s + self.skew_s) * NS_PER_S)
        return -(-waited_ns // self.pane_ns) + 2

    @property
    def panes_open(self) -> int:
        """Panes that take events at one time; a batch may cover as much time as sources may be apart."""
        return self.panes_begun + -(-round(self.skew_s * NS_PER_S) // self.pane_ns)

    @property
    def slots(self) -> int:
        return self.panes_open + self.panes_per_window - 1


class ForecastSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rolling history of means, by default four hours in steps of a minute, and a Holt trend through it."""

    span_s: Annotated[float, Meta(ge=1, le=30 * 86_400)] = 4 * 3600.0
    step_s: Annotated[float, Meta(ge=0.001, le=86_400)] = 60.0
    horizon_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 3600.0
    level_weight: Annotated[float, Meta(gt=0, le=1)] = 0.3
    trend_weight: Annotated[float, Meta(ge=0, le=1)] = 0.1

    @property
    def steps(self) -> int:
        return max(2, round(self.span_s / self.step_s))

    @property
    def step_ns(self) -> int:
        return round(self.step_s * NS_PER_S)


class EnrichmentSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers per device that are joined to its features, e.g. area of a field or rating of a transformer."""

    table: Name
    columns: Annotated[tuple[Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,31}$")], ...], Meta(max_length=64)]


class SenseLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing grows beyond these."""

    state_bytes_max: Annotated[int, Meta(ge=1 << 16, le=8 << 30)] = 256 << 20
    intake_bytes_max: Annotated[int, Meta(ge=1 << 16, le=4 << 30)] = 64 << 20
    hold_bytes_max: Annotated[int, Meta(ge=0, le=1 << 30)] = 32 << 20  # batches whose policy version is not known yet
    hold_s_max: Seconds = 5.0
    ahead_bytes_max: Annotated[int, Meta(ge=0, le=4 << 30)] = 128 << 20  # batches that wait for slower sources
    sources_max: Annotated[int, Meta(ge=1, le=65_536)] = 1024
    quarantine_kept: Annotated[int, Meta(ge=0, le=10_000)] = 100  # per reason
    event_ids_kept: Annotated[int, Meta(ge=0, le=10_000_000)] = 0  # 0: rows are not deduplicated by an id


class CheckpointSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    every_s: Annotated[float, Meta(ge=0.05, le=3600)] = 1.0
    compress: bool = False  # zstd: smaller, at about one millisecond per 0.4 MB


class SenseSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole stage. `schema` is the name of a shipped schema or a schema."""

    sources: Annotated[tuple[Source, ...], Meta(max_length=64)] = ()
    schema: EventSchema | str = COMPACT.name
    devices: Annotated[tuple[str, ...], Meta(max_length=DEVICES_MAX)] = ()  # known from the start; more may be added
    devices_max: Annotated[int, Meta(ge=1, le=DEVICES_MAX)] = 1000
    metrics: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=METRICS_MAX)] = ("value",)
    aggregate: tuple[str, ...] = ()  # value columns; empty: the first one
    statistics: Annotated[tuple[Statistic, ...], Meta(min_length=1)] = ("count", "mean", "min", "max", "last", "std")
    rows_per: Literal["device", "metric"] = "device"  # of the features: one row per device, or per device and metric
    windows: WindowSettings = WindowSettings()
    source_idle_s: Annotated[float, Meta(gt=0, le=86_400)] = 5.0  # a silent source holds windows open this long
    start_wait_s: Seconds = 0.0  # without a checkpoint no window closes so long, until all sources have said hello
    forecast: ForecastSettings | None = None
    enrichment: EnrichmentSettings | None = None
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = 1
    limits: SenseLimits = field(default_factory=SenseLimits)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)

    @property
    def event_schema(self) -> EventSchema:
        """The schema itself; of an unknown name the compact one, after `sense_problems` has said so."""
        return SHIPPED.get(self.schema, COMPACT) if isinstance(self.schema, str) else self.schema

    @property
    def aggregated(self) -> tuple[str, ...]:
        return self.aggregate or (self.event_schema.values[0].name,)

    @property
    def keys(self) -> int:
        """Cells per window slot."""
        return self.devices_max * len(self.metrics) * len(self.aggregated)

    @property
    def features(self) -> int:
        """Columns of the matrix that THINK gets."""
        per_cell = len(self.statistics) + (3 if self.forecast else 0)
        cells = len(self.aggregated) * (len(self.metrics) if self.rows_per == "device" else 1)
        return cells * per_cell + (len(self.enrichment.columns) if self.enrichment else 0)

    @property
    def state_bytes(self) -> int:
        steps = self.forecast.steps * 4 + 40 if self.forecast else 0
        return self.keys * (self.windows.slots * CELL_BYTES + steps)


def sense_problems(settings: SenseSettings) -> list[SettingProblem]:
    """Every mistake that the types of the fields do not exclude."""
    found: list[SettingProblem] = []
    if isinstance(settings.schema, str) and settings.schema not in SHIPPED:
        hint = f"use {' or '.join(f'`{name}`' for name in SHIPPED)}, or write the columns here"
        found.append(SettingProblem("schema", f"`{settings.schema}` is not a built-in schema", hint))
        return found
    schema = settings.event_schema
    found += [SettingProblem(f"schema.{where}", what) for where, what in schema_problems(schema).found]
    if found:
        return found  # what follows needs columns that are right
    values = [column.name for column in schema.values]
    for index, name in enumerate(settings.aggregate):
        if name not in values:
            hint = f"value columns are {', '.join(f'`{value}`' for value in values)}"
            found.append(SettingProblem(f"aggregate[{index}]", f"`{name}` is not a value column", hint))
    for path in ("metrics", "aggregate", "statistics", "devices"):
        if len(set(getattr(settings, path))) != len(getattr(settings, path)):
            found.append(SettingProblem(path, "duplicate name"))
    names = [source.name for source in settings.sources]
    if len(set(names)) != len(names):
        found.append(SettingProblem("sources", "two sources have the same name"))
    if len(settings.devices) > settings.devices_max:
        hint = f"raise `devices_max` to {len(settings.devices)} or more"
        found.append(
            SettingProblem("devices", f"{len(settings.devices)} devices, {settings.devices_max} allowed", hint)
        )
    if settings.features > FEATURES_MAX:
        message = f"{settings.features} features in a row; at most {FEATURES_MAX}"
        found.append(SettingProblem("statistics", message, "fewer statistics, or `rows_per: metric`"))
    found += _width_problems(settings)
    found += _window_problems(settings)
    found += _source_problems(settings)
    if settings.state_bytes > settings.limits.state_bytes_max:
        found.append(
            SettingProblem(
                "limits.state_bytes_max",
                f"windows need {settings.state_bytes} bytes of state; {settings.limits.state_bytes_max} are allowed",
                "fewer devices per partition, a longer slide, less lateness and skew, or a higher limit",
            )
        )
    return found


def _width_problems(settings: SenseSettings) -> list[SettingProblem]:
    """Numbers of devices and metrics must fit into their columns."""
    schema, found = settings.event_schema, []
    for role, count in (("device", settings.devices_max), ("metric", len(settings.metrics))):
        column = schema.by_role.get(role)
        room = 1 << 8 * column.dtype.itemsize if column else 1
        if count > room:
            path = "devices_max" if role == "device" else "metrics"
            hint = "use the `wide` schema, or a wider column"
            found.append(SettingProblem(path, f"{count} do not fit into the {role} column, which holds {room}", hint))
    return found


def _window_problems(settings: SenseSettings) -> list[SettingProblem]:
    windows, found = settings.windows, []
    size_ns = round(windows.size_s * NS_PER_S)
    if windows.slide_s is not None and size_ns % windows.pane_ns:
        hint = f"for example `slide_s: {windows.size_s / max(1, round(windows.size_s / windows.slide_s)):g}`"
        found.append(SettingProblem("windows.slide_s", f"{windows.slide_s:g} does not divide {windows.size_s:g}", hint))
    if windows.future_s > windows.skew_s:
        message = f"{windows.future_s:g} is more than skew_s: one fast clock would make all others late"
        found.append(SettingProblem("windows.future_s", message, f"at most {windows.skew_s:g}, or a larger skew_s"))
    if windows.slots > PANES_MAX:
        message = f"{windows.slots} panes are needed at once; at most {PANES_MAX}"
        found.append(SettingProblem("windows", message, "a longer slide, or less lateness and skew"))
    if (forecast := settings.forecast) is None:
        return found
    if forecast.steps > FORECAST_STEPS_MAX:
        message = f"{forecast.steps} steps; at most {FORECAST_STEPS_MAX}"
        found.append(SettingProblem("forecast.step_s", message, "a longer step, or a shorter span"))
    if forecast.step_ns % windows.pane_ns:
        message = f"{forecast.step_s:g} s is not a multiple of the windows' slide"
        found.append(SettingProblem("forecast.step_s", message, f"a multiple of {windows.pane_ns / NS_PER_S:g}"))
    return found


def _source_problems(settings: SenseSettings) -> list[SettingProblem]:
    found = []
    values = {column.name for column in settings.event_schema.values}
    for index, source in enumerate(settings.sources):
        if source.disorder_s > settings.windows.lateness_s + settings.windows.skew_s:
            message = f"{source.disorder_s:g} s is longer than windows wait (lateness_s + skew_s)"
            found.append(SettingProblem(f"sources[{index}].disorder_s", message, "raise windows.lateness_s"))
        rows = getattr(source, "rows", None)
        named = rows.values if isinstance(rows, RowFormat) else {}
        found += [
            SettingProblem(f"sources[{index}].rows.values", f"`{column}` is not a value column")
            for column in named
            if column not in values
        ]
    return found
