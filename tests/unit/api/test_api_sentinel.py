"""A hub tells its SENTINEL whose key it was shown, and carries records about alerts."""

from __future__ import annotations

import base64

import pytest

from harch.hub.views import Role
from unit.api.conftest import Client
from unit.api.fake_hub import KEYS


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER, Role.AGENT, Role.OPERATOR])
async def test_keys_are_known_by_role_and_tenant(operator: Client, role: Role) -> None:
    told = (await operator.post("/sentinel/callers", json={"key": KEYS[role]})).json()
    assert told["role"] == role
    assert told["tenant"]


async def test_a_key_of_nobody_is_not_known(operator: Client) -> None:
    assert (await operator.post("/sentinel/callers", json={"key": "hsk_nobody"})).status_code == 404


async def test_only_operators_may_ask_about_keys(user: Client) -> None:
    assert (await user.post("/sentinel/callers", json={"key": KEYS[Role.ADMIN]})).status_code == 403
    assert (await user.post("/sentinel/alert-records", json={})).status_code == 403


async def test_records_are_exchanged_as_they_are(operator: Client) -> None:
    sent = base64.b64encode(b"a silence").decode()
    told = (await operator.post("/sentinel/alert-records", json={"records": sent})).json()
    assert [base64.b64decode(one) for one in told["records"]] == [b"from a peer", b"a silence"]
    assert told["position"] == 2
    assert (await operator.post("/sentinel/alert-records", json={"records": "§"})).status_code == 400
