"""How do hubs enter a federation and stay in it? Real files, real TLS, and the real command line where it matters."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from links_world import HOST, WITHIN_S, federation, free_ports

from harch.base.clock import Clock, SystemClock
from harch.base.config import Home
from harch.base.errors import HarchError
from harch.federation.identity.authority import found
from harch.federation.identity.enrolment import EnrolmentService, Invitation, invite, join, parse_invitation
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import (
    Address,
    CertificateRenewed,
    HubName,
    IdentityMessage,
    Members,
    RenewRequest,
)
from harch.federation.identity.renewal import IdentityRenewal
from harch.federation.links.mesh import Mesh
from harch.federation.links.tls_connection import send_uncertified
from harch.testing.clock import SimClock

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(IdentityMessage).decode  # type: ignore[var-annotated]


class Hub:
    """Links and identity as a hub composes them; nothing else."""

    def __init__(self, identity: HubIdentity, clock: Clock | None = None) -> None:
        self.identity = identity
        self.clock = clock or SystemClock()
        self.heard: list[IdentityMessage] = []
        self.desk: EnrolmentService | None = None
        self.mesh: Mesh[IdentityMessage] = Mesh(
            identity=identity,
            listen=identity.member.address,
            peers={},
            encode=_encode,
            decode=_decode,
            on_message=self._on_message,
            on_up=lambda hub_id: self.keeper.on_up(hub_id),
            on_down=lambda hub_id, why: None,
            clock=SystemClock(),
            on_uncertified=self._on_stranger if identity.folder.has_authority else None,
        )
        self.keeper = IdentityRenewal(identity, self.mesh, self.clock, address=identity.member.address)
        if self.keeper.authority is not None:
            self.desk = EnrolmentService(self.keeper.authority, self.clock)

    def _on_stranger(self, question: bytes) -> bytes:
        assert self.desk is not None
        return self.desk.answer(question)

    def _on_message(self, hub_id: str, message: IdentityMessage) -> None:
        self.heard.append(message)
        self.keeper.on_message(hub_id, message)


@asynccontextmanager
async def serving(*hubs: Hub) -> AsyncIterator[None]:
    tasks = []
    for hub in hubs:
        listening = asyncio.Event()
        tasks.append(asyncio.create_task(hub.mesh.run(listening=lambda _, event=listening: event.set())))  # type: ignore[misc]
        await asyncio.wait_for(listening.wait(), WITHIN_S)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until(holds: object) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # type: ignore[operator]
            await asyncio.sleep(0.005)


def founder(folder: Path) -> Hub:
    (port,) = free_ports(1)
    name = HubName("gpu.example.org", "dakhla")
    return Hub(
        found(identity_folder(Home(folder), "dakhla"), name, Address(HOST, port), now=SystemClock().now()).identity
    )


def borrowed(hub: Hub, hub_id: str = "dakar", **words: object) -> Invitation:
    return invite(hub.identity, hub_id, now=SystemClock().now(), **words)  # type: ignore[arg-type]


async def joined(folder: Path, card: Invitation) -> HubIdentity:
    (port,) = free_ports(1)
    folder_of_hub = identity_folder(Home(folder), card.hub_id)
    return await join(folder_of_hub, card, (HOST, port), send=send_uncertified, now=SystemClock().now())


async def refusal(folder: Path, card: Invitation) -> HarchError:
    with pytest.raises(HarchError) as caught:
        await joined(folder, card)
    assert not identity_folder(Home(folder), card.hub_id).is_complete
    return caught.value


async def harch(home: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "harch",
        *words,
        env={**os.environ, "HARCH_HOME": str(home)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_init_invite_and_join_on_the_command_line(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    first, second = (f"{HOST}:{port}" for port in free_ports(2))
    code, said, _ = await harch(here, "hub", "init", "dakhla", "--trust-domain", "gpu.example.org", "--address", first)
    assert code == 0, said
    code, card, _ = await harch(here, "hub", "invite", "dakar")
    assert code == 0
    async with serving(Hub(HubIdentity(identity_folder(Home(here), "dakhla")))):
        code, said, errors = await harch(there, "hub", "join", "-", "--address", second, "--json", stdin=card)
        assert code == 0, errors
        told = json.loads(said)
        assert told["hub"] == "spiffe://gpu.example.org/hub/dakar"
        assert told["members"] == ["dakar", "dakhla"]
        code, said, _ = await harch(tmp_path / "thief", "hub", "join", card.strip(), "--address", second, "--json")
        assert code == 4
        assert json.loads(said)["error"] == {
            "code": "E0112",
            "message": "the invitation has been used",
            "hint": "`harch hub invite dakar` at the hub that holds the authority makes a new one",
        }
    secret = parse_invitation(card).secret
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for form in (secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret)):
        assert form not in kept


async def test_who_joined_is_linked_with_all_members_at_once(tmp_path: Path) -> None:
    dakhla = founder(tmp_path)
    async with serving(dakhla):
        dakar = Hub(await joined(tmp_path, borrowed(dakhla, "dakar")))
        async with serving(dakar):
            await until(lambda: dakar.mesh.is_up("dakhla") and dakhla.mesh.is_up("dakar"))
            abidjan = Hub(await joined(tmp_path, borrowed(dakhla, "abidjan")))
            async with serving(abidjan):
                await until(lambda: abidjan.mesh.is_up("dakar") and dakar.mesh.is_up("abidjan"))
    known = HubIdentity(dakar.identity.folder).roster.get("abidjan")
    assert known is not None
    known.public_key.verify(abidjan.identity.state_key.sign(b"state"), b"state")


async def test_an_answer_that_was_lost_can_be_asked_for_again(tmp_path: Path) -> None:
    dakhla = founder(tmp_path)
    card = borrowed(dakhla)

    async def lose(address: Address, context: object, expected: object, question: bytes) -> bytes:
        answer = await send_uncertified(address, context, expected, question)  # type: ignore[arg-type]
        if expected is not None:
            raise HarchError("E0802", "the line broke")
        return answer

    async with serving(dakhla):
        folder = identity_folder(Home(tmp_path), "dakar")
        with pytest.raises(HarchError):
            await join(folder, card, (HOST, 7), send=lose, now=SystemClock().now())
        assert (await joined(tmp_path, card)).hub_id == "dakar"


async def test_an_expired_invitation_is_refused_by_both_sides(tmp_path: Path) -> None:
    dakhla = founder(tmp_path)
    past = SystemClock().now() - timedelta(days=2)
    card = invite(dakhla.identity, "dakar", now=past)
    late = msgspec.structs.replace(card, expires_at=SystemClock().now() + timedelta(days=1))
    async with serving(dakhla):
        assert (await refusal(tmp_path, card)).message == "the invitation has expired"
        assert "the invitation expired at" in (await refusal(tmp_path, late)).message


async def test_the_secret_is_not_shown_to_another_federation_nor_to_another_member(tmp_path: Path) -> None:
    dakhla, other = founder(tmp_path / "ours"), founder(tmp_path / "theirs")
    asked: list[bytes] = []
    answer = other.desk.answer if other.desk else None
    assert answer is not None
    other.desk.answer = lambda body: asked.append(body) or answer(body)  # type: ignore[method-assign,union-attr,func-returns-value]
    card = borrowed(dakhla)
    async with serving(dakhla, other):
        redirected = msgspec.structs.replace(card, address=other.identity.member.address)
        assert "is not of the federation" in (await refusal(tmp_path, redirected)).message
        assert not any(card.secret in question for question in asked)
        to_another = msgspec.structs.replace(card, host_id="tangier")
        assert (await refusal(tmp_path, to_another)).code == "E0110"


async def test_a_guessed_secret_opens_nothing(tmp_path: Path) -> None:
    dakhla = founder(tmp_path)
    card = msgspec.structs.replace(borrowed(dakhla), secret=b"guessed".ljust(24))
    async with serving(dakhla):
        assert "no invitation of this kind" in (await refusal(tmp_path, card)).message


async def test_nobody_answers_is_an_error_with_a_hint(tmp_path: Path) -> None:
    error = await refusal(tmp_path, borrowed(founder(tmp_path)))
    assert error.code == "E0802"
    assert error.hint


async def test_a_member_is_invited_again_only_on_purpose(tmp_path: Path) -> None:
    dakhla = founder(tmp_path)
    async with serving(dakhla):
        first = await joined(tmp_path, borrowed(dakhla))
        with pytest.raises(HarchError) as caught:
            borrowed(dakhla)
        assert caught.value.code == "E0114"
        again = await joined(tmp_path, borrowed(dakhla, again=True))
        assert again.state_key.private_bytes_raw() == first.state_key.private_bytes_raw()
        assert again.certificate != first.certificate
        # After its disk was lost the hub is the same to all, with another key.
        anew = await joined(tmp_path / "new-disk", borrowed(dakhla, again=True))
        known = dakhla.identity.roster.get("dakar")
        assert known is not None
        known.public_key.verify(anew.state_key.sign(b"x"), b"x")


async def test_certificates_are_renewed_over_the_links_without_interrupting_them(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakhla", "dakar")
    clock = SimClock(SystemClock().now())
    dakhla, dakar = Hub(ids["dakhla"], clock), Hub(ids["dakar"], clock)
    before = dakar.identity.certificate
    async with serving(dakhla, dakar):
        await until(lambda: dakar.mesh.is_up("dakhla") and dakhla.mesh.is_up("dakar"))
        dakar.keeper.check()
        assert dakar.identity.certificate == before, "not due yet"
        clock.jump(25 * 3600)
        dakar.keeper.check()
        dakhla.keeper.check()
        await until(lambda: any(isinstance(message, CertificateRenewed) for message in dakar.heard))
        assert dakar.identity.certificate.not_after - before.not_after >= timedelta(hours=24)
        assert dakhla.identity.certificate.not_after - before.not_after >= timedelta(hours=24)
        assert HubIdentity(dakar.identity.folder).certificate == dakar.identity.certificate
        assert dakar.mesh.send("dakhla", Members(()))


async def test_without_the_authority_a_hub_goes_on_and_says_what_is_missing(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakhla", "dakar")
    clock = SimClock(SystemClock().now())
    dakar = Hub(ids["dakar"], clock)
    clock.jump(25 * 3600)
    dakar.keeper.check()
    assert dakar.keeper.trouble == "no hub that holds the authority can be reached"
    assert dakar.identity.certificate.is_valid(clock.now() + timedelta(days=5))
    clock.jump(6 * 86400)
    dakar.keeper.check()
    assert "join again with a new invitation" in dakar.keeper.trouble


async def test_a_hub_without_the_authority_and_a_retired_hub_get_no_certificate(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakhla", "dakar", "abidjan")
    dakhla, dakar, abidjan = (Hub(ids[name]) for name in ("dakhla", "dakar", "abidjan"))
    async with serving(dakhla, dakar, abidjan):
        await until(lambda: len(dakar.mesh.up()) == len(dakhla.mesh.up()) == len(abidjan.mesh.up()) == 2)
        request = RenewRequest(dakar.identity.request_certificate(), dakar.identity.member.address)
        dakar.mesh.send("abidjan", request)
        await until(lambda: "does not hold the authority" in dakar.keeper.trouble)
        assert dakhla.keeper.authority is not None
        dakhla.keeper.authority.retire("dakar", now=SystemClock().now())
        # The news reaches abidjan over its link, and both end what they have with dakar.
        await until(lambda: not dakar.mesh.up() and abidjan.identity.roster.refusal("dakar"))
        assert "dakar" not in {status.hub_id for status in abidjan.mesh.status()}
        with pytest.raises(HarchError) as caught:
            dakhla.keeper.authority.certify("dakar", request.request, now=SystemClock().now())
        assert caught.value.code == "E0111"


async def test_a_forged_record_is_not_believed_and_harms_nobody(tmp_path: Path) -> None:
    ids = federation(tmp_path / "ours", "dakhla", "dakar")
    foreign = federation(tmp_path / "theirs", "tangier")["tangier"]
    dakhla = Hub(ids["dakhla"])
    dakhla.keeper.on_message("dakar", Members(foreign.roster.records()))
    assert dakhla.identity.roster.get("tangier") is None
    dakhla.keeper.on_message("dakar", CertificateRenewed(foreign.certificate.der))
    assert dakhla.identity.certificate.name.hub_id == "dakhla"
    assert dakhla.identity.generation == 0


async def test_a_new_address_becomes_known_to_all_with_the_next_check(tmp_path: Path) -> None:
    ids = federation(tmp_path, "dakhla", "dakar")
    dakhla, dakar = Hub(ids["dakhla"]), Hub(ids["dakar"])
    async with serving(dakhla, dakar):
        await until(lambda: dakar.mesh.is_up("dakhla"))
        moved = IdentityRenewal(dakar.identity, dakar.mesh, dakar.clock, address=("10.9.9.9", 7721))
        moved.check()
        await until(lambda: dakhla.identity.roster.get("dakar").address == ("10.9.9.9", 7721))  # type: ignore[union-attr]
        await until(lambda: dakar.identity.member.address == ("10.9.9.9", 7721))
