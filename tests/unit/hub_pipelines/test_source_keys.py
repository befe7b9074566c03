"""Every source that listens has a key: made by the hub or stored by its owner, shown to operators and nobody else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.hub.pipelines import planning, records
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.sources import listening
from harch.hub.pipelines.values import PipelineRecord
from harch.pipelines.listener_keys import is_key
from harch.pipelines.sense.settings import HttpSource, Source, TcpSource
from harch.pipelines.workers.parts import access_digest, worker_config
from harch.testing.clock import SimClock
from unit.hub_pipelines.pipeline_samples import Desk, text

WEB = "{kind: http, name: web}"
TWO = (WEB, f"{WEB}\n    - {{kind: tcp, name: fast}}")
OWN = (WEB, "{kind: http, name: web, key_secret: WEB_KEY}")


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, SimClock())


async def apply(desk: Desk, *changes: tuple[str, str], tenant: str = "t") -> PipelineRecord:
    await desk.pipelines.apply(text(*changes).encode(), "pipeline.yaml", tenant=tenant, actor="me")
    return records.all_records(desk.database)[0]


def running(desk: Desk) -> RunningPipeline:
    """As the loop of the hub takes it up; nothing is started."""
    loop = desk.pipelines._open()
    loop._learn(None)
    return loop.running["fields"]


def test_every_kind_of_source_that_listens_has_a_key() -> None:
    """Whoever adds a kind that has a port of its own has to think of who may send to it."""
    fields = {kind: set(kind.__struct_fields__) for kind in Source.__args__}
    kinds = {kind for kind, names in fields.items() if "port" in names and "host" not in names}
    assert kinds == {HttpSource, TcpSource}
    assert all("key_secret" in kind.__struct_fields__ for kind in kinds)


async def test_a_key_is_made_for_each_source_and_is_the_same_after_a_restart(desk: Desk) -> None:
    record = await apply(desk, TWO)
    assert {source.name for source in listening(planning.spec_of(record))} == {"web", "fast"}
    keys = {
        name: (await desk.pipelines.source_key("fields", name, tenant="t", actor="me")).key for name in ("web", "fast")
    }
    assert len(set(keys.values())) == 2
    assert all(len(key) == 36 for key in keys.values()), "192 bits"
    again = desk.again()
    assert (await again.pipelines.source_key("fields", "web", tenant="t", actor="me")).key == keys["web"]
    with pytest.raises(HarchError, match="2 sources with a listener"):
        await again.pipelines.source_key("fields", "", tenant="t", actor="me")


async def test_workers_get_digests_and_no_worker_or_record_has_the_key(desk: Desk) -> None:
    record = await apply(desk)
    key = (await desk.pipelines.source_key("fields", "web", tenant="t", actor="me")).key
    found = running(desk)
    assert is_key(key, found.parts.source.keys_sha256["web"])
    access = found.access("source")
    config = worker_config(
        found.parts, "source", "source-0", engine=access[0], act_engine=access[1], state_folder=str(desk.folder)
    )
    assert key.encode() not in msgspec.json.encode(config)
    assert key.encode() not in msgspec.json.encode(record)
    assert key not in repr(desk.drafts) + repr(desk.notes)
    assert [draft.kind for draft in desk.drafts] == ["pipeline.applied", "pipeline.key_shown"]


async def test_a_renewed_key_replaces_the_sources_worker_and_the_old_one_is_refused(desk: Desk) -> None:
    await apply(desk)
    old = (await desk.pipelines.source_key("fields", "web", tenant="t", actor="me")).key
    before = access_digest(running(desk).parts, "source")
    new = (await desk.pipelines.source_key("fields", "web", tenant="t", actor="me", renew=True)).key
    after = running(desk)
    assert access_digest(after.parts, "source") != before
    assert is_key(new, after.parts.source.keys_sha256["web"])
    assert not is_key(old, after.parts.source.keys_sha256["web"])
    assert desk.drafts[-1].kind == "pipeline.key_renewed"
    assert (await apply(desk)).key_revisions == {"web": 1}, "applying the file again leaves the key"


async def test_a_pipeline_of_the_same_name_has_other_keys(desk: Desk) -> None:
    mine = await apply(desk)
    keys = desk.pipelines._open().source_keys
    for other in ({"tenant": "other"}, {"created_at": "2026-05-02T00:00:00Z"}, {"name": "fields-2"}):
        assert keys.made(msgspec.structs.replace(mine, **other), "web") != keys.made(mine, "web")


async def test_other_tenants_do_not_see_the_key(desk: Desk) -> None:
    await apply(desk)
    with pytest.raises(HarchError) as hidden:
        await desk.pipelines.source_key("fields", "web", tenant="other", actor="me")
    assert hidden.value.code == "E0710"


async def test_a_secret_as_key_must_be_stored_and_long_and_is_never_shown(desk: Desk) -> None:
    for stored, code in (({}, "E0306"), ({"WEB_KEY": "short"}, "E0201")):
        desk.secrets = stored
        with pytest.raises(HarchError) as refused:
            await apply(desk, OWN)
        assert refused.value.code == code
        assert "short" not in refused.value.message
    desk.secrets = {"WEB_KEY": "a-long-and-random-word"}
    await apply(desk, OWN)
    found = running(desk)
    assert is_key("a-long-and-random-word", found.parts.source.keys_sha256["web"])
    assert "WEB_KEY" not in found.environment_of("source"), "a worker needs its digest only"
    with pytest.raises(HarchError, match="your secret `WEB_KEY`"):
        await desk.pipelines.source_key("fields", "web", tenant="t", actor="me")


async def test_a_secret_that_is_gone_stops_the_pipeline_instead_of_opening_it(desk: Desk) -> None:
    desk.secrets = {"WEB_KEY": "a-long-and-random-word"}
    await apply(desk, OWN)
    restarted = desk.again()
    loop = restarted.pipelines._open()
    loop._learn(None)
    assert not loop.running
    assert "WEB_KEY" in loop.troubles["fields"]
