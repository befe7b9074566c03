"""What does the message engine of a country need for all its pipelines together? Shares in, domains out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from harch.base.errors import HarchError, InvariantBroken
from harch.pipelines.engine.layout import BorderLink, Domain, Layout, Limits, Server
from harch.pipelines.engine.streams import Wanted, advisory_stream
from harch.pipelines.engine.users import controller_user, stage_user
from harch.pipelines.spec.deployment import Deployment, DomainShare

PublicKeys = Callable[[str], str]  # the name of a user to its public key


class Assembled(Struct, frozen=True):
    """The layout that configurations are made of, and what each domain should hold."""

    layout: Layout
    wanted: Mapping[str, Wanted]


def controller_name(country: str) -> str:
    """The name that the controller's key is kept under; each country has a controller of its own."""
    return f"{country.lower()}-harch"


def assemble_domain(
    name: str, country: str, servers: tuple[Server, ...], deployments: Iterable[Deployment], public_key: PublicKeys
) -> tuple[Domain, Wanted]:
    """The domain with the users of every pipeline in it, and all streams that should be there."""
    shares = _shares(name, country, deployments)
    grants = [grant for share in shares for grant in share.grants]
    users = (
        controller_user(country, public_key(controller_name(country))),
        *(stage_user(grant, public_key(grant.user_name)) for grant in grants),
    )
    wanted = Wanted(
        streams=(*(stream for share in shares for stream in share.wanted.streams), advisory_stream(country)),
        consumers=tuple(consumer for share in shares for consumer in share.wanted.consumers),
    )
    synced = any(share.synced for share in shares)
    return Domain(country=country, name=name, servers=servers, users=users, synced=synced), wanted


def assemble_layout(
    servers: Mapping[str, tuple[Server, ...]],
    deployments: Iterable[Deployment],
    public_key: PublicKeys,
    limits: Limits | None = None,
) -> Assembled:
    """The whole engine. `servers` by name of domain, which begins with its country: `ma`, `ma-act`, `sn`.

    Two countries are linked only if a pipeline of one of them exports to the other, and then by one link.
    """
    plans = list(deployments)
    missing = sorted({share.domain for plan in plans for share in plan.domains} - set(servers))
    if missing:
        raise HarchError("E0704", f"no server is named for the domain `{missing[0]}`", hint="name one in that country")
    domains: list[Domain] = []
    wanted: dict[str, Wanted] = {}
    for name, found in servers.items():
        domain, wanted[name] = assemble_domain(name, name[:2].upper(), found, plans, public_key)
        domains.append(domain)
    mains = [domain for domain in domains if domain.name == domain.country.lower()]
    links = [assemble_link(one, other, plans, public_key) for one, other in combinations(mains, 2)]
    used = tuple(link for link in links if link is not None)
    return Assembled(Layout(domains=tuple(domains), links=used, limits=limits or Limits()), wanted)


def link_name(dialler: str, acceptor: str) -> str:
    """The name that the key of a border link is kept under."""
    return f"link-{dialler}-{acceptor}"


def assemble_link(
    one: Domain, other: Domain, deployments: Iterable[Deployment], public_key: PublicKeys
) -> BorderLink | None:
    """Exactly the exports that one's pipelines make for the other; None if there are none. Who listens accepts."""
    plans = list(deployments)

    def sends(source: str, target: str) -> tuple[str, ...]:
        return tuple(
            subject for plan in plans if plan.country == source for subject, to in plan.exports.items() if target in to
        )

    acceptor, dialler = (one, other) if any(server.border_port for server in one.servers) else (other, one)
    out, back = sends(dialler.country, acceptor.country), sends(acceptor.country, dialler.country)
    if not (out or back):
        return None
    door = next((server for server in acceptor.servers if server.border_port), acceptor.servers[0])
    return BorderLink(
        dialler=dialler.name,
        acceptor=acceptor.name,
        acceptor_url=f"{door.host}:{door.border_port}",
        public_key=public_key(link_name(dialler.name, acceptor.name)),
        dialler_sends=out,
        acceptor_sends=back,
    )


def _shares(name: str, country: str, deployments: Iterable[Deployment]) -> list[DomainShare]:
    shares = []
    for deployment in deployments:
        for share in deployment.domains:
            if share.domain == name:
                if deployment.country != country:
                    raise InvariantBroken("a pipeline's domain stands in its country", deployment.pipeline, country)
                shares.append(share)
    return shares
