"""Do the files that the guides for operators show fit the programs that read them?"""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from documents import DOCS, ROOT

from harch.cli.main import root
from harch.sentinel.alerts.config_file import parse_config as parse_alerts
from harch.sentinel.collect.scrape.config import parse_config as parse_targets

UNITS = ROOT / "examples" / "systemd"
# bubblewrap makes namespaces and mounts /proc; kernels are compiled at run time.
BREAKS_WORK = {
    *("RestrictNamespaces", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "PrivateUsers"),
    *("MemoryDenyWriteExecute", "ProtectControlGroups", "PrivateDevices", "DynamicUser"),
}


def shown(page: str, title: str) -> str:
    found = re.findall(
        rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```',
        (DOCS / "guides" / page).read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("name", ["harch-hub.service", "harch-agent.service"])
def test_the_guide_shows_the_units_that_ship(name: str) -> None:
    assert shown("two-sites.md", name) == (UNITS / name).read_text("utf-8")


@pytest.mark.parametrize("path", sorted(UNITS.glob("*.service")), ids=lambda path: path.stem)
def test_a_unit_runs_as_a_user_without_new_privileges_and_leaves_bubblewrap_alone(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text("utf-8"))
    service = unit["Service"]
    assert (service["User"], service["NoNewPrivileges"], service["Restart"]) == ("harch", "yes", "always")
    assert BREAKS_WORK.isdisjoint(service)


@pytest.mark.parametrize("path", sorted(UNITS.glob("*.service")), ids=lambda path: path.stem)
def test_a_unit_starts_a_verb_that_exists_with_options_that_exist(path: Path) -> None:
    line = re.search(r"^ExecStart=(.*?[^\\])$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert line is not None
    program, group, verb, *words = shlex.split(line[1].replace("\\\n", " "))
    assert program == "/opt/harch/bin/harch"
    told = CliRunner().invoke(root, [group, verb, "--help"]).output
    options = [word for word in words if word.startswith("--")]
    assert options
    assert [option for option in options if not re.search(rf"(?<!\S){option}\b", told)] == []


@pytest.mark.parametrize("title", ["prometheus-federate.yml", "sentinel.yml", "with-alertmanager.yml"])
def test_a_file_of_targets_in_the_guide_is_read(title: str) -> None:
    config = parse_targets(shown("grafana-prometheus.md", title), title)
    assert config.scrape_configs or config.alerting.alertmanagers


def test_what_prometheus_scrapes_in_the_guide_is_read_and_its_target_takes_remote_write() -> None:
    config = yaml.safe_load(shown("grafana-prometheus.md", "prometheus.yml"))
    (target,) = config.pop("remote_write")
    assert target["url"] == "http://127.0.0.1:7711/api/v1/write"
    assert parse_targets(yaml.safe_dump(config), "prometheus.yml").scrape_configs


def test_the_receivers_of_the_guide_are_read() -> None:
    assert list(parse_alerts(shown("grafana-prometheus.md", "alerts.yml")).receivers) == ["team"]


def test_data_sources_send_the_key_from_the_environment_of_grafana() -> None:
    sources = yaml.safe_load(shown("grafana-prometheus.md", "provisioning/datasources/harchos.yaml"))["datasources"]
    assert {source["type"] for source in sources} == {"prometheus", "loki", "tempo"}
    assert len({source["uid"] for source in sources}) == len(sources)
    for source in sources:
        assert source["url"] == "http://127.0.0.1:7711"
        assert source["jsonData"]["httpHeaderName1"] == "Authorization"
        assert source["secureJsonData"]["httpHeaderValue1"] == "Bearer $HARCH_GRAFANA_KEY"
