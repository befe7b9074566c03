"""Whatever tenants, collections and restarts do to each other: what is held is never lost, what is not held goes."""

from __future__ import annotations

import logging
import random
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from harch.base.errors import HarchError
from harch.content.frames import unpack_chunk
from harch.content.store import ContentStore, StoreSettings
from harch.testing.clock import SimClock
from unit.content_store.content_samples import SampleTree, opened

GRACE_S = 100.0
TENANTS = st.sampled_from(["acme", "other"])
HOLDERS = st.sampled_from(["data:1", "data:2", "work:1", "snapshot:1"])
PIECES = [random.Random(number).randbytes(40 + 97 * number) for number in range(12)]
CHOICES = st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join), min_size=1, max_size=3)
ALL_CHUNKS = st.just(None) | st.lists(st.integers(0, 30), max_size=12)


class Faults(logging.Handler):
    """What a store says of damage."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Story(RuleBasedStateMachine):
    """A store beside a model of it: sets of chunks, and who holds what."""

    trees = Bundle("trees")

    @initialize()
    def begin(self) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="harch-story-")
        self.folder, self.clock = Path(self.home.name), SimClock()
        self.faults = Faults()
        logging.getLogger("harch.damage").addHandler(self.faults)
        self.store = self.open()
        self.present: dict[tuple[str, bytes], float] = {}  # when it was seen last
        self.held: dict[tuple[str, str], SampleTree] = {}

    def open(self) -> ContentStore:
        return opened(self.folder, clock=self.clock, settings=StoreSettings(grace_s=GRACE_S, pack_bytes=2000))

    @property
    def now(self) -> float:
        return self.clock.monotonic_s()

    def needed(self, tenant: str) -> Counter[bytes]:
        """Chunks with the number of trees that need them."""
        trees = {tree.digest: tree for (whose, _), tree in self.held.items() if whose == tenant}
        return Counter(name for tree in trees.values() for name in tree.ids)

    @rule(target=trees, contents=CHOICES)
    def make_tree(self, contents: list[bytes]) -> SampleTree:
        return SampleTree({f"f{place}": content for place, content in enumerate(contents)}, piece_bytes=300)

    @rule(tenant=TENANTS, tree=trees, which=ALL_CHUNKS)
    def put(self, tenant: str, tree: SampleTree, which: list[int] | None) -> None:
        frames = [one for place, one in enumerate(tree.frames) if which is None or place in which]
        new = {frame.id for frame in frames if (tenant, frame.id) not in self.present}
        answer = self.store.put(tenant, frames)
        assert (answer.stored, answer.stored + answer.known) == (len(new), len({frame.id for frame in frames}))
        self.present.update({(tenant, frame.id): self.now for frame in frames})

    @rule(tenant=TENANTS, tree=trees)
    def ask(self, tenant: str, tree: SampleTree) -> None:
        missing = self.store.missing(tenant, tree.ids)
        assert missing == [name for name in tree.ids if (tenant, name) not in self.present]
        self.present.update({(tenant, name): self.now for name in tree.ids if name not in missing})

    @rule(tenant=TENANTS, tree=trees, holder=HOLDERS)
    def hold(self, tenant: str, tree: SampleTree, holder: str) -> None:
        missing = [name for name in tree.ids if (tenant, name) not in self.present]
        try:
            self.store.hold(tenant, tree.digest, holder)
        except HarchError as error:
            named = error.meta["missing"]
            if error.code != "E1104" or not isinstance(named, list):
                raise
            assert named
            assert {bytes.fromhex(name) for name in named} <= set(missing)
        else:
            assert not missing
            before = self.held.get((tenant, holder))
            self.held[tenant, holder] = tree
            self.give_up(tenant, before)

    @rule(tenant=TENANTS, holder=HOLDERS)
    def release(self, tenant: str, holder: str) -> None:
        self.store.release(tenant, holder)
        self.give_up(tenant, self.held.pop((tenant, holder), None))

    def give_up(self, tenant: str, tree: SampleTree | None) -> None:
        if tree is not None:
            self.present.update({(tenant, name): self.now for name in tree.ids if name not in self.needed(tenant)})

    @rule(delay_s=st.sampled_from([1.0, 20.0, 70.0, 130.0]))
    def wait(self, delay_s: float) -> None:
        self.clock.jump(delay_s)

    @rule()
    def collect(self) -> None:
        self.store.collect()
        for tenant in ("acme", "other"):
            needed = self.needed(tenant)
            names = [name for whose, name in self.present if whose == tenant and name not in needed]
            gone = set()
            for name in names:
                age_s = self.now - self.present[tenant, name]
                is_there = self.store._index.query(
                    "SELECT 1 FROM chunks JOIN tenants ON tenant = tenants.key WHERE name = ? AND id = ?",
                    (tenant, name),
                )
                assert is_there or age_s > GRACE_S
                assert not is_there or age_s < 1.25 * GRACE_S
                if not is_there:
                    gone.add((tenant, name))
            for one in gone:
                del self.present[one]

    @rule()
    def collect_without_grace(self) -> None:
        self.store.collect(grace_s=0)
        kept = {(tenant, name) for tenant in ("acme", "other") for name in self.needed(tenant)}
        self.present = {one: seen for one, seen in self.present.items() if one in kept}
        total = sum(usage.chunks for usage in self.store.usage())
        assert total == len(self.present), "nothing that nobody needs is left"
        assert self.store.totals().bytes_garbage <= self.store.totals().bytes_stored / 2

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def lose_index(self) -> None:
        self.store.close()
        for path in self.folder.glob("index.db*"):
            path.unlink()
        self.store = self.open()
        self.faults.texts.clear()
        # Garbage in packs comes back: it was unreferenced, and is as new.
        for tenant in ("acme", "other"):
            for (name,) in self.store._index.query(
                "SELECT id FROM chunks JOIN tenants ON tenant = tenants.key WHERE name = ?", (tenant,)
            ):
                self.present[tenant, name] = self.now
        for (tenant, holder), tree in self.held.items():
            self.store.hold(tenant, tree.digest, holder)
        if self.store.has_lost_holders:
            self.store.confirm_holders()

    @rule(tenant=TENANTS)
    def forget(self, tenant: str) -> None:
        self.store.forget_tenant(tenant)
        self.held = {name: tree for name, tree in self.held.items() if name[0] != tenant}
        self.present = {name: seen for name, seen in self.present.items() if name[0] != tenant}

    @rule()
    def check(self) -> None:
        checked = self.store.check()
        assert (checked.damaged, checked.missing) == ([], [])

    @invariant()
    def everything_held_can_be_read(self) -> None:
        for (tenant, holder), tree in self.held.items():
            assert self.store.held(tenant, holder) == tree.digest
            assert [unpack_chunk(one) for one in self.store.read(tenant, tree.ids)] == list(tree.raw.values())

    @invariant()
    def references_are_as_many_as_a_recount_finds(self) -> None:
        for tenant in ("acme", "other"):
            counted = self.store._index.query(
                "SELECT id, COUNT(*) FROM tree_chunks JOIN chunks ON chunk = chunks.key"
                " JOIN tenants ON chunks.tenant = tenants.key WHERE name = ? GROUP BY id",
                (tenant,),
            )
            assert dict(counted) == self.needed(tenant)
        assert self.faults.texts == []

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.check()
            assert self.faults.texts == []
            self.store.close()
            logging.getLogger("harch.damage").removeHandler(self.faults)
            self.home.cleanup()


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
