"""What may be wrong with a request? Who sends it, what it says, resources that are not there, and limits."""

from __future__ import annotations

from harch.base.error_kind import (
    EXIT_INFEASIBLE,
    EXIT_REFUSED,
    EXIT_USAGE,
    ErrorKind,
)

REQUEST_KINDS = (
    # E01: who are you?
    ErrorKind(
        "E0101",
        "API key missing",
        401,
        "The call carries no API key. Send it as `X-API-Key: hsk_…` or `Authorization: Bearer hsk_…`. "
        "The CLI reads HARCH_API_KEY, then the key file that the first start of a hub wrote into its state folder.",
    ),
    ErrorKind("E0102", "API key not known", 401, "The key is not one of this hub's keys, or it was revoked."),
    ErrorKind(
        "E0103",
        "Role too low",
        403,
        "The key is valid, but its role does not allow this call. Roles: `viewer` reads, `user` runs work of its own "
        "tenant, `operator` runs the hub, `admin` also manages keys, `agent` is for node agents only.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0110",
        "Hub certificate not valid",
        403,
        "The certificate of a hub does not name exactly one hub of this federation, is not signed by the federation's "
        "authority, or has expired. Certificates last seven days and are renewed daily over the links between hubs; a "
        "hub that was away for longer joins again with a new invitation.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0111",
        "Hub is not a member",
        403,
        "The federation does not know this hub, has retired it, or its member record is not signed by the authority.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0112",
        "Invitation not valid",
        403,
        "An invitation is good for one hub, once, until it expires. `harch hub invite` on the hub that holds the "
        "authority makes a new one.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0113",
        "Hub has no identity",
        409,
        "The hub's state folder holds no keys and certificate of a federation. `harch hub init` founds a federation, "
        "`harch hub join` enters one, and `harch up` does it for all hubs of a fleet.",
    ),
    ErrorKind(
        "E0114",
        "Hub has an identity already",
        409,
        "The hub's state folder already holds the keys of a federation. They are never overwritten.",
    ),
    ErrorKind(
        "E0115",
        "Key belongs to another agent",
        403,
        "A key with the role `agent` belongs to the agent that used it first, or for which it was made, with the nodes "
        "that it named then. Another agent needs a key of its own, so that one node cannot pass for another. An admin "
        "releases a key with `DELETE /v1/auth/keys/ID/agents`; it then belongs to the next agent that uses it.",
        EXIT_REFUSED,
    ),
    # E02: what did you say?
    ErrorKind(
        "E0201", "Input not valid", 400, "A field is missing, unknown, of the wrong type or out of range.", EXIT_USAGE
    ),
    ErrorKind("E0202", "Input not readable", 400, "The text is not well-formed YAML, JSON, TOML or HTTP.", EXIT_USAGE),
    ErrorKind(
        "E0203",
        "GPU model not known",
        400,
        "No hub has GPUs of this model. `harch gpus --models` lists them.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0204",
        "Body too large",
        413,
        "Request bodies are limited, so that one client cannot fill the memory.",
        EXIT_USAGE,
    ),
    ErrorKind("E0205", "Fleet file not valid", 400, "The fleet file describes an impossible fleet.", EXIT_USAGE),
    ErrorKind(
        "E0206",
        "Idempotency key used for another request",
        409,
        "The same Idempotency-Key came with another body. A key names one request for 24 hours.",
    ),
    ErrorKind("E0207", "Path not known", 404, "The API has no such path. `/docs` lists all of them.", EXIT_USAGE),
    ErrorKind("E0208", "Method not allowed", 405, "The path exists, but not for this HTTP method.", EXIT_USAGE),
    ErrorKind(
        "E0209",
        "Request head too large",
        431,
        "The request line and headers have more bytes, or are more in number, than a listener accepts from an "
        "unauthenticated client. Nothing of the request was processed, and the connection is closed.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0210",
        "Request too slow",
        408,
        "The headers or the body did not arrive in time, so the connection is closed. A slow link has seconds for the "
        "headers and, for the body, more time with each byte that arrives.",
    ),
    ErrorKind(
        "E0220",
        "Carbon file not valid",
        400,
        "The file of carbon sources has an impossible value, or a key that it names is missing. The message "
        "names every place and its fix.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0221",
        "Quantities of different kinds",
        400,
        "Quantities were added, compared or interchanged that do not mean the same: average and marginal, "
        "lifecycle and direct, by location and by contract, two currencies, or a unit of something else. Their numbers "
        "look alike, and a wrong sum of them would go unnoticed.",
        EXIT_USAGE,
    ),
    ErrorKind("E0240", "Tariff not valid", 400, "The tariff file describes an impossible contract.", EXIT_USAGE),
    ErrorKind(
        "E0241",
        "Exchange rate not known",
        400,
        "An amount would have to be converted into another currency, and no rate is configured. Amounts of two "
        "currencies are never added.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0242",
        "Energy series not valid",
        400,
        "A series of energy, prices or intensities has gaps, impossible values or the wrong length. Nothing is billed "
        "or planned on it.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0250",
        "Pipeline not valid",
        400,
        "The message names every place of the file, what is wrong there and how to fix it. Nothing was deployed.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0243",
        "Energy file not valid",
        400,
        "The energy file describes an impossible site, or names an unknown contract or market adapter. "
        "The message names every mistake with its place; a hub does not start with such a file.",
        EXIT_USAGE,
    ),
)


# What may be wrong with what is asked for? Things that are not there, and limits.


RESOURCE_KINDS = (
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
        "The agent shares only the folders that it is configured to share.",
        EXIT_REFUSED,
    ),
    ErrorKind("E0310", "Region not found", 404, "No hub of the fleet is in this region."),
    ErrorKind("E0311", "Hardware not found", 404, "The hub has no node, GPU, rack or cooling zone of this id."),
    ErrorKind(
        "E0312",
        "Sandbox required",
        503,
        "This agent or hub is set to run work in a sandbox only, and bubblewrap is not installed or does not work. "
        "Nothing runs without it. `harch doctor` shows how to fix it.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0340",
        "No plan can supply this load",
        409,
        "Own plants, battery, agreements and the largest import together cannot supply the requested load. "
        "The message says when and how much is missing.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0341",
        "Solver gave no plan",
        500,
        "The optimiser is not installed (`pip install 'harch[energy]'`), ran out of time or failed. The "
        "self-consumption rule is used instead, and the plan notes it.",
    ),
    ErrorKind("E0350", "Tenant not known", 404, "No key, work or data of this tenant was ever at this hub."),
    ErrorKind(
        "E0351",
        "Subject not known",
        404,
        "Nothing in the queried records has this id or name. An empty answer would look like an all-clear, so "
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
        "many gets no more once only the slots reserved for keys with few are left.",
    ),
    ErrorKind(
        "E0404",
        "Listener full",
        503,
        "The listener's limit of connections is reached, in all or from this address, and all of them are being "
        "served; or too many requests were sent ahead on one connection. The connection is closed.",
    ),
    ErrorKind(
        "E0405",
        "Too many streams open",
        503,
        "The hub's limit of event streams, followed logs or exports is reached. No kind uses slots "
        "of another. `Retry-After` says when to retry; pages are served meanwhile.",
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
