"""What may be wrong with a request? Who asks, and what they say."""

from __future__ import annotations

from harch.base.error_kind import (
    EXIT_REFUSED,
    EXIT_USAGE,
    ErrorKind,
)

KINDS = (
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
        "frees a key with `DELETE /v1/auth/keys/ID/agents`; the next agent that shows it has it then.",
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
    ErrorKind("E0205", "Fleet file not valid", 400, "The fleet file describes something that cannot be.", EXIT_USAGE),
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
        "The request line and headers have more bytes, or are more in number, than a listener takes from somebody "
        "whom it does not know yet. Nothing of the request was looked at, and the connection is closed.",
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
        "The file of carbon sources says something that cannot be, or a key that it names is not there. The message "
        "names every place and its fix.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0221",
        "Figures of different kinds",
        400,
        "Figures were added, compared or given for each other that do not mean the same: average and marginal, "
        "lifecycle and direct, by location and by contract, two currencies, or a unit of something else. Their numbers "
        "look alike, and a sum of them would be wrong without anybody noticing.",
        EXIT_USAGE,
    ),
    ErrorKind("E0240", "Tariff not valid", 400, "The tariff file describes a contract that cannot be.", EXIT_USAGE),
    ErrorKind(
        "E0241",
        "Exchange rate not known",
        400,
        "An amount would have to be converted into another currency, and nobody stated the rate. Amounts of two "
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
        "The message names every place of the file, what is wrong there and how to mend it. Nothing was deployed.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0243",
        "Energy file not valid",
        400,
        "The energy file describes a site that cannot be, or names a contract or a market adapter that is not there. "
        "The message names every mistake with its place; a hub does not start with such a file.",
        EXIT_USAGE,
    ),
)
