"""What does the audit chain cost per entry, and does it show tampering? Its part of the sovereignty benchmark.

Entries are those that a hub writes for placements. Tamperings are of one random kind each, at a random place, done by
somebody who knows the format; two kinds are done by somebody who even has the hub's signing key, and are found only by
a checkpoint that a peer has kept.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.clock import SystemClock
from harch.hub.audit import table
from harch.hub.audit.table import AuditTrail
from harch.hub.store.database import Database
from harch.sovereignty.audit.chain import PLACED, ChainHead, Draft, Linked, line_of, link, split_lines
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, draft_of, introduce, sign
from harch.sovereignty.audit.verification import verify
from verdict import Verdict, conditions

HUB, AT = "dakhla", "2026-11-15T09:00:00.000Z"
ENTRIES, TAMPERINGS, CHAIN_ENTRIES = 200_000, 20_000, 60
LOOP_US_MAX = 15.0
ENTRIES_PER_WORKLOAD = 3  # admitted, placed, ended
GROUP = 300  # entries that share a commit, as under load


@dataclass(frozen=True, slots=True)
class Rates:
    linked_per_s: float  # canonical JSON and hash
    stored_per_s: float  # and into SQLite, on disk
    verified_per_s: float
    loop_us: float  # CPU time of the event loop per entry: all of it but COMMIT, which the hub runs in a thread


def measure_rates(entries: int = ENTRIES, folder: Path | None = None) -> Rates:
    drafts = [_placed(number // ENTRIES_PER_WORKLOAD) for number in range(entries)]
    head, begun = ChainHead(), time.perf_counter()
    for draft in drafts:
        head = link(head, draft, hub=HUB, at=AT).head
    linked_s = time.perf_counter() - begun
    with tempfile.TemporaryDirectory(dir=folder, prefix="harch-bench-") as name:
        database = Database(Path(name) / "hub.db")
        trail = AuditTrail(HUB, database, SystemClock())
        key = Ed25519PrivateKey.generate()
        database.write(trail.link([draft_of(introduce(HUB, key, by=key))]))
        loop_s, begun = 0.0, time.perf_counter()
        for start in range(0, entries, GROUP):
            busy_s = time.thread_time()
            database.begin()
            for draft in drafts[start : start + GROUP]:
                database.execute(trail.link([draft]))
            loop_s += time.thread_time() - busy_s
            database.commit()
        stored_s = time.perf_counter() - begun
        lines = [line for _, line in table.lines(database, after=0, upto=entries + 1, limit=entries + 1)]
        lines.append(sign(trail.head, hub=HUB, at=AT, key=key).line)
        database.close()
    begun = time.perf_counter()
    outcome = verify(lines)
    verified_s = time.perf_counter() - begun
    if not outcome.is_sound or outcome.entries != entries + 1:
        raise SystemExit(f"the chain that was just written does not verify: {outcome}")
    return Rates(entries / linked_s, entries / stored_s, entries / verified_s, loop_us=loop_s / entries * 1e6)


def measure_tampering(count: int = TAMPERINGS, seed: int = 1) -> tuple[int, dict[str, tuple[int, int]]]:
    """How many of `count` tamperings were found, and (found, done) by kind."""
    chance = random.Random(seed)
    key = Ed25519PrivateKey.generate()
    chain = _chain(key, CHAIN_ENTRIES, seed=0)
    kept = sign(chain[-1].head, hub=HUB, at=AT, key=key)
    lines = _lines(chain, key)
    if not verify(lines, [kept]).is_sound:
        raise SystemExit("the untouched chain does not verify")
    kinds = sorted(_KINDS)
    done: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for _ in range(count):
        kind = chance.choice(kinds)
        text = b"".join(_KINDS[kind](chance, chain, list(lines), key))
        if text == b"".join(lines):
            continue  # by chance nothing was changed
        done[kind] += 1
        checkpoints: list[SignedCheckpoint] = [kept] if kind in _NEED_A_KEPT_COPY else []
        found[kind] += not verify(split_lines([text]), checkpoints).is_sound
    return sum(done.values()) - sum(found.values()), {kind: (found[kind], done[kind]) for kind in kinds}


def _flip(chance: random.Random, _: list[Linked], lines: list[bytes], __: Ed25519PrivateKey) -> list[bytes]:
    text = bytearray(b"".join(lines))
    text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
    return [bytes(text)]


def _cut(chance: random.Random, _: list[Linked], lines: list[bytes], __: Ed25519PrivateKey) -> list[bytes]:
    text = b"".join(lines)
    return [text[: chance.randrange(len(text))]]


def _remove(chance: random.Random, _: list[Linked], lines: list[bytes], __: Ed25519PrivateKey) -> list[bytes]:
    first = chance.randrange(len(lines))
    del lines[first : first + chance.randint(1, 5)]
    return lines


def _reorder(chance: random.Random, _: list[Linked], lines: list[bytes], __: Ed25519PrivateKey) -> list[bytes]:
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def _repeat(chance: random.Random, _: list[Linked], lines: list[bytes], __: Ed25519PrivateKey) -> list[bytes]:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
    return lines


def _forge(chance: random.Random, chain: list[Linked], lines: list[bytes], _: Ed25519PrivateKey) -> list[bytes]:
    """Another entry with a hash of its own in the place of one."""
    seq = chance.randrange(1, len(chain))
    forged = link(chain[seq - 1].head, _placed(chance.randrange(10**6, 10**7)), hub=HUB, at=AT)
    lines[seq] = line_of(forged.body, forged.hash)
    return lines


def _rehash(chance: random.Random, chain: list[Linked], _: list[bytes], __: Ed25519PrivateKey) -> list[bytes]:
    """All entries from one on made anew, closed with a key of the forger's own."""
    return _lines(_rewritten(chance, chain, len(chain)), Ed25519PrivateKey.generate())


