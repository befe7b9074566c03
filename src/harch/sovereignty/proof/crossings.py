"""Which links would data be let onto that it must not take? Planned ways, and flows that stay on theirs."""

from __future__ import annotations

from harch.sovereignty.proof.model import Flow, Kind, Link, Names
from harch.sovereignty.proof.paths import lines_between
from harch.sovereignty.proof.view import View
from harch.sovereignty.rules import may_take
from harch.sovereignty.tags import Tag


class Crossings:
    """The links of one view, judged by what they declare and by what they truly cross."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._links = [link for found in view.all(Kind.LINK).values() for link in found if isinstance(link, Link)]
        self._known: dict[tuple[object, ...], Names] = {}

    def wrong_links(
        self, loose: Tag | None, strict: Tag | None, source: str, target: str, failed: tuple[str, ...]
    ) -> Names:
        """Links on some way there that gates let the data take and that the truth forbids."""
        if loose is None:
            return ()
        key = (loose, strict, source, target, failed)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(loose, strict, source, target, failed)
        return found

    def wrong_pinned(self, strict: Tag | None, flow: Flow) -> Names:
        """Links that a standing flow stays on and must not; none if one of them is gone: then it is planned anew."""
        variants = [[link for link in self._links if link.id == key] for key in flow.via]
        if not all(variants):
            return ()
        return tuple(dict.fromkeys(link.id for found in variants for link in found if self._is_wrong(strict, link)))

    def _find(self, loose: Tag, strict: Tag | None, source: str, target: str, failed: tuple[str, ...]) -> Names:
        down = set(failed)
        usable = [
            link
            for link in self._links
            if not down.intersection(link.ends)
            and any(may_take(loose, declared) for declared, _ in self._view.passages(link))
        ]
        wrong = {link.id for link in usable if self._is_wrong(strict, link)}
        if not wrong:
            return ()
        taken = lines_between([link.ends for link in usable], source, target)
        return tuple(sorted({usable[number].id for number in taken} & wrong))

    def _is_wrong(self, strict: Tag | None, link: Link) -> bool:
        """True too if an end is not known: then nobody can say which countries it crosses."""
        if any(self._view.is_silent(end) for end in link.ends):
            return False
        passages = self._view.passages(link)
        return strict is None or not passages or any(not may_take(strict, true) for _, true in passages)
