"""Can a hub use a message engine that others run, and does it say what is wrong with one before it uses it?"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from external_world import ExternalCluster
from msgspec import structs
from nats_world import is_answered, until, world

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.hub.pipelines.engine_backends import OutsideCluster
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import AuthorizationFailed
from harch.pipelines.engine.external import check_cluster
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.keys import KeyFolder, user_token
from harch.pipelines.engine.layout import CONTROLLER, StageGrant, stage_user
from harch.pipelines.engine.settings import parse_settings

pytestmark = pytest.mark.uses("bubblewrap")


def place_of(text: str, folder: Path) -> OutsideCluster:
    settings = parse_settings(text.encode())
    assert settings.external is not None
    keys = KeyFolder(folder / "keys")
    return OutsideCluster("MA", settings=settings, external=settings.external, keys=keys, clock=SystemClock())


async def looked(place: OutsideCluster) -> bool:
    """A young cluster has no leader yet; it is looked at until it has."""
    try:
        await place.look("ma")
    except HarchError as error:
        return error.code not in ("E0701", "E0746")
    return True


async def test_a_cluster_of_others_is_tried_and_its_mistakes_are_named(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        cluster = ExternalCluster(made, tmp_path, ("ma-1", "ma-2", "ma-3"))
        await cluster.start()
        place = place_of(cluster.settings(), tmp_path)
        await until(lambda: looked(place), "the cluster is fit")

        async with AioClient(place.controller("ma").options(CONTROLLER)) as control:
            assert await JetStreamAdmin(control).streams() == []  # the trial left nothing behind
            grant = StageGrant(country="MA", pipeline="soil", stage="sense", speaks=("juris.ma.soil.think.*",))
            user = stage_user(grant, place._keys.public_key(grant.user_name))
            async with AioClient(place.access("ma", user).options("sense-1")) as worker:
                assert not await is_answered(worker, "$JS.API.STREAM.NAMES", {})
                assert await is_answered(control, "$JS.API.STREAM.NAMES", {})
            theirs = place._cluster("ma")
            lax = await check_cluster(theirs, control, control, country="MA", replicas=3, clock=SystemClock())
            assert {one.rule for one in lax} == {"permissions"}  # as if a worker could do all of it

            brief = user_token(place._account, user, now=SystemClock().now(), life=timedelta(seconds=2))
            access = structs.replace(place.access("ma", user), token=brief)
            async with AioClient(access.options("sense-2")) as worker:  # as after days without a hub
                await until(
                    lambda: any(isinstance(error, AuthorizationFailed) for error in worker.refusals),
                    "a token that has run out is refused, and the worker hears of it",
                )

        strict = place_of(cluster.settings(replicas=1, names=("ma-7",)), tmp_path)
        with pytest.raises(HarchError, match="not in `server_names`") as strange:
            await strict.look("ma")
        assert strange.value.code == "E0746"

        with pytest.raises(HarchError, match="names no engine that syncs") as unsynced:
            place.check("ma-act")
        assert unsynced.value.code == "E0747"

        cluster.key_file.chmod(0o644)
        with pytest.raises(HarchError, match="may be read by others"):
            place_of(cluster.settings(), tmp_path)
        cluster.key_file.chmod(0o600)
        assert cluster.signing_seed not in repr(place._account) + repr(place.controller("ma"))


async def test_too_few_servers_for_three_copies_and_a_stranger_s_account_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        cluster = ExternalCluster(made, tmp_path, ("ma-1", "ma-2"))
        await cluster.start()
        text = cluster.settings(names=("ma-1", "ma-2", "ma-3"))
        found: list[HarchError] = []

        async def refused_for_copies() -> bool:
            try:
                await place_of(text, tmp_path).look("ma")
            except HarchError as error:
                found.append(error)
                return "copies" in error.message
            return False

        await until(refused_for_copies, "two servers keep no three copies")
        assert found[-1].code == "E0746"
        assert found[-1].meta["rules"] == ["replicas"]

        (tmp_path / "other").mkdir()
        other = ExternalCluster(made, tmp_path / "other", ("ma-8",))
        stranger = text.replace(cluster.account, other.account).replace(str(cluster.key_file), str(other.key_file))
        with pytest.raises(HarchError) as refused:
            await place_of(stranger, tmp_path).look("ma")
        assert refused.value.code == "E0701"
        assert other.signing_seed not in str(refused.value)
