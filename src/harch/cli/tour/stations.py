"""What does the tour show? Its stations as values: text, commands, what to notice, and what they leave behind.

A plan for one federation: commands name its hubs and countries, and work and data have names of this tour alone.
"""

# harch: pure

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from harch.base.errors import EXIT_OK, EXIT_REFUSED, HarchError
from harch.sovereignty.jurisdictions import COUNTRIES

_WORK_ENDS_S = 300  # what a station starts ends by itself, should nobody be left to stop it


@dataclass(frozen=True, slots=True)
class TourHub:
    id: str
    name: str
    country: str


@dataclass(frozen=True, slots=True)
class FederationFacts:
    """What the plan depends on. `home` is the hub that is asked, `others` the ones that answer beside it.

    `is_local`: `harch up` runs the home hub on this machine, so that it may be killed, and comes back.
    """

    home: TourHub
    others: tuple[TourHub, ...]
    is_local: bool


@dataclass(frozen=True, slots=True)
class TourCommand:
    """`harch` and these words. `exit_code` is what it must end with: a refusal that is to be seen is none of 0."""

    words: tuple[str, ...]
    exit_code: int = EXIT_OK

    def __str__(self) -> str:
        return shlex.join(("harch", *self.words))


@dataclass(frozen=True, slots=True)
class Station:
    """`notice` is said after the commands. `not_here`: why this federation cannot show it; empty where it can."""

    name: str
    title: str
    text: str
    commands: tuple[TourCommand, ...] = ()
    notice: str = ""
    not_here: str = ""
    needs_sentinel: bool = False
    work: tuple[str, ...] = field(default=(), kw_only=True)  # names of what it submits, to be stopped after it
    data: tuple[str, ...] = field(default=(), kw_only=True)  # names of what it registers; records, which stay


def plan_tour(facts: FederationFacts, tag: str) -> tuple[Station, ...]:
    """Every station, in order. `tag` begins the name of everything that the tour makes."""
    return (
        _hubs(facts),
        _run(tag),
        _why(tag),
        _country(facts, tag),
        _refused(facts, tag),
        _data(facts, tag),
        _kill(facts, tag),
        _carbon(tag),
        _telemetry(),
        _top(),
        _audit(facts),
        _next(),
    )


def chosen(stations: Sequence[Station], name: str) -> Station:
    """The station of that name. Raises E0201 for one that does not exist."""
    for station in stations:
        if station.name == name:
            return station
    raise HarchError(
        "E0201",
        f"no station named `{name}`",
        hint=f"choose one of {', '.join(station.name for station in stations)}",
        field="station",
    )


def _hubs(facts: FederationFacts) -> Station:
    return Station(
        "hubs",
        "A federation of hubs",
        "Each site has a hub. Hubs are peers: they tell each other what they have, and any of them can be asked.",
        (_harch("hubs"),),
        f"You ask {facts.home.name}, marked with *. AGE says how old its knowledge of each peer is. "
        "GPUs that are described but do not exist are labelled `modelled`.",
    )


def _run(tag: str) -> Station:
    name = f"{tag}-hello"
    return Station(
        "run",
        "A command on the fleet",
        "`harch run` queues a command, waits for its GPUs, copies its output and ends with its exit code. "
        "The process is real, even where its GPU is modelled.",
        (_harch("run", "--name", name, "--gpus", "1", "--", "sh", "-c", "echo hello from $HARCH_GPUS"),),
        "HARCH_GPUS names the GPU that the work was given; the prefix is the hub.",
        work=(name,),
    )


def _why(tag: str) -> Station:
    name = f"{tag}-why"
    return Station(
        "why",
        "Why it runs where it runs",
        "Every placement can be explained, and so can every wait: each hub, each rule, each score.",
        (
            _harch("run", "-d", "--name", name, "--gpus", "2", "--", "sleep", str(_WORK_ENDS_S)),
            _harch("wait", name, "--for", "running"),
            _harch("why", name),
        ),
        "State and reason come first. `harch why NAME --all` shows every rule at every hub.",
        work=(name,),
    )


def _country(facts: FederationFacts, tag: str) -> Station:
    name, foreign = f"{tag}-abroad", _foreign_hub(facts)
    place = _country_name(foreign.country) if foreign else "another country"
    station = Station(
        "country",
        f"Work that only {place} may run",
        f"`--country` is a hard rule that no score outweighs. Work that {facts.home.name} may not run is lent to a hub "
        "that may; its logs and exit code come back.",
        not_here=_one_country(facts),
    )
    if foreign is None:
        return station
    command = ("sh", "-c", "echo running on $HARCH_GPUS")
    return Station(
        station.name,
        station.title,
        station.text,
        (
            _harch("run", "--name", name, "--gpus", "1", "--country", foreign.country, "--", *command),
            _harch("show", name),
        ),
        f"{facts.home.name} still owns it: the hub that accepted work keeps its record for life, wherever it runs.",
        work=(name,),
    )


def _refused(facts: FederationFacts, tag: str) -> Station:
    name, country = f"{tag}-refused", _absent_country(facts)
    return Station(
        "refused",
        "Work that no hub may run",
        f"No hub stands in {_country_name(country)}. What can never run is refused at once, and does not wait forever.",
        (
            _harch("run", "--name", name, "--gpus", "1", "--country", country, "--", "true", exit_code=EXIT_REFUSED),
            _harch("explain", "E0902"),
        ),
        "An error has a code, one sentence and a hint. The exit code 4 means: refused by a rule.",
        work=(name,),
    )


