"""What does a hub get that is a member of the federation and asks for what is none of its business?

Over the control link it asks for trees, files and copies by names that it has guessed or heard. Over the bulk channel
it shows tickets that were made up, changed, stolen, revoked or used for long, and asks for chunks that its ticket is
not for. One object it may have: that is how it comes by a ticket at all, and proof that the way itself works.
"""

from __future__ import annotations

import itertools
import secrets as randomness
import time
from collections.abc import Sequence

from bytes_attempts import Attempts, Held, client_of, held_at
from bytes_files import MB, Noise, write_file
from bytes_short_tickets import VALID_FOR
from bytes_world import HostilePeer, LinkedHub
from harch.content.frames import ChunkFrame
from harch.content.model import ChunkRef
from harch.fleet.model import Fleet
from harch.hub.federation.messages import (
    ContentReply,
    ContentRequest,
    CopiesQuestion,
    CopiesReply,
    FilesQuestion,
    FilesReply,
    LogReply,
    LogRequest,
)

WITHIN_S = 60.0
OPEN = ("--process-in", "MA", "--process-in", "CI", "--rest-in", "MA", "--rest-in", "CI", "--may-cross-borders")
PLAIN = ("--plain-at-rest", "--plain-in-transit")
MADE_UP = 12
FLIPPED = 12
TENANTS = ("default", "", "other")


def attack(
    attempts: Attempts, fleet: Fleet, hub_id: str, home: LinkedHub, other: LinkedHub, secrets: Sequence[Held]
) -> None:
    """Raises RuntimeError if the peer does not even get what it may have."""
    peer = HostilePeer(fleet, hub_id, home.home)
    try:
        _until(lambda: peer.reaches(home.hub_id), "a link of the hostile peer")
        attacker = Attacker(attempts, peer, home, other, secrets)
        attacker.get_what_is_allowed()
        attacker.control_link()
        attacker.bulk_channel()
    finally:
        peer.close()


