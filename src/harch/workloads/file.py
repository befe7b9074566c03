"""What does a workload file ask for? YAML in, specifications out, with every mistake by file, line and field.

Scalars follow YAML 1.2: only `true` and `false` are booleans (so the country `NO` stays text), and where a field holds
text, what is written is taken as text (`command: [sleep, 60]`). Everything is limited: size, documents, depth, aliases.
"""

from __future__ import annotations

import re

import msgspec

from harch.base.errors import HarchError
from harch.base.yaml_text import YamlRules, read_documents
from harch.workloads.check import PROBLEMS_MAX, TEXT_FIELDS, SpecProblem, problems_of
from harch.workloads.spec import WorkloadSpec

FILE_BYTES_MAX = 1024 * 1024
DOCUMENTS_MAX = 100
ALIASES_MAX = 20  # enough to share an environment between tasks, too few to make a small file huge

_HINT = "`harch schema` and docs/reference/workload.md show every field"


def parse_workloads(text: bytes, source: str) -> list[WorkloadSpec]:
    """All workloads of the file, at least one. `source` is the file's name, for the errors (E0201, E0202)."""
    specs: list[WorkloadSpec] = []
    wrong: list[tuple[int, int, SpecProblem]] = []
    for document in read_documents(text, source, _YAML):
        data = document.data
        known = [SpecProblem(path, what) for path, what in document.problems]
        if isinstance(data, dict) and (kind := data.pop("kind", "workload")) != "workload":
            known.append(SpecProblem("kind", f"`{kind}` is not known; a workload file has `workload`"))
        found = known or problems_of(data)
        wrong += [(*document.position(problem.path), problem) for problem in found]
        if not found:
            specs.append(msgspec.convert(data, WorkloadSpec))
    if wrong:
        raise _error(wrong[:PROBLEMS_MAX], source)
    if not specs:
        raise HarchError("E0201", f"{source} describes no workload", hint=_HINT)
    _check_names(specs, source)
    return specs


def _is_text(path: str) -> bool:
    """`command[1]` and `env.PORT` are text because `command` and `env` are; so is `resources.gpu_models[0]`."""
    top = re.split(r"[.\[]", path, maxsplit=1)[0]
    return top in TEXT_FIELDS or path.partition("[")[0] in TEXT_FIELDS


_YAML = YamlRules(
    code="E0201",
    bytes_max=FILE_BYTES_MAX,
    documents_max=DOCUMENTS_MAX,
    depth_max=16,
    nodes_max=100_000,
    aliases_max=ALIASES_MAX,
    is_text=_is_text,
)


def _error(wrong: list[tuple[int, int, SpecProblem]], source: str) -> HarchError:
    lines = [f"{source}:{line}:{column}: {problem}" for line, column, problem in wrong]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    details = [
        {"file": source, "line": line, "column": column, "field": problem.path, "message": problem.message}
        for line, column, problem in wrong
    ]
    return HarchError("E0201", message, hint=_HINT, field=wrong[0][2].path or None, meta={"problems": details})


def _check_names(specs: list[WorkloadSpec], source: str) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise HarchError("E0201", f"{source}: two workloads are named `{spec.name}`", hint="names are unique")
        seen.add(spec.name)
