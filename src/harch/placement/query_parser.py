"""Which words and numbers does a query consist of, and where does it go wrong?

Text in, plain values out, mistakes by position.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from harch.base.errors import HarchError
from harch.sovereignty.jurisdictions import COUNTRIES, country_of
from harch.workloads.spec import Level, Strategy

QUERY_CHARS_MAX = 500

# Short names of GPU models, as people and the public clients write them.
GPU_MODEL_WORDS = {"a100": "a100-80gb", "h100": "h100-80gb", "inference": "inference-card"}

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<mark>>=|≥|×|[,;|]|(?<=\d)[xX](?=\w))"  # also the x of `8xh100`
    r"|(?P<word>[^\W\d_][\w.'’-]*))"
)


class WordToken(NamedTuple):
    kind: str  # number, word, mark, or end
    text: str
    position: int  # of its first character, from 1

    @property
    def word(self) -> str:
        """In lower case, without the s of a plural."""
        lowered = self.text.lower()
        plural = self.kind == "word" and len(lowered) > 2 and lowered.endswith("s") and not lowered.endswith("ss")
        return lowered[:-1] if plural else lowered


def mistake(position: int, what: str, *, hint: str = "") -> HarchError:
    return HarchError(
        "E0201",
        f"query, character {position}: {what}",
        hint=hint or "docs/reference/query.md shows the whole language",
        field="query",
        meta={"position": position},
    )


def is_model(token: WordToken) -> bool:
    """Names of models have digits or dashes in them; the words of the language have not."""
    return token.kind == "word" and (bool(re.search(r"[\d-]", token.text)) or token.text.lower() in GPU_MODEL_WORDS)


def tokens_of(text: str) -> list[WordToken]:
    if len(text) > QUERY_CHARS_MAX:
        raise mistake(QUERY_CHARS_MAX, f"longer than {QUERY_CHARS_MAX} characters")
    tokens: list[WordToken] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise mistake(at + 1, f"`{text[at]}` is not understood")
        tokens.append(WordToken(match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup) + 1))
        at = match.end()
    return [*tokens, WordToken("end", "", end + 1)]


# Which words does a query consist of, and where does it go wrong? Text in, plain values out, mistakes by position.


_LEVELS = {
    "island": Level.ISLAND,
    "nvlink": Level.ISLAND,
    "node": Level.NODE,
    "machine": Level.NODE,
    "server": Level.NODE,
    "rack": Level.RACK,
    "row": Level.ROW,
    "hub": Level.HUB,
    "site": Level.HUB,
}
_GB = {"mb": 1 / 1024, "gb": 1.0, "tb": 1024.0}
_ONE = ("one", "same", "single", "a", "the")
_COUNTRY_WORDS_MAX = 6
_CLAUSES = (
    "a number of GPUs, tasks, cpus or GB; `>= 40 GB`; `with 20 GB`; `same island`; `prefer rack`; `in MA`; "
    "`any of MODEL|MODEL`; `spread`, `pack` or `exclusive`"
)


def parse_values(text: str) -> dict[str, object]:
    """What the query says, by name of the field. Raises E0201."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = tokens_of(text)
        self._at = 0
        self._values: dict[str, object] = {}
        self._clauses: dict[str, Callable[[WordToken], None]] = {
            ">=": self._gpu_memory,
            "≥": self._gpu_memory,
            "at": self._at_least,
            "with": self._share_memory,
            "any": self._models_after,
            "of": self._models_after,
            "on": self._models_after,
            "same": self._required,
            "one": self._required,
            "single": self._required,
            "in": self._inside,
            "within": self._inside,
            "prefer": self._preferred,
            "preferably": self._preferred,
            "preferred": self._preferred,
            "spread": self._spread,
            "pack": self._pack,
            "packed": self._pack,
            "exclusive": self._exclusive,
        }

    def parse(self) -> dict[str, object]:
        while (token := self._next()).kind != "end":
            if token.kind == "number":
                self._amount(token)
            elif token.word in self._clauses:
                self._clauses[token.word](token)
            elif token.text not in (",", ";") and token.word != "and":
                raise self._unexpected(token, _CLAUSES, list(self._clauses))
        if not self._values:
            raise mistake(1, f"empty query; expected {_CLAUSES}")
        return self._values

    # Clauses

    def _amount(self, number: WordToken) -> None:
        """`8 GPUs`, `16 x h100-80gb`, `4 tasks of`, `4 x 8 GPUs`, `16 cpus`, `64 GB memory`."""
        unit = self._next()
        if unit.text == "×" or unit.word == "x":
            unit = self._next()
            if unit.kind == "number":
                self._say("tasks", self._whole(number), number)
                number, unit = unit, self._next()
                if unit.word != "gpu" and not is_model(unit):
                    raise self._unexpected(unit, "GPUs, after a number of tasks and an `x`", ["gpus"])
        if unit.word == "gpu":
            self._say("gpus", self._gpus(number), number)
        elif unit.word in ("cpu", "core"):
            self._say("cpus", float(number.text), number)
        elif unit.word == "task":
            self._say("tasks", self._whole(number), number)
            if self._peek().word == "of":
                self._next()
        elif unit.word in _GB:
            self._gigabytes(float(number.text) * _GB[unit.word], number)
        elif is_model(unit):
            self._say("gpus", self._gpus(number), number)
            self._models(unit)
        else:
            words = ["gpus", "tasks", "cpus", "cores", "gb", "tb"]
            raise self._unexpected(unit, "GPUs, a GPU model, tasks, cpus, GB or TB after a number", words)

    def _gigabytes(self, gigabytes: float, number: WordToken) -> None:
        what = self._next()
        if what.word in ("memory", "ram"):
            self._say("memory_gb", gigabytes, number)
        elif what.word in ("storage", "scratch", "disk"):
            self._say("storage_gb", gigabytes, number)
        else:
            expected = (
                "`memory` or `storage` after an amount; the memory of a GPU is written `>= 40 GB`, that of a share "
                "`with 20 GB`"
            )
            raise self._unexpected(what, expected, ["memory", "storage", "scratch"])

    def _at_least(self, token: WordToken) -> None:
        least = self._next()
        if least.word != "least":
            raise self._unexpected(least, "`least`, as in `at least 40 GB`", ["least"])
        self._gpu_memory(token)

    def _gpu_memory(self, token: WordToken) -> None:
        self._memory_of_gpus("gpu_memory_gb_min", "`>= 40 GB` is the memory of each GPU", token)

    def _share_memory(self, token: WordToken) -> None:
        self._memory_of_gpus("gpu_memory_gb", "`with 20 GB` is what a share gets of the memory of its GPU", token)

    def _memory_of_gpus(self, name: str, meaning: str, token: WordToken) -> None:
        number, unit = self._next(), self._next()
        if number.kind != "number":
            raise self._unexpected(number, "a number of GB", [])
        if unit.word not in _GB:
            raise self._unexpected(unit, "GB or TB", list(_GB))
        self._say(name, float(number.text) * _GB[unit.word], token)
        if self._peek().word in ("memory", "ram"):
            raise self._unexpected(self._peek(), f"nothing: {meaning}, main memory is `64 GB memory`", [])
        if self._peek().word in ("of", "per", "vram", "gpu"):
            while self._peek().word in ("of", "per", "vram", "gpu", "memory"):
                self._next()

    def _models_after(self, token: WordToken) -> None:
        if token.word == "any":
            following = self._next()
            if following.word != "of":
                raise self._unexpected(following, "`of`, as in `any of a100-80gb|h100-80gb`", ["of"])
        elif self._peek().word == "any":
            return  # the next clause
        self._models(self._next())

    def _models(self, first: WordToken) -> None:
        token, models = first, []
        while True:
            if token.kind != "word":
                raise self._unexpected(token, "a GPU model", [])
            name = token.text.lower()
            models.append(GPU_MODEL_WORDS.get(name, name))
            if self._peek().text != "|" and self._peek().word != "or":
                break
            self._next()
            token = self._next()
        self._say("gpu_models", tuple(dict.fromkeys(models)), first)

    def _inside(self, token: WordToken) -> None:
        if self._peek().word in (*_ONE, *_LEVELS):
            self._required(token)
        else:
            self._countries(token)

    def _required(self, token: WordToken) -> None:
        self._say("required", self._level(), token)

    def _preferred(self, token: WordToken) -> None:
        if self._peek().word in ("in", "within"):
            self._next()
        self._say("preferred", self._level(), token)

    def _level(self) -> Level:
        while self._peek().word in _ONE:
            self._next()
        token = self._next()
        if token.word not in _LEVELS:
            raise self._unexpected(token, "island, node, rack, row or hub", list(_LEVELS))
        if token.word == "nvlink" and self._peek().word in ("island", "domain"):
            self._next()
        return _LEVELS[token.word]

    def _spread(self, token: WordToken) -> None:
        self._say("strategy", Strategy.SPREAD, token)
        if self._peek().word in ("over", "across"):
            self._next()
            over = self._next()
            if over.word not in ("node", "rack"):
                raise self._unexpected(over, "nodes or racks", ["nodes", "racks"])
            # Apart, yet close: different nodes of one rack, different racks of one row, if that can be had.
            self._say("preferred", Level.RACK if over.word == "node" else Level.ROW, over)

    def _pack(self, token: WordToken) -> None:
        self._say("strategy", Strategy.PACK, token)

    def _exclusive(self, token: WordToken) -> None:
        self._say("exclusive", True, token)
        if self._peek().word == "node":
            self._next()

    def _countries(self, token: WordToken) -> None:
        countries = [self._country()]
        while self._country_follows():
            self._next()
            countries.append(self._country())
        self._say("countries", tuple(dict.fromkeys(countries)), token)

    def _country_follows(self) -> bool:
        """After `|` and `or` always; after a comma only if a code in capitals follows: `in MA, SN`."""
        token, following = self._peek(), self._peek(1)
        return token.text == "|" or token.word == "or" or (token.text == "," and following.text in COUNTRIES)

    def _country(self) -> str:
        """The longest name that is one: countries may be called by several words."""
        first, error = self._peek(), None
        for length in range(_COUNTRY_WORDS_MAX, 0, -1):
            words = [self._peek(ahead) for ahead in range(length)]
            if all(word.kind == "word" for word in words):
                try:
                    code = country_of(" ".join(word.text for word in words))
                except HarchError as unknown:
                    error = unknown
                else:
                    self._at += length
                    return code
        if error is None:
            raise self._unexpected(first, "a country or `one LEVEL` after `in`", [])
        raise mistake(first.position, error.message, hint=error.hint)

    # Words

    def _next(self) -> WordToken:
        token = self._peek()
        self._at += token.kind != "end"
        return token

    def _peek(self, ahead: int = 0) -> WordToken:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _say(self, name: str, value: object, token: WordToken) -> None:
        if name in self._values:
            raise mistake(token.position, f"`{name}` is given twice", hint="give it once")
        self._values[name] = value

    def _gpus(self, number: WordToken) -> float:
        value = float(number.text)
        if value > 1 and not value.is_integer():
            raise mistake(number.position, f"`{number.text}` GPUs: use a fraction below 1 or a whole number")
        return value

    def _whole(self, number: WordToken) -> int:
        if not number.text.isdigit():
            raise mistake(number.position, f"`{number.text}` is not a whole number of tasks")
        return int(number.text)

    def _unexpected(self, token: WordToken, expected: str, words: list[str]) -> HarchError:
        found = f"`{token.text[:40]}` is not understood" if token.kind != "end" else "the query ends too early"
        near = get_close_matches(token.text.lower(), words, n=1) if token.kind == "word" else []
        guess = f"; did you mean `{near[0]}`?" if near else ""
        return mistake(token.position, f"{found}, expected {expected}{guess}")
