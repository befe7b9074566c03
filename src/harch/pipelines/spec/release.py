"""May an aggregate permit more than the data it is made from? With a statement that an authority has signed. No I/O.

The statement stands in the pipeline file, beside the export. It is about this export of this pipeline, the tag of its
data and the tag of the aggregate; another tag, or another name, takes another statement.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from harch.base.errors import HarchError
from harch.pipelines.spec.file import data_tag
from harch.pipelines.spec.settings import ExportSettings, PipelineSpec
from harch.sovereignty.declassification import Declassification, verify
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, loosens, parse_tag


def export_tag(spec: PipelineSpec, export: ExportSettings, jurisdictions: Jurisdictions) -> Tag:
    """What the aggregate permits: its own tag, else that of the data."""
    raw = spec.jurisdiction if export.tag is None else export.tag
    return parse_tag(raw, jurisdictions, where=f"exports.{export.name}.tag")


def as_object(spec: PipelineSpec, export: ExportSettings, jurisdictions: Jurisdictions) -> DataObject:
    """The export as what statements are about: so far it permits what its data permits."""
    return DataObject(
        id=f"export:{spec.name}:{export.name}",
        kind=DataKind.PIPELINE_OUTPUT,
        name=f"{spec.name}/{export.name}",
        tenant="",
        tag=data_tag(spec, jurisdictions),
    )


def released_exports(
    spec: PipelineSpec,
    jurisdictions: Jurisdictions,
    authorities: Mapping[str, bytes],
    *,
    now: datetime,
    before: tuple[PipelineSpec, tuple[str, ...]] | None = None,
) -> tuple[str, ...]:
    """Names of exports whose looser tag is signed. `before`: the file that runs, and what was released of it; what has
    not changed since stays released, also when the statement has run out. Raises E0909 for one that does not hold."""
    found = []
    for export in spec.exports:
        target, new = as_object(spec, export, jurisdictions), export_tag(spec, export, jurisdictions)
        if not loosens(target.tag, new) or export.declassification is None:
            continue  # nothing to release; without a statement, the proof says what is missing
        if before is not None and export.name in before[1] and _same(before[0], spec, export):
            found.append(export.name)
            continue
        try:
            statement = msgspec.convert(export.declassification, Declassification)
        except msgspec.ValidationError as error:
            raise _not_valid(target.name, str(error)) from error
        refused = verify(statement, target, new, authorities, now=now)
        if refused is not None:
            raise _not_valid(target.name, f"{refused.rule}: {refused.detail}")
        found.append(export.name)
    return tuple(found)


def _same(old: PipelineSpec, new: PipelineSpec, export: ExportSettings) -> bool:
    return old.jurisdiction == new.jurisdiction and export in old.exports


def _not_valid(name: str, why: str) -> HarchError:
    return HarchError(
        "E0909", f"the declassification of {name} is not valid: {why}", hint="sign it again: `harch pipeline sign`"
    )
