"""Are countries linked only where a pipeline exports, and does every domain get what its pipelines need?"""

from __future__ import annotations

from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.pipelines.client.nkeys import new_user_seed, public_key
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.layout import Server, check_layout
from harch.pipelines.spec.assembly import assemble_layout, controller_name
from harch.pipelines.spec.deployment import Deployment, plan_deployment
from harch.pipelines.spec.residency import prove_residency
from unit.pipelines.spec.pipeline_files import JURISDICTIONS, changed, irrigation, rules

SEEDS: dict[str, str] = {}


def key(name: str) -> str:
    return public_key(SEEDS.setdefault(name, new_user_seed()))


def server(name: str, **fields: Any) -> tuple[Server, ...]:
    ports = {"client_port": 4222, "monitor_port": 8222}
    return (Server(name=name, hub=name, store=f"/s/{name}", log_file=f"/l/{name}", **ports, **fields),)


def deployed(**fields: Any) -> Deployment:
    spec = changed(**fields) if fields else irrigation()
    names = [export.name for export in spec.exports]
    plan = plan_deployment(spec, prove_residency(spec, rules(), JURISDICTIONS, declassified=names), rules().terrain)
    assert isinstance(plan, Deployment)
    return plan


SERVERS = {
    "ma": server("ma-1", border_port=7422),
    "ma-act": server("ma-act-1"),
    "sn": server("sn-1"),
    "ci": server("ci-1"),
}


def test_only_countries_that_exchange_something_are_linked_and_the_configuration_holds() -> None:
    assembled = assemble_layout(SERVERS, [deployed()], key)
    check_layout(assembled.layout)
    (link,) = assembled.layout.links
    assert (link.dialler, link.acceptor, link.acceptor_url) == ("sn", "ma", "127.0.0.1:7422")
    silent = assemble_layout(SERVERS, [deployed(exports=[])], key)
    assert silent.layout.links == ()
    for domain in assembled.layout.domains:
        seeds = EngineSecrets(link_seeds={link.public_key: SEEDS["link-sn-ma"]})
        text = server_config(assembled.layout, domain.servers[0].name, seeds)
        assert key(controller_name(domain.country)) in text
        others = {"MA", "SN", "CI"} - {domain.country}
        assert not any(f"JURIS_{country}" in text for country in others)


def test_pipelines_of_one_country_share_its_domains_with_users_of_their_own() -> None:
    sources = [{"kind": "http", "name": "weather"}]
    other = deployed(name="draa", exports=[], origins={}, sense__sources=sources)
    assembled = assemble_layout(SERVERS, [deployed(), other], key)
    morocco = assembled.layout.domain("ma")
    names = [user.name for user in morocco.users]
    assert len(set(names)) == len(names)
    assert {"harch", "ma-draa-sense", "ma-souss-irrigation-sense"} <= set(names)
    draa = next(user for user in morocco.users if user.name == "ma-draa-sense")
    assert not [subject for subject in (*draa.publish, *draa.subscribe) if "souss" in subject]
    streams = [stream.name for stream in assembled.wanted["ma"].streams]
    assert len(set(streams)) == len(streams)
    assert "ma-advisories" in streams
    assert [user.name for user in assembled.layout.domain("sn").users] == ["harch"]


def test_a_domain_without_a_server_is_refused() -> None:
    with pytest.raises(HarchError) as caught:
        assemble_layout({"ma": SERVERS["ma"]}, [deployed()], key)
    assert caught.value.code == "E0704"
