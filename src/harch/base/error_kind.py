"""What does an error code mean? One entry of the registry, and the exit codes of the CLI."""

from __future__ import annotations

from dataclasses import dataclass

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
