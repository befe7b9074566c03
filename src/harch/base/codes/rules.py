"""What may go wrong with health, sovereignty and HarchOS itself?"""

from __future__ import annotations

from harch.base.error_kind import (
    EXIT_REFUSED,
    EXIT_USAGE,
    ErrorKind,
)

KINDS = (
    # E08: health
    ErrorKind("E0801", "Hub not ready", 503, "The hub is starting, recovering or stopping. Try again in a moment."),
    ErrorKind("E0802", "Hub not reachable", 503, "No hub answers at this address. `harch doctor` shows why."),
    ErrorKind(
        "E0820",
        "Carbon source gave no reading",
        503,
        "A source of carbon, power, price or weather signals did not answer, or not in a form that can be read. "
        "Decisions use the next source in the order, and name it.",
    ),
    # E09: sovereignty
    ErrorKind(
        "E0901",
        "Country not known",
        400,
        "Countries are ISO 3166-1 alpha-2 codes (`MA`, `SN`, `CI`) or the region words that the public clients use.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0902",
        "Residency forbids this",
        403,
        "The workload may only run in the countries that it names, and this hub is in another one. This rule has "
        "no exception and no weight: capacity never outvotes it.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0903",
        "Jurisdiction file not valid",
        400,
        "The file of frameworks and groups has an impossible value. The message names every place and its fix.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0904",
        "Tag contradicts itself",
        400,
        "The tag can never be obeyed, e.g. it lets data be processed where it may neither rest nor travel to.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0905",
        "Legal framework not known",
        400,
        "The registry of jurisdictions has no such framework. Add it in a jurisdiction file of your own.",
        EXIT_USAGE,
    ),
    ErrorKind("E0906", "Data object not found", 404, "No data object has this id or name in your tenant on this hub."),
    ErrorKind(
        "E0907",
        "Tags forbid this",
        403,
        "The tag of a data object does not permit it to be processed, kept, moved or seen there. A tag that is "
        "missing or not understood permits nothing. Capacity never outvotes a tag.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0908",
        "Loosening needs a declassification",
        403,
        "The new tag permits something that the old one did not. That takes a declassification, signed by an "
        "authority that the hub knows, for exactly this object, this old tag and this new tag.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0909",
        "Declassification not valid",
        403,
        "Its signature, its authority, or what it is about does not hold. Nothing was loosened.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0910",
        "Name in use by other data",
        409,
        "A data object of this name and tenant was registered at this hub. Its name stays its own: neither another "
        "registration nor the output of a workload takes it.",
    ),
    ErrorKind("E0911", "Authority not found", 404, "No authority that may sign declassifications has this name here."),
    ErrorKind(
        "E0920",
        "Audit chain contradicted",
        409,
        "A signed checkpoint disagrees with what is known of that hub's audit chain: another hash for the same entry, "
        "or a key that the known ones have not introduced. One of the two histories is false.",
    ),
    ErrorKind(
        "E0930",
        "Policy bundle not valid",
        400,
        "The bundle cannot be used: its manifest, its Rego or its data has a mistake, or it calls a built-in that is "
        "not on the list. `harch policy check BUNDLE` names every place.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0931",
        "Policy refuses this",
        403,
        "The policy bundle that is active at this hub refuses it. `harch policy explain` shows every rule.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0932",
        "Policy gave no answer",
        403,
        "The active policy crashed, took too long, was undefined or answered something other than true or false. "
        "Anything but a clear yes is a no. The hub itself is not affected.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0933",
        "Rules disagree",
        403,
        "The compiled rules and the same rules in Rego came to different answers. Until that is understood the answer "
        "is no, and the hub has recorded a `policy.disagreement` event.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0934",
        "Policy engine not installed",
        503,
        "Policies in Rego need the optional package `regopy`: `pip install 'harch[policy]'`. The compiled rules work "
        "without it.",
    ),
    ErrorKind("E0935", "Policy bundle not found", 404, "No bundle is active in that role at this hub."),
    # E10: the server itself
    ErrorKind(
        "E1001", "Internal error", 500, "A fault of HarchOS. The hub's log has the details under the request id."
    ),
    ErrorKind(
        "E1002",
        "Storage full",
        507,
        "The disk of the hub is full. Nothing was stored; running work goes on, and a small reserve is kept to stop or "
        "delete work. Free space, then try again.",
    ),
    ErrorKind("E1003", "Storage failed", 503, "The hub's database refused a write. Nothing was acknowledged."),
    ErrorKind("E1004", "Port in use", 500, "Another process listens on this port. HARCH_PORT_BASE moves all ports."),
    ErrorKind(
        "E1005", "State folder not usable", 500, "The state folder cannot be written, or another process holds it."
    ),
    ErrorKind(
        "E1006", "State is newer than this program", 500, "The database was written by a newer HarchOS. Upgrade first."
    ),
    ErrorKind(
        "E1010",
        "Undone after a fault",
        500,
        "A fault of HarchOS. Nothing of the request was kept: the hub restored its state from disk and resumed. "
        "Its log has the details.",
    ),
    ErrorKind(
        "E1020",
        "Records lost",
        503,
        "The hub's database lacks entries that it once had: its head file, or a checkpoint that another hub keeps, "
        "knows of them. Until the right database is back, or an admin accepts the loss, the hub shows what it has and "
        "changes nothing.",
    ),
    ErrorKind(
        "E1030",
        "File damaged",
        500,
        "A file of the state folder is not as it was written: a checksum or its form is wrong. Where possible it "
        "is repaired; else it is set aside as `.damaged`, or nothing is started that would need it. Check the disk, "
        "and restore the file from a backup.",
    ),
)
