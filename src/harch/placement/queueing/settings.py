"""By which limits are turns given?

Every weight, share, bound and limit with its reason, read from a scheduling file or one error that names every
mistake.
"""

# harch: pure

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from harch.base.errors import HarchError, Problems
from harch.base.ids import is_name
from harch.fleet.format import kind_of, nearest, quoted
from harch.workloads.spec import SchedulingClass

# Highest first: a class may preempt those behind it, never one before it.
CLASS_ORDER = (SchedulingClass.INFERENCE, SchedulingClass.INTERACTIVE, SchedulingClass.TRAINING)
LOWEST_CLASS = CLASS_ORDER[-1]

_CLASS_WEIGHTS = MappingProxyType(
    {SchedulingClass.INFERENCE: 100.0, SchedulingClass.INTERACTIVE: 10.0, SchedulingClass.TRAINING: 1.0}
)


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may hold and keep waiting; None: no limit."""

    gpus_held_max: float | None = None
    tasks_held_max: int | None = None
    workloads_waiting_max: int | None = None


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The defaults suit a hub of some hundred GPUs with work of minutes to days."""

    class_weights: Mapping[SchedulingClass, float] = field(default_factory=lambda: _CLASS_WEIGHTS)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # inside a class; 1 for those not named
    # 100:10:1 alone would leave training 0.9 %. Of the service of the classes that wait.
    training_floor_share: float = 0.10
    # A flow is judged by the virtual time that it will have so much later with what it holds now. Without it, whoever
    # is behind would be given everything that comes free until the clock has caught up.
    lookahead_s: float = 600.0
    # Debt of a flow that comes back is forgiven beyond so many seconds of the whole hub: usage is not a grudge.
    memory_s: float = 3600.0
    # Whoever has waited longer is also in the lane of the aged, which serves the oldest first and gets this share.
    starvation_s: float = 3600.0
    aged_share: float = 0.05
    quota_default: Quota = NO_QUOTA  # of tenants that are not named below
    tenant_quotas: Mapping[str, Quota] = field(default_factory=dict)
    class_quotas: Mapping[tuple[str, SchedulingClass], Quota] = field(default_factory=dict)  # beside the tenant's
    reservations_max: int = 4  # each keeps nodes half idle, so few at a time
    backfill_margin_s: float = 30.0  # starting and stopping take time that no promised duration counts
    # Work that promised no end is assumed to last so long; what lasts longer, twice that, and so on.
    assumed_duration_s: float = 4 * 3600.0
    # A higher class looks elsewhere, and for whom to preempt, for so long before it takes what is kept for a lower one.
    kept_yields_after_s: float = 120.0
    # For work of several GPUs that has waited so long, smaller preemptible work on its kept nodes restarts elsewhere.
    makes_room_after_s: float = 3600.0
    makes_room_victims_max: int = 256  # for one request
    makes_room_per_hour_max: int = 256  # of the hub
    preemption_victims_max: int = 16  # of one plan
    preemptions_per_hour_max: int = 240  # of the hub
    preempted_again_after_s: float = 1800.0  # the same victim is left alone for so long
    moves_max: int = 16  # of one defragmentation plan
    # Work of several GPUs that has waited longer may have others moved by itself, if that pays; None: only when asked.
    defragment_after_s: float | None = None
    preemption_domains_tried_max: int = 8  # per level, those that miss least first: bounds the cost of a plan
    preemption_candidates_max: int = 128  # per domain, those that lose least

    def __post_init__(self) -> None:
        weights = [*(self.class_weights.get(c, 0.0) for c in CLASS_ORDER), *self.tenant_weights.values()]
        if min(weights) <= 0:
            raise ValueError("every class and every named tenant needs a weight above 0")
        if not (0 <= self.training_floor_share < 1 and 0 < self.aged_share < 1):
            raise ValueError("`training_floor_share` must be in [0, 1), `aged_share` in (0, 1)")
        if self.lookahead_s <= 0 or self.memory_s <= 0 or self.starvation_s <= 0:
            raise ValueError("`lookahead_s`, `memory_s` and `starvation_s` must be above 0")
        if self.assumed_duration_s <= 0:
            raise ValueError("`assumed_duration_s` must be above 0")
        if self.defragment_after_s is not None and self.defragment_after_s <= 0:
            raise ValueError("`defragment_after_s` must be above 0")

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @property
    def has_no_quotas(self) -> bool:
        default = self.quota_default  # asked for with every submission and start: mostly it is the one object
        return not self.tenant_quotas and not self.class_quotas and (default is NO_QUOTA or default == NO_QUOTA)

    def tenant_weight(self, tenant: str) -> float:
        return self.tenant_weights.get(tenant, 1.0)