def _cut_with_key(chance: random.Random, chain: list[Linked], _: list[bytes], key: Ed25519PrivateKey) -> list[bytes]:
    return _lines(chain[: chance.randrange(1, len(chain))], key)


def _rehash_with_key(chance: random.Random, chain: list[Linked], _: list[bytes], key: Ed25519PrivateKey) -> list[bytes]:
    return _lines(_rewritten(chance, chain, len(chain) + chance.randint(0, 5)), key)


_KINDS: dict[str, Callable[[random.Random, list[Linked], list[bytes], Ed25519PrivateKey], list[bytes]]] = {
    "flip a bit": _flip,
    "cut the tail": _cut,
    "remove lines": _remove,
    "reorder lines": _reorder,
    "repeat a line": _repeat,
    "forge an entry": _forge,
    "make the rest anew": _rehash,
    "cut, with the hub's key": _cut_with_key,
    "make the rest anew, with the hub's key": _rehash_with_key,
}
_NEED_A_KEPT_COPY = frozenset({"cut, with the hub's key", "make the rest anew, with the hub's key"})


def _rewritten(chance: random.Random, chain: list[Linked], length: int) -> list[Linked]:
    kept = chain[: chance.randrange(1, len(chain))]
    while len(kept) < length:
        kept.append(link(kept[-1].head, _placed(chance.randrange(10**6, 10**7)), hub=HUB, at=AT))
    return kept


def _chain(key: Ed25519PrivateKey, entries: int, seed: int) -> list[Linked]:
    chain = [link(ChainHead(), draft_of(introduce(HUB, key, by=key)), hub=HUB, at=AT)]
    for number in range(entries - 1):
        chain.append(link(chain[-1].head, _placed(seed + number), hub=HUB, at=AT))
    return chain


def _lines(chain: list[Linked], key: Ed25519PrivateKey) -> list[bytes]:
    return [*(line_of(one.body, one.hash) for one in chain), sign(chain[-1].head, hub=HUB, at=AT, key=key).line]


def _placed(number: int) -> Draft:
    return Draft(
        PLACED,
        f"wl_{number:021d}",
        "allowed",
        authority="tenant:default",
        countries=("MA",),
        details={"attempt": 1, "gpus": 8, "nodes": 1},
    )


def add_goals(verdict: Verdict, *, entries: int, tamperings: int) -> None:
    """Measures, prints, and adds to the goals of whoever asks."""
    rates = measure_rates(entries)
    print(
        f"audit: {rates.linked_per_s:,.0f} entries/s linked, {rates.stored_per_s:,.0f}/s on disk in groups of {GROUP}, "
        f"{rates.verified_per_s:,.0f}/s verified; {rates.loop_us:.1f} µs CPU of the hub's loop per entry"
    )
    missed, by_kind = measure_tampering(tamperings)
    for kind, (found, done) in by_kind.items():
        kept = " (with a kept checkpoint)" if kind in _NEED_A_KEPT_COPY else ""
        print(f"audit: {kind}: {found} of {done} found{kept}")
    verdict.goal("CPU of the hub's loop per audit entry", f"< {LOOP_US_MAX:g}", rates.loop_us, "µs")
    verdict.goal("tamperings not found", "== 0", missed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--entries", type=int, default=ENTRIES)
    options.add_argument("--tamperings", type=int, default=TAMPERINGS)
    chosen = options.parse_args()
    print(f"conditions: {conditions()}")
    verdict = Verdict("sovereignty_audit")
    add_goals(verdict, entries=chosen.entries, tamperings=chosen.tamperings)
    verdict.print()


if __name__ == "__main__":
    main()
