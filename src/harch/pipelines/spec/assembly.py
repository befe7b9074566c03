"""What does the message engine of a country need for all its pipelines together? Shares in, domains out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harch.base.errors import InvariantBroken
from harch.pipelines.engine.layout import Domain, Server
from harch.pipelines.engine.streams import Wanted, advisory_stream
from harch.pipelines.engine.users import controller_user, stage_user
from harch.pipelines.spec.deployment import Deployment, DomainShare

PublicKeys = Callable[[str], str]  # the name of a user to its public key


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


def _shares(name: str, country: str, deployments: Iterable[Deployment]) -> list[DomainShare]:
    shares = []
    for deployment in deployments:
        for share in deployment.domains:
            if share.domain == name:
                if deployment.country != country:
                    raise InvariantBroken("a pipeline's domain stands in its country", deployment.pipeline, country)
                shares.append(share)
    return shares
