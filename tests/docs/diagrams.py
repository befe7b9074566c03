"""What do the diagrams of the documentation show? `make pictures` draws them into docs/pictures.

All are about as wide as a phone allows for text of 12 pixels; the architecture also has a wide layout for desktops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from drawing import Picture

_WIDTH = 400


def architecture(width: int) -> Picture:
    wide = width > 500
    picture = Picture(width, 548 if wide else 714, "HarchOS: hubs in three countries, and the processes of one hub")
    middle, edge = width / 2, 14
    picture.box(middle - 186, 14, 372, ["harch, Python client, HTTP", "any hub answers for all of them"])
    picture.path([(middle, 68), (middle, 96)], arrow=True)

    countries = (
        ("Morocco", ("Dakhla", "Casablanca", "Tangier")),
        ("Senegal", ("Dakar",)),
        ("Côte d'Ivoire", ("Abidjan",)),
    )
    gap = 46 if wide else 14
    column = (width - 2 * edge - 2 * gap) / 3
    for number, (country, hubs) in enumerate(countries):
        left = edge + number * (column + gap)
        picture.rect(left, 98, column, 142, paper="hub-paper", line="hub")
        picture.text(left + column / 2, 119, country, anchor="middle", bold=True, role="hub", room=column)
        first = 128 if len(hubs) == 3 else 163
        for row, hub in enumerate(hubs):
            picture.box(left + 8, first + 36 * row, column - 16, [hub], height=30, line="hub", bold=False)
        if number:
            y = 178
            picture.path([(left - gap + 1, y), (left - 3, y)], role="hub", arrow=True)
            picture.path([(left - 1, y + 12), (left - gap + 3, y + 12)], role="hub", arrow=True)
    if wide:
        picture.rect(edge, 254, (width - 2 * edge - 16) / 2, 92, paper="hub-paper")
        picture.lines(edge + 12, 275, ["Crosses borders, signed and encrypted:"], role="hub")
        picture.lines(
            edge + 12,
            295,
            [
                "heartbeats, offers, bids, leases",
                "work and data whose tags permit it",
                "aggregates of telemetry and of streams",
            ],
        )
        right = middle + 8
        picture.rect(right, 254, (width - 2 * edge - 16) / 2, 92, paper="law-paper")
        picture.lines(right + 12, 275, ["Stays where it is, whatever fails:"], role="law")
        picture.lines(
            right + 12,
            295,
            ["data whose tags do not permit it", "samples, log lines, spans", "raw events, state, ledgers"],
        )
        top = 360
    else:
        picture.rect(edge, 254, width - 2 * edge, 92, paper="hub-paper")
        picture.lines(edge + 12, 275, ["Crosses borders, signed and encrypted:"], role="hub")
        picture.lines(
            edge + 12,
            295,
            [
                "heartbeats, offers, bids, leases",
                "work and data whose tags permit it",
                "aggregates of telemetry and of streams",
            ],
        )
        picture.rect(edge, 354, width - 2 * edge, 92, paper="law-paper")
        picture.lines(edge + 12, 375, ["Stays where it is, whatever fails:"], role="law")
        picture.lines(
            edge + 12,
            395,
            ["data whose tags do not permit it", "samples, log lines, spans", "raw events, state, ledgers"],
        )
        top = 458
    picture.rect(edge, top, width - 2 * edge, picture.height - top - 14, paper="page", line="hub", dash=True)
    picture.text(edge + 12, top + 22, "One hub, and its processes", bold=True, role="hub")
    processes = (
        ("hub", "API, store, placement"),
        ("agents", "one per node"),
        ("supervisors", "one per task"),
        ("SENTINEL", "telemetry"),
        ("message engine", "streams"),
        ("stage workers", "pipelines"),
    )
    columns = 3 if wide else 2
    wide_box = (width - 2 * edge - 24 - 12 * (columns - 1)) / columns
    for number, (name, does) in enumerate(processes):
        row, at = divmod(number, columns)
        picture.box(edge + 12 + at * (wide_box + 12), top + 34 + row * 68, wide_box, [name, does], height=56)
    return picture


def job() -> Picture:
    picture = Picture(_WIDTH, 586, "The life of a job: four questions, and what happens at a no")
    steps = (
        (["harch run"], "box", "line", ()),
        (
            ["1  Allowed there?", "tags, countries, policy"],
            "law-paper",
            "law",
            ("no: refused,", "with the rule", "and a way out"),
        ),
        (
            ["2  Which GPUs suit?", "checks, then scores"],
            "hub-paper",
            "hub",
            ("none here: waits, or", "another hub runs it", "under a lease"),
        ),
        (
            ["3  Clean power?", "if the work may wait"],
            "sun-paper",
            "sun",
            ("later or elsewhere:", "waits, with a latest", "start that is kept"),
        ),
        (["It runs", "the agent checks again"], "box", "line", ("a fault: started", "again, never twice", "at once")),
        (
            ["4  What happened?", "events, ledger, audit"],
            "hub-paper",
            "hub",
            ("harch why, logs,", "carbon why, audit", ""),
        ),
    )
    y, left, wide, right = 14.0, 14, 202, 246
    for number, (lines, paper, line, aside) in enumerate(steps):
        tall = picture.box(left, y, wide, lines, paper=paper, line=line, height=40 if number == 0 else 66)
        if aside:
            picture.path([(left + wide, y + tall / 2), (right - 6, y + tall / 2)], role=line, arrow=True)
            lines_shown = [text for text in aside if text]
            picture.lines(right, y + tall / 2 + 5 - 9 * (len(lines_shown) - 1), lines_shown)
        if number < len(steps) - 1:
            picture.path([(left + wide / 2, y + tall), (left + wide / 2, y + tall + 34)], arrow=True)
            if 1 <= number <= 3:
                picture.text(left + wide / 2 + 10, y + tall + 22, "yes", small=True, role="soft")
        y += tall + 36
    picture.height = round(y - 36 + 14)
    return picture


def lease() -> Picture:
    picture = Picture(
        _WIDTH, 640, "A lease across hubs: an owner hands work over, a link is cut, and the work still never runs twice"
    )
    owner, runner = 88, 312
    picture.box(owner - 74, 14, 148, ["Tangier", "owner, full"], line="hub", paper="hub-paper")
    picture.box(runner - 74, 14, 148, ["Dakhla", "runner, has room"], line="hub", paper="hub-paper")
    bottom = 604
    picture.path([(owner, 68), (owner, bottom)], dash=True)
    picture.path([(runner, 68), (runner, bottom)], dash=True)

    def message(y: float, text: str, *, back: bool = False, role: str = "hub") -> None:
        ends = [(owner + 3, y), (runner - 3, y)]
        picture.path(ends[::-1] if back else ends, role=role, arrow=True)
        picture.text(_WIDTH / 2, y - 7, text, anchor="middle", small=True)

    message(104, "offer: 8 GPUs")
    message(140, "bid: holds them for 2 s", back=True)
    message(176, "lease, epoch 7")
    picture.box(runner - 60, 190, 120, ["runs"], height=32, paper="hub-paper", line="hub")
    message(252, "renew", back=True)
    message(284, "until then")
    picture.rect(100, 304, 200, 32, paper="law-paper", line="law", dash=True)
    picture.text(_WIDTH / 2, 325, "the link is cut", anchor="middle", role="law", bold=True)
    picture.box(runner - 74, 352, 148, ["TERM", "save, and stop"], line="line")
    picture.box(runner - 74, 420, 148, ["KILL", "the lease ends"], line="law")
    picture.box(owner - 74, 352, 148, ["waits", "for the whole lease"], line="line", height=122)
    picture.path([(owner, 474), (owner, 502)], arrow=True)
    picture.box(owner - 74, 504, 148, ["places it again", "epoch 8"], line="hub", paper="hub-paper")
    message(592, "late word of epoch 7: void", back=True, role="law")
    picture.height = 620
    return picture


def residency() -> Picture:
    picture = Picture(_WIDTH, 560, "Residency: four gates between data and a hub, and what each does at a no")
    picture.box(14, 14, 372, ["data with a tag", "process_in: MA, rest_in: MA"], paper="law-paper", line="law")
    gates = (
        ("1  admission", "may this hub run it?", ("refused, with", "every rule")),
        ("2  offer", "which hubs may hear?", ("others never", "learn of it")),
        ("3  load", "the agent asks again", ("nothing is", "loaded")),
        ("4  audit", "does all still obey?", ("paused, scrubbed,", "reported")),
    )
    y = 68.0
    for name, question, no in gates:
        picture.path([(107, y), (107, y + 30)], arrow=True)
        picture.box(14, y + 32, 186, [name, question], paper="hub-paper", line="hub")
        picture.path([(200, y + 59), (246, y + 59)], role="law", arrow=True)
        picture.text(221, y + 52, "no", role="law", small=True, anchor="middle")
        picture.lines(254, y + 55, no)
        y += 86
    picture.path([(107, y), (107, y + 30)], arrow=True)
    picture.box(14, y + 32, 186, ["it runs in Morocco"], height=36, line="hub")
    picture.lines(214, y + 46, ["What is not known", "counts as a no."], role="law")
    picture.height = round(y + 32 + 36 + 16)
    return picture


def pipeline() -> Picture:
    picture = Picture(
        _WIDTH,
        600,
        "SENSE, THINK, ACT: from events to actions inside one jurisdiction, with aggregates that may leave it",
    )
    picture.rect(8, 66, 384, 410, paper="page", line="law", dash=True)
    picture.box(60, 14, 280, ["HTTP, MQTT, TCP, files, NATS"], height=34)
    stages = (
        ("source", "accepted events, on disk", "batches, on credit"),
        ("SENSE", "windows of event time", "features"),
        ("THINK", "models, canaries, shadows", "outputs"),
        ("ACT", "rules, guards, ledger", "a command"),
    )
    y = 48.0
    for number, (name, holds, sends) in enumerate(stages):
        picture.path([(200, y), (200, y + 36)], arrow=True)
        picture.box(90, y + 38, 220, [name, holds], paper="hub-paper" if number else "box", line="hub")
        picture.text(210, y + 38 + 54 + 22, sends, small=True, role="soft")
        y += 92 + 6
    picture.text(20, 92, "one", role="law", bold=True)
    picture.text(20, 110, "country", role="law", bold=True)
    picture.path([(200, y), (200, y + 64)], arrow=True)
    picture.box(60, y + 66, 280, ["valve, database, service"], height=34)
    # An export leaves from SENSE, to the right and out of the frame.
    picture.path([(310, 211), (352, 211), (352, y + 34), (352, y + 118)], role="law", arrow=True)
    picture.lines(388, y + 136, ["aggregates, if their tag permits it: to other countries"], role="law", anchor="end")
    picture.height = round(y + 152)
    return picture


def sentinel() -> Picture:
    picture = Picture(
        _WIDTH,
        600,
        "SENTINEL: telemetry is collected, stored and queried at its hub; aggregates alone cross a border",
    )
    picture.box(14, 14, 372, ["scrapes, remote-write, OTLP, Loki push", "and HarchOS's own metrics, lines and spans"])
    picture.path([(200, 68), (200, 92)], arrow=True)
    picture.box(90, 94, 220, ["redaction", "of lines and spans"], paper="law-paper", line="law")
    picture.path([(200, 148), (200, 172)], arrow=True)
    for number, (name, lines) in enumerate((("metrics", "series"), ("logs", "lines"), ("traces", "spans"))):
        picture.box(14 + number * 127, 174, 118, [name, lines], paper="hub-paper", line="hub")
    picture.path([(200, 228), (200, 252)], arrow=True)
    picture.box(14, 254, 372, ["PromQL, LogQL, trace search", "rules, alerts, dashboards, harch top"])
    picture.path([(200, 308), (200, 340)], arrow=True)
    picture.text(210, 330, "from another hub", small=True, role="soft")
    picture.box(14, 342, 180, ["same country", "everything"], paper="hub-paper", line="hub")
    picture.box(206, 342, 180, ["other country", "is judged first"], paper="law-paper", line="law")
    picture.path([(296, 396), (296, 420)], arrow=True)
    picture.path([(8, 446), (392, 446)], role="law", dash=True)
    picture.text(14, 438, "border", role="law", bold=True)
    picture.rect(226, 422, 140, 48, paper="law-paper", line="law")
    picture.text(296, 443, "sums of 5", anchor="middle", bold=True, room=136)
    picture.text(296, 461, "sources or more", anchor="middle", small=True, role="soft", room=136)
    picture.path([(296, 470), (296, 496)], arrow=True)
    picture.lines(
        14, 484, ["Never: samples, lines,", "spans, small groups.", "What is refused is told,", "with the rule."]
    )
    picture.box(206, 498, 180, ["the hub that asked", "adds up the parts"])
    picture.height = 566
    return picture


def sun() -> Picture:
    picture = Picture(
        _WIDTH, 440, "A job that waits for the sun: submitted at night, run at noon, before its latest start"
    )
    left, right, top, bottom = 46.0, 386.0, 70.0, 290.0

    def x(hour: float) -> float:
        return left + (right - left) * hour / 24

    def y(grams: float) -> float:
        return bottom - (bottom - top) * grams / 700

    def grams(hour: float) -> float:
        """A modelled day: the grid's yearly mean, and panels that replace most of it around noon."""
        return 630 - 560 * max(0.0, math.sin(math.pi * (hour - 6) / 12)) ** 1.2 if 6 <= hour <= 18 else 630

    picture.text(14, 28, "g of CO2 per kWh, one modelled day", bold=True)
    picture.text(14, 48, "a grid of 630 g/kWh, and a hub's own panels", small=True, role="soft")
    for line in (0, 200, 400, 600):
        picture.path([(left, y(line)), (right, y(line))], dash=line > 0)
        picture.text(left - 6, y(line) + 5, str(line), small=True, role="soft", anchor="end")
    hours = [quarter / 4 for quarter in range(97)]
    picture.area([(x(0), bottom), *((x(hour), y(grams(hour))) for hour in hours), (x(24), bottom)], paper="sun-paper")
    picture.path([(x(hour), y(grams(hour))) for hour in hours], role="sun")
    for hour in (0, 6, 12, 18, 24):
        picture.text(x(hour), bottom + 20, f"{hour:02}", small=True, role="soft", anchor="middle")
    picture.rect(x(10), y(grams(10)) - 44, x(14) - x(10), 30, paper="hub-paper", line="hub")
    picture.text(x(12), y(grams(10)) - 24, "runs", anchor="middle", bold=True, role="hub")
    picture.path([(x(2), bottom - 4), (x(2), bottom + 46)], role="hub")
    picture.path([(x(10), y(grams(10)) - 14), (x(10), bottom + 46)], role="hub", dash=True)
    picture.path([(x(16), top + 6), (x(16), bottom + 46)], role="law")
    picture.text(x(2) - 14, bottom + 64, "submitted", small=True, role="hub")
    picture.text(x(10), bottom + 64, "starts", small=True, role="hub", anchor="middle")
    picture.text(x(16), bottom + 64, "latest start", small=True, role="law", anchor="middle")
    picture.path([(x(2) + 6, bottom + 38), (x(10) - 4, bottom + 38)], role="hub", arrow=True)
    picture.lines(
        14,
        bottom + 94,
        [
            "Now it would draw 630 g/kWh; at noon a fraction of it.",
            "If the sun does not come it still starts by 16:00.",
        ],
    )
    picture.height = round(bottom + 130)
    return picture


DIAGRAMS: Mapping[str, Callable[[], Picture]] = {
    "architecture": lambda: architecture(_WIDTH),
    "architecture-wide": lambda: architecture(700),
    "carbon-wait": sun,
    "job": job,
    "lease": lease,
    "pipeline": pipeline,
    "residency-gates": residency,
    "sentinel": sentinel,
}


def drawings() -> Sequence[tuple[str, str]]:
    """File name and content of every diagram."""
    return [(f"{name}.svg", draw().svg()) for name, draw in DIAGRAMS.items()]
