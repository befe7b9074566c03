"""Does every domain of the message engine get what the pipelines of its country need, and nothing else?"""

from __future__ import annotations

from typing import Any

from harch.pipelines.client.options import new_user_seed, public_key
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.layout import EngineLayout, Server
from harch.pipelines.spec.deployment import Deployment, assemble_domain, controller_name, plan_deployment
from unit.pipelines.spec.pipeline_files import changed, irrigation, proved, rules

SEEDS: dict[str, str] = {}


def key(name: str) -> str:
    return public_key(SEEDS.setdefault(name, new_user_seed()))


def server(name: str, **fields: Any) -> tuple[Server, ...]:
    ports = {"client_port": 4222, "monitor_port": 8222}
    return (Server(name=name, hub=name, store=f"/s/{name}", log_file=f"/l/{name}", **ports, **fields),)


def deployed(**fields: Any) -> Deployment:
    spec = changed(**fields) if fields else irrigation()
    names = [export.name for export in spec.exports]
    plan = plan_deployment(spec, proved(spec, declassified=names), rules().terrain)
    assert isinstance(plan, Deployment)
    return plan


def test_a_domain_knows_its_own_country_and_no_border() -> None:
    domain, _ = assemble_domain("ma", "MA", server("ma-1"), [deployed()], key)
    text = server_config(EngineLayout(domains=(domain,)), "ma-1")
    assert key(controller_name("MA")) in text
    assert "JURIS_SN" not in text
    assert "leafnodes" not in text


def test_pipelines_of_one_country_share_its_domains_with_users_of_their_own() -> None:
    sources = [{"kind": "http", "name": "weather"}]
    other = deployed(name="draa", exports=[], origins={}, sense__sources=sources)
    morocco, wanted = assemble_domain("ma", "MA", server("ma-1"), [deployed(), other], key)
    names = [user.name for user in morocco.users]
    assert len(set(names)) == len(names)
    assert {"harch", "ma-draa-sense", "ma-souss-irrigation-sense"} <= set(names)
    draa = next(user for user in morocco.users if user.name == "ma-draa-sense")
    assert not [subject for subject in (*draa.publish, *draa.subscribe) if "souss" in subject]
    streams = [stream.name for stream in wanted.streams]
    assert len(set(streams)) == len(streams)
    assert "ma-advisories" in streams
    senegal, _ = assemble_domain("sn", "SN", server("sn-1"), [deployed(), other], key)
    assert [user.name for user in senegal.users] == ["harch"]
