"""Hubs that gossip on a simulated network: real machines, cheap signatures, and a hand that kills and restarts them."""

from __future__ import annotations

import random
from hashlib import blake2b

from harch.federation.gossip.machine import Gossip
from harch.federation.gossip.membership import Appeared, Forged, News, Recovered, Suspected
from harch.federation.gossip.messages import Message, Outgoing, Push
from harch.federation.gossip.state import GossipSettings
from harch.testing.network import SimLink, SimNetwork

INTERVAL_S = GossipSettings().interval_s
WAN = SimLink(delay_s=0.020, jitter_s=0.004, loss=0.01)


class HashSigner:
    """A thousand times faster than Ed25519. Only who knows the hub's secret, here its name, can sign."""

    def __init__(self, hub: str) -> None:
        self._key = hub.encode()

    def sign(self, statement: bytes) -> bytes:
        return blake2b(statement, key=self._key, digest_size=64).digest()


class HashVerifier:
    def verify(self, hub: str, statement: bytes, signature: bytes) -> bool:
        return HashSigner(hub).sign(statement) == signature


class GossipWorld:
    """`size` hubs that all know each other, started within one interval of each other."""

    def __init__(self, size: int, seed: int, link: SimLink = WAN, settings: GossipSettings | None = None) -> None:
        self.network = SimNetwork(seed, link)
        self.dice = random.Random(seed)
        self.settings = settings or GossipSettings()
        self.names = [f"hub{number:02d}" for number in range(size)]
        self.machines: dict[str, Gossip] = {}
        self.news: dict[str, list[tuple[float, News]]] = {name: [] for name in self.names}
        self.said: dict[str, dict[str, bytes]] = {name: {} for name in self.names}
        self.log: dict[tuple[str, int], list[tuple[str, bytes | None]]] = {}  # hub, generation -> version 1, 2, ...
        self.slowness_s: dict[str, float] = {}  # how late the loop of a hub runs
        self._frozen_until_s: dict[str, float] = {}
        self.lose_pushes: set[tuple[str, str]] = set()
        self._generations = dict.fromkeys(self.names, 0)
        for name in self.names:
            self.network.after(self.dice.random() * INTERVAL_S, lambda name=name: self.start(name))  # type: ignore[misc]
        self.network.run_for(INTERVAL_S)

    @property
    def now_s(self) -> float:
        return self.network.now_s

    # Processes

    def start(self, name: str) -> None:
        """With a higher generation than ever before, and saying again what it had to say."""
        self._generations[name] += 1
        machine = Gossip(
            name,
            generation=self._generations[name],
            members=self.names,
            signer=HashSigner(name),
            verifier=HashVerifier(),
            dice=random.Random(self.dice.random()),
            now_s=self.now_s,
            settings=self.settings,
        )
        self.machines[name] = machine
        self.log[name, self._generations[name]] = []
        self.network.attach(name, lambda source, message: self._receive(machine, source, message))
        for key, value in self.said[name].items():
            self.set(name, key, value)
        self._tick(machine)

    def kill(self, name: str) -> None:
        del self.machines[name]
        self.network.detach(name)

    def freeze(self, name: str, duration_s: float) -> None:
        """Its process stands still, as after SIGSTOP; what arrives meanwhile waits for it."""
        self._frozen_until_s[name] = self.now_s + duration_s

    # What hubs say

    def set(self, name: str, key: str, value: bytes) -> None:
        pushes = self.machines[name].set(key, value)
        if pushes:
            self.log[name, self._generations[name]].append((key, value))
        self.said[name][key] = value
        self.send(name, pushes)

    def delete(self, name: str, key: str) -> None:
        del self.said[name][key]
        self.log[name, self._generations[name]].append((key, None))
        self.send(name, self.machines[name].delete(key, self.now_s))

    def send(self, name: str, outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            if not (isinstance(one.message, Push) and (name, one.to) in self.lose_pushes):
                self.network.send(name, one.to, one.message)

    # What they know

    def seen(self, by: str, hub: str) -> dict[str, bytes]:
        return dict(self.machines[by].view(hub, self.now_s).values)

    def disagreements(self) -> list[tuple[str, str]]:
        """(who, about whom), for all living hubs that do not yet know what another living hub says."""
        return [(by, hub) for by in self.machines for hub in self.machines if self.seen(by, hub) != self.said[hub]]

    def rounds_until_agreed(self, rounds_max: int) -> int:
        for rounds in range(rounds_max + 1):
            if not self.disagreements():
                return rounds
            self.network.run_for(INTERVAL_S)
        raise AssertionError(f"after {rounds_max} rounds still not agreed: {self.disagreements()}")

    def check(self) -> None:
        """Who knows version v of a hub knows what held at v, but for keys that have been replaced since."""
        for by, machine in self.machines.items():
            for hub, view in machine.views(self.now_s).items():
                log = self.log.get((hub, view.generation), [])
                assert view.version <= len(log), f"{by} knows more of {hub} than it has said"
                then = dict(log[: view.version])
                later = {key for key, _ in log[view.version :]}
                for key in (then.keys() | view.values.keys()) - later:
                    assert then.get(key) == view.values.get(key), f"`{key}` of {hub} at {by}, version {view.version}"

    def suspicions(self) -> list[tuple[float, str, str]]:
        return self._all(Suspected)

    def recoveries(self) -> list[tuple[float, str, str]]:
        return self._all(Recovered)

    def appearances(self) -> list[tuple[float, str, str]]:
        return self._all(Appeared)

    def forgeries(self) -> list[Forged]:
        return [news for told in self.news.values() for _, news in told if isinstance(news, Forged)]

    def _all(self, kind: type[Suspected] | type[Recovered] | type[Appeared]) -> list[tuple[float, str, str]]:
        """(when, who says so, about whom)"""
        found = [(at, by, one.hub) for by, told in self.news.items() for at, one in told if isinstance(one, kind)]
        return sorted(found)

    # Events

    def _is_running(self, machine: Gossip) -> bool:
        return self.machines.get(machine.me) is machine

    def _tick(self, machine: Gossip) -> None:
        if not self._is_running(machine):
            return
        awake_at_s = self._frozen_until_s.get(machine.me, 0.0)
        if self.now_s < awake_at_s:
            self.network.at(awake_at_s, lambda: self._tick(machine))
            return
        self.send(machine.me, machine.tick(self.now_s))
        self._read_news(machine)
        self.network.at(machine.next_tick_s + self._lateness_s(machine.me), lambda: self._tick(machine))

    def _receive(self, machine: Gossip, source: str, message: object) -> None:
        frozen_s = max(0.0, self._frozen_until_s.get(machine.me, 0.0) - self.now_s)
        late_s = frozen_s + self._lateness_s(machine.me)
        if late_s:
            self.network.after(late_s, lambda: self._handle(machine, source, message))
        else:
            self._handle(machine, source, message)

    def _lateness_s(self, name: str) -> float:
        slowness_s = self.slowness_s.get(name, 0.0)
        return slowness_s * self.dice.random() if slowness_s else 0.0

    def _handle(self, machine: Gossip, source: str, message: object) -> None:
        if self._is_running(machine):
            assert isinstance(message, Message)
            self.send(machine.me, machine.receive(source, message, self.now_s))
            self._read_news(machine)

    def _read_news(self, machine: Gossip) -> None:
        self.news[machine.me] += [(self.now_s, news) for news in machine.take_news()]
