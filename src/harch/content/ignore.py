"""Which files of a folder are left out? Those that its ignore files name, read exactly as git reads `.gitignore`.

`.gitignore` counts at every level, and so does `.harchignore`, which has the same syntax and the last word: what it
says about a path goes before any `.gitignore`, so `!results/best.pt` brings back what git ignores. As in git, a folder
that is left out is not entered, so nothing in it can be brought back. Some names are never code and always left out.

Patterns become regular expressions over bytes, because git compares bytes: `?` is one byte, not one character. Every
`*` that another `*` follows is matched once, at its first place (an atomic group): a path has one name per `/`, so no
later place could do better, and a pattern of many stars stays linear.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

GITIGNORE, HARCHIGNORE = ".gitignore", ".harchignore"
IGNORE_FILE_BYTES_MAX = 1024 * 1024

# Histories, caches, and environments that are built anew where the work runs; `.DS_Store` and the like do no harm.
ALWAYS_LEFT_OUT = frozenset(
    {
        b".bzr",
        b".eggs",
        b".git",
        b".harch",
        b".hg",
        b".hypothesis",
        b".ipynb_checkpoints",
        b".jj",
        b".mypy_cache",
        b".nox",
        b".pytest_cache",
        b".ruff_cache",
        b".svn",
        b".tox",
        b".venv",
        b"__pycache__",
        b"node_modules",
    }
)
ENVIRONMENT_MARK = "pyvenv.cfg"  # a folder that holds it is a virtual environment, whatever its name
PARTS_PREFIX, PARTS_SUFFIX = ".harch-", ".part"  # a download that was cut, see `harch.content.unpacking`

Match = Callable[[bytes], object]


class IgnoreRules(NamedTuple):
    """The rules in force in one folder: those of every ignore file from the top to here, the nearest last."""

    of_git: tuple[IgnoreFile, ...] = ()
    of_harch: tuple[IgnoreFile, ...] = ()

    def inside(self, folder: bytes, *, gitignore: bytes = b"", harchignore: bytes = b"") -> IgnoreRules:
        """The rules in `folder` (its path, empty at the top), which has these ignore files."""
        of_git, of_harch = parse_ignore_file(gitignore, folder), parse_ignore_file(harchignore, folder)
        if not of_git.patterns and not of_harch.patterns:
            return self
        return IgnoreRules(
            (*self.of_git, of_git) if of_git.patterns else self.of_git,
            (*self.of_harch, of_harch) if of_harch.patterns else self.of_harch,
        )

    def exclude(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether this path is left out, provided that the folders above it are not."""
        name = path[path.rfind(b"/") + 1 :]
        if name in ALWAYS_LEFT_OUT:
            return True
        if is_folder and name.startswith(PARTS_PREFIX.encode()) and name.endswith(PARTS_SUFFIX.encode()):
            return True
        for files in (self.of_harch, self.of_git):
            for file in reversed(files):  # the nearest ignore file that says anything decides
                verdict = file.verdict(name, path, is_folder)
                if verdict is not None:
                    return verdict
        return False


class Pattern(NamedTuple):
    """One line of an ignore file. `expression` is matched against the name alone, or the path below the file's folder;
    None: it can match nothing."""

    expression: bytes
    is_negated: bool
    is_for_folders: bool
    is_for_names: bool
    literal: bytes | None = None  # all that it matches, where it has no wildcard
    suffix: bytes | None = None  # how all that it matches ends, where it is `*` and a literal


