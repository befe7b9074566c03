"""How did it go? Counts per file, those with native histograms apart, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from harch.testing.promqltest.runner import FileOutcome


def as_json(outcomes: Sequence[FileOutcome]) -> dict[str, object]:
    """Everything, for programs: totals, files, every evaluation that failed."""
    return {
        "plain": _counts(outcomes, histograms=False),
        "native_histograms": _counts(outcomes, histograms=True),
        "all": _counts(outcomes, histograms=None),
        "files": [_file(outcome) for outcome in outcomes],
    }


def _counts(outcomes: Sequence[FileOutcome], *, histograms: bool | None) -> dict[str, float]:
    pairs = [outcome.counts(histograms=histograms) for outcome in outcomes]
    passed, total = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return {"passed": passed, "evals": total, "percent": round(100 * passed / total, 2) if total else 100.0}


def _file(outcome: FileOutcome) -> dict[str, object]:
    failed = [
        {"line": one.line, "query": one.query, "variant": one.variant, "failure": one.failure}
        for one in outcome.evals
        if not one.passed
    ]
    return {
        "name": outcome.name,
        "broken": outcome.broken,
        "plain": _counts([outcome], histograms=False),
        "native_histograms": _counts([outcome], histograms=True),
        "failed": failed,
    }


def as_table(outcomes: Sequence[FileOutcome], *, failures: int, totals: bool = True) -> str:
    """A line a file: passed and all, without and with native histograms; below it, its first failures."""
    lines = []
    for outcome in outcomes:
        if not totals:
            lines.append(_line(outcome.name, outcome.counts(histograms=False), outcome.counts(histograms=True)))
        if outcome.broken:
            lines.append(f"    broken: {outcome.broken}")
        wrong = [one for one in outcome.evals if not one.passed]
        for one in wrong[:failures]:
            lines.append(f"    line {one.line}: {one.query}")
            if one.variant:
                lines.append(f"        asked as: {one.variant}")
            lines.append(f"        {one.failure}")
        if failures and len(wrong) > failures:
            lines.append(f"    … and {len(wrong) - failures} more")
    if totals:
        plain, native = _counts(outcomes, histograms=False), _counts(outcomes, histograms=True)
        lines.append(
            f"without native histograms {plain['passed']:.0f} of {plain['evals']:.0f} ({plain['percent']} %), "
            f"with {native['passed']:.0f} of {native['evals']:.0f} ({native['percent']} %)"
        )
    return "\n".join(lines)


def _line(name: str, plain: tuple[int, int], native: tuple[int, int]) -> str:
    return f"{name:32} {plain[0]:5}/{plain[1]:<5} native {native[0]:5}/{native[1]:<5}"
