"""`python -m harch.testing.promqltest FOLDER`: how many evaluations pass? `--help` lists the ways to ask."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from harch.testing.promqltest.commands import QueryTarget
from harch.testing.promqltest.runner import FileOutcome, as_json, as_table, run_file


def main(arguments: list[str] | None = None) -> int:
    """0 if everything passed, 1 otherwise, 2 where there is nothing to run."""
    parser = argparse.ArgumentParser(prog="python -m harch.testing.promqltest", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder of .test files, or one of them")
    parser.add_argument("--url", help="a server with Prometheus' API; without it, the engine in this process")
    parser.add_argument(
        "--store", choices=("memory", "head", "blocks"), default="memory", help="where samples are kept"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--only", default="", help="run only files with this in their name")
    parser.add_argument("--failures", type=int, default=20, help="maximum failures to print per file (20)")
    chosen = parser.parse_args(arguments)
    files = sorted(chosen.folder.glob("*.test")) if chosen.folder.is_dir() else [chosen.folder]
    files = [path for path in files if chosen.only in path.name and path.exists()]
    if not files:
        print(f"no .test file in {chosen.folder}", file=sys.stderr)
        return 2
    outcomes: list[FileOutcome] = []
    with TemporaryDirectory(prefix="promqltest-") as folder:
        target = _target(chosen.url, chosen.store, Path(folder))
        try:
            for path in files:
                outcomes.append(run_file(path, target))
                if not chosen.json:
                    print(as_table(outcomes[-1:], failures=chosen.failures, totals=False), flush=True)
        finally:
            target.close()
    print(json.dumps(as_json(outcomes)) if chosen.json else as_table(outcomes, failures=0))
    return 0 if all(outcome.counts()[0] == outcome.counts()[1] and not outcome.broken for outcome in outcomes) else 1


def _target(url: str | None, store: str, folder: Path) -> QueryTarget:
    if url:
        from harch.testing.promqltest.server import ServerTarget

        return ServerTarget(url)
    if store != "memory":
        from harch.testing.promqltest.engine import StoreTarget

        return StoreTarget(folder, in_blocks=store == "blocks")
    from harch.testing.promqltest.engine import EngineTarget

    return EngineTarget()


if __name__ == "__main__":
    raise SystemExit(main())