class IgnoreFile:
    """The patterns of one file. Most paths match none of them, so that is found out first, for all at once."""

    def __init__(self, folder: bytes, patterns: tuple[Pattern, ...]) -> None:
        self.patterns = patterns
        self._skip = len(folder) + 1 if folder else 0
        names = [pattern for pattern in patterns if pattern.is_for_names]
        paths = [pattern for pattern in patterns if not pattern.is_for_names]
        self._literal_names, self._suffixes, self._match_name = _any_of(names)
        self._literal_paths, _, self._match_path = _any_of(paths)
        self._compiled: dict[bytes, Match] = {}

    def verdict(self, name: bytes, path: bytes, is_folder: bool) -> bool | None:
        """True: left out; False: brought back; None: no pattern matches."""
        below = path[self._skip :]
        if (
            name in self._literal_names
            or name.endswith(self._suffixes)
            or below in self._literal_paths
            or (self._match_name is not None and self._match_name(name))
            or (self._match_path is not None and self._match_path(below))
        ):
            for pattern in reversed(self.patterns):
                if (is_folder or not pattern.is_for_folders) and self._matches(
                    pattern, name if pattern.is_for_names else below
                ):
                    return not pattern.is_negated
        return None

    def _matches(self, pattern: Pattern, text: bytes) -> bool:
        if pattern.literal is not None:
            return text == pattern.literal
        match = self._compiled.get(pattern.expression)
        if match is None:
            match = self._compiled[pattern.expression] = re.compile(pattern.expression, re.DOTALL).fullmatch
        return match(text) is not None


def _any_of(patterns: list[Pattern]) -> tuple[frozenset[bytes], tuple[bytes, ...], Match | None]:
    literals = frozenset(pattern.literal for pattern in patterns if pattern.literal is not None)
    suffixes = tuple({pattern.suffix for pattern in patterns if pattern.suffix is not None})
    others = {pattern.expression for pattern in patterns if pattern.literal is None and pattern.suffix is None}
    match = re.compile(b"|".join(b"(?:%b)" % each for each in sorted(others)), re.DOTALL).fullmatch if others else None
    return literals, suffixes, match