# What does a scheduling file say? TOML in, `TurnSettings` out, or one error that names every mistake and its fix.


FILE_NAME = "scheduling.toml"  # in the state folder of a hub
FILE_BYTES_MAX = 1024 * 1024
TENANTS_MAX = 10_000
HINT = "docs/reference/scheduling.md describes every key and shows a complete file"

_YEAR_S = 366 * 86400


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One number of the file, and the field that it sets."""

    name: str
    field: str
    low: float
    high: float
    whole: bool = False  # a whole number


_QUOTA = (
    SettingKey("gpus_held_max", "gpus_held_max", 0, 1_000_000),
    SettingKey("tasks_held_max", "tasks_held_max", 0, 1_000_000, whole=True),
    SettingKey("workloads_waiting_max", "workloads_waiting_max", 0, 1_000_000, whole=True),
)
_WEIGHT = (0.001, 1_000_000)

# The tables of the file. All keys may be absent; then the default of the field stays.
FORMAT: Mapping[str, tuple[SettingKey, ...]] = {
    "class_weights": tuple(SettingKey(turn_class.value, "class_weights", *_WEIGHT) for turn_class in CLASS_ORDER),
    "fairness": (
        SettingKey("training_floor_share", "training_floor_share", 0, 0.9),
        SettingKey("lookahead_s", "lookahead_s", 1, 86_400),
        SettingKey("memory_s", "memory_s", 1, _YEAR_S),
        SettingKey("starvation_s", "starvation_s", 1, _YEAR_S),
        SettingKey("aged_share", "aged_share", 0.001, 0.9),
    ),
    "quota": _QUOTA,
    "tenants": (SettingKey("weight", "tenant_weights", *_WEIGHT), *_QUOTA),
    "tenants.classes": _QUOTA,
    "reservations": (
        SettingKey("at_once_max", "reservations_max", 0, 64, whole=True),
        SettingKey("backfill_margin_s", "backfill_margin_s", 0, 3_600),
        SettingKey("assumed_duration_s", "assumed_duration_s", 1, _YEAR_S),
        SettingKey("yields_after_s", "kept_yields_after_s", 0, 86_400),
        SettingKey("makes_room_after_s", "makes_room_after_s", 0, _YEAR_S),
        SettingKey("makes_room_victims_max", "makes_room_victims_max", 0, 4_096, whole=True),
        SettingKey("makes_room_per_hour_max", "makes_room_per_hour_max", 0, 100_000, whole=True),
    ),
    "preemption": (
        SettingKey("victims_max", "preemption_victims_max", 0, 256, whole=True),
        SettingKey("per_hour_max", "preemptions_per_hour_max", 0, 100_000, whole=True),
        SettingKey("same_victim_after_s", "preempted_again_after_s", 0, _YEAR_S),
        SettingKey("domains_tried_max", "preemption_domains_tried_max", 1, 64, whole=True),
        SettingKey("candidates_max", "preemption_candidates_max", 1, 4_096, whole=True),
    ),
    "defragmentation": (
        SettingKey("moves_max", "moves_max", 0, 256, whole=True),
        SettingKey("after_s", "defragment_after_s", 1, _YEAR_S),
    ),
}
_OF_SETTINGS = ("fairness", "reservations", "preemption", "defragmentation")


def parse_settings(text: str, source_name: str = FILE_NAME) -> QueueSettings:
    """Raises HarchError E0202 for what is not TOML, and E0201 with every mistake of what is."""
    if len(text) > FILE_BYTES_MAX:
        raise HarchError("E0201", f"{source_name}: larger than {FILE_BYTES_MAX // 1024} KiB", hint=HINT)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarchError("E0202", f"{source_name}: not valid TOML: {quoted(error)}", hint=HINT) from error
    problems = Problems()
    settings = _Reader(problems).settings(raw)
    if problems:
        lines = "".join(f"\n  {where}: {what}" for where, what in problems.found)
        raise HarchError("E0201", f"{source_name} is not a scheduling file:{lines}", hint=HINT)
    return settings


class _Reader:
    """Reading never raises: a bad value is reported and left out; nothing is built from a file with problems."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def settings(self, raw: dict[str, Any]) -> QueueSettings:
        known = [name for name in FORMAT if "." not in name]
        for name in raw:
            if name not in known:
                self._problems.add(quoted(name), f"unknown table; {nearest(name, known)}")
        fields: dict[str, Any] = {}
        for form in _OF_SETTINGS:
            fields |= self._numbers(raw.get(form, {}), form, form)
        weights = self._numbers(raw.get("class_weights", {}), "class_weights", "class_weights", by_name=True)
        default = QueueSettings()
        fields["class_weights"] = {
            turn_class: weights.get(turn_class.value, default.class_weights[turn_class]) for turn_class in CLASS_ORDER
        }
        fields["quota_default"] = Quota(**self._numbers(raw.get("quota", {}), "quota", "quota"))
        fields |= self._tenants(raw.get("tenants", {}))
        return default if self._problems else QueueSettings(**fields)

    def _tenants(self, raw: object) -> dict[str, Any]:
        weights: dict[str, float] = {}
        quotas: dict[str, Quota] = {}
        class_quotas: dict[tuple[str, SchedulingClass], Quota] = {}
        for tenant, table in self._tables(raw, "tenants", "[tenants.acme]"):
            path = f"tenants.{quoted(tenant)}"
            if not is_name(tenant):
                self._problems.add(path, "is not the name of a tenant; use letters, digits, dots and dashes")
            classes = table.get("classes", {})
            own = {name: value for name, value in table.items() if name != "classes"}
            found = self._numbers(own, path, "tenants", more=("classes",))
            weight = found.pop("tenant_weights", None)
            if weight is not None:
                weights[tenant] = weight
            if found:
                quotas[tenant] = Quota(**found)
            for name, limits in self._tables(classes, f"{path}.classes", f"[{path}.classes.training]"):
                if name not in list(SchedulingClass):
                    known = [turn_class.value for turn_class in CLASS_ORDER]
                    self._problems.add(f"{path}.classes.{quoted(name)}", f"is not a class; {nearest(name, known)}")
                    continue
                limit = self._numbers(limits, f"{path}.classes.{name}", "tenants.classes")
                class_quotas[tenant, SchedulingClass(name)] = Quota(**limit)
        return {"tenant_weights": weights, "tenant_quotas": quotas, "class_quotas": class_quotas}

    def _tables(self, raw: object, path: str, example: str) -> Iterator[tuple[str, dict[str, object]]]:
        if not isinstance(raw, dict) or not all(isinstance(item, dict) for item in raw.values()):
            self._problems.add(path, f"must hold named tables; write e.g. `{example}`")
            return
        if len(raw) > TENANTS_MAX:
            self._problems.add(path, f"has {len(raw)} entries, the limit is {TENANTS_MAX}; leave some to the default")
            return
        yield from raw.items()

    def _numbers(
        self, raw: object, path: str, form: str, *, by_name: bool = False, more: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """The numbers of one table by field, or by name where several keys set one field."""
        keys = {key.name: key for key in FORMAT[form]}
        if not isinstance(raw, dict):
            self._problems.add(path, f"must be a table; write `[{path}]`")
            return {}
        found = {}
        for name, value in raw.items():
            key = keys.get(name)
            where = f"{path}.{quoted(name)}"
            if key is None:
                self._problems.add(where, f"unknown key; {nearest(name, [*keys, *more])}")
            elif isinstance(value, bool) or not isinstance(value, int if key.whole else int | float):
                self._problems.add(where, f"must be a {'whole ' * key.whole}number, is {kind_of(value)}")
            elif not key.low <= value <= key.high:  # also for NaN
                limits = f"{key.low:,.12g} to {key.high:,.12g}"
                self._problems.add(where, f"{quoted(value)} is out of range; use {limits}")
            else:
                found[name if by_name else key.field] = value if key.whole else float(value)
        return found
