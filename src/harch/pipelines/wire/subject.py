"""Where does a batch go? `juris.<country>.<pipeline>.<stage>.<partition>`: the country first, so that permissions and
links can be drawn along it. Every token is checked, because a dot or a star in one of them would leave its place."""

# harch: pure

from __future__ import annotations

import re

from msgspec import Struct

from harch.base.rejection import Rejection

PARTITIONS_MAX = 1024
STAGES = ("sense", "think", "act", "late", "dead")  # `late`: what came too late or too early; `dead`: given up
_ROOT = "juris"
_COUNTRY = re.compile(r"[a-z]{2}\Z")
_PIPELINE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?\Z")
_PARTITION = re.compile(r"(?:0|[1-9][0-9]{0,3})\Z")
_SUBJECT_CHARS_MAX = 96


class BatchSubject(Struct, frozen=True):
    """A checked subject; make it with `subject_of` or `parse_subject`."""

    country: str  # two lower-case letters
    pipeline: str
    stage: str
    partition: int

    def __str__(self) -> str:
        return f"{_ROOT}.{self.country}.{self.pipeline}.{self.stage}.{self.partition}"


def subject_of(country: str, pipeline: str, stage: str, partition: int) -> BatchSubject | Rejection:
    """The subject, or which of its words is wrong. Countries are taken in either case."""
    country = country.lower()
    if not _COUNTRY.match(country):
        return _no("country", f"`{country[:20]}` is not a country", "use two letters, such as `ma`")
    if not _PIPELINE.match(pipeline):
        return _no("pipeline", f"`{pipeline[:60]}` is not a name", "up to 48 of a-z, 0-9 and -, not first or last -")
    if stage not in STAGES:
        return _no("stage", f"`{stage[:20]}` is not a stage", f"one of {', '.join(STAGES)}")
    if not 0 <= partition < PARTITIONS_MAX:
        return _no("partition", f"partition {partition}; there are 0 to {PARTITIONS_MAX - 1}")
    return BatchSubject(country, pipeline, stage, partition)


def parse_subject(text: str) -> BatchSubject | Rejection:
    """Reads a subject that somebody else wrote."""
    words = text.split(".") if len(text) <= _SUBJECT_CHARS_MAX else []
    if len(words) != 5 or words[0] != _ROOT or not _PARTITION.match(words[4]):
        return _no("form", f"`{text[:_SUBJECT_CHARS_MAX]}` is not juris.<country>.<pipeline>.<stage>.<partition>")
    found = subject_of(words[1], words[2], words[3], int(words[4]))
    if isinstance(found, BatchSubject) and str(found) != text:
        return _no("form", f"`{text}` is not in lower case")
    return found


def all_partitions(subject: BatchSubject) -> str:
    """What to subscribe to for every partition of a stage."""
    return str(subject).rpartition(".")[0] + ".*"


def _no(rule: str, detail: str, fix: str = "") -> Rejection:
    return Rejection("subject", rule, detail, fix)
