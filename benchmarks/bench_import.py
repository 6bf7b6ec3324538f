"""What `import tessera` costs beyond `import numpy`.

Every sample is a fresh interpreter that has imported NumPy already, because whoever imports
tessera pays for NumPy anyway. One unmeasured run comes first: it writes the bytecode files.

    python benchmarks/bench_import.py --runs 21 --limit 60
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

SAMPLE = """
import time
import numpy
start = time.perf_counter()
import {module}
print(1e3 * (time.perf_counter() - start))
"""


def sample(module: str) -> float:
    """Milliseconds that importing `module` takes in one fresh interpreter with NumPy loaded."""
    command = [sys.executable, "-c", SAMPLE.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"importing {module} failed:\n{done.stderr}")
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=11, help="fresh interpreters to measure")
    parser.add_argument("--module", default="tessera", help="what to import")
    parser.add_argument("--limit", type=float, help="fail when the median is above this, in ms")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error("--runs must be at least 1")

    sample(args.module)
    times = sorted(sample(args.module) for _ in range(args.runs))
    median = statistics.median(times)
    print(
        f"import {args.module}, beyond numpy: median {median:.1f} ms "
        f"(min {times[0]:.1f}, max {times[-1]:.1f}, {args.runs} runs)"
    )
    return int(args.limit is not None and median > args.limit)


if __name__ == "__main__":
    raise SystemExit(main())
