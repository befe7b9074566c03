"""Which targets does a file name? `scrape_configs` in the words of Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import yaml

from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.relabel import Relabel, check_rule
from harch.sentinel.model.durations import parse_duration_ms

FILE_BYTES_MAX = 4 * 1024 * 1024
_HINT = "docs/sentinel/collect.md lists the known fields"


class StaticConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    targets: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class FileDiscovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: tuple[str, ...]
    refresh_interval: str = "5m"


class HttpDiscovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    refresh_interval: str = "1m"


class Authorization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Secrets stand in files: a configuration is read by more people than may know them."""

    credentials_file: str
    type: str = "Bearer"


class BasicAuth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    username: str
    password_file: str


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure_skip_verify: bool = False


class ScrapeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One job: targets that are asked alike."""

    job_name: str
    scrape_interval: str = ""
    scrape_timeout: str = ""
    metrics_path: str = "/metrics"
    scheme: Literal["http", "https"] = "http"
    params: dict[str, list[str]] = {}
    honor_labels: bool = False
    honor_timestamps: bool = True
    sample_limit: int = 0
    label_limit: int = 0
    body_size_limit: str = ""
    authorization: Authorization | None = None
    basic_auth: BasicAuth | None = None
    tls_config: TlsConfig | None = None
    static_configs: tuple[StaticConfig, ...] = ()
    file_sd_configs: tuple[FileDiscovery, ...] = ()
    http_sd_configs: tuple[HttpDiscovery, ...] = ()
    relabel_configs: tuple[Relabel, ...] = ()
    metric_relabel_configs: tuple[Relabel, ...] = ()


class AlertmanagerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alertmanagers of the same site that get the alerts of all rules, each of them every alert."""

    scheme: Literal["http", "https"] = "http"
    path_prefix: str = "/"
    timeout: str = "10s"
    api_version: Literal["v2"] = "v2"
    authorization: Authorization | None = None
    basic_auth: BasicAuth | None = None
    tls_config: TlsConfig | None = None
    static_configs: tuple[StaticConfig, ...] = ()
    file_sd_configs: tuple[FileDiscovery, ...] = ()
    http_sd_configs: tuple[HttpDiscovery, ...] = ()
    relabel_configs: tuple[Relabel, ...] = ()
    alert_relabel_configs: tuple[Relabel, ...] = ()

    @property
    def timeout_s(self) -> float:
        return parse_duration_ms(self.timeout) / 1000


class AlertingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    alert_relabel_configs: tuple[Relabel, ...] = ()
    alertmanagers: tuple[AlertmanagerConfig, ...] = ()


class Global(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scrape_interval: str = "1m"
    scrape_timeout: str = "10s"
    evaluation_interval: str = "1m"
    external_labels: dict[str, str] = {}


class SentinelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of `harch sentinel serve --config`: a `prometheus.yml` without what SENTINEL has no use for."""

    global_: Global = msgspec.field(name="global", default=Global())
    rule_files: tuple[str, ...] = ()
    alerting: AlertingConfig = AlertingConfig()
    scrape_configs: tuple[ScrapeConfig, ...] = ()

    def interval_ms(self, job: ScrapeConfig) -> int:
        return parse_duration_ms(job.scrape_interval or self.global_.scrape_interval)

    def timeout_ms(self, job: ScrapeConfig) -> int:
        """Never longer than the interval, so that one target has at most one request under way."""
        return min(parse_duration_ms(job.scrape_timeout or self.global_.scrape_timeout), self.interval_ms(job))


class Discoverable(Protocol):
    """A section that names addresses: a scrape job, or a set of Alertmanagers."""

    @property
    def static_configs(self) -> tuple[StaticConfig, ...]: ...

    @property
    def file_sd_configs(self) -> tuple[FileDiscovery, ...]: ...

    @property
    def http_sd_configs(self) -> tuple[HttpDiscovery, ...]: ...


def refresh_intervals(section: Discoverable) -> list[str]:
    """How often each of its discoveries looks again, as written."""
    files = [discovery.refresh_interval for discovery in section.file_sd_configs]
    return files + [discovery.refresh_interval for discovery in section.http_sd_configs]


def read_config(path: Path) -> SentinelConfig:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise HarchError("E0673", f"{path} is larger than {FILE_BYTES_MAX} bytes", hint=_HINT)
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise HarchError("E0673", f"{path} cannot be read: {problem}", hint=_HINT) from problem
    return parse_config(text, str(path))


def parse_config(text: str, where: str) -> SentinelConfig:
    """Raises E0673 with what is wrong and where."""
    try:
        config = msgspec.convert(_without_empty(yaml.safe_load(text)) or {}, SentinelConfig)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as problem:
        raise HarchError("E0673", f"{where}: {problem}", hint=_HINT) from problem
    if wrong := _wrong_with_alerting(config.alerting):
        raise HarchError("E0673", f"{where}: alerting: {wrong}", hint=_HINT)
    names: set[str] = set()
    for job in config.scrape_configs:
        wrong = _wrong_with(job, config)
        if job.job_name in names:
            wrong = "the name is used twice"
        if wrong:
            raise HarchError("E0673", f"{where}: job `{job.job_name}`: {wrong}", hint=_HINT)
        names.add(job.job_name)
    return config


def _without_empty(value: Any) -> Any:
    """A key with nothing behind it is as good as none: Prometheus' own example has `rule_files:` and `targets:` so."""
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    return value


def _wrong_with_alerting(alerting: AlertingConfig) -> str:
    try:
        rules = [*alerting.alert_relabel_configs]
        for one in alerting.alertmanagers:
            if one.timeout_s <= 0:
                return "the timeout must be above 0"
            for interval in refresh_intervals(one):
                parse_duration_ms(interval)
            rules += [*one.relabel_configs, *one.alert_relabel_configs]
        return next(filter(None, map(check_rule, rules)), "")
    except HarchError as problem:
        return problem.message


def _wrong_with(job: ScrapeConfig, config: SentinelConfig) -> str:
    if not job.job_name:
        return "a job needs a name"
    try:
        if config.interval_ms(job) < 1:
            return "the interval must be above 0"
        config.timeout_ms(job)
        for interval in refresh_intervals(job):
            parse_duration_ms(interval)
        for rule in (*job.relabel_configs, *job.metric_relabel_configs):
            if wrong := check_rule(rule):
                return wrong
    except HarchError as problem:
        return problem.message
    return ""
