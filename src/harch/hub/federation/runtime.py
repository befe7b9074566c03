"""How does a running hub live with others? One mesh of links, one gossip, and the job machine between them.

Everything happens on the hub's event loop. What a peer says about work goes to the job machine as an event; what the
machine wants said leaves only after it is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from msgspec import structs

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate
from harch.federation import offers as o
from harch.federation.gossip import messages as gossip
from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.membership import Appeared, Recovered, StateChanged, Suspected
from harch.federation.gossip.messages import Ed25519Signer
from harch.federation.identity.enrolment import EnrolmentService
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import IdentityMessage, Member
from harch.federation.identity.renewal import IdentityRenewal
from harch.federation.links.mesh import LinkStatus, Mesh
from harch.hub.audit.service import HubAudit
from harch.hub.federation.alerts import AlertPost
from harch.hub.federation.answers import PeerAnswers
from harch.hub.federation.checkpoints import CHECKPOINTS_BACK, CheckpointPost
from harch.hub.federation.history import FederationHistory
from harch.hub.federation.membership import MemberKeys, Retirement, next_generation
from harch.hub.federation.messages import (
    AlertRecords,
    Answer,
    CheckpointKept,
    CheckpointSent,
    CopiesChanged,
    Encoder,
    PeerMessage,
    Question,
    SignalRegistry,
    decode,
    published_state,
)
from harch.hub.federation.outbox import GrantReceiver, PeerOutbox
from harch.hub.federation.peer_view import Lookout, PeerDirectory
from harch.hub.federation.questions import FEATURE, Questions
from harch.hub.jobs import events as ev
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.jobs.state import Closed
from harch.hub.policy.service import HubPolicies
from harch.hub.views import PeerView
from harch.wire.hubs import HubSummary

PUBLISH_EVERY_S = 0.5
PUBLISH_SHARE_MAX = 0.02  # of the event loop: a hub with much work looks at itself less often
FEED_EVERY_S, FEED_AGAIN_S = 0.1, 2.0  # at most, at least: what the job machine knows of the peers
ANSWERING_MAX = 1000  # questions of peers that are being answered

_log = logging.getLogger("harch.hub")


class FederationRuntime:
    """This hub among its peers. `listen` is where it accepts links; peers dial the address of its member record.

    `signals` is what else the hub says of itself, by key. `outbox` and `directory` are connected to its links.
    """

    def __init__(
        self,
        *,
        identity: HubIdentity,
        listen: tuple[str, int],
        clock: Clock,
        jobs: JobRuntime,
        policies: HubPolicies,
        audit: HubAudit,
        summary: Callable[[], HubSummary],
        signals: SignalRegistry,
        answers: PeerAnswers,
        outbox: PeerOutbox,
        directory: PeerDirectory,
        on_copies_changed: Callable[[], None],
        gate: ConnectionGate | None = None,
    ) -> None:
        self._clock, self._answers, self._signals = clock, answers, signals
        self._on_copies_changed = on_copies_changed
        self._jobs, self._policies, self._summary = jobs, policies, summary
        self._mesh: Mesh[PeerMessage] = Mesh(
            identity=identity,
            listen=listen,
            peers={},
            encode=Encoder().encode,
            decode=decode,
            on_message=self._received,
            on_up=self._up,
            on_down=self._down,
            clock=clock,
            features=(FEATURE, CHECKPOINTS_BACK),
            on_uncertified=self._newcomer if identity.folder.has_authority else None,
            gate=gate,
        )
        now_s = clock.monotonic_s()
        self._gossip = Gossip(
            identity.hub_id,
            generation=next_generation(identity.folder.path / "generation", clock.now()),
            members=[member.hub_id for member in identity.roster if not member.retired],
            signer=Ed25519Signer(identity.state_key),
            verifier=MemberKeys(identity.roster),
            dice=random.Random(),  # noqa: S311 (whom to speak to next; nothing secret)
            now_s=now_s,
        )
        identity.watch(self._members_changed)
        self._identity_loop = IdentityRenewal(identity, self._mesh, clock, address=identity.member.address)
        self._joining = (
            EnrolmentService(self._identity_loop.authority, clock)
            if self._identity_loop.authority is not None
            else None
        )
        self._retirement = Retirement(identity)
        self._history = FederationHistory(identity.hub_id, self._note)
        self._lookout = Lookout(identity, self._gossip, self._mesh, clock, directory.urls)
        directory.attach(self._lookout)
        outbox.connect(self._send, self._receive_work)
        self._grants = GrantReceiver(jobs, policies, self._send)
        self._post = CheckpointPost(
            audit,
            clock,
            send=self._send,
            note=self._note,
            takes_back=lambda hub_id: CHECKPOINTS_BACK in self._mesh.features(hub_id),
        )
        self.alerts = AlertPost(
            identity.hub_id, country=lambda: summary().country, views=self._lookout.views, send=self._send
        )
        self._changed = asyncio.Event()  # what is known of the peers
        self._answering: set[asyncio.Task[None]] = set()
        self.questions = Questions(self._send)

    async def run(self) -> None:
        """Until cancelled. Raises E1004 if the port for peers is taken."""
        if self._retirement.is_over and not self._jobs.not_ready:
            await self._jobs.handle(ev.HubClosed(Closed.OPEN, "it has rejoined the federation"))
            self._retirement.forget()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._mesh.run())
                group.create_task(self._jobs.kept_up("renewing certificates", self._identity_loop.run))
                group.create_task(self._keep_gossiping())
                group.create_task(self._keep_publishing())
                group.create_task(self._keep_feeding())
                group.create_task(self._jobs.kept_up("sharing checkpoints", self._post.run))
                group.create_task(self._jobs.keep_lending())
        finally:
            self._grants.close()
            self._post.close()
            for task in list(self._answering):
                task.cancel()

    # What is known of the peers

    def views(self) -> list[PeerView]:
        return self._lookout.views()

    def received(self, key: str) -> dict[str, bytes]:
        """What each other hub last said under this key, of those that have said it."""
        now_s = self._clock.monotonic_s()
        entries = {hub_id: self._gossip.view(hub_id, now_s).values.get(key) for hub_id in self._gossip.peers}
        return {hub_id: value for hub_id, value in entries.items() if value is not None}

    def links(self) -> list[LinkStatus]:
        return self._mesh.status()

    @property
    def holds_authority(self) -> bool:
        return self._identity_loop.authority is not None

    def note_retired(self) -> None:
        """This hub is about to say of itself that it has left."""
        self._retirement.note()

    # What this hub says

    def _send(self, hub_id: str, message: PeerMessage) -> bool:
        return self._mesh.send(hub_id, message)

    def _spread(self, outgoing: Iterable[gossip.Outgoing]) -> None:
        for one in outgoing:
            self._mesh.send(one.to, one.message, droppable=True)

    # What peers say

    def _received(self, hub_id: str, message: PeerMessage) -> None:
        if isinstance(message, gossip.Message):
            self._spread(self._gossip.receive(hub_id, message, self._clock.monotonic_s()))
            self._read_news()
        elif isinstance(message, o.Grants):
            self._grants.came(hub_id, message)
        elif isinstance(message, o.LendingMessage):
            self._receive_work(hub_id, message)
        elif isinstance(message, IdentityMessage):
            self._identity_loop.on_message(hub_id, message)
        elif isinstance(message, Answer):
            self.questions.answered(hub_id, message)
        elif isinstance(message, CheckpointSent):
            self._post.came(hub_id, message)
        elif isinstance(message, CheckpointKept):
            self._post.came_back(hub_id, message)
        elif isinstance(message, AlertRecords):
            self.alerts.came(hub_id, message)
        elif isinstance(message, CopiesChanged):
            self._on_copies_changed()
        else:
            self._answer_soon(hub_id, message)

    def notify_copies_changed(self, hub_id: str) -> None:
        self._send(hub_id, CopiesChanged())

    def _receive_work(self, hub_id: str, message: o.LendingMessage) -> None:
        self._jobs.post(ev.PeerMessageReceived(hub_id, message))  # if it is not taken, it is as if it had been lost
        self._jobs.plan_placement()

    def _answer_soon(self, hub_id: str, question: Question) -> None:
        if len(self._answering) >= ANSWERING_MAX:
            return  # whoever asks has a deadline
        task = asyncio.get_running_loop().create_task(self._answer(hub_id, question))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, hub_id: str, question: Question) -> None:
        with self._jobs.survived(f"answering {hub_id}"):
            self._mesh.send(hub_id, await self._answers.answer(hub_id, question))

    def _newcomer(self, body: bytes) -> bytes:
        return self._joining.answer(body) if self._joining is not None else b""

    # Links and members

    def _up(self, hub_id: str) -> None:
        self._identity_loop.on_up(hub_id)
        self._post.linked(hub_id)
        self.alerts.linked(hub_id)
        self._changed.set()
        self._jobs.post(ev.PeerBack(hub_id))

    def _down(self, hub_id: str, why: str) -> None:
        self.questions.link_lost(hub_id, why)
        self._post.unlinked(hub_id)
        self._changed.set()

    def _members_changed(self, members: list[Member]) -> None:
        for member in members:
            if member.retired:
                self._gossip.remove_member(member.hub_id)
                self._lookout.forget(member.hub_id)
                self._note("hub.retired", member.hub_id, "has left the federation permanently")
            else:
                self._gossip.add_member(member.hub_id, self._clock.monotonic_s())
        self._changed.set()

    def _confirm_retired(self, hub_id: str) -> None:
        """A hub that says of itself that it has left gets a record of that, which all others believe for good."""
        if self._identity_loop.authority is None or not self._lookout.says_it_has_retired(hub_id):
            return
        try:
            self._identity_loop.authority.retire(hub_id, now=self._clock.now())
        except HarchError as error:  # the disk, or a hub that holds the authority too
            _log.error("the retirement of %s is not recorded: %s", hub_id, error.message)

    # Beside each other, until cancelled

    async def _keep_gossiping(self) -> None:
        """The gossip counts by itself how much later than planned it is called."""
        while True:
            await self._clock.sleep(max(0.0, self._gossip.next_tick_s - self._clock.monotonic_s()))
            before_s = self._gossip.next_tick_s
            with self._jobs.survived("gossip"):
                self._spread(self._gossip.tick(self._clock.monotonic_s()))
                self._read_news()
            if self._gossip.next_tick_s == before_s:  # it failed before it planned the next: no reason to spin
                await self._clock.sleep(FEED_AGAIN_S)

    async def _keep_publishing(self) -> None:
        published: tuple[HubSummary, str] | None = None
        while True:
            began_s = self._clock.monotonic_s()
            with self._jobs.survived("reporting to other hubs"):
                summary = self._summary()
                state = (structs.replace(summary, at=summary.started_at), self._policies.version)
                entries = self._signals.entries()
                if state != published:  # encoding it takes longer than all the rest
                    entries |= published_state(state[0], policy_version=state[1])
                for key, value in entries.items():
                    self._spread(self._gossip.set(key, value))
                published = state
            took_s = self._clock.monotonic_s() - began_s
            await self._clock.sleep(max(PUBLISH_EVERY_S, took_s / PUBLISH_SHARE_MAX))

    async def _keep_feeding(self) -> None:
        """Now and then without news too: a job machine that was rebuilt from disk knows no peers."""
        while True:
            try:
                async with asyncio.timeout(FEED_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            with self._jobs.survived("checking other hubs"):
                views = tuple(self.views())
                self.alerts.seen(views)
                self._jobs.post(ev.PeersSeen(views))
            await self._clock.sleep(FEED_EVERY_S)

    def _read_news(self) -> None:
        news = self._gossip.take_news()
        if not news:
            return
        self._history.record(news, self._clock.monotonic_s())
        for one in news:
            if isinstance(one, StateChanged | Suspected | Recovered | Appeared):
                self._changed.set()
            if isinstance(one, StateChanged):
                self._confirm_retired(one.hub)

    def _note(self, kind: str, subject: str, message: str) -> None:
        self._jobs.post(ev.Noted(kind, subject, message))
