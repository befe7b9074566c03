"""What does a scheduling file say? TOML in, `TurnSettings` out, or one error that names every mistake and its fix."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harch.base.errors import HarchError, Problems
from harch.base.ids import is_name
from harch.fleet.table import kind_of, nearest, shown
from harch.placement.turns.settings import CLASS_ORDER, Quota, TurnSettings
from harch.workloads.spec import SchedulingClass

FILE_NAME = "scheduling.toml"  # in the state folder of a hub
FILE_BYTES_MAX = 1024 * 1024
TENANTS_MAX = 10_000
HINT = "docs/reference/scheduling.md describes every key and shows a complete file"

_YEAR_S = 366 * 86400


@dataclass(frozen=True, slots=True)
class Key:
    """One number of the file, and the field that it sets."""

    name: str
    field: str
    low: float
    high: float
    whole: bool = False  # a whole number


_QUOTA = (
    Key("gpus_held_max", "gpus_held_max", 0, 1_000_000),
    Key("tasks_held_max", "tasks_held_max", 0, 1_000_000, whole=True),
    Key("workloads_waiting_max", "workloads_waiting_max", 0, 1_000_000, whole=True),
)
_WEIGHT = (0.001, 1_000_000)

# The tables of the file. All keys may be absent; then the default of the field stays.
FORMAT: Mapping[str, tuple[Key, ...]] = {
    "class_weights": tuple(Key(turn_class.value, "class_weights", *_WEIGHT) for turn_class in CLASS_ORDER),
    "fairness": (
        Key("training_floor_share", "training_floor_share", 0, 0.9),
        Key("lookahead_s", "lookahead_s", 1, 86_400),
        Key("memory_s", "memory_s", 1, _YEAR_S),
        Key("starvation_s", "starvation_s", 1, _YEAR_S),
        Key("aged_share", "aged_share", 0.001, 0.9),
    ),
    "quota": _QUOTA,
    "tenants": (Key("weight", "tenant_weights", *_WEIGHT), *_QUOTA),
    "tenants.classes": _QUOTA,
    "reservations": (
        Key("at_once_max", "reservations_max", 0, 64, whole=True),
        Key("backfill_margin_s", "backfill_margin_s", 0, 3_600),
        Key("assumed_duration_s", "assumed_duration_s", 1, _YEAR_S),
        Key("yields_after_s", "kept_yields_after_s", 0, 86_400),
        Key("makes_room_after_s", "makes_room_after_s", 0, _YEAR_S),
        Key("makes_room_victims_max", "makes_room_victims_max", 0, 4_096, whole=True),
        Key("makes_room_per_hour_max", "makes_room_per_hour_max", 0, 100_000, whole=True),
    ),
    "preemption": (
        Key("victims_max", "preemption_victims_max", 0, 256, whole=True),
        Key("per_hour_max", "preemptions_per_hour_max", 0, 100_000, whole=True),
        Key("same_victim_after_s", "preempted_again_after_s", 0, _YEAR_S),
        Key("domains_tried_max", "preemption_domains_tried_max", 1, 64, whole=True),
        Key("candidates_max", "preemption_candidates_max", 1, 4_096, whole=True),
    ),
    "defragmentation": (
        Key("moves_max", "moves_max", 0, 256, whole=True),
        Key("after_s", "defragment_after_s", 1, _YEAR_S),
    ),
}
_OF_SETTINGS = ("fairness", "reservations", "preemption", "defragmentation")


def parse_settings(text: str, source_name: str = FILE_NAME) -> TurnSettings:
    """Raises HarchError E0202 for what is not TOML, and E0201 with every mistake of what is."""
    if len(text) > FILE_BYTES_MAX:
        raise HarchError("E0201", f"{source_name}: larger than {FILE_BYTES_MAX // 1024} KiB", hint=HINT)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarchError("E0202", f"{source_name}: not valid TOML: {shown(error)}", hint=HINT) from error
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

    def settings(self, raw: dict[str, Any]) -> TurnSettings:
        known = [name for name in FORMAT if "." not in name]
        for name in raw:
            if name not in known:
                self._problems.add(shown(name), f"unknown table; {nearest(name, known)}")
        fields: dict[str, Any] = {}
        for form in _OF_SETTINGS:
            fields |= self._numbers(raw.get(form, {}), form, form)
        weights = self._numbers(raw.get("class_weights", {}), "class_weights", "class_weights", by_name=True)
        default = TurnSettings()
        fields["class_weights"] = {
            turn_class: weights.get(turn_class.value, default.class_weights[turn_class]) for turn_class in CLASS_ORDER
        }
        fields["quota_default"] = Quota(**self._numbers(raw.get("quota", {}), "quota", "quota"))
        fields |= self._tenants(raw.get("tenants", {}))
        return default if self._problems else TurnSettings(**fields)

    def _tenants(self, raw: object) -> dict[str, Any]:
        weights: dict[str, float] = {}
        quotas: dict[str, Quota] = {}
        class_quotas: dict[tuple[str, SchedulingClass], Quota] = {}
        for tenant, table in self._tables(raw, "tenants", "[tenants.acme]"):
            path = f"tenants.{shown(tenant)}"
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
                    self._problems.add(f"{path}.classes.{shown(name)}", f"is not a class; {nearest(name, known)}")
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
            where = f"{path}.{shown(name)}"
            if key is None:
                self._problems.add(where, f"unknown key; {nearest(name, [*keys, *more])}")
            elif isinstance(value, bool) or not isinstance(value, int if key.whole else int | float):
                self._problems.add(where, f"must be a {'whole ' * key.whole}number, is {kind_of(value)}")
            elif not key.low <= value <= key.high:  # also for NaN
                limits = f"{key.low:,.12g} to {key.high:,.12g}"
                self._problems.add(where, f"{shown(value)} is out of range; use {limits}")
            else:
                found[name if by_name else key.field] = value if key.whole else float(value)
        return found
