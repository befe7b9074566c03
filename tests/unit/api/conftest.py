"""A hub in memory with the API in front of it, spoken to without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from harch.api.app import create_app
from harch.api.front import Front
from harch.hub.views import Role
from unit.api.fake_hub import KEYS, FakeHub

Client = httpx.AsyncClient
ClientOf = Callable[[str], Client]


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub()


@pytest.fixture
def app(hub: FakeHub) -> Front:
    return create_app(hub)


@pytest.fixture
async def client_of(app: Front) -> AsyncIterator[ClientOf]:
    """A client with a key; an empty key sends none."""
    clients: list[Client] = []

    def make(key: str) -> Client:
        headers = {"x-api-key": key} if key else {}
        clients.append(Client(transport=httpx.ASGITransport(app), base_url="http://hub/v1", headers=headers))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def user(client_of: ClientOf) -> Client:
    return client_of(KEYS[Role.USER])


@pytest.fixture
def viewer(client_of: ClientOf) -> Client:
    return client_of(KEYS[Role.VIEWER])


@pytest.fixture
def operator(client_of: ClientOf) -> Client:
    return client_of(KEYS[Role.OPERATOR])


@pytest.fixture
def admin(client_of: ClientOf) -> Client:
    return client_of(KEYS[Role.ADMIN])


@pytest.fixture
def nobody(client_of: ClientOf) -> Client:
    return client_of("")


@pytest.fixture
def terraform(user: Client) -> Client:
    user.headers["user-agent"] = "harchos-terraform-provider/0.3.0"
    return user
