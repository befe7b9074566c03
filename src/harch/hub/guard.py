"""Do the tags of data bind this hub's work? The four gates, asked of the rules with what the catalog knows.

Work that names no data costs nothing here. What is not in the catalog, belongs to another tenant or has no tag is
unknown, and unknown means no.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from harch.base.errors import HarchError, InvariantBroken
from harch.base.rejection import Rejection, rejected
from harch.hub.catalog import Catalog
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import (
    OfferVerdict,
    RunningWork,
    Violation,
    WorkAsk,
    admit,
    audit_running,
    before_offer,
    eligible_mask,
)
from harch.sovereignty.lineage import derive_tag
from harch.sovereignty.rules import explain_rest
from harch.sovereignty.tags import DataObject
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

REASONS_SHOWN_MAX = 12


class Guard:
    """The gates of one hub."""

    def __init__(self, rules: Rules, hub_id: str, catalog: Catalog) -> None:
        self.rules, self.catalog = rules, catalog
        self._hub_id = hub_id
        self._readers: dict[str, Workload] = {}  # unfinished work that names data

    # Who is watched

    def watch(self, workload: Workload) -> None:
        if workload.data_ids:
            self._readers[workload.id] = workload
        else:
            self._readers.pop(workload.id, None)

    def unwatch(self, workload: Workload) -> None:
        self._readers.pop(workload.id, None)

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def readers_of(self, data_id: str) -> list[str]:
        """Unfinished work that names it."""
        return [workload.id for workload in self._readers.values() if data_id in workload.data_ids]

    # Gate 1

    def ask(self, subject: str, spec: WorkloadSpec, *, tenant: str) -> WorkAsk:
        """What a specification means, before it is admitted: names are looked up now."""
        reads: dict[str, DataObject] = {}
        missing: list[str] = []
        for ref in spec.data:
            entry = self.catalog.find(ref, tenant=tenant)
            if entry is None:
                missing.append(ref)
            else:
                reads[entry.object.id] = entry.object
        return WorkAsk(
            id=subject,
            countries_allowed=spec.countries_allowed,
            reads=tuple(reads.values()),
            not_found=tuple(missing),
        )

    def admit(self, spec: WorkloadSpec, ask: WorkAsk, *, tenant: str, elsewhere_too: bool = False) -> tuple[str, ...]:
        """The ids of what it reads. Raises E0907 with every rule that says no, and the hubs that may run it.

        `elsewhere_too`: another hub will do, if its data may be read there.
        """
        verdict = admit(self.rules, ask, self._hub_id)
        reasons = verdict.rejections
        if not reasons and spec.outputs:
            reasons = self._against_outputs(ask)
        if (reasons or not verdict.allowed) and not (elsewhere_too and self._others(ask)):
            raise self._refusal(ask, reasons)
        for name in spec.outputs:
            holder = self.catalog.named(name, tenant=tenant)
            if holder is not None and not holder.made_by:
                raise HarchError(
                    "E0910",
                    f"the name `{name}` belongs to data that was registered: {holder.object.id}",
                    hint="choose another name for the output",
                    field="outputs",
                    meta={"data": [holder.object.id]},
                )
        return tuple(data.id for data in ask.reads)

    def hubs_allowed(self, ask: WorkAsk) -> tuple[str, ...]:
        """For the first hard check of placement."""
        mask = eligible_mask(self.rules, ask)
        return tuple(hub for hub, number in self.rules.bits.items() if mask >> number & 1)

    def _others(self, ask: WorkAsk) -> list[str]:
        return [hub for hub in self.hubs_allowed(ask) if hub != self._hub_id]

    def _against_outputs(self, ask: WorkAsk) -> tuple[Rejection, ...]:
        """What it makes stays at the hub, so that must be allowed too."""
        tag = derive_tag(data.tag for data in ask.reads)
        return rejected(f"outputs at {self._hub_id}", explain_rest(tag, self.rules.terrain.site(self._hub_id)))

    def _refusal(self, ask: WorkAsk, reasons: tuple[Rejection, ...]) -> HarchError:
        hubs = self._others(ask)
        lines = [f"{reason.subject}: {reason.rule}: {reason.detail}" for reason in reasons[:REASONS_SHOWN_MAX]]
        message = f"{self._hub_id} may not run this:" + (
            f" {lines[0]}" if len(lines) == 1 else "\n  ".join(["", *lines])
        )
        if len(reasons) > len(lines):
            message += f"\n  and {len(reasons) - len(lines)} more"
        where = f"its data may be read at {', '.join(hubs)}: `harch run --hub {hubs[0]} …`" if hubs else ""
        fixes = "; ".join(dict.fromkeys(reason.nearest_fix for reason in reasons if reason.nearest_fix))
        return HarchError(
            "E0907",
            message,
            hint=where or fixes or "`harch data where NAME` shows every hub and every rule",
            field="data",
            meta={
                "hub": self._hub_id,
                "data": [data.id for data in ask.reads],
                "hubs_allowed": hubs,
                "problems": [
                    {
                        "where": reason.subject,
                        "rule": reason.rule,
                        "what": reason.detail,
                        "fix": reason.nearest_fix,
                    }
                    for reason in reasons
                ],
            },
        )

    # Gates 2 to 4: of work that has been admitted

    def ask_of(self, workload: Workload) -> WorkAsk:
        """By id, because a name may mean something else by now. What has left the catalog is not found."""
        objects = self.catalog.objects
        return WorkAsk(
            id=workload.id,
            countries_allowed=workload.spec.countries_allowed,
            reads=tuple(objects[data_id] for data_id in workload.data_ids if data_id in objects),
            not_found=tuple(data_id for data_id in workload.data_ids if data_id not in objects),
        )

    def before_offer(self, workload: Workload, candidates: Iterable[str]) -> OfferVerdict:
        """Which other hubs may hear of it."""
        return before_offer(self.rules, self.ask_of(workload), candidates)

    def before_start(self, workload: Workload) -> tuple[DataObject, ...]:
        """What the agent is told of its data, to ask again. That it may not be read here must never be found now."""
        ask = self.ask_of(workload)
        if ask.not_found or not all(self.rules.may_process(data.tag, self._hub_id) for data in ask.reads):
            raise InvariantBroken("tags", workload.id, self._hub_id)
        return tuple(replace(data, hubs=(), parents=()) for data in ask.reads)

    def leaves_what_may_not_rest(self, workload: Workload) -> bool:
        """It may be read here and not be kept: what the work leaves behind is deleted when it ends."""
        return not all(self.may_rest_here(data) for data in self.ask_of(workload).reads)

    def violations(self) -> tuple[Violation, ...]:
        """Of all unfinished work that names data and is not on its way out because of that already."""
        return audit_running(
            self.rules, (self._seen(workload) for workload in self._readers.values() if not workload.scrub)
        )

    def _seen(self, workload: Workload) -> RunningWork:
        """Where it is. What waits for another hub may be read there, if anywhere."""
        ask = self.ask_of(workload)
        if workload.leased:
            return RunningWork(ask=ask, hub=workload.runner_hub)
        others = () if workload.home_fits or workload.is_placed else self._others(ask)
        return RunningWork(ask=ask, hub=others[0] if others else self._hub_id)

    def may_rest_here(self, data: DataObject) -> bool:
        return self.rules.may_rest(data.tag, self._hub_id)
