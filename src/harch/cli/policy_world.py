"""What are policies asked about, on this machine? The fleet as the rules see it, a workload, and tags from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harch.base.errors import HarchError
from harch.cli.remote import connect

if TYPE_CHECKING:
    from harch.sovereignty.compiled import Rules
    from harch.sovereignty.tags import DataObject
    from harch.workloads.spec import WorkloadSpec

TAG_BYTES_MAX = 64 * 1024


def world_of(fleet: str) -> tuple[Rules, dict[str, object]]:
    """The compiled rules of a fleet, and the document that policies see as `data.world`."""
    from harch.cli.process import open_fleet
    from harch.sovereignty.compiled import Rules
    from harch.sovereignty.in_force import jurisdictions_in_force
    from harch.sovereignty.policy.document import world_document
    from harch.sovereignty.terrain import terrain_of

    jurisdictions = jurisdictions_in_force()
    terrain = terrain_of(open_fleet(fleet), jurisdictions)
    return Rules(terrain), world_document(terrain, jurisdictions)


def spec_of(file_or_id: str, hub: str | None) -> WorkloadSpec:
    """The first workload of a file, or what the hub knows under that id or name."""
    from harch.cli.workload_file import read_workloads
    from harch.workloads.check import checked
    from harch.workloads.spec import WorkloadSpec

    if file_or_id == "-" or Path(file_or_id).is_file():
        return read_workloads(file_or_id)[0]
    with connect(hub) as client:
        found = client.workloads.get(file_or_id)
    own = {field.name for field in msgspec.structs.fields(WorkloadSpec)}  # beside them stand those of other clients
    return checked({name: value for name, value in found.spec.items() if name in own and value is not None})


def data_of(files: tuple[str, ...], hubs: tuple[str, ...], tenant: str) -> tuple[DataObject, ...]:
    """Data objects with the tags of these files, as if copies of them were at these hubs."""
    from harch.sovereignty.in_force import jurisdictions_in_force
    from harch.sovereignty.tag_input import parse_tag
    from harch.sovereignty.tags import DataKind, DataObject

    return tuple(
        DataObject(
            id=Path(file).stem,
            kind=DataKind.DATASET,
            name=Path(file).stem,
            tenant=tenant,
            tag=parse_tag(_read(file), jurisdictions_in_force(), where=file),
            hubs=hubs,
        )
        for file in files
    )


def data_read(names: tuple[str, ...], given: tuple[DataObject, ...], hub: str | None) -> tuple[DataObject, ...]:
    """Data that a workload names and no file describes, as the hub knows it: without it everything would be allowed.

    Raises what the hub says: E0906 for data that it does not know.
    """
    from harch.sovereignty.in_force import jurisdictions_in_force
    from harch.sovereignty.tag_input import parse_tag
    from harch.sovereignty.tags import DataKind, DataObject

    missing = [name for name in names if name not in {data.name for data in given}]
    if not missing:
        return ()
    try:
        with connect(hub) as client:
            found = [client.data.get(name) for name in missing]
    except HarchError as error:
        if error.code != "E0802":
            raise
        raise HarchError(
            error.code,
            f"it reads {', '.join(missing)}, whose tags only a hub knows: {error.message}",
            hint="start the hub, or describe the data with --tag NAME.yaml",
        ) from error
    return tuple(
        DataObject(
            id=data.id,
            kind=DataKind(data.kind),
            name=data.name,
            tenant=data.tenant,
            tag=None if data.tag is None else parse_tag(data.tag, jurisdictions_in_force(), where=data.name),
            hubs=data.hubs,
        )
        for data in found
    )


def check_hubs(named: tuple[str, ...], rules: Rules) -> None:
    """Raises E0305 for a hub that the fleet does not have."""
    for hub in named:
        if hub not in rules.bits:
            known = ", ".join(rules.bits)
            raise HarchError("E0305", f"no hub is called `{hub[:64]}`", hint=f"use one of {known}", field="at")


def _read(file: str) -> object:
    import yaml

    try:
        with Path(file).open("rb") as stream:
            return yaml.safe_load(stream.read(TAG_BYTES_MAX))
    except OSError as error:
        raise HarchError("E0202", f"{file} cannot be read: {error.strerror}", hint="give the path of a tag") from error
    except yaml.YAMLError as error:
        raise HarchError("E0202", f"{file} is not YAML: {error}", hint="write the tag as YAML or JSON") from error