class Attacker:
    def __init__(
        self, attempts: Attempts, peer: HostilePeer, home: LinkedHub, other: LinkedHub, secrets: Sequence[Held]
    ) -> None:
        self._attempts, self._peer, self._home, self._other, self._secrets = attempts, peer, home, other, secrets
        self._own = client_of(home)
        self._may: Held | None = None

    @property
    def may(self) -> Held:
        if self._may is None:
            raise RuntimeError("nothing is allowed yet")
        return self._may

    def get_what_is_allowed(self) -> None:
        files = self._home.home / "files" / "open"
        write_file(files / "part.bin", MB, Noise(7))
        done = self._home.harch("data", "add", "open", "--files", str(files), *OPEN, *PLAIN)
        if done.returncode:
            raise RuntimeError(done.stderr)
        self._may = held_at(self._home, "open", "dataset that it may have", files)
        body = {"name": "lent", "command": ["true"], "data": ["open"], "countries_allowed": ["CI"]}
        lent = self._own.workloads.submit(body)
        _until(lambda: self._own.workloads.get(lent.id).runner_hub == self._peer.hub_id, "work lent to the peer")
        reply = self._ticket()
        got = self._pull(reply.port, reply.ticket, self.may.chunks)
        if sorted(frame.id for frame in got) != sorted(self.may.ids):
            raise RuntimeError("the peer does not get what it may have")
        print("  as it should be: the hostile peer gets what work that was lent to it reads")

    def control_link(self) -> None:
        for secret, tenant in itertools.product(self._secrets, TENANTS):
            for ref in (secret.id, secret.name, f"data:{secret.id}", f"image:{secret.name}", self.may.id):
                asked = ContentRequest(number=0, ref=ref, tenant=tenant, digest=secret.digest)
                self._ask(f"tree of {ref} with the digest of {secret.name}, tenant `{tenant}`", asked, ContentReply)
        for name in ("work", "sent-home", "lent"):
            work_id = self._work_id(name)
            for path in (".", "out"):
                asked = FilesQuestion(number=0, workload_id=work_id, rank=0, attempt=None, path=path)
                self._ask(f"files {path} of {name}", asked, FilesReply)
        for _ in range(4):
            ref = f"snap_{randomness.token_hex(10)}"
            asked = ContentRequest(number=0, ref=ref, tenant="default", digest=self._secrets[0].digest)
            self._ask(f"a snapshot called {ref}", asked, ContentReply)
        claims = CopiesQuestion(number=0, held=tuple((secret.id, 0) for secret in self._secrets), is_all=False)
        told = self._peer.ask(self._home.hub_id, claims, CopiesReply)
        for secret in self._secrets:
            if any(data.id == secret.id for data in told.changed):
                print(f"  beside: {self._peer.hub_id} was told name and tag of {secret.name}, of which it has no copy")
            asked = ContentRequest(number=0, ref=secret.id, tenant="default", digest=secret.digest)
            self._ask(f"{secret.name} after claiming to have a copy", asked, ContentReply)
            if self._peer.hub_id in self._own.data.get(secret.id).hubs:
                print(
                    f"  beside: {self._peer.hub_id} is believed to have {secret.name}, because it says so", flush=True
                )

    def bulk_channel(self) -> None:
        reply = self._ticket()
        port, good = reply.port, reply.ticket
        for name, chunk in ((one.name, chunk) for one in self._secrets for chunk in one.some):
            what = f"a chunk of {name}"
            self._fetch(f"{what} with a ticket for something else", port, good, [chunk])
            self._fetch(f"{what} among others that its ticket is for", port, good, [*self.may.chunks[:1], chunk])
            self._fetch(f"{what} with a stolen ticket", port, good, [chunk], as_hub=self._other.hub_id)
        allowed = self.may.chunks[:1]
        self._fetch("a ticket of another hub", port, good, allowed, as_hub=self._other.hub_id)
        for number in range(MADE_UP):
            ticket = (b"\0" * 32, b"\xff" * 32, b"x", b"y" * 64)[number] if number < 4 else randomness.token_bytes(32)
            self._fetch("a ticket that was made up", port, ticket, self._secrets[number % 4].some)
        for number in range(FLIPPED):
            changed = bytearray(self._ticket().ticket)
            changed[number % len(changed)] ^= 1 << number % 8
            self._fetch("a ticket that was changed", port, bytes(changed), allowed)
        old = self._ticket().ticket
        time.sleep(VALID_FOR.total_seconds() + 1)
        for _ in range(2):
            self._fetch("a ticket that has expired", port, old, allowed)
        fresh = self._ticket().ticket
        done = self._home.harch("data", "tag", "open", "--process-in", "MA", "--rest-in", "MA", *PLAIN)
        if done.returncode:
            raise RuntimeError(done.stderr)
        for _ in range(2):
            self._fetch("a ticket that was revoked", port, fresh, allowed)
        asked = ContentRequest(number=0, ref=self.may.id, tenant="default", digest=self.may.digest)
        self._ask("what it was allowed to have before its tag was tightened", asked, ContentReply)

    def _ticket(self) -> ContentReply:
        may = self.may
        asked = ContentRequest(number=0, ref=may.id, tenant="default", digest=may.digest)
        reply: ContentReply = self._peer.ask(self._home.hub_id, asked, ContentReply)
        return reply

    def _ask(
        self,
        what: str,
        question: ContentRequest | FilesQuestion | LogRequest,
        answer: type[ContentReply | FilesReply | LogReply],
    ) -> None:
        self._attempts.refused("control link", what, lambda: self._peer.ask(self._home.hub_id, question, answer))

    def _fetch(self, what: str, port: int, ticket: bytes, chunks: Sequence[ChunkRef], *, as_hub: str = "") -> None:
        """Succeeds if a chunk arrives that is a secret's, or any where the ticket itself is wrong."""

        def pull() -> list[ChunkFrame]:
            return self._pull(port, ticket, chunks, as_hub=as_hub)

        self._attempts.refused("bulk channel", what, pull)

    def _pull(self, port: int, ticket: bytes, chunks: Sequence[ChunkRef], *, as_hub: str = "") -> list[ChunkFrame]:
        return self._peer.pull(self._home.hub_id, port, ticket, chunks, as_hub=as_hub)

    def _work_id(self, name: str) -> str:
        for client in (self._own, client_of(self._other)):
            found = [work.id for work in client.workloads.list().items if work.name == name]
            if found:
                return str(found[0])
        raise RuntimeError(f"no work is called {name}")


def _until(condition: object, what: str) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {WITHIN_S:g} s for {what}")
        time.sleep(0.05)
