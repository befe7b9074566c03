"""How is a picture of the documentation drawn? As SVG text, in colours that follow the reader's light or dark scheme.

A browser shows an image in the scheme of the page around it, so one file serves both; each picture brings its own
paper, so that it can be read where a browser does not. No script, no font file: text is in the reader's own Arial or
its like, whose width is guessed here, and text that would leave its box is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

TEXT_PX = 15
SMALL_PX = 14
LINE_PX = 20

# Role -> light, dark. Text has a contrast of at least 4.5 to all papers that it stands on.
COLOURS = {
    "ink": ("#1b2530", "#e6ebf0"),
    "soft": ("#4d5a68", "#aab6c2"),
    "line": ("#8493a2", "#7b8997"),
    "hub": ("#0b6b6b", "#5fd0cb"),
    "law": ("#a8391a", "#ff9f7d"),
    "sun": ("#8a5300", "#f4bd55"),
}
PAPERS = {
    "page": ("#f7f9fb", "#1a1f26"),
    "box": ("#ffffff", "#272f38"),
    "hub-paper": ("#dff1ef", "#123b3b"),
    "law-paper": ("#fbe6df", "#47261b"),
    "sun-paper": ("#fdefd0", "#413213"),
    "bar-ours": ("#12807f", "#3fb5b0"),
    "bar-peer": ("#a3b0bd", "#66737f"),
    "bar-missed": ("#cf5b32", "#e98360"),
}
# Widths of a sans-serif, in parts of its size; everything else is taken for as wide as a digit.
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[]/ "), frozenset("mwMWGOQ@%")


class DoesNotFit(ValueError):
    """Text is wider than the place it was given."""


def text_width(text: str, px: float) -> float:
    parts = [0.31 if c in _NARROW else 0.86 if c in _WIDE else 0.68 if c.isupper() else 0.56 for c in text]
    return px * sum(parts)


def _style() -> str:
    def rules(scheme: int) -> str:
        roles = {**COLOURS, **PAPERS}
        fills = "".join(f".{role}{{fill:{pair[scheme]}}}" for role, pair in roles.items())
        strokes = "".join(f".{role}-line{{stroke:{pair[scheme]}}}" for role, pair in COLOURS.items())
        return fills + strokes

    fonts = f"text{{font:{TEXT_PX}px Arial,Helvetica,'Liberation Sans',Roboto,sans-serif}}"
    sizes = f".small{{font-size:{SMALL_PX}px}}.bold{{font-weight:600}}"
    shapes = sizes + ".stroke{fill:none;stroke-width:1.5}.dash{stroke-dasharray:5 4}"
    return f"{fonts}{shapes}{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}"


@dataclass
class Picture:
    """A sheet of paper with a title for those who cannot see it. Coordinates are pixels at full size."""

    width: int
    height: int
    title: str
    _parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        role: str = "ink",
        small: bool = False,
        bold: bool = False,
        anchor: str = "start",
        room: float | None = None,
    ) -> None:
        """One line of text whose baseline is at `y`; `room` is how wide it may be."""
        px = SMALL_PX if small else TEXT_PX
        wide = text_width(text, px) * (1.05 if bold else 1.0)
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[anchor]
        if wide > (self.width if room is None else room) or left < 4 or left + wide > self.width - 4:
            raise DoesNotFit(f"{self.title}: `{text}` is about {wide:.0f} px wide at {left:.0f}")
        classes = " ".join([role, *(["small"] if small else []), *(["bold"] if bold else [])])
        at_anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(
            f'<text class="{classes}" x="{_n(x)}" y="{_n(y)}"{at_anchor}>{escape(text, quote=False)}</text>'
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        paper: str,
        line: str = "",
        dash: bool = False,
        radius: float = 6,
    ) -> None:
        stroke = f' {line}-line" stroke-width="1.5' if line else ""
        dashed = ' stroke-dasharray="5 4"' if dash else ""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}"'
        self._parts.append(f'<rect class="{paper}{stroke}"{dashed} {place}/>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        lines: Sequence[str],
        *,
        height: float | None = None,
        paper: str = "box",
        line: str = "line",
        bold: bool = True,
    ) -> float:
        """A box with one line of text and small ones below it. Returns its height."""
        tall = height if height is not None else 14 + LINE_PX * len(lines)
        self.rect(x, y, width, tall, paper=paper, line=line)
        top = y + (tall - LINE_PX * len(lines)) / 2
        for number, text in enumerate(lines):
            first, at, baseline = number == 0, x + width / 2, top + LINE_PX * number + 15
            role = "ink" if first else "soft"
            self.text(
                at, baseline, text, role=role, small=not first, bold=first and bold, anchor="middle", room=width - 8
            )
        return tall

    def lines(
        self, x: float, y: float, lines: Iterable[str], *, role: str = "soft", anchor: str = "start", small: bool = True
    ) -> None:
        for number, text in enumerate(lines):
            self.text(x, y + 18 * number, text, role=role, small=small, anchor=anchor)

    def path(
        self, points: Sequence[tuple[float, float]], *, role: str = "line", dash: bool = False, arrow: bool = False
    ) -> None:
        line = "M" + " L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._parts.append(f'<path class="stroke {role}-line{" dash" if dash else ""}" d="{line}"/>')
        if arrow:
            (x0, y0), (x1, y1) = points[-2:]
            long = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
            ux, uy = (x1 - x0) / long, (y1 - y0) / long
            corners = [
                (x1, y1),
                (x1 - 9 * ux - 4.5 * uy, y1 - 9 * uy + 4.5 * ux),
                (x1 - 9 * ux + 4.5 * uy, y1 - 9 * uy - 4.5 * ux),
            ]
            head = "M" + " L".join(f"{_n(x)} {_n(y)}" for x, y in corners) + "Z"
            self._parts.append(f'<path class="{role}" d="{head}"/>')

    def area(self, points: Sequence[tuple[float, float]], *, paper: str) -> None:
        self._parts.append(f'<path class="{paper}" d="M{" L".join(f"{_n(x)} {_n(y)}" for x, y in points)}Z"/>')

    def dot(self, x: float, y: float, *, role: str, radius: float = 4) -> None:
        self._parts.append(f'<circle class="{role}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>')

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        title = f"<title>{escape(self.title, quote=False)}</title>"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}<style>{_style()}</style>'
        paper = f'<rect class="page" width="{self.width}" height="{self.height}" rx="8"/>'
        return "\n".join([head, paper, *self._parts, "</svg>", ""])


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
