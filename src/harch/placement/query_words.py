"""Which words and numbers does a query consist of? Text in, tokens with their positions out."""

from __future__ import annotations

import re
from typing import NamedTuple

from harch.base.errors import HarchError

QUERY_CHARS_MAX = 500

# Short names of GPU models, as people and the public clients write them.
GPU_MODEL_WORDS = {"a100": "a100-80gb", "h100": "h100-80gb", "inference": "inference-card"}

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<mark>>=|≥|×|[,;|]|(?<=\d)[xX](?=\w))"  # also the x of `8xh100`
    r"|(?P<word>[^\W\d_][\w.'’-]*))"
)


class Token(NamedTuple):
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


def is_model(token: Token) -> bool:
    """Names of models have digits or dashes in them; the words of the language have not."""
    return token.kind == "word" and (bool(re.search(r"[\d-]", token.text)) or token.text.lower() in GPU_MODEL_WORDS)


def tokens_of(text: str) -> list[Token]:
    if len(text) > QUERY_CHARS_MAX:
        raise mistake(QUERY_CHARS_MAX, f"longer than {QUERY_CHARS_MAX} characters")
    tokens: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise mistake(at + 1, f"`{text[at]}` is not understood")
        tokens.append(Token(match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup) + 1))
        at = match.end()
    return [*tokens, Token("end", "", end + 1)]
