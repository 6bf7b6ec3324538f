"""The CPU suite: Tessera beside JAX, PyTorch (eager and compiled), Numba and NumPy, in one run.

A process for each contender and number of threads stays warm; they take turns, so that neither
runtimes nor settings disturb each other. Every result is checked against float64 before it is
timed. Prints medians, quartiles, ratios (a peer's time over ours: above 1 means that Tessera is
faster) and each case's floor. A peer that is not installed is left out.

    make bench                                         # everything: about an hour
    python benchmarks/run.py --quick                   # one size of each, short: a few minutes
    python benchmarks/run.py softmax "gemm f32"        # cases whose names contain one of these
    python benchmarks/run.py --contenders tessera,torch --threads 2 --html page.html
    python benchmarks/run.py --before ../other softmax    # beside the version in another folder
    python benchmarks/run.py --list
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from cpu import libraries, report, running, suite


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="families or parts of names; none is everything")
    parser.add_argument("--contenders", help="separated by commas; all but other versions")
    parser.add_argument("--before", type=Path, help="only beside the version in this folder")
    parser.add_argument("--threads", default="2,1", help="thread counts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one size of most, half a second each")
    parser.add_argument("--budget", type=float, help="seconds for a case and a thread count (3)")
    parser.add_argument("--limit", type=float, default=120, help="seconds to prepare a contender")
    parser.add_argument(
        "--busy",
        action="store_true",
        help="for a machine that others use: one thread, by the processor's time",
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--html", type=Path, help="write a page with plots here")
    parser.add_argument("--markdown", type=Path, help="write a table here")
    parser.add_argument("--merge", type=Path, help="figures of before, kept for other cases")
    parser.add_argument("--check", action="store_true", help="fail where a bar is not kept")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    found = parser.parse_args()
    if found.before and not (found.before / "tessera").is_dir():
        parser.error(f"--before: there is no tessera in {found.before}")
    if found.contenders is None:
        others = [name for name in libraries.CONTENDERS if name != "tessera before"]
        found.contenders = ",".join(others) if not found.before else "tessera,tessera before"
    if found.before:
        os.environ[libraries.BEFORE] = str(found.before.resolve())
    unknown = set(found.contenders.split(",")) - set(libraries.CONTENDERS)
    if unknown:
        parser.error(f"no contender {', '.join(unknown)}; there are {libraries.CONTENDERS}")
    if "tessera before" in found.contenders.split(",") and not found.before:
        parser.error("--contenders: 'tessera before' needs --before FOLDER")
    return found


def measure(
    runner: running.Runner, cases: list[suite.Case], threads: list[int], rows: list[running.Row]
) -> None:
    """Measures all cases, telling of each, and adds them to the rows."""
    absent: set[str] = set()
    for case in cases:
        for count in threads:
            if case.program.threads is not None and count not in case.program.threads:
                continue
            rows.append(runner.measure(case, count))
            for name, why in runner.missing.items():
                if name not in absent:
                    print(f"left out: {name} ({why})", flush=True)
                    absent.add(name)
            print(report.line(rows[-1]), flush=True)


def main() -> int:
    """Runs the suite."""
    asked = options()
    cases = suite.cases(asked.words, asked.quick)
    if asked.list:
        print("\n".join(f"{case.program.family:12} {case.label}" for case in cases))
        return 0
    if not cases:
        print(f"no case has one of these words: {' '.join(asked.words)}", file=sys.stderr)
        return 1
    budget = asked.budget or (0.5 if asked.quick else 3.0)
    runner = running.Runner(asked.contenders.split(","), budget, asked.limit, asked.busy)
    threads = [1] if asked.busy else [int(part) for part in asked.threads.split(",")]
    print(report.machine(), flush=True)
    rows: list[running.Row] = []
    try:
        measure(runner, cases, threads, rows)
        runner.settle()
    except KeyboardInterrupt:
        print("stopped; what was measured so far follows")
    finally:
        runner.close()
    if asked.merge and asked.merge.exists():
        known = {(row.case, row.threads) for row in rows}
        before = report.load_rows(json.loads(asked.merge.read_text()))
        rows = [row for row in before if (row.case, row.threads) not in known] + rows
        order = {case.label: k for k, case in enumerate(suite.cases([], False))}
        rows.sort(key=lambda row: (order.get(row.case, len(order)), -row.threads))
    print("\n".join(["", *report.summary(rows)]))
    late = suite.late(rows)
    print("\n".join(late) or "all bars are kept")
    texts = (
        (asked.json, lambda: report.as_text(report.record(rows, runner.roofs))),
        (asked.html, lambda: report.page(rows, runner.roofs)),
        (asked.markdown, lambda: report.markdown(rows)),
    )
    for path, text in texts:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text())
    return 1 if late and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
