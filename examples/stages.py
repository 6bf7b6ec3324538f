"""One small function at every stage, from array code to instructions.

    python examples/stages.py             all stages
    python examples/stages.py tile asm    some of them
    python examples/stages.py --level x86-64-v3

`docs/stages.md` explains how to read them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tessera as ts
from tessera.graph import interp as graph_interp
from tessera.schedule import interp as schedule_interp
from tessera.target import interp as target_interp
from tessera.tile import interp as tile_interp

STAGES = ("graph", "schedule", "tile", "target", "llvm", "asm")


@ts.jit
def standardize(x: Any) -> Any:
    """Rows with mean 0 and variance 1."""
    apart = x - ts.mean(x, axis=1, keepdims=True)
    return apart / ts.sqrt(ts.mean(apart**2, axis=1, keepdims=True) + 1e-5)


def interpreted(lowered: Any, x: np.ndarray) -> dict[str, np.ndarray]:
    """What each form gives when its NumPy interpreter runs it."""
    results = {
        "graph": graph_interp.run(lowered.graph, [x])[0],
        "schedule": schedule_interp.run(lowered.schedule, [x])[0],
    }
    for name, interp in (("tile", tile_interp), ("target", target_interp)):
        results[name] = np.empty(x.shape, x.dtype)
        module = getattr(lowered, name)
        interp.run_module(module, [x], [results[name]], arena_bytes=lowered.arena)
    return results


def main() -> None:
    """Prints the stages, the reasons, and what the interpreters find."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"among {', '.join(STAGES)}")
    parser.add_argument("--level", help="the CPU to compile for, by default this one")
    args = parser.parse_args()
    unknown = sorted(set(args.stages) - set(STAGES))
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}")

    x = np.random.default_rng(0).normal(size=(16, 40)).astype(np.float32)
    with ts.config.update(cpu_level=args.level):
        lowered = standardize.lower(x)
    for stage in args.stages or STAGES:
        print(f"--- {stage}\n{lowered.stage(stage)}\n")

    print("--- kernels, and why each is one")
    for kernel in lowered.kernels():
        print(f"  {kernel}")
    print("--- what was decided about each value")
    print(*[f"  {line}" for line in lowered.why().splitlines()], sep="\n")

    print("--- largest difference to the compiled function")
    compiled = np.asarray(standardize(x))
    worst = 0.0
    for name, found in interpreted(lowered, x).items():
        apart = float(np.max(np.abs(found - compiled)))
        worst = max(worst, apart)
        print(f"  {name:9} {apart:.1e}")
    if not worst < 1e-4:
        raise SystemExit("an interpreter disagrees")


if __name__ == "__main__":
    main()