def _data(facts: FederationFacts, tag: str) -> Station:
    foreign, data, name = _foreign_hub(facts), f"{tag}-patients", f"{tag}-reader"
    text = "Tags bind data to countries, and work that reads the data is bound with it."
    if foreign is None:
        return Station("data", "Data that may not leave", text, not_here=_one_country(facts))
    country = foreign.country
    read = ("--data", data, "--gpus", "1", "--")
    return Station(
        "data",
        f"Data that may not leave {_country_name(country)}",
        f"{text} This registers data at {foreign.name}; then {facts.home.name} is told to run work on it itself.",
        (
            _harch("data", "add", data, "--at", foreign.id, "--process-in", country, "--rest-in", country),
            _harch("data", "where", data),
            _harch("run", "--name", name, "--stay-home", *read, "echo", "never", exit_code=EXIT_REFUSED),
            _harch("run", "--name", name, *read, "sh", "-c", "echo read on $HARCH_GPUS"),
        ),
        f"With --stay-home {facts.home.name} refuses; without it the work goes to the data. Entries of the catalog are "
        f"records and stay: `{data}` is a name of this tour alone.",
        work=(name,),
        data=(data,),
    )


def _kill(facts: FederationFacts, tag: str) -> Station:
    name, home = f"{tag}-survivor", facts.home
    text = "Work does not depend on its hub: its processes belong to an agent, and what was accepted is on disk."
    if not facts.is_local:
        why = f"{home.name} is not run by `harch up` on this machine, and only such a hub is killed for show"
        return Station("kill", "Kill a hub", text, not_here=why)
    ticks = f"for n in $(seq {_WORK_ENDS_S}); do echo tick $n; sleep 1; done"
    return Station(
        "kill",
        "Kill a hub",
        f"{text} This kills {home.name} without warning (kill -9); `harch up` starts it again.",
        (
            _harch("run", "-d", "--name", name, "--gpus", "1", "--", "sh", "-c", ticks),
            _harch("wait", name, "--for", "running"),
            _harch("hub", "kill", home.id, "--wait"),
            _harch("ps"),
            _harch("logs", name),
        ),
        "The work is in its first attempt, and its log has no gap: it has not noticed.",
        work=(name,),
    )


def _carbon(tag: str) -> Station:
    name = f"{tag}-clean"
    wanted = ("--gpus", "2", "--carbon-aware", "--expect", "2h")
    return Station(
        "carbon",
        "Clean power",
        "Every hub knows the power it runs on. Work that asks for it runs where, or when, it causes the least carbon.",
        (
            _harch("carbon", "now"),
            _harch("run", "-d", "--name", name, *wanted, "--", "sleep", str(_WORK_ENDS_S)),
            _harch("carbon", "why", name),
        ),
        "Every place and hour that was considered, and the data behind it. EVIDENCE says whether a value is measured "
        "or estimated; the shipped fleet has yearly means.",
        work=(name,),
    )


def _telemetry() -> Station:
    return Station(
        "telemetry",
        "Telemetry that stays at home",
        "SENTINEL stores metrics, logs and traces at each hub. A question over all hubs travels to them, and only "
        "aggregates that the law of each country lets out come back.",
        (_harch("sentinel", "query", "--all-hubs", "sum by (hub_name) (harchos_gpu_power_draw_watts)"),),
        "The language is PromQL. Questions over all hubs are about whole minutes that are over, so the first one of a "
        "new federation may come back empty.",
        needs_sentinel=True,
    )


def _top() -> Station:
    return Station(
        "top",
        "The federation on one screen",
        "`harch top` shows hubs, work, pipelines, alerts and events, live. Here it prints once.",
        (_harch("top", "--once"),),
        "Without --once, s sorts, / filters and q quits. `harch sentinel dash hubs` draws curves.",
    )


def _audit(facts: FederationFacts) -> Station:
    return Station(
        "audit",
        "Proof of what happened",
        "Each decision of this tour is in a chain of hashes. Hubs keep signed checkpoints of each other's chains.",
        (_harch("audit", "verify"),),
        f"Every entry of {facts.home.name} was checked, against copies that its peers keep: none was changed or cut.",
    )


def _next() -> Station:
    return Station(
        "next",
        "Where to go next",
        "`harch doctor` says what this machine offers; `harch VERB --help` is short. The documentation has tutorials "
        "and guides: docs/index.md; pipelines, from a stream to an action: docs/pipelines/quickstart.md; data and "
        "countries: docs/guides/sovereignty.md; clean power: docs/guides/carbon.md.",
    )


def _harch(*words: str, exit_code: int = EXIT_OK) -> TourCommand:
    return TourCommand(words, exit_code)


def _foreign_hub(facts: FederationFacts) -> TourHub | None:
    """The first hub in a country where no other one stands if there is one: then it is certain who runs the work."""
    foreign = [hub for hub in facts.others if hub.country != facts.home.country]
    countries = [hub.country for hub in foreign]
    return next((hub for hub in foreign if countries.count(hub.country) == 1), next(iter(foreign), None))


def _one_country(facts: FederationFacts) -> str:
    """Empty where another country has a hub."""
    if _foreign_hub(facts) is not None:
        return ""
    return f"no other hub that answers stands outside of {_country_name(facts.home.country)}"


def _absent_country(facts: FederationFacts) -> str:
    here = {hub.country for hub in (facts.home, *facts.others)}
    return next(code for code in ("FR", *COUNTRIES) if code not in here)


def _country_name(code: str) -> str:
    return COUNTRIES.get(code, code)