def parse_ignore_file(content: bytes, folder: bytes = b"") -> IgnoreFile:
    """`folder`: where the file stands, as a path below the top."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    patterns = [_parse_line(line.removesuffix(b"\r")) for line in lines if not line.startswith(b"#")]
    return IgnoreFile(folder, tuple(pattern for pattern in patterns if pattern is not None))


def _parse_line(line: bytes) -> Pattern | None:
    """None: it matches nothing."""
    text = _without_trailing_spaces(line.partition(b"\0")[0])
    is_negated = text.startswith(b"!")
    text = text[is_negated:]
    is_for_folders = text.endswith(b"/")
    text = text[: len(text) - is_for_folders]
    is_for_names = b"/" not in text
    if not is_for_names:
        text = text.removeprefix(b"/")
    if not text:
        return None
    # As git does: what comes before the first wildcard is compared as it is, and only the rest is a pattern. So `**`
    # counts as the beginning of one in `a**/b`, too.
    plain = _plain_prefix(text)
    rest = text[len(plain) :]
    translated = _translate(rest)
    if translated is None:
        return None
    return Pattern(
        expression=re.escape(plain) + translated,
        is_negated=is_negated,
        is_for_folders=is_for_folders,
        is_for_names=is_for_names,
        literal=plain if not rest else None,
        suffix=text[1:] if is_for_names and text[:1] == b"*" and not _has_wildcard(text[1:]) else None,
    )


def _without_trailing_spaces(line: bytes) -> bytes:
    """Without the spaces at its end, unless a backslash stands before the first of them."""
    at, spaces_from = 0, None
    while at < len(line):
        if line[at : at + 1] == b" ":
            spaces_from = at if spaces_from is None else spaces_from
        else:
            spaces_from = None
            if line[at : at + 1] == b"\\":
                at += 1
                if at == len(line):
                    return line
        at += 1
    return line if spaces_from is None else line[:spaces_from]


_WILDCARD = re.compile(rb"[*?\[\\]")


def _has_wildcard(text: bytes) -> bool:
    return _WILDCARD.search(text) is not None


def _plain_prefix(text: bytes) -> bytes:
    found = _WILDCARD.search(text)
    return text if found is None else text[: found.start()]


def _translate(glob: bytes) -> bytes | None:
    """A regular expression for the whole of what matches; None: nothing does. Of names and paths alike: a name has no
    `/`, so it makes no difference that a star never matches one."""
    out: list[bytes] = []
    star_at: int | None = None  # in `out`, of a star that waits for what follows it
    at = 0
    while at < len(glob):
        byte = glob[at : at + 1]
        if byte == b"*":
            end = at
            while glob[end : end + 1] == b"*":
                end += 1
            if star_at is not None:
                out[star_at:] = [b"(?>[^/]*?%b)" % b"".join(out[star_at + 1 :])]
                star_at = None
            if end - at > 1 and (at == 0 or glob[at - 1 : at] == b"/") and _ends_part(glob, end):
                if glob[end : end + 1] == b"/":
                    out.append(b"(?:.*/)?")
                    end += 1
                else:
                    out.append(b".*")
            else:
                star_at = len(out)
                out.append(b"[^/]*")
            at = end
        elif byte == b"?":
            out.append(b"[^/]")
            at += 1
        elif byte == b"[":
            found = _read_set(glob, at + 1)
            if found is None:
                return None
            piece, at = found
            out.append(piece)
        else:
            if byte == b"\\":
                at += 1
                if at == len(glob):
                    return None
            out.append(re.escape(glob[at : at + 1]))
            at += 1
    return b"".join(out)


def _ends_part(glob: bytes, at: int) -> bool:
    return at == len(glob) or glob[at : at + 1] == b"/" or glob[at : at + 2] == b"\\/"


def _ascii(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(byte for first, last in ranges for byte in range(first, last + 1))


_DIGITS, _LOWER, _UPPER = _ascii((48, 57)), _ascii((97, 122)), _ascii((65, 90))
_CLASSES = {  # git's own, which do not depend on the language of the system
    b"alnum": _DIGITS | _LOWER | _UPPER,
    b"alpha": _LOWER | _UPPER,
    b"blank": frozenset(b" \t"),
    b"cntrl": _ascii((0, 31), (127, 127)),
    b"digit": _DIGITS,
    b"graph": _ascii((33, 126)),
    b"lower": _LOWER,
    b"print": _ascii((32, 126)),
    b"punct": _ascii((33, 47), (58, 64), (91, 96), (123, 126)),
    b"space": frozenset(b" \t\n\r"),
    b"upper": _UPPER,
    b"xdigit": _DIGITS | _ascii((65, 70), (97, 102)),
}


def _read_set(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """The set that begins behind the `[` before `at`, and where it ends; None: it is not closed, so nothing matches."""
    is_negated = glob[at : at + 1] in (b"!", b"^")
    at += is_negated
    members: set[int] = set()
    before: int | None = None  # what a range may begin with
    is_first = True
    while True:
        if at >= len(glob):
            return None
        byte = glob[at : at + 1]
        if byte == b"]" and not is_first:
            break
        is_first = False
        if byte == b"[" and glob[at + 1 : at + 2] == b":":
            end = glob.find(b"]", at + 2)
            if end < 0:
                return None
            if end > at + 2 and glob[end - 1 : end] == b":":
                known = _CLASSES.get(glob[at + 2 : end - 1])
                if known is None:
                    return None
                members |= known
                before = None
                at = end + 1
                continue
        if byte == b"-" and before is not None and glob[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            last = _unescaped(glob, at)
            if last is None:
                return None
            members.update(range(before, last[0] + 1))
            before, at = None, last[1]
            continue
        one = _unescaped(glob, at)
        if one is None:
            return None
        before, at = one
        members.add(before)
    chosen = (frozenset(range(256)) - members if is_negated else members) - {ord("/")}
    if not chosen:
        return b"(?!)", at + 1
    return b"[%b]" % b"".join(b"\\x%02x" % each for each in sorted(chosen)), at + 1


def _unescaped(glob: bytes, at: int) -> tuple[int, int] | None:
    """The byte at this place, and the next place; None: only a backslash is left."""
    at += glob[at : at + 1] == b"\\"
    return (glob[at], at + 1) if at < len(glob) else None
