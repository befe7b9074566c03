"""What is an OpenTelemetry metric called here? As Prometheus calls it: underscores, unit and kind at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOT_IN_METRIC = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_SEVERAL_UNDERSCORES = re.compile(r"__+")

_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tibibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "B": "bytes", "KB": "kilobytes", "MB": "megabytes", "GB": "gigabytes", "TB": "terabytes", "m": "meters",
    "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz",
    "1": "", "%": "percent",
}  # fmt: skip
_PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def metric_name(name: str, unit: str, *, is_counter: bool, is_gauge: bool) -> str:
    """`http.server.duration` in `ms` becomes `http_server_duration_milliseconds`; counters end with `_total`."""
    words = [word for word in _NOT_IN_METRIC.sub("_", name).split("_") if word]
    for suffix in _unit_words(unit):
        if suffix and suffix not in words:
            words.append(suffix)
    if is_counter:
        words = [word for word in words if word != "total"] + ["total"]
    if unit == "1" and is_gauge and "ratio" not in words:
        words.append("ratio")
    joined = "_".join(words)
    return f"_{joined}" if joined[:1].isdigit() else joined


def _unit_words(unit: str) -> Iterable[str]:
    main, _, per = unit.partition("/")
    if "{" not in main and main.strip():
        yield _NOT_IN_METRIC.sub("_", _UNITS.get(main.strip(), main.strip())).strip("_")
    if per and "{" not in per:
        yield f"per_{_NOT_IN_METRIC.sub('_', _PER.get(per.strip(), per.strip())).strip('_')}"


def label_name(key: str) -> str:
    """`http.status_code` becomes `http_status_code`."""
    name = _SEVERAL_UNDERSCORES.sub("_", _NOT_IN_LABEL.sub("_", key))
    if name[:1].isdigit():
        return f"key_{name}"
    if name.startswith("_") and not name.startswith("__"):
        return f"key{name}"
    return name


def label_pairs(attributes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Attributes as labels. Keys that become one name share it, their values joined by `;` in the order of the keys."""
    pairs: dict[str, str] = {}
    for key, value in sorted(attributes):
        name = label_name(key)
        pairs[name] = f"{pairs[name]};{value}" if name in pairs else value
    return pairs
