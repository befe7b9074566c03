"""What may go wrong with the bytes that work brings and leaves?"""

from __future__ import annotations

from harch.base.error_kind import EXIT_INFEASIBLE, EXIT_REFUSED, EXIT_USAGE, ErrorKind

KINDS = (
    # E11: content
    ErrorKind(
        "E1101",
        "Chunk damaged",
        400,
        "The bytes of a chunk are not what its name, a hash, says. On an upload nothing was stored: send it again. "
        "In a store, `harch content check` lists what is damaged.",
    ),
    ErrorKind(
        "E1102",
        "Content not at this hub",
        404,
        "The hub does not have these bytes, and no hub that may send them does. They may have been removed at the end "
        "of their retention.",
    ),
    ErrorKind(
        "E1103",
        "Content quota exceeded",
        413,
        "The tenant would keep more at this hub than it may. Remove data or artifacts, or ask the operator for more.",
    ),
    ErrorKind(
        "E1104",
        "Content incomplete",
        409,
        "A tree names chunks that the hub does not have. Clients send those and try again by themselves.",
    ),
    ErrorKind(
        "E1105",
        "Not a valid tree",
        400,
        "The list of files cannot be unpacked safely: a path leads out of its folder, is there twice, or is no path.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E1106",
        "Folder cannot be packed",
        400,
        "A file cannot be read, is no regular file, folder or link, or changed while it was being read.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E1107",
        "Files look like secrets",
        400,
        "The folder holds files such as private keys or `.env`, which would become readable wherever the work runs. "
        "Store secrets with `harch secret`, exclude the files in `.harchignore`, or name each with `--include-secret`.",
        EXIT_REFUSED,
    ),
    ErrorKind(
        "E1108",
        "Folder too large",
        413,
        "The folder is larger than the limit for code. Exclude data and results in `.harchignore`, register data with "
        "`harch data add NAME --files DIR`, or raise the limit with `--code-limit`.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E1110",
        "Content store not usable",
        503,
        "The folder or bucket in which the hub keeps content cannot be read or written.",
    ),
    ErrorKind("E1111", "No such file", 404, "The working folder of the task has no file or folder of this path."),
    ErrorKind(
        "E1112",
        "Files no longer kept",
        410,
        "The working folder of the task is gone: it was scrubbed, or made room for newer ones. Declare `artifacts` for "
        "what has to stay.",
    ),
    ErrorKind(
        "E1113",
        "Content could not be prepared",
        503,
        "The node could not fetch or unpack what the work needs, or could not store what it left.",
    ),
    ErrorKind(
        "E1120",
        "Environment could not be built",
        400,
        "The packages of the work could not be installed. `harch logs ID --preparation` shows why.",
    ),
    ErrorKind(
        "E1121",
        "Nodes cannot build environments",
        400,
        "No agent of this hub has `uv`, which builds environments.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E1122",
        "Python version not available",
        400,
        "The node has no Python of the requested version, and downloads none.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E1130",
        "Not an image reference",
        400,
        "An image is named by registry, repository and tag or digest, or by a data object that holds it.",
        EXIT_USAGE,
    ),
    ErrorKind(
        "E1131",
        "Nodes cannot run images",
        400,
        "No agent of this hub has the programs that fetch, unpack and confine images.",
        EXIT_INFEASIBLE,
    ),
    ErrorKind(
        "E1132",
        "Image could not be fetched",
        502,
        "The registry does not have the image, does not answer, or asks for credentials.",
    ),
    ErrorKind("E1133", "Image could not be unpacked", 400, "The image is damaged, or not made for this machine."),
    ErrorKind(
        "E1140",
        "Content could not be transferred",
        503,
        "The bulk channel to the other hub failed. What has arrived is kept; the next attempt sends the rest.",
    ),
    ErrorKind(
        "E1141",
        "No link may carry this",
        409,
        "Every link to the other hub refuses this kind of transfer, by its class or its limits.",
        EXIT_INFEASIBLE,
    ),
)
