"""How much can one core take in? New files of one kind, stored by HarchOS, restic and borg, each in a store of its own.

Megabytes of files per second of CPU: of `harch data add` and its hub together, of `restic backup`, of `borg create`.
All three chunk, hash, compress and encrypt. HarchOS and restic compress with zstd; borg is given zstd,3, too, and its
own default, which is lz4. HarchOS sends over HTTP to another process besides, and verifies what arrives.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bytes_files import MB, Noise, Text, size_of, write_plain
from bytes_goals import INGEST
from bytes_hub import sender
from bytes_programs import Borg, Restic, is_there
from verdict import Verdict

KINDS = {"incompressible": Noise, "text": Text}
COMPRESSION = "zstd,3"


def measure(verdict: Verdict, chosen: argparse.Namespace) -> None:
    for kind, source in KINDS.items():
        with tempfile.TemporaryDirectory(prefix="harch-ingest-") as name:
            folder = Path(name)
            files = folder / "files"
            write_plain(files, megabytes=chosen.megabytes, source=source(chosen.seed))
            rates = rates_of(folder, files)
        size = f"{chosen.megabytes} MB"
        print(f"{size} of {kind} data: " + ", ".join(f"{who} {rate:.0f} MB/s per core" for who, rate in rates.items()))
        for program in ("restic", "borg"):
            if program in rates:
                INGEST[kind, program].met(verdict, rates["HarchOS"] / rates[program])


def rates_of(folder: Path, files: Path) -> dict[str, float]:
    """MB/s per core, by who stores them."""
    megabytes = size_of(files) / MB
    with sender(folder / "hub") as user:
        sent = user.add("corpus", files)
    found = {"HarchOS": megabytes / sent.cpu_s}
    print(f"  HarchOS: command {sent.client_cpu_s:.2f} s, hub {sent.hub_cpu_s:.2f} s; {sent.bytes_up / MB:.0f} MB sent")
    if is_there("restic"):
        restic = Restic(folder / "restic")
        found["restic"] = megabytes / restic.backup(files).cpu_s
        print(f"  {Restic.version()}: {restic.bytes / MB:.0f} MB stored")
    if is_there("borg"):
        for label, compression in (("borg", COMPRESSION), ("borg with lz4", "lz4")):
            borg = Borg(folder / label.replace(" ", "-"), compression)
            found[label] = megabytes / borg.create("corpus", files).cpu_s
        print(f"  {Borg.version()}")
    return found
