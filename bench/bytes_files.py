"""Which files are stored and sent? Noise that nothing can compress, and text of made-up words; folders of both."""

from __future__ import annotations

import filecmp
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MB = 1_000_000
WORDS = 20_000  # of the vocabulary; how often each comes follows Zipf's law, as in real text
WORDS_PER_LINE = 12
BLOCK_BYTES = 4 * MB
SMALLEST_BYTES = 200
SPREAD = 1.8  # of the logarithm of sizes: most files are small, a few make up the volume


class Text:
    """Made-up prose, which compresses about as well as real text: nothing in it repeats but its words."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        letters = np.array(list(b"etaoinshrdlcumwfgypbvk"), np.uint8)
        lengths = self._draw.integers(2, 11, WORDS)
        self._words = np.array([letters[self._draw.integers(0, len(letters), n)].tobytes() for n in lengths], object)
        shares = 1.0 / np.arange(1, WORDS + 1)
        self._limits = np.cumsum(shares / shares.sum())

    def blocks(self, size: int) -> Iterator[bytes]:
        while size > 0:
            count = min(size, BLOCK_BYTES) // 4 + WORDS_PER_LINE
            words = self._words[np.searchsorted(self._limits, self._draw.random(count)).clip(max=WORDS - 1)]
            lines = (b" ".join(words[at : at + WORDS_PER_LINE]) for at in range(0, count, WORDS_PER_LINE))
            block = b"\n".join(lines)[: min(size, BLOCK_BYTES)]
            size -= len(block)
            yield block


class Noise:
    """Bytes that no program can compress, such as weights or images that are compressed already."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def blocks(self, size: int) -> Iterator[bytes]:
        while size > 0:
            block = self._draw.randbytes(min(size, BLOCK_BYTES))
            size -= len(block)
            yield block


Source = Text | Noise


def write_file(path: Path, size: int, source: Source) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for block in source.blocks(size):
            file.write(block)


def write_mixed(folder: Path, *, megabytes: int, files: int, large_megabytes: int, seed: int) -> Path:
    """Of noise and text one half each, in files of very different sizes; the large one, which is noise, is returned."""
    draw = random.Random(seed)
    text, noise = Text(seed), Noise(seed)
    large = folder / "models" / "weights.bin"
    write_file(large, large_megabytes * MB, noise)
    shares = [draw.lognormvariate(0, SPREAD) for _ in range(files - 1)]
    left = (megabytes - large_megabytes) * MB - SMALLEST_BYTES * len(shares)
    sizes = [SMALLEST_BYTES + int(left * share / sum(shares)) for share in shares]
    noise_left = megabytes * MB // 2 - large_megabytes * MB
    for number, size in enumerate(sizes):
        is_noise = noise_left >= size
        noise_left -= size if is_noise else 0
        name = f"part-{number % 20:02}/{'image' if is_noise else 'page'}-{number:04}.{'bin' if is_noise else 'txt'}"
        write_file(folder / name, size, noise if is_noise else text)
    return large


def write_plain(folder: Path, *, megabytes: int, source: Source, file_megabytes: int = 5) -> None:
    """Equal files of one kind."""
    for number in range(megabytes // file_megabytes):
        write_file(folder / f"part-{number:03}.bin", file_megabytes * MB, source)


def insert_in_the_middle(path: Path, size: int, source: Source) -> None:
    """What was behind the middle moves on."""
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"".join(source.blocks(size)) + content[middle:])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def count_of(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def wrong_bytes(wanted: Path, got: Path) -> int:
    """Bytes of files that are not there, or are others; what is there beside them counts as well."""
    names = {path.relative_to(folder) for folder in (wanted, got) for path in folder.rglob("*") if path.is_file()}
    wrong = 0
    for name in names:
        ours, theirs = wanted / name, got / name
        if not (ours.is_file() and theirs.is_file() and filecmp.cmp(ours, theirs, shallow=False)):
            wrong += max(path.stat().st_size for path in (ours, theirs) if path.is_file())
    return wrong
