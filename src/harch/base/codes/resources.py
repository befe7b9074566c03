"""What may be wrong with what is asked for? Things that are not there, and limits."""

from __future__ import annotations

from harch.base.error_kind import (
    EXIT_INFEASIBLE,
    EXIT_REFUSED,
    ErrorKind,
)

KINDS = (
    # E03: what do you want to use?
    ErrorKind("E0301", "Workload not found", 404, "No workload has this id or name in your tenant on this hub."),
    ErrorKind(
        "E0302",
        "Name in use by another workload",
        409,
        "A workload of this name and tenant exists with another specification. The same specification again within "
        "10 minutes is taken as a retry and answers the first workload.",
    ),
    ErrorKind(
        "E0303",
        "Can never run here",
        409,
        "The request does not fit this hub even if it were empty, so waiting would not help.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind("E0304", "Not possible in this state", 409, "The workload's state does not allow this change."),
    ErrorKind("E0305", "Hub not found", 404, "No hub of the fleet has this id or name."),
    ErrorKind(
        "E0306", "Secret not found", 404, "The workload names a secret that its tenant has not stored on this hub."
    ),
    ErrorKind("E0307", "Task could not start", 500, "The agent could not start the command. The message says why."),
    ErrorKind("E0308", "API key entry not found", 404, "No API key has this id."),
    ErrorKind(
        "E0309",
        "Path not allowed on the node",
        403,
        "The agent shares only the folders it was told to share.",
        EXIT_REFUSED,
    ),
    ErrorKind("E0310", "Region not found", 404, "No hub of the fleet stands in this region."),
    ErrorKind("E0311", "Hardware not found", 404, "The hub has no node, GPU, rack or cooling zone of this id."),
    ErrorKind(
        "E0312",
        "Sandbox required",
        503,
        "This agent or hub is set to run work in a sandbox only, and bubblewrap is not installed or does not work. "
        "Nothing runs without it. `harch doctor` tells how to mend it.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0340",
        "No plan can supply this load",
        409,
        "Own plants, battery, agreements and the largest import together cannot supply the load that was asked for. "
        "The message says when and how much is missing.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0341",
        "Solver gave no plan",
        500,
        "The optimiser is not installed (`pip install 'harch[energy]'`), ran out of time or failed. The "
        "self-consumption rule serves in its place, and says so.",
    ),
    ErrorKind("E0350", "Tenant not known", 404, "No key, work or data of this tenant was ever at this hub."),
    ErrorKind(
        "E0351",
        "Subject not known",
        404,
        "Nothing in the records that were asked has this id or name. An empty answer would look like an all-clear, so "
        "this is an error.",
    ),
    # E04: limits
    ErrorKind(
        "E0401", "Queue full", 429, "The hub holds as many waiting workloads as its limit allows. Nothing was stored."
    ),
    ErrorKind("E0402", "Budget exceeded", 403, "A carbon or cost budget does not allow this.", EXIT_REFUSED),
    ErrorKind(
        "E0403",
        "Too many connections",
        429,
        "The hub serves a limited number of event streams, of followed logs and of exports at a time. A key that holds "
        "many gets no more once only the places are left that are kept for keys with few.",
    ),
    ErrorKind(
        "E0404",
        "Listener full",
        503,
        "As many connections are open as the listener takes, in all or from this address, and all of them are being "
        "served; or too many requests were sent ahead on one connection. The connection is closed.",
    ),
    ErrorKind(
        "E0405",
        "All streams are taken",
        503,
        "As many event streams, followed logs or exports are open as the hub serves of that kind. No kind takes places "
        "of another. `Retry-After` says when to try again; pages are served meanwhile.",
    ),
    ErrorKind(
        "E0440",
        "Bid not allowed",
        403,
        "The bid is beyond a limit on size or money, too late for its market, or trading is switched off. "
        "Nothing was sent.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0441",
        "Book does not allow this entry",
        409,
        "The book of bids is append-only and keeps an order: planned, submitted, filled, settled. A bid that was "
        "submitted is not changed, and no more is filled than was submitted.",
    ),
)
