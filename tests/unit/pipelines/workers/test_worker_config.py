"""What a worker is told is read by nobody else, and shows no key."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.client.options import new_user_seed
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.workers.config import EngineAccess, WorkerConfig, read_config, write_config
from harch.pipelines.workers.names import names_of
from harch.sovereignty.geography import LegalSite

_SEED = new_user_seed(bytes(32))
_ACCESS = EngineAccess(servers=("nats://127.0.0.1:4222",), user="ma-soil-sense", seed=_SEED)
_CONFIG = WorkerConfig(
    worker="sense-0",
    stage="sense",
    pipeline="soil",
    country="MA",
    site=LegalSite(hub="dakhla", country="MA"),
    policy=PolicyTable(3, {"dakhla": 2}),
    juris_mask=4,
    sense=SenseSettings(devices=("a", "b")),
    engine=_ACCESS,
    act_engine=_ACCESS,
    state_folder="state",
)


def test_a_configuration_comes_back_as_it_was_written_from_a_file_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "config" / "sense-0.json"
    write_config(path, _CONFIG)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_config(path) == _CONFIG


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_config(path, _CONFIG)
    path.chmod(0o644)
    with pytest.raises(HarchError) as refused:
        read_config(path)
    assert refused.value.code == "E0750"
    assert _SEED not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"worker": "../x"}'])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(HarchError) as refused:
        read_config(path)
    assert refused.value.code == "E0750"


def test_no_key_is_shown() -> None:
    assert _SEED not in repr(_CONFIG)
    assert _SEED not in repr(_ACCESS.options("sense-0"))


def test_a_hub_that_the_policy_does_not_know_may_do_nothing() -> None:
    assert _CONFIG.local_bit == 4
    assert structs.replace(_CONFIG, site=LegalSite(hub="elsewhere", country="MA")).local_bit == 0


@pytest.mark.parametrize(("country", "pipeline"), [("M.", "soil"), ("MA", "so.il"), ("MA", ">"), ("MAR", "soil")])
def test_words_that_would_leave_their_place_in_a_subject_are_refused(country: str, pipeline: str) -> None:
    with pytest.raises(HarchError):
        names_of(country, pipeline)
