"""Who may call, and what may their work know? API keys and secrets: stored with their audit, shown never again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.hub.audit import drafts
from harch.hub.jobs.agents import AgentKeys
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.keys import KeyRing, SecretBox, digest
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.store.records import AgentKey
from harch.hub.views import KeyInfo, Principal, Role
from harch.sovereignty.audit import chain as audit_kinds
from harch.sovereignty.audit.chain import Draft

HUB = "hub"  # the actor where nobody asked


class HubCredentials:
    """Behind the API. `on_revoked` is called with the id of a key that no longer holds, or is another agent's now."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        jobs: JobRuntime,
        secrets: SecretBox,
        on_revoked: Callable[[str], None] = lambda key_id: None,
    ) -> None:
        self._clock, self._jobs = clock, jobs
        self._keys = KeyRing(database.api_keys())
        self._agent_keys = AgentKeys(database.agent_keys(), self._keys.is_valid)
        self.secrets, self._on_revoked = secrets, on_revoked

    def authenticate(self, token: str) -> Principal | None:
        return self._keys.authenticate(token)

    async def adopt_key(self, token: str, *, name: str, tenant: str, role: Role) -> None:
        """Makes a token that was written to a key file valid at this hub.

        A hub that is held writes nothing: then it is valid until the next start, which writes it down.
        """
        if not self._keys.has(token):
            info, _ = self._keys.issue(name=name, tenant=tenant, role=role, now=self._clock.now(), token=token)
            if self._jobs.held is not None:
                self._keys.remember(info, digest(token))
                return
            await self._write_key(audit_kinds.KEY_CREATED, info, HUB, token)
            self._keys.remember(info, digest(token))

    async def create_key(
        self,
        *,
        name: str,
        tenant: str,
        role: Role,
        actor: str = HUB,
        agent_id: str = "",
        node_ids: tuple[str, ...] = (),
    ) -> tuple[KeyInfo, str]:
        """`agent_id`: the agent that it is for, with its nodes; if absent, the first one that uses it."""
        info, token = self._keys.issue(name=name, tenant=tenant, role=role, now=self._clock.now())
        await self._write_key(audit_kinds.KEY_CREATED, info, actor, token)
        self._keys.remember(info, digest(token))
        if agent_id:
            await self._bind(AgentKey(key_id=info.id, agent_id=agent_id, node_ids=node_ids))
        return info, token

    async def keys(self, tenant: str | None) -> list[KeyInfo]:
        return self._keys.all(tenant)

    async def revoke_key(self, key_id: str, *, tenant: str | None, actor: str = HUB) -> KeyInfo:
        revoked = replace(self._keys.find(key_id, tenant=tenant), revoked=True)
        await self._write_key(audit_kinds.KEY_REVOKED, revoked, actor)
        self._keys.forget(revoked)
        self._on_revoked(key_id)
        return revoked

    def revoked_count(self) -> int:
        return self._keys.revoked_count

    # Agents

    def agents_of(self, key_id: str) -> tuple[AgentKey, ...]:
        return self._agent_keys.of(key_id)

    def agent_refusal(self, key_id: str, agent_id: str, node_ids: tuple[str, ...]) -> HarchError | None:
        """Why the agent with this key is not who it says it is."""
        return self._agent_keys.refusal(key_id, agent_id, node_ids)

    def agent_came(self, key_id: str, agent_id: str, node_ids: tuple[str, ...]) -> None:
        """The first agent of a key has it from now on."""
        if not self._agent_keys.of(key_id):
            # A disk that does not take it stops the hub's work anyway; the next start binds anew.
            self._bind(AgentKey(key_id=key_id, agent_id=agent_id, node_ids=node_ids)).add_done_callback(_look_away)

    async def release_key(self, key_id: str, *, tenant: str | None, actor: str = HUB) -> KeyInfo:
        """Forgets whose key it is: the next agent that shows it has it."""
        info = self._keys.find(key_id, tenant=tenant)
        await self._jobs.write([rows.drop_agent_keys(key_id)], [_changed(audit_kinds.KEY_RELEASED, info, actor)])
        self._agent_keys.release(key_id)
        self._on_revoked(key_id)
        return info

    def _bind(self, one: AgentKey) -> asyncio.Future[None]:
        """It holds at once: between now and the disk, no other agent may come with this key."""
        self._agent_keys.bind(one)
        draft = drafts.key_bound(one.key_id, one.agent_id, nodes=len(one.node_ids))
        return self._jobs.write([rows.save_agent_key(one)], [draft])

    async def _write_key(self, kind: str, info: KeyInfo, actor: str, token: str = "") -> None:
        await self._jobs.write([self._keys.statement(info, token)], [_changed(kind, info, actor)])

    async def put_secret(self, name: str, value: str, *, tenant: str, actor: str = HUB) -> None:
        sealed = self.secrets.seal(value)
        draft = drafts.secret_changed(audit_kinds.SECRET_STORED, name, tenant=tenant, actor=actor)
        await self._jobs.write([rows.save_secret(tenant, name, sealed)], [draft])
        self.secrets.put(tenant, name, sealed)

    async def secret_names(self, *, tenant: str) -> list[str]:
        return self.secrets.names(tenant)

    async def delete_secret(self, name: str, *, tenant: str, actor: str = HUB) -> None:
        self.secrets.require(tenant, [name])
        draft = drafts.secret_changed(audit_kinds.SECRET_REMOVED, name, tenant=tenant, actor=actor)
        await self._jobs.write([rows.drop_secret(tenant, name)], [draft])
        self.secrets.drop(tenant, name)


def _look_away(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()


def _changed(kind: str, info: KeyInfo, actor: str) -> Draft:
    return drafts.key_changed(kind, info.id, name=info.name, tenant=info.tenant, role=info.role.value, actor=actor)
