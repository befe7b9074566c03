"""Which device and metric does an MQTT topic mean? A pattern such as `farm/{device}/{metric}`, matched by levels.

A topic is chosen by whoever publishes, so it is judged like any other input. What the topic says wins over what the
payload says, because brokers grant rights by topic.
"""

from __future__ import annotations

from msgspec import Struct

from harch.base.rejection import Rejection

TOPIC_CHARS_MAX = 512
LEVEL_CHARS_MAX = 128
_WORDS = ("{device}", "{metric}")


class TopicPattern(Struct, frozen=True):
    """A checked pattern; make it with `topic_pattern`."""

    levels: tuple[str, ...]

    @property
    def subscription(self) -> str:
        """The filter for the broker."""
        return "/".join("+" if level in _WORDS else level for level in self.levels)

    def match(self, topic: str) -> dict[str, str] | None:
        """`device` and `metric` as far as the pattern names them; None if the topic is another one."""
        parts = topic.split("/")
        if len(parts) != len(self.levels):
            return None
        found = {}
        for level, part in zip(self.levels, parts, strict=True):
            if level in _WORDS:
                found[level[1:-1]] = part
            elif level != part:
                return None
        return found


def topic_pattern(text: str) -> TopicPattern | Rejection:
    """Reads a pattern of the settings."""
    levels = tuple(text.split("/"))
    for level in levels:
        if not level or ("{" in level and level not in _WORDS) or any(sign in level for sign in "+#\0"):
            return Rejection("topic", "pattern", f"`{level[:40]}` is no level", "names, `{device}` and `{metric}`")
    if any(levels.count(word) > 1 for word in _WORDS) or levels[0].startswith("$"):
        return Rejection("topic", "pattern", f"`{text[:100]}` names a level twice, or starts with $")
    return TopicPattern(levels)


def read_topic(patterns: tuple[TopicPattern, ...], topic: str) -> dict[str, str] | Rejection:
    """What a published topic means, or why it means nothing."""
    if len(topic) > TOPIC_CHARS_MAX:
        return Rejection("topic", "length", f"{len(topic)} characters; at most {TOPIC_CHARS_MAX}")
    if not topic.isprintable() or any(sign in topic for sign in "+#") or topic.startswith("$"):
        return Rejection("topic", "characters", f"{topic[:60]!r} has characters that no topic of a device has")
    if any(not 0 < len(part) <= LEVEL_CHARS_MAX for part in topic.split("/")):
        return Rejection("topic", "levels", f"`{topic[:60]}` has an empty or an overlong level")
    for pattern in patterns:
        if (found := pattern.match(topic)) is not None:
            return found
    return Rejection("topic", "unknown", f"`{topic[:100]}` fits none of the patterns")
